#include "src/message/matching.h"

namespace verbena::message {

Matching::Matching(uint32_t max_receives, uint32_t max_messages)
    : posted_(max_receives),
      receives_(max_receives),
      unexpected_(max_messages * kKinds),
      messages_(max_messages) {
  VERBENA_ASSERT(max_messages < kNone / kKinds);
}

uint32_t Matching::new_kind(const MatchPattern& pattern) {
  if (kind_count_ == kKinds) return kKinds;
  const uint32_t number = kind_count_++;
  kinds_[number] = {.any_source = pattern.source == MatchPattern::kAnySource,
                    .ignore = pattern.ignore,
                    .posted = 0};
  for (uint32_t at = all_messages_.first; at != 0; at = messages_[at - 1].in_line.next) {
    const Message& message = messages_[at - 1];
    unexpected_.append(element(at - 1, number),
                       key(number, kinds_[number], message.source, message.tag));
  }
  return number;
}

void Matching::add_message(uint32_t message, uint32_t source, uint64_t tag) {
  VERBENA_ASSERT(message < messages_.size() && source != MatchPattern::kAnySource);
  VERBENA_ASSERT(!messages_[message].present);
  messages_[message] = {.tag = tag, .source = source, .present = true, .in_line = {}};
  join_line(messages_, all_messages_, message);
  for (uint32_t number = 0; number < kind_count_; ++number) {
    unexpected_.append(element(message, number), key(number, kinds_[number], source, tag));
  }
  ++message_count_;
}

uint32_t Matching::find_waiting(const MatchPattern& pattern) {
  const uint32_t number = kind_of(pattern);
  if (number < kKinds) {
    const uint32_t first =
        unexpected_.first(key(number, kinds_[number], pattern.source, pattern.tag));
    return first == kNone ? kNone : first / kKinds;
  }
  for (uint32_t at = all_messages_.first; at != 0; at = messages_[at - 1].in_line.next) {
    const Message& message = messages_[at - 1];
    if (pattern.fits(message.source, message.tag)) return at - 1;
  }
  return kNone;
}

void Matching::remove_message(uint32_t message) {
  VERBENA_ASSERT(message < messages_.size() && messages_[message].present);
  for (uint32_t number = 0; number < kind_count_; ++number) {
    unexpected_.remove(element(message, number));
  }
  leave_line(messages_, all_messages_, message);
  messages_[message].present = false;
  --message_count_;
}

}  // namespace verbena::message
