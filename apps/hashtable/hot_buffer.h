// Updates of hot keys that a front-end has answered and not published yet ("memsem" IV-B:
// front-ends buffer hot entries). For each block of the hot area there is a second one here, with
// the newest value of each key that is kept. A value is
//
//   dirty     kept, and in no copy of the block that is on its way
//   written   in one that is; also dirty, if it was updated meanwhile
//   stray     its key has left the block, so an operation of the cold area has to carry it
//
// and is forgotten once it is published and nothing newer is kept. Data path.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "hashtable/hot_block.h"

namespace verbena::hashtable {

class HotBuffer {
 public:
  static constexpr uint32_t kNone = ~0u;

  HotBuffer(uint32_t blocks, const HotBlock::Shape& shape)
      : shape_(shape),
        block_bytes_(sizeof(HotBlockHeader) + uint64_t{shape.most_entries} * shape.entry_bytes),
        blocks_(blocks),
        bytes_(blocks * block_bytes_),
        tags_(size_t{blocks} * shape.most_entries) {
    written_.reserve(blocks);
  }

  // The number of a key's entry, which changes with the next call of written() or end_stray().
  uint32_t find(uint32_t b, uint32_t tag, std::string_view key) const {
    const HotBlock block = content(b);
    const uint32_t* const tags = &tags_[size_t{b} * shape_.most_entries];
    const uint32_t count = block.count();
    for (uint32_t i = 0; i < count; ++i) {
      if (tags[i] == tag && block.key(i, block.entry(i)) == key) return i;
    }
    return kNone;
  }
  std::string_view key(uint32_t b, uint32_t i) const {
    return content(b).key(i, content(b).entry(i));
  }
  std::string_view value(uint32_t b, uint32_t i) const {
    return content(b).value(i, content(b).entry(i));
  }
  bool is_full(uint32_t b) const { return content(b).is_full(); }
  // Whether the value is on its way, so that others may have seen it, and replaced it, already.
  bool may_be_published(uint32_t b, uint32_t i) const {
    const Block& block = blocks_[b];
    return ((block.written | block.carried) & ~block.dirty & bit(i)) != 0;
  }
  // That are kept, and in no copy on its way.
  uint32_t modifications(uint32_t b) const { return blocks_[b].modifications; }
  bool has_dirty(uint32_t b) const { return (blocks_[b].dirty & ~blocks_[b].stray) != 0; }

  // Keeps an update, of the entry `i`, or of a key that has none (kNone, and the block is not
  // full).
  template <typename Clock>
  void keep(uint32_t b, uint32_t i, uint32_t tag, std::string_view key, std::string_view value,
            Clock&& now) {
    HotBlock kept = content(b);
    if (i == kNone) {
      i = kept.count();
      kept.add_promise(key, tag, 0);
      tags_[size_t{b} * shape_.most_entries + i] = tag;
    }
    kept.set(i, value);
    Block& block = blocks_[b];
    // One of a stray waits for its operation.
    if (block.list == List::kNone && (block.stray & bit(i)) == 0) gather(b, now());
    block.dirty |= bit(i);
    ++block.modifications;
  }

  // --- when a block is written ---

  // The block whose updates wait the longest, of those that nobody wants to write yet; or kNone.
  uint32_t oldest() const { return first_[place(List::kGathering)]; }
  uint64_t since_ns(uint32_t b) const { return blocks_[b].since_ns; }
  // Blocks that are to be written as soon as may be, in turn.
  void want(uint32_t b) {
    if (blocks_[b].list == List::kWanted || !has_dirty(b)) return;
    unlink(b);
    link(b, List::kWanted);
  }
  bool is_wanted(uint32_t b) const { return blocks_[b].list == List::kWanted; }
  uint32_t first_wanted() const { return first_[place(List::kWanted)]; }
  uint32_t next_wanted(uint32_t b) const { return blocks_[b].behind; }

