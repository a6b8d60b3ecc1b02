// A pending operation of a front-end.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "hashtable/layout.h"
#include "hashtable/spare_nodes.h"
#include "verbena/apps/hashtable.h"
#include "verbena/remote.h"

namespace verbena::hashtable {

// Operations that wait for something, by their numbers: Operation::next leads to the next one.
struct OperationQueue {
  uint32_t first = ~0u;
  uint32_t last = ~0u;
};

struct Operation {
  // Nodes of a bucket. There is half an entry per bucket, so more mean that all keys collide.
  static constexpr uint32_t kMostNodes = kMostNodesOfBucket;
  static constexpr uint32_t kNone = ~0u;

  // kDemote is the front-end's own: it moves a key out of the hot area.
  enum class Kind : uint8_t { kSearch, kInsert, kUpdate, kRemove, kDemote };
  enum class Step : uint8_t {
    kReadingWord,
    kReadingNode,
    kAtBlock,
    kCheckingWord,
    kCopying,
    kPublishing
  };
  // Of kDemote: see hot_block.h.
  enum class Phase : uint8_t { kReleasing, kDropping, kCleaning };
  // What its block knows. kPending: of a demotion, that its place is only promised. kAgain: an
  // update of its key that was answered before is published now, so it can begin. kStuck: that
  // update finds no room.
  enum class Verdict : uint8_t { kAnswered, kNotHere, kPending, kNoRoom, kAgain, kStuck };

  Kind kind = Kind::kSearch;
  // The front-end's own: carries an update that was answered before, and whose key has left its
  // block (hot_buffer.h).
  bool is_write_back = false;
  Step step = Step::kReadingWord;
  uint64_t token = 0;
  uint64_t hash = 0;
  RemotePointer<uint64_t> bucket;
  uint32_t value_bytes = 0;
  uint16_t key_bytes = 0;
  char* node = nullptr;  // node_bytes: header, key, value, place

  // In the bucket.
  NodePointer head;  // the bucket's word, as it was read
  NodePointer at;    // the node that is read
  uint32_t misreads = 0;
  // The nodes before the one with the key, and what comes behind it.
  uint32_t depth = 0;
  NodePointer path[kMostNodes];
  bool found = false;
  NodePointer replaced;
  NodePointer behind;
  // Nodes for what is to be published: the entry's, unless it is removed, and copies of the path.
  uint32_t taken_count = 0;
  NodePointer taken[kMostNodes + 1];
  uint32_t copied = 0;
  bool is_changing = false;  // has all of them, and comes to its compare-and-swap soon
  // What its compare-and-swap makes of the bucket's word, and whether it has.
  NodePointer published;
  bool is_published = false;

  // Modifications of one bucket take turns (bucket_turns.h).
  bool has_turn = false;
  uint32_t next_turn = kNone;    // another operation whose turn it is, in the same list
  OperationQueue waiting;        // for the end of its turn
  uint32_t overwritten = kNone;  // updates of its key that it stands for
  uint32_t next = kNone;         // in a queue

  // The hot area. A node with the key that forwards was found:
  bool has_forward = false;
  bool forward_is_absent = false;
  uint64_t forward_place = 0;
  std::string_view forward_value;
  char* forward_bytes = nullptr;  // room for that value
  // In the block.
  bool wants_promise = false;
  uint64_t promised_place = 0;  // 0: none
  uint32_t version = 0;         // of the entry, as it is demoted
  Verdict verdict = Verdict::kAnswered;
  Phase phase = Phase::kReleasing;
  bool is_absent = false;  // what is demoted
  HashtableOutcome outcome = HashtableOutcome::kDone;
  std::string_view result;

  std::string_view key() const { return {node + sizeof(NodeHeader), key_bytes}; }
  std::string_view value() const { return {node + sizeof(NodeHeader) + key_bytes, value_bytes}; }
  bool is_search() const { return kind == Kind::kSearch; }
  bool sets_value() const { return kind == Kind::kInsert || kind == Kind::kUpdate; }
  bool writes_entry() const {
    return sets_value() || (kind == Kind::kDemote && (phase != Phase::kCleaning || !is_absent));
  }
  // What is behind the header of the entry's node.
  Payload payload() const {
    Payload payload = {.key_bytes = key_bytes, .value_bytes = value_bytes};
    if (place() != 0) payload.flags |= Payload::kForwards;
    if (kind == Kind::kDemote && is_absent) payload.flags |= Payload::kAbsent;
    return payload;
  }
  // That the entry's node forwards to; 0: to none.
  uint64_t place() const {
    if (kind != Kind::kDemote) return promised_place;
    return phase == Phase::kCleaning ? 0 : forward_place;
  }
  uint32_t copies() const { return found ? depth : 0; }
  uint32_t nodes() const { return copies() + (writes_entry() ? 1 : 0); }
  // What the i-th node of the path is copied to.
  NodePointer copy(uint32_t i) const {
    return taken[i + (writes_entry() ? 1 : 0)].with_length(path[i].length());
  }
  NodePointer behind_copy(uint32_t i) const { return i + 1 < depth ? copy(i + 1) : behind; }
  // What the entry's node, or the bucket, leads to.
  NodePointer rest() const { return !found ? head : depth > 0 ? copy(0) : behind; }
};

inline void append(OperationQueue& queue, std::vector<Operation>& operations, uint32_t number) {
  operations[number].next = Operation::kNone;
  (queue.first == Operation::kNone ? queue.first : operations[queue.last].next) = number;
  queue.last = number;
}

}  // namespace verbena::hashtable
