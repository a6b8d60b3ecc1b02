#include "src/message/keyed_queues.h"

#include <bit>

#include "src/base/assert.h"

namespace verbena::message {

KeyedQueues::KeyedQueues(uint32_t capacity)
    : capacity_(capacity),
      bucket_mask_(std::bit_ceil(uint64_t{capacity}) - 1),
      buckets_(bucket_mask_ + 1),
      nodes_(uint64_t{capacity} + 2),
      links_(capacity) {
  VERBENA_ASSERT(capacity >= 1 && capacity < kNone);
}

uint32_t KeyedQueues::make_node(const MatchKey& key) {
  uint32_t node = free_nodes_;
  if (node != 0) {
    free_nodes_ = nodes_[node].next;
  } else {
    // Never more than there are elements, since each but the empty one has at least one.
    VERBENA_ASSERT(nodes_made_ <= capacity_);
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
  if (recent_ == node) recent_ = 0;
  *place = nodes_[node].next;
  nodes_[node].next = free_nodes_;
  free_nodes_ = node;
}

}  // namespace verbena::message
