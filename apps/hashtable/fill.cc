// What a back-end puts into its table before the first front-end comes.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "hashtable/hot_block.h"
#include "hashtable/layout.h"
#include "hashtable/table_memory.h"
#include "verbena/apps/hashtable.h"
#include "verbena/data_path.h"

namespace verbena {
namespace hashtable {
namespace {

Status check_entry(const Header& header, const HashtableEntry& entry) {
  if (!entry.key.empty() && entry.key.size() <= header.max_key_bytes &&
      entry.value.size() <= header.max_value_bytes) {
    return Status::ok_status();
  }
  return {StatusCode::kInvalidArgument,
          "a key of this hashtable has 1 to " + std::to_string(header.max_key_bytes) +
              " bytes and a value up to " + std::to_string(header.max_value_bytes) + ", not " +
              std::to_string(entry.key.size()) + " and " + std::to_string(entry.value.size())};
}

Status damaged_table() {
  return {StatusCode::kProtocolViolation,
          "the hashtable is damaged: something else writes into its memory; format it anew"};
}

// Whether the bucket that begins with `at` has no such key, and room for one more.
Status check_bucket(TableMemory& table, NodePointer at, std::string_view key) {
  const NodeSpace& space = table.layout().nodes();
  for (uint32_t nodes = 1; !at.is_null(); ++nodes) {
    Node node;
    if (!space.is_possible(at) || !space.parse(at, table.at(space.offset_bytes(at)), &node)) {
      return damaged_table();
    }
    if (node.key == key) {
      return {StatusCode::kInvalidArgument, "a key of " + std::to_string(key.size()) +
                                                " bytes is in the hashtable already; give each "
                                                "key once"};
    }
    if (nodes == kMostNodesOfBucket) {
      return {StatusCode::kLimitExceeded,
              "the hashtable has " + std::to_string(nodes) +
                  " other entries with a key's hash, and no room for more; format it with "
                  "another hash_seed"};
    }
    at = node.next;
  }
  return Status::ok_status();
}

// Puts the entry into its block of the hot area. Its place there; 0: there is no room.
Result<uint64_t> add_to_block(TableMemory& table, const HashtableEntry& entry) {
  const Layout& layout = table.layout();
  if (!layout.has_hot_area()) return 0;
  const HotBlock::Shape shape = HotBlock::Shape::of(layout.header());
  const NodeSpace& space = layout.copies();
  const uint64_t hash = layout.hash(entry.key);
  const RemotePointer<uint64_t> line = layout.block(layout.block_of(hash));
  NodePointer self(table.word(line));
  if (self.is_null()) {
    const uint64_t fresh = table.word(space.next_fresh);
    if (fresh >= space.nodes) return 0;
    table.set_word(space.next_fresh, fresh + 1);
    self = NodePointer::unused(fresh).next_use();
    HotBlock(table.at(space.offset_bytes(self)) + sizeof(NodeHeader), shape).clear();
  } else {
    Node copy;
    if (!space.is_possible(self) || !space.parse(self, table.at(space.offset_bytes(self)), &copy)) {
      return damaged_table();
    }
  }
  char* const bytes = table.at(space.offset_bytes(self));
  HotBlock block(bytes + sizeof(NodeHeader), shape);
  if (block.is_full()) return 0;
  const uint64_t place = self.word();
  block.add_promise(entry.key, HotEntry::tag_of(hash), place);
  block.set(block.count() - 1, entry.value);
  self = self.with_length(space.length_of(block.size_bytes()));
  seal(bytes, self, NodePointer(), {.value_bytes = block.size_bytes()});
  table.set_word(line, self.word());
  return place;
}

Status add_entry(TableMemory& table, uint64_t index, const HashtableEntry& entry) {
  const Layout& layout = table.layout();
  VERBENA_RETURN_IF_ERROR(check_entry(layout.header(), entry));
  const RemotePointer<uint64_t> bucket = layout.bucket(layout.hash(entry.key));
  const NodePointer first(table.word(bucket));
  VERBENA_RETURN_IF_ERROR(check_bucket(table, first, entry.key));
  uint64_t place = 0;
  if (entry.is_hot) {
    VERBENA_ASSIGN_OR_RETURN(place, add_to_block(table, entry));
  }
  const NodeSpace& space = layout.nodes();
  const Payload payload{.key_bytes = static_cast<uint16_t>(entry.key.size()),
                        .flags = place != 0 ? Payload::kForwards : uint16_t{0},
                        .value_bytes = static_cast<uint32_t>(entry.value.size())};
  const NodePointer self =
      NodePointer::unused(index).next_use().with_length(space.length_of(payload.bytes()));
  char* const node = table.at(space.offset_bytes(self));
  char* const key = node + sizeof(NodeHeader);
  copy_bytes(key, entry.key.data(), payload.key_bytes);
  if (payload.value_bytes > 0) {
    copy_bytes(key + payload.key_bytes, entry.value.data(), payload.value_bytes);
  }
  if (place != 0) {
    copy_bytes(key + payload.key_bytes + payload.value_bytes, &place, sizeof(place));
  }
  seal(node, self, first, payload);
  table.set_word(bucket, self.word());
  return Status::ok_status();
}

}  // namespace
}  // namespace hashtable

Status fill_hashtable(std::span<char> memory, uint64_t count,
                      const std::function<HashtableEntry(uint64_t)>& entry) {
  VERBENA_ASSIGN_OR_RETURN(hashtable::TableMemory table, hashtable::TableMemory::of(memory));
  const uint64_t entries = table.layout().header().entries;
  const uint64_t used = table.word(hashtable::kNextFresh);
  // What is beyond `entries` are spare nodes, which updates need.
  if (used > entries || count > entries - used) {
    return {StatusCode::kLimitExceeded,
            "the hashtable was formatted for " + std::to_string(entries) + " entries, of which " +
                std::to_string(used) + " are used; " + std::to_string(count) +
                " more do not fit: format a larger one"};
  }
  Status status;
  uint64_t added = 0;
  while (added < count && status.ok()) {
    status = hashtable::add_entry(table, used + added, entry(added));
    if (status.ok()) ++added;
  }
  table.set_word(hashtable::kNextFresh, used + added);
  return status;
}

}  // namespace verbena