  // Whether something is being written, or is to be.
  bool is_writing() const { return first_wanted() != kNone || !written_.empty(); }
  bool is_empty() const { return oldest() == kNone && first_wanted() == kNone && written_.empty(); }
  // When the oldest update was kept that is not published; UINT64_MAX: there is none.
  uint64_t oldest_ns() const {
    uint64_t oldest_ns = stuck_since_ns_;
    if (oldest() != kNone) oldest_ns = std::min(oldest_ns, blocks_[oldest()].since_ns);
    for (uint32_t b = first_wanted(); b != kNone; b = next_wanted(b)) {
      oldest_ns = std::min(oldest_ns, blocks_[b].since_ns);
    }
    for (const uint32_t b : written_) oldest_ns = std::min(oldest_ns, blocks_[b].written_since_ns);
    return oldest_ns;
  }

  // --- writing ---

  // A round that writes the block begins. Its updates are no longer waited for.
  void begin_write(uint32_t b) {
    Block& block = blocks_[b];
    if (block.list == List::kNone) return;
    unlink(b);
    block.begun = true;
    if (block.written_since_ns == UINT64_MAX) written_.push_back(b);
    block.written_since_ns = std::min(block.written_since_ns, block.since_ns);
  }
  // Calls apply(tag, key, value, modifications) for each that is dirty: true, it is in the copy
  // that is written now; false, it is a stray. Returns how many are in the copy.
  template <typename Apply>
  uint32_t write(uint32_t b, Apply&& apply) {
    begin_write(b);
    Block& block = blocks_[b];
    const HotBlock kept = content(b);
    assert(block.written == 0);
    const uint64_t taken = block.dirty & ~block.stray;
    for (uint64_t left = taken; left != 0; left &= left - 1) {
      const auto i = static_cast<uint32_t>(std::countr_zero(left));
      const HotEntry entry = kept.entry(i);
      const bool applied = apply(entry.tag, kept.key(i, entry), kept.value(i, entry), entry.heat);
      (applied ? block.written : block.stray) |= bit(i);
    }
    block.dirty &= ~taken;
    block.begun = false;
    block.written_modifications = block.modifications;
    block.modifications = 0;
    return static_cast<uint32_t>(std::popcount(block.written));
  }
  // The copy is published. Returns of how many updates.
  uint32_t written(uint32_t b) {
    Block& block = blocks_[b];
    const uint64_t clean = block.written & ~block.dirty;
    block.written = 0;
    // The last one takes the place of one that goes, so from the end on.
    for (uint32_t i = content(b).count(); i-- > 0;) {
      if ((clean & bit(i)) != 0) drop(b, i);
    }
    end_write(b);
    return std::exchange(block.written_modifications, 0);
  }
  // Another front-end's was published before it.
  void take_back(uint32_t b) {
    Block& block = blocks_[b];
    block.dirty |= std::exchange(block.written, 0) | (block.stray & ~block.carried);
    block.stray &= block.carried;
    block.begun = has_dirty(b);
    block.modifications += std::exchange(block.written_modifications, 0);
  }
  // The round is over, whether something was published or not.
  void end_write(uint32_t b) {
    Block& block = blocks_[b];
    // Strays end while another round of the block has begun, too.
    if (block.written_since_ns == UINT64_MAX || block.begun || (block.written | block.stray) != 0) {
      return;
    }
    block.written_since_ns = UINT64_MAX;
    written_.erase(std::find(written_.begin(), written_.end(), b));
    if (is_empty()) stuck_since_ns_ = UINT64_MAX;
  }

  // --- strays ---

