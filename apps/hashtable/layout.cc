#include "hashtable/layout.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

#include "hashtable/hot_block.h"
#include "verbena/data_path.h"

namespace verbena::hashtable {
namespace {

constexpr uint64_t kMostEntries = uint64_t{1} << 27;
constexpr uint32_t kMostKeyBytes = 4096;
constexpr uint32_t kMostValueBytes = 1'000'000;
constexpr uint32_t kMostFrontEnds = 16'384;
constexpr uint32_t kMostBlocks = 65'536;
constexpr uint32_t kMostBlockEntries = 64;
constexpr uint64_t kMostCopyBytes = 1u << 20;  // RemoteRegionOptions::value_bytes
constexpr uint64_t kLeastLeaseNs = 1'000;
constexpr uint64_t kMostLeaseNs = 10'000'000'000;
constexpr uint64_t kAlignmentBytes = 64;

constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr uint32_t length_unit(uint32_t node_bytes) {
  return static_cast<uint32_t>(
      round_up((node_bytes + NodePointer::kMostLength - 1) / NodePointer::kMostLength, 8));
}

// Both halves of a product: each bit of the result depends on all of both.
uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a ^ 0x9e3779b97f4a7c15) *
                       static_cast<unsigned __int128>(b ^ 0xc2b2ae3d27d4eb4f);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t word_at(const char* bytes, size_t size_bytes = sizeof(uint64_t)) {
  uint64_t word = 0;
  copy_bytes(&word, bytes, size_bytes);
  return word;
}

uint64_t hash_bytes(const char* bytes, size_t size_bytes, uint64_t seed) {
  uint64_t hash = mix(seed, size_bytes);
  for (; size_bytes > 16; bytes += 16, size_bytes -= 16) {
    hash = mix(hash ^ word_at(bytes), word_at(bytes + 8));
  }
  if (size_bytes > 8) {
    hash = mix(hash ^ word_at(bytes), word_at(bytes + 8, size_bytes - 8));
  } else {
    hash = mix(hash ^ word_at(bytes, size_bytes), 0);
  }
  return mix(hash, seed);
}

// Of all that a node has.
uint64_t node_checksum(uint64_t self, uint64_t next, const char* bytes, const Payload& payload) {
  const uint64_t shape = uint64_t{payload.flags} << 16 | payload.key_bytes;
  return mix(hash_bytes(bytes, payload.bytes(), shape) ^ self, next);
}

Status out_of_range(const char* what, uint64_t asked, uint64_t least, uint64_t most) {
  return {StatusCode::kInvalidArgument, std::string("a hashtable has ") + what + " of " +
                                            std::to_string(least) + " to " + std::to_string(most) +
                                            ", not " + std::to_string(asked)};
}

// Fills in what a table with hot blocks has besides.
Status add_hot_area(const HashtableFormat& format, Header* header) {
  const uint32_t entries = format.hot_block_entries;
  if (entries < 2 || entries > kMostBlockEntries || !std::has_single_bit(entries)) {
    return {StatusCode::kInvalidArgument,
            "a hot block has 2, 4, 8, 16, 32 or 64 entries, not " + std::to_string(entries)};
  }
  if (format.hot_lock_lease_ns < kLeastLeaseNs || format.hot_lock_lease_ns > kMostLeaseNs) {
    return out_of_range("a hot_lock_lease_ns", format.hot_lock_lease_ns, kLeastLeaseNs,
                        kMostLeaseNs);
  }
  const uint64_t entry_bytes =
      round_up(sizeof(HotEntry) + format.max_key_bytes + format.max_value_bytes, 8);
  const uint64_t copy_bytes = round_up(
      sizeof(NodeHeader) + sizeof(HotBlockHeader) + entries * entry_bytes, kAlignmentBytes);
  if (copy_bytes > kMostCopyBytes) {
    return {StatusCode::kInvalidArgument, "hot blocks of " + std::to_string(entries) +
                                              " entries with these longest keys and "
                                              "values have " +
                                              std::to_string(copy_bytes) + " bytes, the most is " +
                                              std::to_string(kMostCopyBytes) +
                                              "; lower hot_block_entries, or hot_blocks to 0"};
  }
  header->hot_blocks = format.hot_blocks;
  header->hot_block_entries = entries;
  header->hot_entry_bytes = static_cast<uint32_t>(entry_bytes);
  header->copy_bytes = static_cast<uint32_t>(copy_bytes);
  header->copy_length_bytes = length_unit(header->copy_bytes);
  header->hot_lock_lease_ns = format.hot_lock_lease_ns;
  return Status::ok_status();
}

// Which a table with this header has, if it is one.
HashtableFormat format_of(const Header& header) {
  const uint64_t hot_entries = uint64_t{header.hot_blocks} * header.hot_block_entries;
  const uint64_t spare_nodes = header.nodes - header.entries - hot_entries;
  return {.entries = header.entries,
          .max_key_bytes = header.max_key_bytes,
          .max_value_bytes = header.max_value_bytes,
          .max_front_ends = static_cast<uint32_t>(spare_nodes / kSpareNodes),
          .hash_seed = header.hash_seed,
          .hot_blocks = header.hot_blocks,
          .hot_block_entries = header.hot_block_entries,
          .hot_lock_lease_ns = header.hot_lock_lease_ns};
}

Status not_a_table(const std::string& why) {
  return {StatusCode::kProtocolViolation,
          "the region has no usable hashtable: " + why +
              "; format it with format_hashtable() of this release"};
}

}  // namespace

