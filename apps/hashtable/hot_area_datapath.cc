#include <algorithm>
#include <cassert>
#include <cstddef>

#include "hashtable/hot_area.h"
#include "verbena/clock.h"
#include "verbena/data_path.h"
#include "verbena/remote_lock.h"

namespace verbena::hashtable {
namespace {

// As long as a block's pointer does not change, its copy does not either.
constexpr uint32_t kMostBlockMisreads = 8;
// Between two attempts to get a lock: a random time up to a bound that doubles.
constexpr uint32_t kBackoffLeastNs = 1'000;
constexpr uint32_t kBackoffMostNs = 8'000;

bool modifies(const Operation& operation) {
  return !operation.is_search() && !(operation.kind == Operation::Kind::kDemote &&
                                     operation.phase != Operation::Phase::kDropping);
}

void answered(Operation& operation, HashtableOutcome outcome) {
  operation.verdict = Operation::Verdict::kAnswered;
  operation.outcome = outcome;
}

}  // namespace

HotArea::HotArea(RemoteRegion& region, const Layout& layout, const HashtableOptions& options,
                 std::vector<Operation>& operations)
    : region_(&region),
      layout_(layout),
      space_(layout.copies()),
      options_(options),
      shape_(HotBlock::Shape::of(layout.header())),
      copy_bytes_(layout.header().copy_bytes),
      operations_(&operations),
      pool_(region, space_, kPoolToken,
            2 * SpareNodes::kMany + 2 * static_cast<uint32_t>(operations.size())),
      sketch_(uint64_t{layout.header().hot_blocks} * shape_.most_entries),
      blocks_(layout.header().hot_blocks),
      contents_(blocks_.size() * copy_bytes_),
      tags_(blocks_.size() * shape_.most_entries) {
  // A block that is not idle has an operation, or is one of kWriteBacks.
  for (std::vector<uint32_t>* const list : {&backing_off_, &waiting_, &due_, &answering_}) {
    list->reserve(operations.size() + kWriteBacks);
  }
  if (options.acknowledgement == HashtableAcknowledgement::kBuffered) {
    buffer_.emplace(layout.header().hot_blocks, shape_);
    with_strays_.reserve(blocks_.size());
  }
}

// --- what is known of the blocks ---

uint32_t HotArea::find(uint32_t b, uint32_t tag, std::string_view key) const {
  const HotBlock block = content(b);
  const uint32_t* const tags = &tags_[size_t{b} * shape_.most_entries];
  const uint32_t count = block.count();
  for (uint32_t i = 0; i < count; ++i) {
    if (tags[i] == tag && block.key(i, block.entry(i)) == key) return i;
  }
  return kNone;
}

void HotArea::note_tags(uint32_t b) {
  const HotBlock block = content(b);
  uint32_t* const tags = &tags_[size_t{b} * shape_.most_entries];
  for (uint32_t i = 0; i < block.count(); ++i) tags[i] = block.entry(i).tag;
}

HotArea::Route HotArea::route(Operation& operation, uint32_t* victim) {
  const uint32_t b = layout_.block_of(operation.hash);
  const HotBlock block = content(b);
  *victim = kNone;
  const uint32_t i = find(b, operation);
  if (i != kNone) {
    const HotEntry entry = block.entry(i);
    if (entry.is_active()) return Route::kBlock;
    // Only a place that was published: a node must not forward to one that may come later.
    if (operation.sets_value() && blocks_[b].known) operation.promised_place = entry.place;
    return Route::kCold;
  }
  if (!operation.sets_value() || sketch_.count(operation.hash) < options_.hot_after) {
    return Route::kCold;
  }
  if (block.is_full()) {
    ++statistics_.hot_refusals;
    if (++blocks_[b].refused_promotions % options_.hot_patience == 0) *victim = block.coldest();
    return Route::kCold;
  }
  operation.wants_promise = true;
  return Route::kBlock;
}

// --- gathering ---

void HotArea::enqueue(Operation& operation, bool urgent) {
  const uint32_t b = layout_.block_of(operation.hash);
  Block& block = blocks_[b];
  operation.step = Operation::Step::kAtBlock;
  append(block.waiting, *operations_, number_of(operation));
  ++block.waiting_operations;
  if (block.step == Step::kGathering) ++gathered_;
  if (modifies(operation)) ++block.waiting_modifications;
  block.urgent = block.urgent || urgent || operation.is_search() || options_.hot_lease_ns == 0;
  if (block.step == Step::kIdle || block.step == Step::kGathering) begin_or_gather(b);
}

void HotArea::begin_or_gather(uint32_t b) {
  const Block& block = blocks_[b];
  if (block.urgent || block.waiting_modifications >= options_.hot_modifications) {
    begin(b);
  } else if (block.step == Step::kIdle) {
    gather(b);
  }
}

void HotArea::gather(uint32_t b) {
  Block& block = blocks_[b];
  block.step = Step::kGathering;
  block.due_ns = end_of_ns(now_ns(), options_.hot_lease_ns);
  block.before = last_gathering_;
  block.behind = kNone;
  (last_gathering_ == kNone ? first_gathering_ : blocks_[last_gathering_].behind) = b;
  last_gathering_ = b;
  gathered_ += block.waiting_operations;
}

void HotArea::stop_gathering(uint32_t b) {
  const Block& block = blocks_[b];
  gathered_ -= block.waiting_operations;
  (block.before == kNone ? first_gathering_ : blocks_[block.before].behind) = block.behind;
  (block.behind == kNone ? last_gathering_ : blocks_[block.behind].before) = block.before;
}

void HotArea::poll() {
  if (buffers()) poll_kept();
  if (!waits_for_time()) return;
  const uint64_t at_ns = now_ns();
  while (first_gathering_ != kNone && blocks_[first_gathering_].due_ns <= at_ns) {
    begin(first_gathering_);
  }
  if (backing_off_.empty()) return;
  due_.swap(backing_off_);
  for (const uint32_t b : due_) {
    blocks_[b].due_ns <= at_ns ? read_line(b) : backing_off_.push_back(b);
  }
  due_.clear();
}

uint64_t HotArea::due_ns() const {
  uint64_t due_ns = first_gathering_ != kNone ? blocks_[first_gathering_].due_ns : UINT64_MAX;
  for (const uint32_t b : backing_off_) due_ns = std::min(due_ns, blocks_[b].due_ns);
  return std::min(due_ns, kept_due_ns());
}

Operation* HotArea::pop() {
  if (released_.first != kNone) [[unlikely]] {
    Operation& operation = (*operations_)[released_.first];
    released_.first = operation.next;
    return &operation;
  }
  while (answered_ < answering_.size()) {
    const uint32_t b = answering_[answered_];
    Block& block = blocks_[b];
    if (block.batch.first != kNone) {
      Operation& operation = (*operations_)[block.batch.first];
      block.batch.first = operation.next;
      return &operation;
    }
    // What was found in the block has been used, so it may be modified again.
    ++answered_;
    block.step = Step::kIdle;
    if (block.waiting.first != kNone) begin_or_gather(b);
  }
  answering_.clear();
  answered_ = 0;
  return nullptr;
}

// --- a round ---

void HotArea::begin(uint32_t b) {
  Block& block = blocks_[b];
  if (block.step == Step::kGathering) stop_gathering(b);
  block.batch = {};
  block.batch_modifications = 0;
  while (has_room_for_next(b)) take_next(b);
  block.urgent = block.waiting.first != kNone;
  block.validated = false;
  block.asked_for_copy = false;
  block.locking = false;
  block.backoff_ns = kBackoffLeastNs;
  if (buffers() && (block.writes_back || buffer_->is_wanted(b) || has_modifier(b))) {
    block.writes_back = buffer_->has_dirty(b);
    if (block.writes_back) buffer_->begin_write(b);
  }
  go_on(b);
}

bool HotArea::has_room_for_next(uint32_t b) const {
  const Block& block = blocks_[b];
  return block.waiting.first != kNone && block.batch_modifications < options_.hot_modifications;
}

void HotArea::take_next(uint32_t b) {
  Block& block = blocks_[b];
  Operation& operation = (*operations_)[block.waiting.first];
  block.waiting.first = operation.next;
  --block.waiting_operations;
  if (modifies(operation)) {
    --block.waiting_modifications;
    ++block.batch_modifications;
  }
  append(block.batch, *operations_, number_of(operation));
}

// What has come since the round began, while the block was read or waited for. Updates alone: they
// are published or looked for elsewhere, while others might rest on what was read before they came.
// So does what they learn if nothing is published: whether the place that a node forwards to is
// gone. For that the block is read again.
void HotArea::take_late_updates(uint32_t b) {
  while (has_room_for_next(b) &&
         (*operations_)[blocks_[b].waiting.first].kind == Operation::Kind::kUpdate) {
    take_next(b);
    blocks_[b].validated = false;
  }
  if (blocks_[b].waiting.first == kNone) blocks_[b].urgent = false;
}

void HotArea::go_on(uint32_t b) {
  Block& block = blocks_[b];
  block.step = Step::kBusy;
  if (block.known && !(block.contended && has_modifier(b))) {
    evaluate(b);
  } else {
    read_line(b);
  }
}

bool HotArea::has_modifier(uint32_t b) const {
  if (blocks_[b].writes_back && buffer_->has_dirty(b)) return true;
  for (uint32_t i = blocks_[b].batch.first; i != kNone; i = (*operations_)[i].next) {
    if (modifies((*operations_)[i])) return true;
  }
  return false;
}

void HotArea::evaluate(uint32_t b) {
  Block& block = blocks_[b];
  block.step = Step::kBusy;
  NodePointer next;
  if (has_modifier(b)) {
    take_late_updates(b);
    // What was answered must find a copy: while there is such an update the last one is for them,
    // and comes back with each publication.
    const bool answered = has_answered(b);
    if (pool_.count() > (has_kept() && !answered ? 1 : 0)) {
      next = pool_.take();
    } else if (answered || !block.asked_for_copy || publishing_ > 0) {
      block.asked_for_copy = true;
      block.step = Step::kWaitingForCopy;
      waiting_.push_back(b);
      return keep_pool_filled();
    }
  }
  const uint32_t kept = next.is_null() ? 0 : merge_kept(b);
  block.modifications = apply(b, next);
  if (kept + block.modifications > 0) return publish(b, next);
  if (!next.is_null()) pool_.give(next);
  block.validated ? answer(b) : read_line(b);
}

uint32_t HotArea::apply(uint32_t b, NodePointer next) {
  uint32_t modifications = 0;
  for (uint32_t i = blocks_[b].batch.first; i != kNone; i = (*operations_)[i].next) {
    Operation& operation = (*operations_)[i];
    if (!modifies(operation)) continue;
    if (next.is_null()) {
      operation.promised_place = 0;
      operation.verdict =
          operation.wants_promise ? Operation::Verdict::kNotHere : Operation::Verdict::kNoRoom;
    } else if (modify(b, operation, next.word())) {
      ++modifications;
    }
  }
  // They are pending together with the others, so they may come behind them.
  for (uint32_t i = blocks_[b].batch.first; i != kNone; i = (*operations_)[i].next) {
    Operation& operation = (*operations_)[i];
    if (!modifies(operation)) look_up(b, operation);
  }
  return modifications;
}

bool HotArea::modify(uint32_t b, Operation& operation, uint64_t new_place) {
  using Kind = Operation::Kind;
  HotBlock block = content(b);
  const uint32_t i = find(b, operation);
  operation.verdict = Operation::Verdict::kNotHere;
  if (i == kNone) return add_promise(b, operation, new_place);
  const HotEntry entry = block.entry(i);
  if (operation.kind == Kind::kDemote) {
    if (entry.place != operation.forward_place || entry.version != operation.version) return false;
    block.drop(i);
    note_tags(b);
    answered(operation, HashtableOutcome::kDone);
    return true;
  }
  if (!entry.is_active()) {
    if (operation.has_forward && operation.forward_place == entry.place) {
      return modify_promised(block, i, operation);
    }
    if (operation.wants_promise) operation.promised_place = entry.place;
    return false;
  }
  if (operation.kind == Kind::kRemove) {
    answered(operation, entry.is_absent() ? HashtableOutcome::kNotFound : HashtableOutcome::kDone);
    if (!entry.is_absent()) block.set_absent(i);
    return !entry.is_absent();
  }
  if (operation.kind == Kind::kInsert && !entry.is_absent()) {
    answered(operation, HashtableOutcome::kExists);
    return false;
  }
  answered(operation, HashtableOutcome::kDone);
  block.set(i, operation.value());
  return true;
}

bool HotArea::add_promise(uint32_t b, Operation& operation, uint64_t new_place) {
  HotBlock block = content(b);
  operation.promised_place = 0;
  if (!operation.wants_promise || block.is_full()) return false;
  block.add_promise(operation.key(), HotEntry::tag_of(operation.hash), new_place);
  note_tags(b);
  operation.promised_place = new_place;
  return true;
}

bool HotArea::modify_promised(HotBlock& block, uint32_t number, Operation& operation) {
  using Kind = Operation::Kind;
  const bool absent = operation.forward_is_absent;
  if (operation.kind == Kind::kRemove) {
    answered(operation, absent ? HashtableOutcome::kNotFound : HashtableOutcome::kDone);
    if (!absent) block.set_absent(number);
    return !absent;
  }
  if (operation.kind == Kind::kInsert && !absent) {
    answered(operation, HashtableOutcome::kExists);
    return false;
  }
  answered(operation, HashtableOutcome::kDone);
  block.set(number, operation.value());
  return true;
}

void HotArea::look_up(uint32_t b, Operation& operation) {
  const HotBlock block = content(b);
  const uint32_t i = find(b, operation);
  operation.verdict = Operation::Verdict::kNotHere;
  if (i == kNone) return;
  const HotEntry entry = block.entry(i);
  if (operation.kind == Operation::Kind::kDemote) {
    if (entry.place != operation.forward_place) return;
    if (!entry.is_active()) {
      operation.verdict = Operation::Verdict::kPending;
      return;
    }
    operation.version = entry.version;
    operation.is_absent = entry.is_absent();
    operation.result = block.value(i, entry);
    return answered(operation, HashtableOutcome::kDone);
  }
  bool absent = entry.is_absent();
  operation.result = block.value(i, entry);
  if (!entry.is_active()) {
    if (!operation.has_forward || operation.forward_place != entry.place) return;
    absent = operation.forward_is_absent;
    operation.result = operation.forward_value;
  }
  answered(operation, absent ? HashtableOutcome::kNotFound : HashtableOutcome::kDone);
  if (absent) operation.result = {};
}

void HotArea::publish(uint32_t b, NodePointer next) {
  Block& block = blocks_[b];
  const Payload payload = {.value_bytes = content(b).size_bytes()};
  block.next = next.with_length(space_.length_of(payload.bytes()));
  block.known = false;
  seal(copy_of(b), block.next, NodePointer(), payload);
  expect(region_->post_write(space_.offset_bytes(block.next),
                             {copy_of(b), sizeof(NodeHeader) + payload.value_bytes},
                             SpareNodes::kIgnoredToken));
  expect(region_->post_compare_and_swap(layout_.block(b), block.pointer.word(), block.next.word(),
                                        token(b, Part::kPointer)));
  ++publishing_;
  if (block.locked) unlock(b);
}

void HotArea::take_publication(uint32_t b, NodePointer before) {
  Block& block = blocks_[b];
  --publishing_;
  if (before == block.pointer) {
    if (!before.is_null()) pool_.give(before);
    block.pointer = block.next;
    block.known = true;
    ++statistics_.hot_flushes;
    statistics_.hot_modifications += block.modifications;
    if (buffers()) {
      statistics_.hot_modifications += buffer_->written(b);
      release_held(block);
    }
    answer(b);
  } else {
    ++statistics_.hot_lost_races;
    if (buffers()) buffer_->take_back(b);
    pool_.give(block.next);
    block.pointer = before;
    block.misreads = 0;
    block.contended = true;
    block.locking = true;
    read_line(b);
  }
  resume_waiting();
  keep_pool_filled();
}

void HotArea::answer(uint32_t b) {
  if (blocks_[b].locked) unlock(b);
  if (buffers()) end_round(b);
  blocks_[b].step = Step::kAnswering;
  answering_.push_back(b);
}

// --- the lock ---

void HotArea::lock(uint32_t b) {
  Block& block = blocks_[b];
  const LockWord seen = LockWord::of(block.lock_word);
  block.lock_expected = block.lock_word;
  block.step = Step::kBusy;
  block.locked_since_ns = now_ns();
  expect(region_->post_compare_and_swap(layout_.block_lock(b), block.lock_expected,
                                        LockWord{seen.token + 1, true}.word(),
                                        token(b, Part::kLock)));
  expect(region_->post_read(layout_.block(b).at<Line>(0), token(b, Part::kLine)));
}

bool HotArea::is_lock_held(const Block& block) const {
  const uint64_t lease_ns = layout_.header().hot_lock_lease_ns;
  // As Spinlock: who waits counts later than the holder, and a bit more makes up for clocks.
  return LockWord::of(block.lock_word).held &&
         now_ns() - block.lock_seen_ns < lease_ns + lease_ns / 64;
}

void HotArea::take_lock(Block& block, uint64_t before) {
  if (before != block.lock_expected) return see_lock(block, before);
  const LockWord taken = LockWord::of(before);
  if (taken.held) ++statistics_.hot_lock_takeovers;
  block.lock_word = LockWord{taken.token + 1, true}.word();
  block.locking = false;
  block.locked = true;
}

void HotArea::unlock(uint32_t b) {
  Block& block = blocks_[b];
  const uint64_t held = block.lock_word;
  block.lock_word = LockWord{LockWord::of(held).token, false}.word();
  block.locked = false;
  // A WRITE costs less. In half of the lease nobody has taken the lock over; should the WRITE be
  // late, it takes the lock from somebody, who only loses time.
  if (now_ns() - block.locked_since_ns < layout_.header().hot_lock_lease_ns / 2) {
    return expect(
        region_->post_write(layout_.block_lock(b), block.lock_word, SpareNodes::kIgnoredToken));
  }
  expect(region_->post_compare_and_swap(layout_.block_lock(b), held, block.lock_word,
                                        SpareNodes::kIgnoredToken));
}

void HotArea::see_lock(Block& block, uint64_t word) const {
  if (word == block.lock_word) return;
  block.lock_word = word;
  block.lock_seen_ns = now_ns();
}

void HotArea::back_off(uint32_t b) {
  Block& block = blocks_[b];
  ++statistics_.hot_lock_waits;
  const uint64_t at_ns = now_ns();
  random_ = (random_ ^ at_ns) * 6364136223846793005 + 1442695040888963407;
  const uint64_t half_ns = block.backoff_ns / 2;
  block.due_ns = at_ns + half_ns + (random_ >> 32) % (half_ns + 1);
  block.backoff_ns = std::min(2 * block.backoff_ns, kBackoffMostNs);
  block.step = Step::kBackingOff;
  backing_off_.push_back(b);
}

// --- reading a block ---

void HotArea::read_line(uint32_t b) {
  blocks_[b].step = Step::kBusy;
  expect(region_->post_read(layout_.block(b).at<Line>(0), token(b, Part::kLine)));
}

void HotArea::take_line(uint32_t b, const Line& line) {
  Block& block = blocks_[b];
  const NodePointer pointer(line.pointer);
  if (!block.locked) {
    see_lock(block, line.lock);
    // Who meets others here lets the one with the lock go first.
    if (block.locking || (block.contended && LockWord::of(line.lock).held && has_modifier(b))) {
      block.locking = true;
      return is_lock_held(block) ? back_off(b) : lock(b);
    }
  }
  block.validated = true;
  if (pointer == block.pointer && block.known) {
    block.contended = false;
    return evaluate(b);
  }
  if (pointer != block.pointer) block.misreads = 0;
  block.pointer = pointer;
  block.known = false;
  if (pointer.is_null()) {
    content(b).clear();
    block.known = true;
    return evaluate(b);
  }
  if (!space_.is_possible(pointer)) return damaged(b);
  expect(region_->post_read(space_.offset_bytes(pointer), space_.size_bytes(pointer),
                            token(b, Part::kCopy)));
}

void HotArea::take_copy(uint32_t b, const RemoteCompletion& done) {
  Block& block = blocks_[b];
  Node node;
  if (!space_.parse(block.pointer, done.bytes.data(), &node)) {
    return ++block.misreads > kMostBlockMisreads ? damaged(b) : read_line(b);
  }
  if (node.value.size() > copy_bytes_ - sizeof(NodeHeader)) return damaged(b);
  copy_bytes(copy_of(b) + sizeof(NodeHeader), node.value.data(), node.value.size());
  if (!content(b).is_sound(node.value.size())) {
    content(b).clear();
    return damaged(b);
  }
  block.known = true;
  block.misreads = 0;
  note_tags(b);
  ++statistics_.hot_loads;
  evaluate(b);
}

void HotArea::add_to(HashtableStatistics* statistics) const {
  statistics->hot_modifications = statistics_.hot_modifications;
  statistics->hot_flushes = statistics_.hot_flushes;
  statistics->hot_kept = statistics_.hot_kept;
  statistics->hot_strays = statistics_.hot_strays;
  statistics->hot_loads = statistics_.hot_loads;
  statistics->hot_lost_races = statistics_.hot_lost_races;
  statistics->hot_refusals = statistics_.hot_refusals;
  statistics->hot_lock_waits = statistics_.hot_lock_waits;
  statistics->hot_lock_takeovers = statistics_.hot_lock_takeovers;
}

void HotArea::damaged(uint32_t b) {
  failure_ = Failure::kDamaged;
  damaged_offset_bytes_ = layout_.block(b).offset_bytes;
}

// --- completions, and spare copies ---

void HotArea::handle(const RemoteCompletion& done) {
  if (done.token == kPoolToken) {
    switch (pool_.handle(done)) {
      case SpareNodes::Event::kNone:
        return;
      case SpareNodes::Event::kEnd:
        resume_waiting();
        return keep_pool_filled();
      case SpareNodes::Event::kFailed:
        failure_ = Failure::kRefused;
        return;
      case SpareNodes::Event::kDamaged:
        failure_ = Failure::kDamaged;
        damaged_offset_bytes_ = space_.free_nodes.offset_bytes;
        return;
    }
  }
  const auto b = static_cast<uint32_t>(done.token >> 2);
  assert(b < blocks_.size() && blocks_[b].step == Step::kBusy);
  switch (static_cast<Part>(done.token & 3)) {
    case Part::kLine:
      return take_line(b, done.value<Line>());
    case Part::kCopy:
      return take_copy(b, done);
    case Part::kLock:
      return take_lock(blocks_[b], done.value<uint64_t>());
    case Part::kPointer:
      return take_publication(b, NodePointer(done.value<uint64_t>()));
  }
}

void HotArea::resume_waiting() {
  if (waiting_.empty()) return;
  due_.swap(waiting_);
  for (const uint32_t b : due_) evaluate(b);
  due_.clear();
}

void HotArea::keep_pool_filled() {
  if (pool_.is_busy() || closing_) return;
  const bool wanted =
      !waiting_.empty() || (pool_.count() < SpareNodes::kFew && !pool_.is_starved());
  if (wanted) {
    if (!pool_.begin_refill()) failure_ = Failure::kRefused;
  } else if (pool_.count() > SpareNodes::kMany) {
    if (!pool_.begin_spill()) failure_ = Failure::kRefused;
  }
}

bool HotArea::begin_spill() {
  closing_ = true;
  if (pool_.is_busy()) return true;
  if (pool_.count() == 0) return false;
  if (!pool_.begin_spill()) failure_ = Failure::kRefused;
  return true;
}

}  // namespace verbena::hashtable
