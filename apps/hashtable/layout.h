// What lies where in the region of a hashtable, and why.
//
//   header | next fresh node, free nodes | the same of copies | directory | nodes | blocks | copies
//
// Without a hot area there are neither blocks nor copies; hot_block.h says what they are.
//
// The directory has a word per bucket. A bucket is a list of nodes, each with one entry, and the
// word points to the first.
// A node that can be reached from the directory never changes: whoever modifies a bucket writes new
// nodes that nobody can reach yet, and publishes them by one compare-and-swap of the bucket's word.
// Where the entry is not the first of its bucket, the nodes before it are copied, too, since they
// lead to it; the ones behind it stay. The directory has two words per entry, so that is rare.
//
//   search   READ the word, READ the node
//   update   READ the word, READ the node (is it this key?), WRITE a new node, CAS of the word
//   insert   READ the word, WRITE, CAS        remove   READ the word, READ the node, CAS
//
// So the word is the whole state of a bucket: who finds it unchanged knows that nothing has
// happened to any of its keys. Two insertions of a key cannot both succeed, and a front-end that
// dies has published or has not. Reads are linearizable at the READ of the word, changes at their
// CAS.
//
// Nodes are used again. A pointer says which use it means: {use, length, index}; the node repeats
// the pointer under which it was published, and a checksum over all of it. A reader that finds
// another use, or a torn one, begins again with the word. A use comes again after 2^30 others of
// the same node: by then nobody may have an old pointer in its hands. (A front-end that was stopped
// for so long would also have to meet the very same pointer.)
//
// Who wins the compare-and-swap owns the nodes that it has made unreachable: no list of garbage and
// no epochs. A front-end keeps them in a queue (spare_nodes.h) and uses the oldest one first, so
// the last versions of an entry stay readable for those that are on their way to them: the versions
// of "memsem" IV-B. The paper takes a version by fetch-and-add and then writes the entry in place.
// That loses an acknowledged value where a writer dies half-way in a place that has come round
// again, and two writers that are slow can change their order; here the compare-and-swap is version
// and publication in one. Fetch-and-add hands out nodes that were never used.
//
// Nodes that a front-end has too many of go back as batches: one node carries the pointers of the
// others, and is pushed to the list of free nodes as to a bucket. What a dead front-end had is
// found by reclaim_hashtable(), once no front-end is connected.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "verbena/apps/hashtable.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena::hashtable {

inline constexpr uint64_t kMagic = 0x6c62746873616876;  // "vhashtbl"
inline constexpr uint32_t kLayoutVersion = 2;

// Nodes that a front-end may have of its own, for as many as HashtableFormat::max_front_ends.
inline constexpr uint32_t kSpareNodes = 160;

// Nodes of a bucket. There is half an entry per bucket, so more mean that all keys collide.
inline constexpr uint32_t kMostNodesOfBucket = 32;

// At offset 0. Front-ends read it when they open the table.
struct Header {
  uint64_t magic = kMagic;
  uint32_t version = kLayoutVersion;
  uint32_t max_key_bytes = 0;
  uint32_t max_value_bytes = 0;
  uint32_t node_bytes = 0;    // from one to the next
  uint32_t length_bytes = 0;  // the unit of a pointer's length
  uint32_t hot_blocks = 0;
  uint64_t entries = 0;
  uint64_t nodes = 0;
  uint64_t buckets = 0;  // a power of two
  uint64_t hash_seed = 0;
  uint32_t hot_block_entries = 0;
  uint32_t hot_entry_bytes = 0;  // from one to the next
  uint32_t copy_bytes = 0;       // from one copy of a block to the next
  uint32_t copy_length_bytes = 0;
  uint64_t copies = 0;
  uint64_t hot_lock_lease_ns = 0;
  uint64_t checksum = 0;  // of what is before it
};
static_assert(std::has_unique_object_representations_v<Header>);

// In cache lines of their own.
inline constexpr RemotePointer<uint64_t> kNextFresh{.offset_bytes = 128};
inline constexpr RemotePointer<uint64_t> kFreeNodes{.offset_bytes = 192};
inline constexpr RemotePointer<uint64_t> kNextFreshCopy{.offset_bytes = 256};
inline constexpr RemotePointer<uint64_t> kFreeCopies{.offset_bytes = 320};
inline constexpr uint64_t kDirectoryOffsetBytes = 384;

// Points to one use of a node, and says how many bytes to read. 0: to none.
class NodePointer {
 public:
  static constexpr uint32_t kIndexBits = 28;
  static constexpr uint32_t kLengthBits = 6;
  static constexpr uint64_t kMostNodes = uint64_t{1} << kIndexBits;
  static constexpr uint32_t kMostLength = (1u << kLengthBits) - 1;

  constexpr NodePointer() = default;
  constexpr explicit NodePointer(uint64_t word) : word_(word) {}
  // A node that was never used.
  static constexpr NodePointer unused(uint64_t index) { return NodePointer(index); }

