// What the back-end does: before the first front-end comes, and when none is left.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hashtable/layout.h"
#include "hashtable/table_memory.h"
#include "verbena/apps/hashtable.h"
#include "verbena/data_path.h"
#include "verbena/remote_lock.h"

namespace verbena {
namespace hashtable {
namespace {

// The nodes of one space: which of them are used, and which on the list of free ones.
class Reclaimer {
 public:
  Reclaimer(TableMemory& memory, const NodeSpace& space)
      : memory_(memory), space_(space), used_(space.nodes) {}

  // Marks a list of nodes that lead to each other. False: one is damaged, or in two lists.
  bool mark_used(NodePointer first) {
    for (NodePointer at = first; !at.is_null();) {
      Node node;
      if (!space_.is_possible(at) || used_[at.index()] || !space_.parse(at, bytes(at), &node)) {
        return false;
      }
      used_[at.index()] = true;
      at = node.next;
    }
    return true;
  }
  // Once all are marked. False: the list of free nodes is damaged, or has some twice.
  bool find_unused() {
    const uint64_t fresh = std::min(memory_.word(space_.next_fresh), space_.nodes);
    for (uint64_t index = 0; index < fresh; ++index) {
      if (!used_[index]) unused_.push_back(next_use(index));
    }
    return count_free() && unused_.size() >= free_;
  }
  // Makes a list of all unused nodes. How many were not on it.
  uint64_t free_unused() {
    NodePointer head;
    for (size_t i = 0; i < unused_.size();) {
      NodePointer carrier = unused_[i++];
      char* const payload = bytes(carrier) + sizeof(NodeHeader);
      uint32_t carried_bytes = 0;
      for (uint32_t j = 0; j < space_.carried_nodes() && i < unused_.size(); ++j) {
        const uint64_t word = unused_[i++].word();
        copy_bytes(payload + carried_bytes, &word, sizeof(word));
        carried_bytes += sizeof(word);
      }
      carrier = carrier.with_length(space_.length_of(carried_bytes));
      seal(bytes(carrier), carrier, head, {.value_bytes = carried_bytes});
      head = carrier;
    }
    memory_.set_word(space_.free_nodes, head.word());
    return unused_.size() - free_;
  }

 private:
  char* bytes(NodePointer node) { return memory_.at(space_.offset_bytes(node)); }
  bool count_free() {
    NodePointer at(memory_.word(space_.free_nodes));
    while (!at.is_null() && free_ <= space_.nodes) {
      Node node;
      if (!space_.is_possible(at) || used_[at.index()] || !space_.parse(at, bytes(at), &node)) {
        return false;
      }
      free_ += 1 + node.value.size() / sizeof(uint64_t);
      at = node.next;
    }
    return at.is_null();
  }
  // Nobody has a pointer into the list, so any use of a node will do that is not its last one.
  NodePointer next_use(uint64_t index) {
    uint64_t last = 0;
    copy_bytes(&last, bytes(NodePointer::unused(index)), sizeof(last));
    const NodePointer pointer(last);
    return pointer.index() == index && space_.is_possible(pointer)
               ? pointer.next_use()
               : NodePointer::unused(index).next_use();
  }

  TableMemory& memory_;
  const NodeSpace space_;
  std::vector<bool> used_;
  std::vector<NodePointer> unused_;
  uint64_t free_ = 0;
};

}  // namespace
}  // namespace hashtable

Result<uint64_t> hashtable_bytes(const HashtableFormat& format) {
  VERBENA_ASSIGN_OR_RETURN(const hashtable::Layout layout, hashtable::Layout::of(format));
  return layout.size_bytes();
}

Status format_hashtable(std::span<char> memory, const HashtableFormat& format) {
  VERBENA_ASSIGN_OR_RETURN(const hashtable::Layout layout, hashtable::Layout::of(format));
  if (reinterpret_cast<uintptr_t>(memory.data()) % 8 != 0) {
    return {StatusCode::kInvalidArgument,
            "the memory of a hashtable is aligned to 8 bytes; let expose_region() make it"};
  }
  if (memory.size() < layout.size_bytes()) {
    return {StatusCode::kLimitExceeded,
            "a hashtable of " + std::to_string(format.entries) + " entries takes " +
                std::to_string(layout.size_bytes()) + " bytes, but the region has " +
                std::to_string(memory.size()) + "; ask hashtable_bytes() for its size"};
  }
  // The nodes may have any bytes: nothing points to them.
  const uint64_t nodes_offset_bytes = layout.nodes().first_offset_bytes;
  clear_bytes(memory.data(), nodes_offset_bytes);
  const uint64_t blocks_offset_bytes = layout.block(0).offset_bytes;
  clear_bytes(memory.data() + blocks_offset_bytes,
              layout.copies().first_offset_bytes - blocks_offset_bytes);
  copy_bytes(memory.data(), &layout.header(), sizeof(hashtable::Header));
  return Status::ok_status();
}

Result<uint64_t> reclaim_hashtable(std::span<char> memory) {
  using hashtable::NodePointer;
  VERBENA_ASSIGN_OR_RETURN(hashtable::TableMemory table, hashtable::TableMemory::of(memory));
  const hashtable::Layout& layout = table.layout();
  const hashtable::Header& header = layout.header();
  hashtable::Reclaimer nodes(table, layout.nodes());
  hashtable::Reclaimer copies(table, layout.copies());
  bool sound = true;
  for (uint64_t i = 0; i < header.buckets && sound; ++i) {
    sound = nodes.mark_used(NodePointer(table.word(layout.bucket(i))));
  }
  for (uint32_t i = 0; i < header.hot_blocks && sound; ++i) {
    sound = copies.mark_used(NodePointer(table.word(layout.block(i))));
  }
  if (!sound || !nodes.find_unused() || !copies.find_unused()) {
    return Status(StatusCode::kProtocolViolation,
                  "the hashtable is damaged: something else writes into its memory; format it "
                  "anew");
  }
  // Nobody holds a lock any more.
  for (uint32_t i = 0; i < header.hot_blocks; ++i) {
    const LockWord lock = LockWord::of(table.word(layout.block_lock(i)));
    table.set_word(layout.block_lock(i), LockWord{lock.token, false}.word());
  }
  return nodes.free_unused() + copies.free_unused();
}

}  // namespace verbena
