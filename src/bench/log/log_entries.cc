#include "src/bench/log/log_entries.h"

namespace verbena::bench {

void EntryCheck::take(LogPosition position, std::string_view entry) {
  EntryStamp stamp;
  if (entry.size() >= sizeof(stamp)) std::memcpy(&stamp, entry.data(), sizeof(stamp));
  const bool is_last = (stamp.phase & kLastEntry) != 0;
  const uint32_t phase = stamp.phase & ~kLastEntry;
  if (phase < phase_ && phase > 0) return;
  if (entry.size() < kLeastEntryBytes || stamp.writer >= writers_.size() || phase != phase_ ||
      writers_[stamp.writer].ended || (position <= position_ && position_ != 0)) {
    ++mismatches_;
    return;
  }
  position_ = position;
  Seen& writer = writers_[stamp.writer];
  if (is_last) {
    LastEntry last;
    std::memcpy(&last, entry.data(), sizeof(last));
    if (verify_ && last.acknowledged != writer.sum) ++mismatches_;
    writer.ended = true;
    --running_;
    return;
  }
  ++entries_;
  if (!verify_) return;
  fill_entry(expected_, stamp);
  if (stamp.number < writer.next_number ||
      entry != std::string_view(expected_.data(), expected_.size())) {
    ++mismatches_;
    return;
  }
  writer.next_number = stamp.number + 1;
  writer.sum.add(position, stamp.number);
}

}  // namespace verbena::bench