  constexpr uint64_t word() const { return word_; }
  constexpr bool is_null() const { return word_ == 0; }
  constexpr uint64_t index() const { return word_ & (kMostNodes - 1); }
  constexpr uint32_t length() const {
    return static_cast<uint32_t>(word_ >> kIndexBits) & kMostLength;
  }
  constexpr NodePointer next_use() const { return NodePointer(word_ + kOneUse); }
  constexpr NodePointer with_length(uint32_t length) const {
    return NodePointer((word_ & ~(uint64_t{kMostLength} << kIndexBits)) | uint64_t{length}
                                                                              << kIndexBits);
  }
  friend constexpr bool operator==(NodePointer, NodePointer) = default;

 private:
  static constexpr uint64_t kOneUse = uint64_t{1} << (kIndexBits + kLengthBits);

  uint64_t word_ = 0;
};

// What a node has behind its header: the key, the value, and in one that forwards, its place.
struct Payload {
  // The key's entry may lie in the hot area, at the place whose number follows the value.
  static constexpr uint16_t kForwards = 1;
  // There is no such key, should it not lie there.
  static constexpr uint16_t kAbsent = 2;

  uint16_t key_bytes = 0;
  uint16_t flags = 0;
  uint32_t value_bytes = 0;

  bool forwards() const { return (flags & kForwards) != 0; }
  uint64_t bytes() const {
    return uint64_t{key_bytes} + value_bytes + (forwards() ? sizeof(uint64_t) : 0);
  }
};

// Free nodes that carry others have no key, and the others' pointers as their value; copies of
// blocks have no key, and the block as their value.
struct NodeHeader {
  uint64_t self = 0;
  uint64_t next = 0;
  uint64_t checksum = 0;
  Payload payload;
};

// A node that was read, as it lies in memory.
struct Node {
  NodePointer next;
  Payload payload;
  const char* bytes = nullptr;  // of the payload
  std::string_view key;
  std::string_view value;
  uint64_t place = 0;  // of one that forwards
};

// Nodes of one size, and the words from which front-ends get some.
struct NodeSpace {
  RemotePointer<uint64_t> next_fresh;
  RemotePointer<uint64_t> free_nodes;
  uint64_t first_offset_bytes = 0;
  uint64_t nodes = 0;
  uint32_t node_bytes = 0;
  uint32_t length_bytes = 0;  // the unit of a pointer's length

  uint64_t offset_bytes(NodePointer node) const {
    return first_offset_bytes + node.index() * node_bytes;
  }
  uint32_t size_bytes(NodePointer node) const {
    return std::min(node.length() * length_bytes, node_bytes);
  }
  // Of a node with so many bytes behind its header.
  uint32_t length_of(uint64_t payload_bytes) const {
    return static_cast<uint32_t>((sizeof(NodeHeader) + payload_bytes + length_bytes - 1) /
                                 length_bytes);
  }
  bool is_possible(NodePointer node) const { return node.index() < nodes && node.length() > 0; }
  // Pointers that fit into a free node.
  uint32_t carried_nodes() const;

  // Whether `bytes`, of size_bytes(pointer), are this use of the node, as a whole.
  bool parse(NodePointer pointer, const char* bytes, Node* node) const;
};

// What Header::checksum is to be.
uint64_t header_checksum(const Header& header);

// A header that was checked, and what follows from it.
class Layout {
 public:
  Layout() = default;
  // kInvalidArgument: a limit is out of range.
  static Result<Layout> of(const HashtableFormat& format);
  // Of `size_bytes` of memory, `base_bytes` behind where offsets count from; kProtocolViolation: no
  // hashtable, or a damaged one.
  static Result<Layout> of(const Header& header, uint64_t size_bytes, uint64_t base_bytes = 0);

  const Header& header() const { return header_; }
  bool has_hot_area() const { return header_.hot_blocks > 0; }
  uint64_t size_bytes() const {
    return copies_.first_offset_bytes + copies_.nodes * copies_.node_bytes - base_bytes_;
  }

  uint64_t hash(std::string_view key) const;
  RemotePointer<uint64_t> bucket(uint64_t index) const {
    return {base_bytes_ + kDirectoryOffsetBytes +
            (index & (header_.buckets - 1)) * sizeof(uint64_t)};
  }
  // Nodes of buckets.
  const NodeSpace& nodes() const { return nodes_; }

  // Copies of blocks of the hot area.
  const NodeSpace& copies() const { return copies_; }
  // The block of a hot key: bits of its hash that choose no bucket of most tables.
  uint32_t block_of(uint64_t hash) const {
    return static_cast<uint32_t>(((hash >> 32) * header_.hot_blocks) >> 32);
  }
  // A line with two words: the pointer to the block's copy, and the lock.
  RemotePointer<uint64_t> block(uint32_t index) const {
    return {blocks_offset_bytes_ + uint64_t{index} * kBlockLineBytes};
  }
  RemotePointer<uint64_t> block_lock(uint32_t index) const { return block(index) + 1; }
  // Front-ends read the most in one piece of this size.
  uint32_t largest_bytes() const { return std::max(header_.node_bytes, header_.copy_bytes); }

 private:
  static constexpr uint64_t kBlockLineBytes = 64;

  Layout(const Header& header, uint64_t base_bytes);

  Header header_;
  uint64_t base_bytes_ = 0;
  NodeSpace nodes_;
  uint64_t blocks_offset_bytes_ = 0;
  NodeSpace copies_;
};

// Writes the header of a node at `bytes`, whose payload follows.
void seal(char* bytes, NodePointer self, NodePointer next, const Payload& payload);

}  // namespace verbena::hashtable
