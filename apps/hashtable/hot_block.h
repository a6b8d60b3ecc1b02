// A block of the hot area, as its copies have it ("memsem" IV-B).
//
// A block is a pointer and a lock in the region. The pointer leads to a copy: a node of a space of
// its own (layout.h), with all of the block's entries. Copies never change while the pointer leads
// to them. Whoever modifies the block writes another copy, and publishes it by one compare-and-swap
// of the pointer. So the pointer is the whole state of the block, as the word is of a bucket, and
// the lock is only for front-ends that meet at a block: it keeps them from work in vain.
//
// A key lies in a bucket or in its block, and two words decide that, so it moves in steps:
//
//   promise   The block gets an entry for the key that says nothing yet, with a number that no
//             other one ever has: its place.
//   forward   An update publishes, in the bucket, a node with its value and the place.
//   adopt     Who modifies the key next finds that node, and the promise: it makes the entry
//             active, with the node's value and then its own. From now on the entry counts.
//   release   To demote it, a node with the entry's value and place replaces the one in the bucket.
//             Then the entry is dropped, if nobody has modified it since its value was read. Then a
//             node that forwards nowhere replaces the other one.
//
// So for a node that forwards to a place there are three cases. The block has an active entry with
// that place: that counts. It has the promise: the node's value counts, and who modifies the key
// has to adopt it. Neither: the node's value counts, for good, since a place never comes again, and
// the node is like any other. An active entry always has a node in the bucket that forwards to it:
// no node is replaced while its place is promised or active, but by a node with the same place.
// Each step is one compare-and-swap, and whoever dies between two of them blocks nobody.
//
// Who searches, and finds a node whose place is gone, looks at the bucket's word once more: it may
// have read an old node before the key was demoted, and the block after.
#pragma once

#include <cstdint>
#include <string_view>

#include "hashtable/layout.h"
#include "verbena/data_path.h"

namespace verbena::hashtable {

struct HotBlockHeader {
  uint32_t entries = 0;
  uint32_t recent = 0;  // modifications since all heats were halved
};

// Followed by the key, and the value at a fixed distance behind the longest key.
struct HotEntry {
  static constexpr uint16_t kPromised = 1;  // not active
  static constexpr uint16_t kAbsent = 2;    // there is no such key

  uint64_t place = 0;
  uint32_t version = 0;  // of its value
  uint32_t heat = 0;     // modifications, less those of long ago
  uint32_t tag = 0;      // of the key's hash
  uint32_t value_bytes = 0;
  uint16_t key_bytes = 0;
  uint16_t flags = 0;
  uint32_t unused = 0;

  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash); }
  bool is_active() const { return (flags & kPromised) == 0; }
  bool is_absent() const { return (flags & kAbsent) != 0; }
};

// The block in a copy's value. Data path.
class HotBlock {
 public:
  // What all blocks of a table have in common.
  struct Shape {
    uint32_t most_entries = 0;
    uint32_t entry_bytes = 0;
    uint32_t max_key_bytes = 0;
    uint32_t max_value_bytes = 0;

    static Shape of(const Header& header) {
      return {.most_entries = header.hot_block_entries,
              .entry_bytes = header.hot_entry_bytes,
              .max_key_bytes = header.max_key_bytes,
              .max_value_bytes = header.max_value_bytes};
    }
  };

  HotBlock(char* bytes, const Shape& shape) : bytes_(bytes), shape_(&shape) {}

  uint32_t count() const { return header().entries; }
  bool is_full() const { return count() >= shape_->most_entries; }
  uint32_t size_bytes() const { return size_bytes(count()); }
  // Whether a copy of so many bytes, whose checksum is right, is a block.
  bool is_sound(uint64_t bytes) const {
    if (bytes < sizeof(HotBlockHeader) || count() > shape_->most_entries || bytes != size_bytes()) {
      return false;
    }
    for (uint32_t i = 0; i < count(); ++i) {
      const HotEntry one = entry(i);
      if (one.key_bytes > shape_->max_key_bytes || one.value_bytes > shape_->max_value_bytes) {
        return false;
      }
    }
    return true;
  }
  void clear() { set_header({}); }

