// Updates that a front-end answers before they are published (HashtableAcknowledgement::kBuffered).
#include <algorithm>
#include <cassert>

#include "hashtable/hot_area.h"
#include "verbena/clock.h"
#include "verbena/data_path.h"

namespace verbena::hashtable {

bool HotArea::keep(uint64_t hash, std::string_view key, std::string_view value) {
  if (late_) return false;
  const uint32_t b = layout_.block_of(hash);
  const uint32_t tag = HotEntry::tag_of(hash);
  const uint32_t kept = buffer_->find(b, tag, key);
  if (kept == kNone) {
    const uint32_t i = find(b, tag, key);
    if (i == kNone || !content(b).entry(i).is_active() || buffer_->is_full(b)) return false;
    // The copy that evaluate() leaves to them.
    if (!has_kept() && pool_.count() == 0) return false;
  }
  buffer_->keep(b, kept, tag, key, value, now_ns);
  ++statistics_.hot_kept;
  if (buffer_->modifications(b) >= options_.hot_modifications) {
    want_write_back(b);
  }
  return true;
}

bool HotArea::find_kept(uint64_t hash, std::string_view key, std::string_view* value) const {
  const uint32_t b = layout_.block_of(hash);
  const uint32_t i = buffer_->find(b, HotEntry::tag_of(hash), key);
  if (i == kNone || buffer_->may_be_published(b, i)) return false;
  *value = buffer_->value(b, i);
  return true;
}

bool HotArea::hold(Operation& operation) {
  const uint32_t b = layout_.block_of(operation.hash);
  if (buffer_->find(b, HotEntry::tag_of(operation.hash), operation.key()) == kNone) return false;
  operation.step = Operation::Step::kAtBlock;
  operation.verdict = Operation::Verdict::kAgain;
  append(blocks_[b].held, *operations_, number_of(operation));
  // A search waits for what is on its way already.
  if (!operation.is_search()) want_write_back(b);
  return true;
}

void HotArea::release_held(Block& block) {
  if (block.held.first == kNone) return;
  if (released_.first == kNone) {
    released_ = block.held;
  } else {
    (*operations_)[released_.last].next = block.held.first;
    released_.last = block.held.last;
  }
  block.held = {};
}

// --- when a block is written ---

// What is begun now should be over when the loss window is.
uint64_t HotArea::kept_due_ns() const {
  if (!has_kept() || buffer_->oldest() == kNone) return UINT64_MAX;
  return buffer_->since_ns(buffer_->oldest()) + options_.loss_window_ns / 2;
}

void HotArea::poll_kept() {
  late_ = false;
  if (!has_kept() || closing_) return;
  const uint64_t at_ns = now_ns();
  while (!writes_all_back_ && kept_due_ns() <= at_ns) buffer_->want(buffer_->oldest());
  begin_wanted();
  late_ = buffer_->oldest_ns() + options_.loss_window_ns < at_ns;
}

void HotArea::begin_wanted() {
  if (!buffers()) return;
  for (uint32_t b = buffer_->first_wanted(); b != kNone && write_backs_ < kWriteBacks;) {
    const uint32_t next = buffer_->next_wanted(b);
    begin_write_back(b);
    b = next;
  }
}

void HotArea::write_back() {
  writes_all_back_ = true;
  stuck_ = false;
  while (buffer_->oldest() != kNone) buffer_->want(buffer_->oldest());
  begin_wanted();
}

bool HotArea::end_write_back() {
  writes_all_back_ = false;
  return stuck_;
}

void HotArea::want_write_back(uint32_t b) {
  buffer_->want(b);
  if (buffer_->is_wanted(b)) begin_write_back(b);
}

// Of a block that is wanted; it stays that if its round cannot begin now.
void HotArea::begin_write_back(uint32_t b) {
  Block& block = blocks_[b];
  if (block.step != Step::kIdle && block.step != Step::kGathering) return;
  if (block.waiting.first == kNone) {
    if (write_backs_ == kWriteBacks) return;
    ++write_backs_;
    block.is_write_back = true;
  }
  begin(b);
}

// Lets what is kept modify the block's content, before the operations of the round do.
uint32_t HotArea::merge_kept(uint32_t b) {
  if (!buffers() || !buffer_->has_dirty(b)) return 0;
  return buffer_->write(
      b, [&](uint32_t tag, std::string_view key, std::string_view value, uint32_t modifications) {
        const uint32_t i = find(b, tag, key);
        if (i == kNone || !content(b).entry(i).is_active()) return false;
        content(b).set(i, value, modifications);
        return true;
      });
}

// Whether something in the round was answered before.
bool HotArea::has_answered(uint32_t b) const {
  if (!buffers()) return false;
  if (buffer_->has_dirty(b)) return true;
  for (uint32_t i = blocks_[b].batch.first; i != kNone; i = (*operations_)[i].next) {
    if ((*operations_)[i].is_write_back) return true;
  }
  return false;
}

void HotArea::end_round(uint32_t b) {
  Block& block = blocks_[b];
  buffer_->end_write(b);
  if (block.is_write_back) --write_backs_;
  block.is_write_back = false;
  block.writes_back = false;
  if (block.has_strays || !buffer_->has_strays(b)) return;
  block.has_strays = true;
  with_strays_.push_back(b);
}

// --- strays ---

bool HotArea::take_stray(Operation& operation) {
  while (!with_strays_.empty()) {
    const uint32_t b = with_strays_.back();
    if (!buffer_->has_strays(b)) {
      with_strays_.pop_back();
      blocks_[b].has_strays = false;
      continue;
    }
    if (write_backs_ == kWriteBacks) return false;
    ++write_backs_;
    ++statistics_.hot_strays;
    const uint32_t i = buffer_->carry_stray(b);
    const std::string_view key = buffer_->key(b, i);
    const std::string_view value = buffer_->value(b, i);
    operation.key_bytes = static_cast<uint16_t>(key.size());
    operation.value_bytes = static_cast<uint32_t>(value.size());
    char* const payload = operation.node + sizeof(NodeHeader);
    copy_bytes(payload, key.data(), key.size());
    if (!value.empty()) copy_bytes(payload + key.size(), value.data(), value.size());
    return true;
  }
  return false;
}

void HotArea::end_stray(const Operation& operation, bool placed) {
  const uint32_t b = layout_.block_of(operation.hash);
  const uint32_t i = buffer_->find(b, HotEntry::tag_of(operation.hash), operation.key());
  assert(i != kNone);
  --write_backs_;
  stuck_ = stuck_ || !placed;
  for (uint32_t j = blocks_[b].held.first; !placed && gives_up_stuck_ && j != kNone;) {
    Operation& held = (*operations_)[j];
    // What a search finds is the update, which is kept.
    if (!held.is_search() && held.key() == operation.key()) {
      held.verdict = Operation::Verdict::kStuck;
    }
    j = held.next;
  }
  buffer_->end_stray(b, i, placed, now_ns);
  release_held(blocks_[b]);
}

}  // namespace verbena::hashtable