  bool has_strays(uint32_t b) const { return (blocks_[b].stray & ~blocks_[b].carried) != 0; }
  // One that no operation carries yet. From now on one does, with the newest value that is kept: if
  // that was published again later, it would come back after others had replaced it.
  uint32_t carry_stray(uint32_t b) {
    Block& block = blocks_[b];
    const auto i = static_cast<uint32_t>(std::countr_zero(block.stray & ~block.carried));
    block.carried |= bit(i);
    block.dirty &= ~bit(i);
    return i;
  }
  // It is published, or (`placed` is false) there was no room for it: it is kept, to be tried
  // again.
  template <typename Clock>
  void end_stray(uint32_t b, uint32_t i, bool placed, Clock&& now) {
    Block& block = blocks_[b];
    assert((block.carried & bit(i)) != 0);
    block.carried &= ~bit(i);
    block.stray &= ~bit(i);
    if (!placed) {
      block.dirty |= bit(i);
      ++block.modifications;
      stuck_since_ns_ = std::min(stuck_since_ns_, block.written_since_ns);
      if (block.list == List::kNone) gather(b, now());
    } else if ((block.dirty & bit(i)) == 0) {
      drop(b, i);
    } else {
      // It was updated meanwhile, and has waited for this one.
      block.since_ns = std::min(block.since_ns, block.written_since_ns);
      want(b);
    }
    end_write(b);
  }

 private:
  enum class List : uint8_t { kGathering, kWanted, kNone };
  struct Block {
    uint64_t dirty = 0;  // one bit for each entry
    uint64_t written = 0;
    uint64_t stray = 0;
    uint64_t carried = 0;  // strays for which there is an operation
    uint64_t since_ns = 0;
    uint64_t written_since_ns = UINT64_MAX;  // of those that were begun with
    uint32_t modifications = 0;
    uint32_t written_modifications = 0;
    uint32_t before = kNone;  // in its list
    uint32_t behind = kNone;
    List list = List::kNone;
    bool begun = false;  // a round, which has written nothing yet
  };

  static uint64_t bit(uint32_t i) { return uint64_t{1} << i; }
  static size_t place(List list) { return static_cast<size_t>(list); }
  HotBlock content(uint32_t b) { return {&bytes_[b * block_bytes_], shape_}; }
  // Of a block that is not modified.
  HotBlock content(uint32_t b) const {
    return {const_cast<char*>(&bytes_[b * block_bytes_]), shape_};
  }

  void drop(uint32_t b, uint32_t i) {
    Block& block = blocks_[b];
    content(b).drop(i);
    const uint32_t last = content(b).count();
    uint32_t* const tags = &tags_[size_t{b} * shape_.most_entries];
    tags[i] = tags[last];
    for (uint64_t* const bits : {&block.dirty, &block.written, &block.stray, &block.carried}) {
      const bool moved = (*bits & bit(last)) != 0;
      *bits &= ~(bit(i) | bit(last));
      if (moved && i != last) *bits |= bit(i);
    }
  }

  void gather(uint32_t b, uint64_t since_ns) {
    blocks_[b].since_ns = since_ns;
    link(b, List::kGathering);
  }
  void link(uint32_t b, List list) {
    Block& block = blocks_[b];
    uint32_t& last = last_[place(list)];
    block.list = list;
    block.before = last;
    block.behind = kNone;
    (last == kNone ? first_[place(list)] : blocks_[last].behind) = b;
    last = b;
  }
  void unlink(uint32_t b) {
    Block& block = blocks_[b];
    if (block.list == List::kNone) return;
    const size_t list = place(block.list);
    (block.before == kNone ? first_[list] : blocks_[block.before].behind) = block.behind;
    (block.behind == kNone ? last_[list] : blocks_[block.behind].before) = block.before;
    block.list = List::kNone;
  }

  const HotBlock::Shape shape_;
  const uint64_t block_bytes_;
  std::vector<Block> blocks_;
  std::vector<char> bytes_;
  std::vector<uint32_t> tags_;
  uint32_t first_[2] = {kNone, kNone};  // of the lists
  uint32_t last_[2] = {kNone, kNone};
  std::vector<uint32_t> written_;         // blocks that are being written, or have strays
  uint64_t stuck_since_ns_ = UINT64_MAX;  // of strays that found no room
};

}  // namespace verbena::hashtable