uint64_t header_checksum(const Header& header) {
  return hash_bytes(reinterpret_cast<const char*>(&header), offsetof(Header, checksum), kMagic);
}

Layout::Layout(const Header& header, uint64_t base_bytes)
    : header_(header),
      base_bytes_(base_bytes),
      nodes_{.next_fresh = {base_bytes + kNextFresh.offset_bytes},
             .free_nodes = {base_bytes + kFreeNodes.offset_bytes},
             .first_offset_bytes =
                 base_bytes + round_up(kDirectoryOffsetBytes + header.buckets * sizeof(uint64_t),
                                       kAlignmentBytes),
             .nodes = header.nodes,
             .node_bytes = header.node_bytes,
             .length_bytes = header.length_bytes},
      blocks_offset_bytes_(nodes_.first_offset_bytes + nodes_.nodes * nodes_.node_bytes),
      copies_{.next_fresh = {base_bytes + kNextFreshCopy.offset_bytes},
              .free_nodes = {base_bytes + kFreeCopies.offset_bytes},
              .first_offset_bytes = blocks_offset_bytes_ + header.hot_blocks * kBlockLineBytes,
              .nodes = header.copies,
              .node_bytes = header.copy_bytes,
              .length_bytes = header.copy_length_bytes} {}

Result<Layout> Layout::of(const HashtableFormat& format) {
  const auto refused = [](const char* what, uint64_t asked, uint64_t least, uint64_t most) {
    return Result<Layout>(out_of_range(what, asked, least, most));
  };
  if (format.entries < 1 || format.entries > kMostEntries) {
    return refused("a number of entries", format.entries, 1, kMostEntries);
  }
  if (format.max_key_bytes < 1 || format.max_key_bytes > kMostKeyBytes) {
    return refused("a longest key in bytes", format.max_key_bytes, 1, kMostKeyBytes);
  }
  if (format.max_value_bytes > kMostValueBytes) {
    return refused("a longest value in bytes", format.max_value_bytes, 0, kMostValueBytes);
  }
  if (format.max_front_ends < 1 || format.max_front_ends > kMostFrontEnds) {
    return refused("a number of front-ends", format.max_front_ends, 1, kMostFrontEnds);
  }
  if (format.hot_blocks > kMostBlocks) {
    return refused("a number of hot blocks", format.hot_blocks, 0, kMostBlocks);
  }
  Header header;
  header.max_key_bytes = format.max_key_bytes;
  header.max_value_bytes = format.max_value_bytes;
  header.entries = format.entries;
  header.buckets = std::bit_ceil(2 * format.entries);
  header.hash_seed = format.hash_seed;
  const uint64_t spare_nodes = uint64_t{format.max_front_ends} * kSpareNodes;
  const uint32_t payload_bytes = format.max_key_bytes + format.max_value_bytes;
  uint64_t node_bytes = sizeof(NodeHeader) + payload_bytes;
  uint64_t hot_entries = 0;
  if (format.hot_blocks > 0) {
    VERBENA_RETURN_IF_ERROR(add_hot_area(format, &header));
    header.copies = format.hot_blocks + spare_nodes;
    hot_entries = uint64_t{format.hot_blocks} * format.hot_block_entries;
    node_bytes += sizeof(uint64_t);  // the place that a node forwards to
  }
  header.node_bytes = static_cast<uint32_t>(round_up(node_bytes, kAlignmentBytes));
  header.length_bytes = length_unit(header.node_bytes);
  // Keys that were removed while they were hot still have their nodes.
  header.nodes = format.entries + spare_nodes + hot_entries;
  header.checksum = header_checksum(header);
  return Layout(header, 0);
}

