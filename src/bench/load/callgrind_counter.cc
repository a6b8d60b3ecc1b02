#include "src/bench/load/callgrind_counter.h"

#include <fmt/format.h>

#include "src/bench/load/callgrind_dump.h"

namespace verbena::bench {

namespace {

// The first ones bind functions and touch memory; then a few are enough, since each run of the same
// instructions counts the same.
constexpr uint32_t kSkippedPolls = 16;
constexpr uint32_t kKeptPolls = 64;

#if VERBENA_CALLGRIND
void write_dump(Side side, uint32_t messages) {
  char label[64];
  *fmt::format_to_n(label, sizeof(label) - 1, "{} {} {}", kDumpLabel,
                    kDumpSides[static_cast<size_t>(side)], messages)
       .out = '\0';
  CALLGRIND_DUMP_STATS_AT(label);
}
#endif

}  // namespace

#if VERBENA_CALLGRIND

bool CallgrindCounter::running() { return RUNNING_ON_VALGRIND != 0; }

CallgrindCounter::CallgrindCounter(Side side) : side_(side) {
  CALLGRIND_ZERO_STATS;
  begin();
  CALLGRIND_TOGGLE_COLLECT;
  write_dump(side_, 0);
}

void CallgrindCounter::keep_or_forget(uint32_t messages) {
  if (messages > 0) ++with_messages_;
  if (messages > 0 && with_messages_ > kSkippedPolls &&
      with_messages_ <= kSkippedPolls + kKeptPolls) {
    write_dump(side_, messages);
  } else {
    CALLGRIND_ZERO_STATS;
  }
}

#else

bool CallgrindCounter::running() { return false; }
CallgrindCounter::CallgrindCounter(Side side) : side_(side) {}
void CallgrindCounter::keep_or_forget(uint32_t /*messages*/) {}

#endif

}  // namespace verbena::bench
