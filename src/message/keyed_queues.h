// Queues of elements, each found by its key: a hash table whose entries are first-in first-out
// lists.
//
// Elements are numbers below the capacity, whose meaning is the owner's. Each key that has elements
// has one node in the table, however many elements they are: so a key with 10,000 elements does not
// slow down another one in the same bucket. The node that became empty last stays: often its key is
// the next one that is used. All memory is there from the beginning, zeroed by the system: what is
// never used takes no page.
#pragma once

#include <cstdint>

#include "src/base/assert.h"
#include "src/message/zeroed_array.h"

namespace verbena::message {

// A receive or a message as matching sees it: the kind of receives, the source, and the tag bits
// that count for that kind.
struct MatchKey {
  uint64_t tag = 0;
  uint32_t source = 0;
  uint32_t kind = 0;
  friend bool operator==(const MatchKey&, const MatchKey&) = default;
};

class KeyedQueues {
 public:
  static constexpr uint32_t kNone = ~0u;

  explicit KeyedQueues(uint32_t capacity);

  // Behind the others of its key. The element must be in no queue.
  void append(uint32_t element, const MatchKey& key);
  // From wherever it is.
  void remove(uint32_t element);
  // The oldest element of the key, or kNone.
  uint32_t first(const MatchKey& key) const {
    const uint32_t node = find(key);
    static_assert(kNone == uint32_t{0} - 1);
    return node == 0 ? kNone : nodes_[node].head - 1;
  }
  uint32_t size() const { return size_; }

 private:
  // Numbers of nodes and elements are stored plus 1, so that zero is none.
  struct Node {
    MatchKey key;
    uint32_t head = 0;  // 0: none, of the empty node
    uint32_t tail = 0;
    uint32_t next = 0;  // in its bucket, or in the list of free ones
  };
  struct Link {
    uint32_t node = 0;  // 0: in no queue
    uint32_t next = 0;
    uint32_t previous = 0;
  };

  static uint64_t hash(const MatchKey& key) {
    uint64_t mixed = (key.tag ^ (uint64_t{key.source} << 32 | key.kind)) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 29;
    mixed = (mixed + key.source) * 0xbf58476d1ce4e5b9u;
    return mixed ^ mixed >> 32;
  }
  uint32_t& bucket(const MatchKey& key) { return buckets_[hash(key) & bucket_mask_]; }
  uint32_t find(const MatchKey& key) const {
    // Often the key of the last time.
    if (recent_ != 0 && nodes_[recent_].key == key) return recent_;
    return find_in_bucket(key);
  }
  uint32_t find_in_bucket(const MatchKey& key) const {
    uint32_t node = buckets_[hash(key) & bucket_mask_];
    while (node != 0 && !(nodes_[node].key == key)) node = nodes_[node].next;
    if (node != 0) recent_ = node;
    return node;
  }
  uint32_t make_node(const MatchKey& key);
  void drop_node(uint32_t node);

  uint32_t capacity_;
  uint64_t bucket_mask_;
  uint32_t size_ = 0;
  uint32_t empty_node_ = 0;
  mutable uint32_t recent_ = 0;  // the node that was found last, if it is in the table
  uint32_t free_nodes_ = 0;
  uint32_t nodes_made_ = 0;
  ZeroedArray<uint32_t> buckets_;
  ZeroedArray<Node> nodes_;
  ZeroedArray<Link> links_;
};

[[gnu::always_inline]] inline void KeyedQueues::append(uint32_t element, const MatchKey& key) {
  VERBENA_ASSERT(element < capacity_);
  Link& link = links_[element];
  VERBENA_ASSERT(link.node == 0);
  uint32_t number = find(key);
  if (number == 0) number = make_node(key);
  if (number == empty_node_) empty_node_ = 0;
  Node& node = nodes_[number];
  link = {.node = number, .next = 0, .previous = node.tail};
  if (node.tail != 0) {
    links_[node.tail - 1].next = element + 1;
  } else {
    node.head = element + 1;
  }
  node.tail = element + 1;
  ++size_;
}

inline void KeyedQueues::remove(uint32_t element) {
  VERBENA_ASSERT(element < capacity_);
  Link& link = links_[element];
  VERBENA_ASSERT(link.node != 0);
  Node& node = nodes_[link.node];
  (link.previous != 0 ? links_[link.previous - 1].next : node.head) = link.next;
  (link.next != 0 ? links_[link.next - 1].previous : node.tail) = link.previous;
  if (node.head == 0) {
    if (empty_node_ != 0) drop_node(empty_node_);
    empty_node_ = link.node;
  }
  link = {};
  --size_;
}

}  // namespace verbena::message