  HotEntry entry(uint32_t i) const {
    HotEntry entry;
    copy_bytes(&entry, at(i), sizeof(entry));
    return entry;
  }
  std::string_view key(uint32_t i, const HotEntry& entry) const {
    return {at(i) + sizeof(HotEntry), entry.key_bytes};
  }
  std::string_view value(uint32_t i, const HotEntry& entry) const {
    return {at(i) + sizeof(HotEntry) + shape_->max_key_bytes, entry.value_bytes};
  }

  // Must not be full.
  void add_promise(std::string_view key, uint32_t tag, uint64_t place) {
    const uint32_t i = count();
    HotBlockHeader header = this->header();
    ++header.entries;
    set_header(header);
    set_entry(i, {.place = place,
                  .tag = tag,
                  .key_bytes = static_cast<uint16_t>(key.size()),
                  .flags = HotEntry::kPromised});
    copy_bytes(at(i) + sizeof(HotEntry), key.data(), key.size());
  }
  // Makes the entry active, with this value, the last one of so many modifications.
  void set(uint32_t i, std::string_view value, uint32_t modifications = 1) {
    HotEntry changed = entry(i);
    changed.value_bytes = static_cast<uint32_t>(value.size());
    changed.flags = 0;
    change(i, changed, modifications);
    if (!value.empty()) {
      copy_bytes(at(i) + sizeof(HotEntry) + shape_->max_key_bytes, value.data(), value.size());
    }
  }
  // Makes the entry active and absent. It is the first that is given back.
  void set_absent(uint32_t i) {
    HotEntry changed = entry(i);
    changed.value_bytes = 0;
    changed.flags = HotEntry::kAbsent;
    change(i, changed, 1);
    changed = entry(i);
    changed.heat = 0;
    set_entry(i, changed);
  }
  // The last entry takes its number.
  void drop(uint32_t i) {
    HotBlockHeader header = this->header();
    const uint32_t last = --header.entries;
    if (i != last) copy_bytes(at(i), at(last), shape_->entry_bytes);
    set_header(header);
  }
  // The entry with the least heat. Must have one.
  uint32_t coldest() const {
    uint32_t coldest = 0;
    for (uint32_t i = 1; i < count(); ++i) {
      if (entry(i).heat < entry(coldest).heat) coldest = i;
    }
    return coldest;
  }

 private:
  // Modifications per entry after which heats are halved.
  static constexpr uint32_t kAgesAfter = 16;

  HotBlockHeader header() const {
    HotBlockHeader header;
    copy_bytes(&header, bytes_, sizeof(header));
    return header;
  }
  void set_header(const HotBlockHeader& header) { copy_bytes(bytes_, &header, sizeof(header)); }
  uint32_t size_bytes(uint32_t entries) const {
    return static_cast<uint32_t>(sizeof(HotBlockHeader)) + entries * shape_->entry_bytes;
  }
  char* at(uint32_t i) const { return bytes_ + size_bytes(i); }
  void set_entry(uint32_t i, const HotEntry& entry) { copy_bytes(at(i), &entry, sizeof(entry)); }

  void change(uint32_t i, HotEntry changed, uint32_t modifications) {
    ++changed.version;
    changed.heat += modifications;
    set_entry(i, changed);
    HotBlockHeader header = this->header();
    header.recent += modifications;
    if (header.recent >= kAgesAfter * shape_->most_entries) {
      header.recent = 0;
      for (uint32_t j = 0; j < header.entries; ++j) {
        HotEntry older = entry(j);
        older.heat /= 2;
        set_entry(j, older);
      }
    }
    set_header(header);
  }

  char* bytes_;
  const Shape* shape_;
};

}  // namespace verbena::hashtable
