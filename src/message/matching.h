// Which receive a message belongs to: posted receives and unexpected messages, by source and tag.
//
// Of the receives that a message fits, it belongs to the one that was posted first; a receive takes
// the message that came first. Receives and messages are numbers below a capacity; what they mean
// is the owner's. Nothing allocates after construction.
//
// Receives differ in whether their source is given and in the tag bits that they ignore: that is
// their kind. Programs use few kinds (exact, any tag, any source). Posted receives are found by
// kind, source and the tag bits that count, so an arrival costs one look-up for each kind that has
// receives. An unexpected message can be found in the same way as every kind that was used, so a
// receive costs one look-up. Neither depends on how many are posted or unexpected, also with
// wildcards. Receives of more kinds than kKinds are compared one by one.
#pragma once

#include <cstdint>

#include "src/base/assert.h"
#include "src/message/keyed_queues.h"
#include "src/message/zeroed_array.h"

namespace verbena::message {

struct MatchPattern {
  static constexpr uint32_t kAnySource = ~0u;

  uint32_t source = kAnySource;
  uint64_t tag = 0;
  uint64_t ignore = 0;  // bits of the tag that may differ

  bool fits(uint32_t message_source, uint64_t message_tag) const {
    return (source == kAnySource || source == message_source) &&
           ((tag ^ message_tag) & ~ignore) == 0;
  }
};

class Matching {
 public:
  static constexpr uint32_t kNone = KeyedQueues::kNone;
  static constexpr uint32_t kKinds = 8;

  Matching(uint32_t max_receives, uint32_t max_messages);

  // A receive that no unexpected message fits: find_message() comes first.
  void post(uint32_t receive, const MatchPattern& pattern);
  // The receive that a message belongs to, or kNone. It stays posted until remove_receive(): one
  // for several messages goes when its room is used up.
  uint32_t find_receive(uint32_t source, uint64_t tag) const;
  void remove_receive(uint32_t receive);

  // A message that no posted receive fits: find_receive() comes first.
  void add_message(uint32_t message, uint32_t source, uint64_t tag);
  // The message that a receive takes, or kNone. It stays until remove_message(): one that is only
  // looked at (peek) is found again.
  uint32_t find_message(const MatchPattern& pattern) {
    return message_count_ == 0 ? kNone : find_waiting(pattern);
  }
  void remove_message(uint32_t message);

  uint32_t receives() const { return receive_count_; }
  uint32_t messages() const { return message_count_; }

 private:
  struct Kind {
    bool any_source = false;
    uint64_t ignore = 0;
    uint32_t posted = 0;
  };
  // A list in the order of time; numbers are stored plus 1.
  struct Line {
    uint32_t first = 0;
    uint32_t last = 0;
  };
  struct Neighbours {
    uint32_t next = 0;
    uint32_t previous = 0;
  };
  struct Receive {
    uint64_t order = 0;  // of posting, from 1; 0: not posted
    uint32_t kind = 0;   // kKinds: none of those that are indexed, which alone have:
    Neighbours in_line;
    MatchPattern pattern;
  };
  struct Message {
    uint64_t tag = 0;
    uint32_t source = 0;
    bool present = false;
    Neighbours in_line;
  };

  static MatchKey key(uint32_t number, const Kind& kind, uint32_t source, uint64_t tag) {
    return {.tag = tag & ~kind.ignore,
            .source = kind.any_source ? MatchPattern::kAnySource : source,
            .kind = number};
  }
  uint32_t element(uint32_t message, uint32_t kind) const { return message * kKinds + kind; }
  template <typename Entry>
  static void join_line(ZeroedArray<Entry>& entries, Line& line, uint32_t number);
  template <typename Entry>
  static void leave_line(ZeroedArray<Entry>& entries, Line& line, uint32_t number);

  // The kind of a pattern, a new one if there is a place; else kKinds.
  uint32_t kind_of(const MatchPattern& pattern);
  uint32_t find_waiting(const MatchPattern& pattern);
  uint32_t new_kind(const MatchPattern& pattern);

  Kind kinds_[kKinds];
  uint32_t kind_count_ = 0;
  uint64_t posted_ever_ = 0;
  uint32_t receive_count_ = 0;
  uint32_t message_count_ = 0;

  KeyedQueues posted_;
  ZeroedArray<Receive> receives_;
  Line unindexed_receives_;

  KeyedQueues unexpected_;  // a message is an element for each kind
  ZeroedArray<Message> messages_;
  Line all_messages_;
};

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

inline uint32_t Matching::kind_of(const MatchPattern& pattern) {
  const bool any_source = pattern.source == MatchPattern::kAnySource;
  for (uint32_t number = 0; number < kind_count_; ++number) {
    if (kinds_[number].any_source == any_source && kinds_[number].ignore == pattern.ignore) {
      return number;
    }
  }
  return new_kind(pattern);
}

// Compiled into its caller: a pattern that is put together in memory and then copied waits until
// all bytes that were sent before it have left the store buffer.
[[gnu::always_inline]] inline void Matching::post(uint32_t receive, const MatchPattern& pattern) {
  VERBENA_ASSERT(receive < receives_.size());
  Receive& entry = receives_[receive];
  VERBENA_ASSERT(entry.order == 0);
  const uint32_t number = kind_of(pattern);
  entry.order = ++posted_ever_;
  entry.kind = number;
  if (number < kKinds) [[likely]] {
    Kind& kind = kinds_[number];
    posted_.append(receive, key(number, kind, pattern.source, pattern.tag));
    ++kind.posted;
  } else {
    entry.pattern = pattern;
    join_line(receives_, unindexed_receives_, receive);
  }
  ++receive_count_;
}

inline uint32_t Matching::find_receive(uint32_t source, uint64_t tag) const {
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

inline void Matching::remove_receive(uint32_t receive) {
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

}  // namespace verbena::message
