#include "src/message/matching.h"

namespace verbena::message {

Matching::Matching(uint32_t max_receives, uint32_t max_messages)
    : posted_(max_receives),
      receives_(max_receives),
      unexpected_(max_messages * kKinds),
      messages_(max_messages) {
  VERBENA_ASSERT(max_messages < kNone / kKinds);
}

template <typename Entry>
void Matching::join_line(ZeroedArray<Entry>& entries, Line& line, uint32_t number) {
  entries[number].in_line = {.next = 0, .previous = line.last};
  (line.last != 0 ? entries[line.last - 1].in_line.next : line.first) = number + 1;
  line.last = number + 1;
}

template <typename Entry>
void Matching::leave_line(ZeroedArray<Entry>& entries, Line& line, uint32_t number) {
  const Neighbours at = entries[number].in_line;
  (at.previous != 0 ? entries[at.previous - 1].in_line.next : line.first) = at.next;
  (at.next != 0 ? entries[at.next - 1].in_line.previous : line.last) = at.previous;
}

uint32_t Matching::kind_of(const MatchPattern& pattern) {
  const bool any_source = pattern.source == MatchPattern::kAnySource;
  for (uint32_t number = 0; number < kind_count_; ++number) {
    if (kinds_[number].any_source == any_source && kinds_[number].ignore == pattern.ignore) {
      return number;
    }
  }
  if (kind_count_ == kKinds) return kKinds;
  const uint32_t number = kind_count_++;
  kinds_[number] = {.any_source = any_source, .ignore = pattern.ignore, .posted = 0};
  for (uint32_t at = all_messages_.first; at != 0; at = messages_[at - 1].in_line.next) {
    const Message& message = messages_[at - 1];
    unexpected_.append(element(at - 1, number),
                       key(number, kinds_[number], message.source, message.tag));
  }
  return number;
}

void Matching::post(uint32_t receive, const MatchPattern& pattern) {
  VERBENA_ASSERT(receive < receives_.size());
  Receive& entry = receives_[receive];
  VERBENA_ASSERT(entry.order == 0);
  entry = {.pattern = pattern, .order = ++posted_ever_, .kind = kind_of(pattern), .in_line = {}};
  if (entry.kind < kKinds) {
    Kind& kind = kinds_[entry.kind];
    posted_.append(receive, key(entry.kind, kind, pattern.source, pattern.tag));
    ++kind.posted;
  } else {
    join_line(receives_, unindexed_receives_, receive);
  }
  ++receive_count_;
}

uint32_t Matching::find_receive(uint32_t source, uint64_t tag) const {
  uint32_t found = kNone;
  for (uint32_t number = 0; number < kind_count_; ++number) {
    const Kind& kind = kinds_[number];
    if (kind.posted == 0) continue;
    const uint32_t first = posted_.first(key(number, kind, source, tag));
    if (first == kNone) continue;
    if (found == kNone || receives_[first].order < receives_[found].order) found = first;
  }
  for (uint32_t at = unindexed_receives_.first; at != 0; at = receives_[at - 1].in_line.next) {
    const Receive& receive = receives_[at - 1];
    if (found != kNone && receives_[found].order < receive.order) break;
    if (receive.pattern.fits(source, tag)) return at - 1;
  }
  return found;
}

void Matching::remove_receive(uint32_t receive) {
  VERBENA_ASSERT(receive < receives_.size());
  Receive& entry = receives_[receive];
  VERBENA_ASSERT(entry.order != 0);
  if (entry.kind < kKinds) {
    posted_.remove(receive);
    --kinds_[entry.kind].posted;
  } else {
    leave_line(receives_, unindexed_receives_, receive);
  }
  entry.order = 0;
  --receive_count_;
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

uint32_t Matching::find_message(const MatchPattern& pattern) {
  if (message_count_ == 0) return kNone;
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
