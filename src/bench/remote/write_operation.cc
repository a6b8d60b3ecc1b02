#include "src/bench/remote/write_operation.h"

#include <algorithm>

#include "src/bench/load/payload_pattern.h"
#include "src/bench/remote/remote_settings.h"

namespace verbena::bench {

namespace {

// Read back at once.
constexpr uint64_t kReadBytes = 64 << 10;

PayloadPattern pattern_of(uint64_t key, uint32_t thread, uint64_t place, uint32_t number) {
  return {key, Direction::kRequest, thread, place << 32 | number};
}

}  // namespace

WrittenPart::WrittenPart(const RemoteThread& thread)
    : sockets_(thread.settings().sockets),
      socket_bytes_(socket_bytes(thread.point())),
      offset_bytes_(sockets_ == 1 ? part_offset(thread.point(), thread.number)
                                  : thread.number * share_bytes(thread.point())),
      size_bytes_(thread.settings().size_bytes),
      key_(thread.job->setup.run_key),
      thread_(thread.number),
      count_(thread.settings().region_bytes / size_bytes_),
      places_(thread.settings().pattern, count_, thread.seed()),
      value_(size_bytes_) {}

void WrittenPart::begin(bool verify) { numbers_.assign(verify ? count_ : 0, 0); }

void WrittenPart::fill(uint64_t place) {
  pattern_of(key_, thread_, place, ++numbers_[place]).fill(value_);
}

Result<uint64_t> WrittenPart::mismatches(
    const std::function<Status(uint64_t, std::span<char>)>& read) const {
  uint64_t found = 0;
  const uint64_t at_once = sockets_ == 1 ? std::max<uint64_t>(kReadBytes / size_bytes_, 1) : 1;
  std::vector<char> bytes(at_once * size_bytes_);
  for (uint64_t first = 0; first < numbers_.size(); first += at_once) {
    const uint64_t count = std::min(at_once, numbers_.size() - first);
    VERBENA_RETURN_IF_ERROR(read(
        offset_of(first), std::span<char>(bytes).first(static_cast<size_t>(count) * size_bytes_)));
    for (uint64_t i = 0; i < count; ++i) {
      const uint32_t number = numbers_[first + i];
      const std::span<const char> value(bytes.data() + i * size_bytes_, size_bytes_);
      const bool right = pattern_of(key_, thread_, first + i, number).matches(value);
      if (number != 0 && !right) ++found;
    }
  }
  return found;
}

void WriteOperation::begin_writes(bool verify) {
  part_.begin(verify);
  verify_ = verify;
  written_ = 0;
  round_trips_before_ = round_trips();
}

void WriteOperation::end_writes(Report& report) {
  report.counters[kCountedOperations] = written_;
  report.counters[kRoundTrips] = round_trips() - round_trips_before_;
  if (!verify_ || !status_.ok()) return;
  const Result<uint64_t> wrong =
      part_.mismatches([this](uint64_t offset_bytes, std::span<char> into) {
        return region_.read(offset_bytes, into);
      });
  if (!wrong.ok()) return fail(wrong.status());
  report.mismatches += *wrong;
}

}  // namespace verbena::bench
