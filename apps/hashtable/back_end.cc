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

namespace verbena {
namespace hashtable {
namespace {

// Marks the nodes of all buckets. False: one is damaged, or in two buckets.
bool mark_used(const Layout& layout, TableMemory& memory, std::vector<bool>& used) {
  for (uint64_t bucket = 0; bucket < layout.header().buckets; ++bucket) {
    NodePointer at(memory.word(layout.bucket(bucket)));
    while (!at.is_null()) {
      Node node;
      if (!layout.is_possible(at) || used[at.index()] ||
          !layout.parse(at, memory.node(at), &node)) {
        return false;
      }
      used[at.index()] = true;
      at = node.next;
    }
  }
  return true;
}

// Nodes that are on the list of free nodes. False: it is damaged.
bool count_free(const Layout& layout, TableMemory& memory, const std::vector<bool>& used,
                uint64_t* free) {
  NodePointer at(memory.word(kFreeNodes));
  while (!at.is_null() && *free <= layout.header().nodes) {
    Node node;
    if (!layout.is_possible(at) || used[at.index()] || !layout.parse(at, memory.node(at), &node)) {
      return false;
    }
    *free += 1 + node.value.size() / sizeof(uint64_t);
    at = node.next;
  }
  return at.is_null();
}

// Nobody has a pointer into the list, so any use of a node will do that is not its last one.
NodePointer next_use(const Layout& layout, TableMemory& memory, uint64_t index) {
  uint64_t last = 0;
  copy_bytes(&last, memory.node(NodePointer::unused(index)), sizeof(last));
  const NodePointer pointer(last);
  return pointer.index() == index && layout.is_possible(pointer)
             ? pointer.next_use()
             : NodePointer::unused(index).next_use();
}

void make_list(const Layout& layout, TableMemory& memory, const std::vector<NodePointer>& nodes) {
  NodePointer head;
  for (size_t i = 0; i < nodes.size();) {
    NodePointer carrier = nodes[i++];
    char* const bytes = memory.node(carrier);
    uint32_t carried_bytes = 0;
    for (uint32_t j = 0; j < layout.carried_nodes() && i < nodes.size(); ++j) {
      const uint64_t word = nodes[i++].word();
      copy_bytes(bytes + sizeof(NodeHeader) + carried_bytes, &word, sizeof(word));
      carried_bytes += sizeof(word);
    }
    carrier = carrier.with_length(layout.length_of(carried_bytes));
    seal(bytes, carrier, head, 0, carried_bytes,
         payload_checksum(bytes + sizeof(NodeHeader), 0, carried_bytes));
    head = carrier;
  }
  memory.set_word(kFreeNodes, head.word());
}

}  // namespace
}  // namespace hashtable

Result<uint64_t> hashtable_bytes(const HashtableFormat& format) {
  VERBENA_ASSIGN_OR_RETURN(const hashtable::Layout layout, hashtable::Layout::of(format));
  return layout.region_bytes();
}

Status format_hashtable(std::span<char> memory, const HashtableFormat& format) {
  VERBENA_ASSIGN_OR_RETURN(const hashtable::Layout layout, hashtable::Layout::of(format));
  if (reinterpret_cast<uintptr_t>(memory.data()) % 8 != 0) {
    return {StatusCode::kInvalidArgument,
            "the memory of a hashtable is aligned to 8 bytes; let expose_region() make it"};
  }
  if (memory.size() < layout.region_bytes()) {
    return {StatusCode::kLimitExceeded,
            "a hashtable of " + std::to_string(format.entries) + " entries takes " +
                std::to_string(layout.region_bytes()) + " bytes, but the region has " +
                std::to_string(memory.size()) + "; ask hashtable_bytes() for its size"};
  }
  // The nodes may have any bytes: nothing points to them.
  clear_bytes(memory.data(), layout.bucket(layout.header().buckets - 1).offset_bytes + 8);
  copy_bytes(memory.data(), &layout.header(), sizeof(hashtable::Header));
  return Status::ok_status();
}

Result<uint64_t> reclaim_hashtable(std::span<char> memory) {
  using hashtable::NodePointer;
  VERBENA_ASSIGN_OR_RETURN(hashtable::TableMemory table, hashtable::TableMemory::of(memory));
  const hashtable::Layout& layout = table.layout();
  const hashtable::Header& header = layout.header();
  std::vector<bool> used(header.nodes);
  uint64_t free = 0;
  if (!hashtable::mark_used(layout, table, used) ||
      !hashtable::count_free(layout, table, used, &free)) {
    return Status(StatusCode::kProtocolViolation,
                  "the hashtable is damaged: something else writes into its memory; format it "
                  "anew");
  }
  std::vector<NodePointer> unused;
  const uint64_t fresh = std::min(table.word(hashtable::kNextFresh), header.nodes);
  for (uint64_t index = 0; index < fresh; ++index) {
    if (!used[index]) unused.push_back(hashtable::next_use(layout, table, index));
  }
  if (unused.size() < free) {
    return Status(StatusCode::kProtocolViolation,
                  "the hashtable is damaged: nodes are free more than once; format it anew");
  }
  hashtable::make_list(layout, table, unused);
  return unused.size() - free;
}

}  // namespace verbena
