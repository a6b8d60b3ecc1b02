#include "src/bench/remote/sequencer_operation.h"

#include "src/bench/remote/remote_settings.h"

namespace verbena::bench {

void SequencerOperation::end(Report& report) const {
  report.mismatches += mismatches_;
  report.counters[kCountedOperations] = taken_;
  if (thread_.settings().version != WordVersion::kLocal) report.counters[kRoundTrips] = taken_;
}

void SequencerOperation::check(uint64_t number) {
  const Result<bool> is_mine = claim(number);
  if (!is_mine.ok()) return fail(is_mine.status());
  if (!*is_mine) ++mismatches_;
}

Result<bool> SequencerOperation::claim(uint64_t number) const {
  if (number % range_ != 0) return false;  // it overlaps another range
  const uint64_t mine = number / range_ + 1;
  const uint64_t place = kClaimsOffset + mine % kClaims * sizeof(uint64_t);
  const SharedWords words(thread_);
  VERBENA_ASSIGN_OR_RETURN(uint64_t seen, words.load(place));
  while (seen < mine) {
    VERBENA_ASSIGN_OR_RETURN(const uint64_t before, words.compare_and_swap(place, seen, mine));
    if (before == seen) return true;
    seen = before;
  }
  return seen != mine;
}

}  // namespace verbena::bench
