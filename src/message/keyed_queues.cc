#include "src/message/keyed_queues.h"

#include <bit>

#include "src/base/assert.h"

namespace verbena::message {

KeyedQueues::KeyedQueues(uint32_t capacity)
    : capacity_(capacity),
      bucket_mask_(std::bit_ceil(uint64_t{capacity}) - 1),
      buckets_(bucket_mask_ + 1),
      nodes_(uint64_t{capacity} + 1),
      links_(capacity) {
  VERBENA_ASSERT(capacity >= 1 && capacity < kNone);
}

uint32_t KeyedQueues::make_node(const MatchKey& key) {
  uint32_t node = free_nodes_;
  if (node != 0) {
    free_nodes_ = nodes_[node].next;
  } else {
    // Never more than there are elements, since each has at least one.
    VERBENA_ASSERT(nodes_made_ < capacity_);
    node = ++nodes_made_;
  }
  uint32_t& first = bucket(key);
  nodes_[node] = {.key = key, .head = 0, .tail = 0, .next = first};
  first = node;
  return node;
}

void KeyedQueues::drop_node(uint32_t node) {
  uint32_t* place = &bucket(nodes_[node].key);
  while (*place != node) {
    VERBENA_ASSERT(*place != 0);
    place = &nodes_[*place].next;
  }
  *place = nodes_[node].next;
  nodes_[node].next = free_nodes_;
  free_nodes_ = node;
}

void KeyedQueues::append(uint32_t element, const MatchKey& key) {
  VERBENA_ASSERT(element < capacity_);
  Link& link = links_[element];
  VERBENA_ASSERT(link.node == 0);
  uint32_t number = find(key);
  if (number == 0) number = make_node(key);
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

void KeyedQueues::remove(uint32_t element) {
  VERBENA_ASSERT(element < capacity_);
  Link& link = links_[element];
  VERBENA_ASSERT(link.node != 0);
  Node& node = nodes_[link.node];
  (link.previous != 0 ? links_[link.previous - 1].next : node.head) = link.next;
  (link.next != 0 ? links_[link.next - 1].previous : node.tail) = link.previous;
  if (node.head == 0) drop_node(link.node);
  link = {};
  --size_;
}

}  // namespace verbena::message
