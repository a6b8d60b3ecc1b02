// Modifications of one bucket that a front-end has pending take turns: by the compare-and-swap of
// the bucket's word only one of them could succeed, and the others would have gone there in vain.
// Whose turn it is also carries out the updates of its key that wait behind it: they are pending
// together, so all of them may happen at one moment, one after the other, and only the last one is
// ever seen. Data path.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <vector>

#include "hashtable/operation.h"

namespace verbena::hashtable {

class BucketTurns {
 public:
  // Of these operations at most `pending` take turns.
  BucketTurns(std::vector<Operation>& operations, uint32_t pending)
      : operations_(&operations), turns_(std::bit_ceil(2 * pending), kNone) {}

  // True: it is the operation's turn. Else it waits, until end() of another one returns it.
  bool take(Operation& operation) {
    uint32_t& first = list_of(operation);
    for (uint32_t i = first; i != kNone; i = at(i).next_turn) {
      if (at(i).bucket == operation.bucket) {
        append(at(i).waiting, *operations_, number_of(operation));
        return false;
      }
    }
    operation.has_turn = true;
    operation.next_turn = first;
    first = number_of(operation);
    return true;
  }

  // Ends the operation's turn. The one whose turn it is then; null: none waits.
  Operation* end(Operation& operation) {
    assert(operation.has_turn);
    uint32_t* link = &list_of(operation);
    while (*link != number_of(operation)) link = &at(*link).next_turn;
    operation.has_turn = false;
    *link = operation.next_turn;
    if (operation.waiting.first == kNone) return nullptr;
    Operation& next = at(operation.waiting.first);
    next.waiting = {next.next, operation.waiting.last};
    operation.waiting = {};
    next.has_turn = true;
    next.next_turn = *link;
    *link = number_of(next);
    return &next;
  }

  // An update whose turn it is gets the value of the last of the updates of its key that wait next,
  // and stands for all of them.
  void overwrite(Operation& operation) {
    assert(operation.has_turn && operation.kind == Operation::Kind::kUpdate);
    while (operation.waiting.first != kNone) {
      Operation& later = at(operation.waiting.first);
      if (later.kind != Operation::Kind::kUpdate || later.key() != operation.key()) return;
      operation.waiting.first = later.next;
      std::swap(operation.node, later.node);
      std::swap(operation.value_bytes, later.value_bytes);
      later.next = operation.overwritten;
      operation.overwritten = number_of(later);
    }
  }

 private:
  static constexpr uint32_t kNone = Operation::kNone;

  Operation& at(uint32_t number) { return (*operations_)[number]; }
  uint32_t number_of(const Operation& operation) const {
    return static_cast<uint32_t>(&operation - operations_->data());
  }
  uint32_t& list_of(const Operation& operation) {
    return turns_[operation.bucket.offset_bytes / sizeof(uint64_t) & (turns_.size() - 1)];
  }

  std::vector<Operation>* operations_;
  std::vector<uint32_t> turns_;  // lists of the operations that have theirs
};

}  // namespace verbena::hashtable
