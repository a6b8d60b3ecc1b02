#include <algorithm>
#include <cassert>

#include "shuffle/receiver.h"
#include "verbena/data_path.h"

namespace verbena {

// Makes spans, and reads what they tell about a lane.
struct ShuffleSpanAccess {
  static ShuffleSpan make(uint32_t sender, const shuffle_app::StreamEnd& begin, const char* data) {
    static_assert(ShuffleSpan::kMore == shuffle_app::kMore);
    ShuffleSpan span;
    span.sender_ = sender;
    span.first_entry_ = begin.entries;
    span.data_ = data;
    return span;
  }
  static void set_records(ShuffleSpan* span, uint32_t count, uint64_t size_bytes) {
    span->count_ = count;
    span->size_bytes_ = size_bytes;
  }
  static void set_lengths(ShuffleSpan* span, const uint32_t* lengths) { span->lengths_ = lengths; }
  static void set_length(ShuffleSpan* span, uint32_t bytes) { span->record_bytes_ = bytes; }
  static void set_end(ShuffleSpan* span, const shuffle_app::StreamEnd& end) {
    span->end_entry_ = end.entries;
    span->end_position_ = end.position;
  }
  static uint64_t first_entry(const ShuffleSpan& span) { return span.first_entry_; }
  static uint64_t end_entry(const ShuffleSpan& span) { return span.end_entry_; }
  static uint64_t end_position(const ShuffleSpan& span) { return span.end_position_; }
};

namespace shuffle_app {
namespace {

using Access = ShuffleSpanAccess;

// Of a buffer, in one span: so that the sender gets space while the receiver's user works.
constexpr uint64_t kSpansPerBuffer = 4;

}  // namespace

bool Receiver::learn(Lane& lane) {
  // Acquires what the sender wrote before it: lengths and records.
  const uint64_t announced = poll_counter(lane.announced, lane.known_entries);
  if (announced == lane.known_entries) return true;
  if (announced < lane.known_entries || announced - lane.released_entries > shape_.max_entries)
      [[unlikely]] {
    refuse_lane(lane, "it announced " + std::to_string(announced) + " entries after " +
                          std::to_string(lane.known_entries) + ", of which " +
                          std::to_string(lane.released_entries) + " are released and " +
                          std::to_string(shape_.max_entries) + " fit");
    return false;
  }
  if (shape_.has_lengths()) {
    while (lane.known_entries < announced) {
      const uint64_t place = lane.known_entries % shape_.max_entries;
      const uint64_t count = std::min(announced - lane.known_entries, shape_.max_entries - place);
      copy_bytes(lane.lengths.data() + place, lane.ring_of_lengths + place * sizeof(uint32_t),
                 count * sizeof(uint32_t));
      lane.known_entries += count;
    }
  }
  lane.known_entries = announced;
  return true;
}

ShuffleSpan Receiver::take_array(Lane& lane, uint32_t number) {
  StreamEnd& end = lane.handed_out;
  const uint64_t until_end = (shape_.buffer_bytes - end.offset) / shape_.record_bytes;
  const uint64_t count =
      std::min({lane.known_entries - end.entries, until_end, shape_.max_entries / kSpansPerBuffer});
  ShuffleSpan span = Access::make(number, end, lane.ring_of_records + end.offset);
  const uint64_t bytes = count * shape_.record_bytes;
  end.add(count, bytes, shape_.buffer_bytes);
  Access::set_length(&span, shape_.record_bytes);
  Access::set_records(&span, static_cast<uint32_t>(count), bytes);
  lane.received.records += count;
  return span;
}

ShuffleSpan Receiver::take_records(Lane& lane, uint32_t number) {
  StreamEnd& end = lane.handed_out;
  const StreamEnd begin = end;
  if (lane.lengths[end.entries % shape_.max_entries] == kSkip) end.skip(shape_.buffer_bytes);
  // What the sender may have used behind it.
  const uint64_t room_bytes =
      shape_.buffer_bytes - std::min(end.position - lane.released_position, shape_.buffer_bytes);
  const uint64_t place = end.entries % shape_.max_entries;
  const uint64_t most_count =
      std::min(lane.known_entries - end.entries, shape_.max_entries - place);
  const uint64_t most_bytes = shape_.buffer_bytes / kSpansPerBuffer;
  const uint32_t* const lengths = lane.lengths.data() + place;
  ShuffleSpan span = Access::make(number, begin, lane.ring_of_records + end.offset);
  uint64_t bytes = 0;
  uint32_t count = 0;
  uint32_t parts = 0;
  for (; count < most_count && lengths[count] != kSkip; ++count) {
    const uint32_t length = lengths[count] & ~kMore;
    if (bytes + length > most_bytes || !end.fits(bytes + length, shape_.buffer_bytes)) break;
    bytes += length;
    parts += lengths[count] >> 31;
  }
  if (count == 0 || bytes > room_bytes) [[unlikely]] {
    refuse_lane(lane, "its next entry is not in its buffer of " +
                          std::to_string(shape_.buffer_bytes) + " bytes");
    return {};
  }
  end.add(count, bytes, shape_.buffer_bytes);
  Access::set_lengths(&span, lengths);
  Access::set_records(&span, count, bytes);
  lane.received.records += count - parts;
  return span;
}

ShuffleSpan Receiver::take(uint32_t number) {
  Lane& lane = lanes_[number];
  if (!learn(lane) || lane.known_entries == lane.handed_out.entries) return {};
  ShuffleSpan span = shape_.has_lengths() ? take_records(lane, number) : take_array(lane, number);
  if (span.empty()) return span;
  Access::set_end(&span, lane.handed_out);
  lane.received.bytes += span.bytes().size();
  if (shape_.checksum != 0) {
    span.for_each(
        [&lane](std::string_view record, bool) { lane.received.checksum += shuffle_hash(record); });
  }
  return span;
}

ShuffleSpan Receiver::take_any() {
  const auto lanes = static_cast<uint32_t>(lanes_.size());
  for (uint32_t i = 0; i < lanes && status_.ok(); ++i) {
    const uint32_t number = turn_;
    turn_ = turn_ + 1 == lanes ? 0 : turn_ + 1;
    const ShuffleSpan span = take(number);
    if (!span.empty()) return span;
  }
  return {};
}

Result<ShuffleSpan> Receiver::next() {
  if (!status_.ok()) return status_;
  if (finished_) return ShuffleSpan();
  ShuffleSpan span = take_any();
  if (span.empty() && status_.ok()) {
    ended_ = poll_counter(&sums_->ended, ended_);
    if (ended_ > lanes_.size()) [[unlikely]] {
      refuse_sums();
      return status_;
    }
    if (ended_ == lanes_.size()) {
      // What senders wrote before they ended is there now.
      span = take_any();
      finished_ = span.empty() && status_.ok() && check_sums();
    }
  }
  // When busy, too: who has always something to do must learn of a death as well.
  const bool is_due = check_.due(span.empty() ? PeerCheck::kIdle : PeerCheck::kBusy);
  if (is_due && status_.ok()) check_senders();
  if (!status_.ok()) [[unlikely]]
    return status_;
  return span;
}

Result<ShuffleSpan> Receiver::wait_next() {
  for (;;) {
    const bool all_ended = ended_ == accepted_;
    const Result<ShuffleSpan> span = next();
    if (!span.ok() || finished_ || !span->empty()) {
      backoff_.progress();
      return span;
    }
    if (all_ended && accepted_ < lanes_.size()) {
      return Status(StatusCode::kInvalidArgument,
                    "nothing can come: " + std::to_string(accepted_) + " of " +
                        std::to_string(lanes_.size()) +
                        " senders were accepted, and these have finished; call accept_all() first");
    }
    backoff_.idle();
  }
}

void Receiver::release(const ShuffleSpan& span) {
  if (span.empty()) return;
  Lane& lane = lanes_[span.sender()];
  assert(Access::first_entry(span) == lane.released_entries && "spans are released in their order");
  lane.released_entries = Access::end_entry(span);
  lane.released_position = Access::end_position(span);
  // After all loads from the span: who sees it writes there.
  publish_word(&lane.released->entries, lane.released_entries);
  publish_word(&lane.released->position, lane.released_position);
}

}  // namespace shuffle_app
}  // namespace verbena
