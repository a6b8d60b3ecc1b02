#include "src/bench/shuffle/shuffle_records.h"

namespace verbena::bench {

bool RecordCheck::take(uint32_t sender, std::string_view record) {
  RecordStamp stamp;
  if (record.size() != expected_.size() || record.size() < kLeastRecordBytes) {
    ++mismatches_;
    return true;
  }
  std::memcpy(&stamp, record.data(), sizeof(stamp));
  const bool is_last = (stamp.phase & kLastRecord) != 0;
  if (stamp.sender != sender || sender >= senders_.size() ||
      (stamp.phase & ~kLastRecord) != phase_ || senders_[sender].ended) {
    ++mismatches_;
    return !is_last;
  }
  Seen& seen = senders_[sender];
  if (is_last) {
    LastRecord last;
    std::memcpy(&last, record.data(), sizeof(last));
    seen.sent = last.sent;
    seen.ended = true;
    return false;
  }
  fill_record(expected_, stamp);
  if (partition_of(record_key_hash(stamp.key), receivers_) != receiver_ ||
      record != std::string_view(expected_.data(), expected_.size())) {
    ++mismatches_;
  }
  seen.came.add(stamp.number);
  return true;
}

uint64_t RecordCheck::mismatches() const {
  const auto wrong = std::ranges::count_if(
      senders_, [](const Seen& seen) { return !seen.ended || seen.came != seen.sent; });
  return mismatches_ + static_cast<uint64_t>(wrong);
}

}  // namespace verbena::bench
