// What a front-end does with keys that lie in the hot area, or may; see hot_block.h.
#include <cassert>

#include "hashtable/front_end.h"
#include "verbena/data_path.h"

namespace verbena::hashtable {

// --- before publication ---

bool FrontEnd::answer_at_once(Kind kind, uint64_t hash, std::string_view key,
                              std::string_view value, uint64_t token) {
  Operation& operation = operations_[free_.back()];
  std::string_view kept;
  if (kind == Kind::kUpdate) {
    if (!hot_->keep(hash, key, value)) return false;
  } else if (kind != Kind::kSearch || !hot_->find_kept(hash, key, &kept)) {
    return false;
  }
  operation.kind = kind;
  operation.token = token;
  if (!kept.empty()) copy_bytes(operation.forward_bytes, kept.data(), kept.size());
  operation.result = {operation.forward_bytes, kept.size()};
  acknowledged_.push_back(free_.back());
  free_.pop_back();
  return true;
}

void FrontEnd::take_acknowledged(HashtableReply* reply) {
  const uint32_t number = acknowledged_[--deliverable_];
  acknowledged_[deliverable_] = acknowledged_.back();
  acknowledged_.pop_back();
  const Operation& operation = operations_[number];
  ++statistics_.hot_hits;
  count(operation.kind);
  *reply = {operation.token, HashtableOutcome::kDone,
            operation.is_search() ? operation.result : std::string_view()};
  free_.push_back(number);
}

// Begins with strays, and with blocks that waited for others to be written.
void FrontEnd::carry_strays() {
  while (!free_write_backs_.empty()) {
    Operation& operation = operations_[free_write_backs_.back()];
    if (!hot_->take_stray(operation)) break;
    free_write_backs_.pop_back();
    operation.kind = Kind::kUpdate;
    operation.misreads = 0;
    operation.head = NodePointer();
    operation.is_published = false;
    operation.has_forward = false;
    operation.wants_promise = false;
    operation.promised_place = 0;
    operation.hash = layout_.hash(operation.key());
    operation.bucket = layout_.bucket(operation.hash);
    enter_bucket(operation);
  }
  hot_->begin_wanted();
}

void FrontEnd::end_write_back(Operation& operation, HashtableOutcome outcome) {
  hot_->end_stray(operation, outcome == HashtableOutcome::kDone);
  free_write_backs_.push_back(static_cast<uint32_t>(slot(operation)));
}

// --- blocks ---

bool FrontEnd::enter_block(Operation& operation) {
  if (buffers_ && hot_->hold(operation)) return true;
  operation.has_forward = false;
  operation.wants_promise = false;
  operation.promised_place = 0;
  uint32_t victim = Operation::kNone;
  const HotArea::Route route = hot_->route(operation, &victim);
  if (victim != Operation::kNone) [[unlikely]]
    begin_demotion(operation.hash, victim);
  if (route == HotArea::Route::kCold) return false;
  hot_->enqueue(operation, is_alone_);
  return true;
}

// The operation is done, or its key is not in the hot area, or nothing is known of it there yet.
bool FrontEnd::leave_block(Operation& operation, HashtableReply* reply) {
  using Verdict = Operation::Verdict;
  operation.wants_promise = false;
  if (operation.kind == Kind::kDemote) [[unlikely]] {
    go_on_with_demotion(operation);
    return false;
  }
  if (operation.verdict == Verdict::kAgain) {
    std::string_view kept;
    if (operation.is_search() && hot_->find_kept(operation.hash, operation.key(), &kept)) {
      ++statistics_.hot_hits;
      return finish(operation, HashtableOutcome::kDone, kept, reply);
    }
    if (!enter_block(operation)) enter_bucket(operation);
    return false;
  }
  if (operation.verdict == Verdict::kStuck) {
    error_ = &full_;
    return finish(operation, HashtableOutcome::kFull, {}, reply);
  }
  if (operation.verdict == Verdict::kNoRoom) {
    error_ = &no_copy_;
    return finish(operation, HashtableOutcome::kFull, {}, reply);
  }
  if (operation.verdict == Verdict::kAnswered) {
    ++statistics_.hot_hits;
    return finish(operation, operation.outcome,
                  operation.is_search() ? operation.result : std::string_view(), reply);
  }
  if (!operation.has_forward) {
    enter_bucket(operation);
    return false;
  }
  // The node is like any other. Who modifies the key finds out by the compare-and-swap whether it
  // still is in the bucket, the others have to look.
  const bool changes = operation.kind == Kind::kUpdate ||
                       operation.forward_is_absent == (operation.kind == Kind::kInsert);
  if (!operation.is_search() && changes) {
    return act(operation, operation.forward_is_absent, operation.forward_value, reply);
  }
  read_word(operation, Step::kCheckingWord);
  return false;
}

void FrontEnd::follow(Operation& operation, const Node& node) {
  if (!hot_.has_value() || node.value.size() > layout_.header().max_value_bytes) {
    return damaged(nodes_.offset_bytes(operation.at));
  }
  set_changing(operation, false);  // it may take long
  operation.has_forward = true;
  operation.forward_is_absent = (node.payload.flags & Payload::kAbsent) != 0;
  operation.forward_place = node.place;
  copy_bytes(operation.forward_bytes, node.value.data(), node.value.size());
  operation.forward_value = {operation.forward_bytes, node.value.size()};
  hot_->enqueue(operation, is_alone_);
}

bool FrontEnd::take_check(Operation& operation, NodePointer head, HashtableReply* reply) {
  if (head != operation.head) return walk(operation, head, reply);
  return act(operation, operation.forward_is_absent, operation.forward_value, reply);
}

// --- demotion ---

void FrontEnd::begin_demotion(uint64_t hash, uint32_t victim) {
  if (demotes_ || closing_) return;
  demotes_ = true;
  Operation& operation = operations_[pending_limit_];
  const HotBlock block = hot_->block_of(hash);
  const HotEntry entry = block.entry(victim);
  const std::string_view key = block.key(victim, entry);
  operation.kind = Kind::kDemote;
  operation.misreads = 0;
  operation.head = NodePointer();
  operation.key_bytes = static_cast<uint16_t>(key.size());
  copy_bytes(operation.node + sizeof(NodeHeader), key.data(), key.size());
  operation.hash = layout_.hash(key);
  operation.bucket = layout_.bucket(operation.hash);
  operation.forward_place = entry.place;
  operation.version = entry.version;
  operation.is_absent = false;
  operation.has_forward = false;
  if (entry.is_active()) {
    operation.phase = Phase::kReleasing;
    return read_word(operation, Step::kReadingWord);
  }
  // Whatever forwards to a promise is right without it.
  operation.phase = Phase::kDropping;
  hot_->enqueue(operation, true);
}

// Its block has answered, or its compare-and-swap has succeeded.
void FrontEnd::go_on_with_demotion(Operation& operation) {
  using Verdict = Operation::Verdict;
  const bool is_there = operation.verdict == Verdict::kAnswered;
  if (operation.step == Step::kPublishing) {
    if (operation.phase == Phase::kCleaning) return end_demotion(operation);
    operation.phase = Phase::kDropping;
    return hot_->enqueue(operation, true);
  }
  switch (operation.phase) {
    case Phase::kReleasing: {
      if (!is_there) return end_demotion(operation);
      operation.value_bytes = static_cast<uint32_t>(operation.result.size());
      copy_bytes(operation.node + sizeof(NodeHeader) + operation.key_bytes, operation.result.data(),
                 operation.result.size());
      operation.found = true;
      return change(operation);
    }
    case Phase::kDropping:
      if (!is_there) return end_demotion(operation);
      ++statistics_.hot_demotions;
      if (!operation.has_forward) return end_demotion(operation);
      operation.phase = Phase::kCleaning;
      return read_word(operation, Step::kReadingWord);
    case Phase::kCleaning: {
      if (operation.verdict != Verdict::kNotHere) return end_demotion(operation);
      operation.is_absent = operation.forward_is_absent;
      operation.value_bytes = static_cast<uint32_t>(operation.forward_value.size());
      copy_bytes(operation.node + sizeof(NodeHeader) + operation.key_bytes,
                 operation.forward_value.data(), operation.forward_value.size());
      operation.found = true;
      return change(operation);
    }
  }
}

void FrontEnd::end_demotion(Operation& operation) {
  give_back_nodes(operation);
  demotes_ = false;
}

void FrontEnd::poll_hot_area() {
  hot_->poll();
  if (hot_->failure() == HotArea::Failure::kNone) [[likely]]
    return;
  if (hot_->failure() == HotArea::Failure::kRefused) return expect(false);
  damaged(hot_->damaged_offset_bytes());
}

}  // namespace verbena::hashtable