Result<Layout> Layout::of(const Header& header, uint64_t size_bytes, uint64_t base_bytes) {
  if (header.magic != kMagic) return not_a_table("it begins with something else");
  if (header.version != kLayoutVersion) {
    return not_a_table("its version is " + std::to_string(header.version) + ", not " +
                       std::to_string(kLayoutVersion));
  }
  if (header.checksum != header_checksum(header)) {
    return not_a_table("its header is damaged");
  }
  // The checksum is for damage; what multiplies and divides must follow from possible limits.
  const Result<Layout> possible = of(format_of(header));
  if (!possible.ok() || std::memcmp(&possible->header_, &header, sizeof(header)) != 0) {
    return not_a_table("the numbers of its header do not belong together");
  }
  const Layout layout(header, base_bytes);
  if (layout.size_bytes() > size_bytes) {
    return not_a_table("it has " + std::to_string(layout.size_bytes()) +
                       " bytes, the memory for it " + std::to_string(size_bytes));
  }
  return layout;
}

uint64_t Layout::hash(std::string_view key) const {
  return hash_bytes(key.data(), key.size(), header_.hash_seed);
}

uint32_t NodeSpace::carried_nodes() const {
  constexpr uint32_t kMost = 31;
  return std::min(kMost,
                  static_cast<uint32_t>((node_bytes - sizeof(NodeHeader)) / sizeof(uint64_t)));
}

bool NodeSpace::parse(NodePointer pointer, const char* bytes, Node* node) const {
  NodeHeader header;
  copy_bytes(&header, bytes, sizeof(header));
  if (header.self != pointer.word()) return false;
  // A torn header may have any lengths.
  const Payload& payload = header.payload;
  if (sizeof(header) + payload.bytes() > size_bytes(pointer)) return false;
  const char* const content = bytes + sizeof(header);
  if (header.checksum != node_checksum(header.self, header.next, content, payload)) return false;
  node->next = NodePointer(header.next);
  node->payload = payload;
  node->bytes = content;
  node->key = {content, payload.key_bytes};
  node->value = {content + payload.key_bytes, payload.value_bytes};
  if (payload.forwards()) node->place = word_at(content + payload.key_bytes + payload.value_bytes);
  return true;
}

void seal(char* bytes, NodePointer self, NodePointer next, const Payload& payload) {
  const NodeHeader header = {
      self.word(), next.word(),
      node_checksum(self.word(), next.word(), bytes + sizeof(NodeHeader), payload), payload};
  copy_bytes(bytes, &header, sizeof(header));
}

}  // namespace verbena::hashtable
