#include "hashtable/layout.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>

#include "verbena/data_path.h"

namespace verbena::hashtable {
namespace {

constexpr uint64_t kMostEntries = uint64_t{1} << 27;
constexpr uint32_t kMostKeyBytes = 4096;
constexpr uint32_t kMostValueBytes = 1'000'000;
constexpr uint32_t kMostFrontEnds = 16'384;
constexpr uint64_t kAlignmentBytes = 64;

constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
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

uint64_t node_checksum(uint64_t self, uint64_t next, uint64_t payload) {
  return mix(payload ^ self, next);
}

Status out_of_range(const char* what, uint64_t asked, uint64_t least, uint64_t most) {
  return {StatusCode::kInvalidArgument, std::string("a hashtable has ") + what + " of " +
                                            std::to_string(least) + " to " + std::to_string(most) +
                                            ", not " + std::to_string(asked)};
}

uint64_t header_checksum(const Header& header) {
  return hash_bytes(reinterpret_cast<const char*>(&header), offsetof(Header, checksum), kMagic);
}

Status not_a_table(const std::string& why) {
  return {StatusCode::kProtocolViolation,
          "the region has no usable hashtable: " + why +
              "; format it with format_hashtable() of this release"};
}

}  // namespace

Layout::Layout(const Header& header)
    : header_(header),
      nodes_offset_bytes_(
          round_up(kDirectoryOffsetBytes + header.buckets * sizeof(uint64_t), kAlignmentBytes)) {}

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
  Header header;
  header.max_key_bytes = format.max_key_bytes;
  header.max_value_bytes = format.max_value_bytes;
  header.node_bytes = static_cast<uint32_t>(round_up(
      sizeof(NodeHeader) + format.max_key_bytes + format.max_value_bytes, kAlignmentBytes));
  header.length_bytes = static_cast<uint32_t>(
      round_up((header.node_bytes + NodePointer::kMostLength - 1) / NodePointer::kMostLength, 8));
  header.entries = format.entries;
  header.nodes = format.entries + uint64_t{format.max_front_ends} * kSpareNodes;
  header.buckets = std::bit_ceil(2 * format.entries);
  header.hash_seed = format.hash_seed;
  header.checksum = header_checksum(header);
  return Layout(header);
}

Result<Layout> Layout::of(const Header& header, uint64_t region_bytes) {
  if (header.magic != kMagic) return not_a_table("it begins with something else");
  if (header.version != kLayoutVersion) {
    return not_a_table("its version is " + std::to_string(header.version) + ", not " +
                       std::to_string(kLayoutVersion));
  }
  if (header.checksum != header_checksum(header)) {
    return not_a_table("its header is damaged");
  }
  const Layout layout(header);
  if (layout.region_bytes() > region_bytes) {
    return not_a_table("it has " + std::to_string(layout.region_bytes()) + " bytes, the region " +
                       std::to_string(region_bytes));
  }
  return layout;
}

uint64_t Layout::hash(std::string_view key) const {
  return hash_bytes(key.data(), key.size(), header_.hash_seed);
}

uint32_t Layout::carried_nodes() const {
  constexpr uint32_t kMost = 31;
  return std::min(
      kMost, static_cast<uint32_t>((header_.node_bytes - sizeof(NodeHeader)) / sizeof(uint64_t)));
}

bool Layout::parse(NodePointer pointer, const char* bytes, Node* node) const {
  NodeHeader header;
  copy_bytes(&header, bytes, sizeof(header));
  if (header.self != pointer.word()) return false;
  // A torn header may have any lengths.
  const uint64_t payload_bytes = uint64_t{header.key_bytes} + header.value_bytes;
  if (sizeof(header) + payload_bytes > size_bytes(pointer)) return false;
  const char* const payload = bytes + sizeof(header);
  if (header.checksum !=
      node_checksum(header.self, header.next,
                    payload_checksum(payload, header.key_bytes, header.value_bytes))) {
    return false;
  }
  node->next = NodePointer(header.next);
  node->key = {payload, header.key_bytes};
  node->value = {payload + header.key_bytes, header.value_bytes};
  return true;
}

uint64_t payload_checksum(const char* payload, uint32_t key_bytes, uint32_t value_bytes) {
  return hash_bytes(payload, uint64_t{key_bytes} + value_bytes, key_bytes);
}

void seal(char* bytes, NodePointer self, NodePointer next, uint32_t key_bytes, uint32_t value_bytes,
          uint64_t payload) {
  const NodeHeader header = {self.word(), next.word(),
                             node_checksum(self.word(), next.word(), payload), key_bytes,
                             value_bytes};
  copy_bytes(bytes, &header, sizeof(header));
}

}  // namespace verbena::hashtable
