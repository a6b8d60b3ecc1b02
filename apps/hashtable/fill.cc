// What a back-end puts into its table before the first front-end comes.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

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

// Whether the bucket that begins with `at` has no such key, and room for one more.
Status check_bucket(TableMemory& table, NodePointer at, std::string_view key) {
  const NodeSpace& space = table.layout().nodes();
  for (uint32_t nodes = 1; !at.is_null(); ++nodes) {
    Node node;
    if (!space.is_possible(at) || !space.parse(at, table.at(space.offset_bytes(at)), &node)) {
      return {StatusCode::kProtocolViolation,
              "the hashtable is damaged: something else writes into its memory; format it anew"};
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

Status add_entry(TableMemory& table, uint64_t index, const HashtableEntry& entry) {
  const Layout& layout = table.layout();
  VERBENA_RETURN_IF_ERROR(check_entry(layout.header(), entry));
  const RemotePointer<uint64_t> bucket = layout.bucket(layout.hash(entry.key));
  const NodePointer first(table.word(bucket));
  VERBENA_RETURN_IF_ERROR(check_bucket(table, first, entry.key));
  const NodeSpace& space = layout.nodes();
  const Payload payload{.key_bytes = static_cast<uint16_t>(entry.key.size()),
                        .value_bytes = static_cast<uint32_t>(entry.value.size())};
  const NodePointer self =
      NodePointer::unused(index).next_use().with_length(space.length_of(payload.bytes()));
  char* const node = table.at(space.offset_bytes(self));
  char* const key = node + sizeof(NodeHeader);
  copy_bytes(key, entry.key.data(), payload.key_bytes);
  if (payload.value_bytes > 0) {
    copy_bytes(key + payload.key_bytes, entry.value.data(), payload.value_bytes);
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
