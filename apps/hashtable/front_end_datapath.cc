#include <cassert>
#include <string>

#include "hashtable/front_end.h"
#include "verbena/data_path.h"

namespace verbena::hashtable {
namespace {

// As long as a bucket's word does not change, its nodes do not either, so one of them that is
// misread so often is damaged.
constexpr uint32_t kMostMisreads = 8;

}  // namespace

void FrontEnd::expect(bool posted) {
  if (posted || !status().ok()) [[likely]]
    return;
  status_ = Status(StatusCode::kInternal, "the region refused: " + region_->error().message());
}

PostResult FrontEnd::post(Kind kind, std::string_view key, std::string_view value, uint64_t token) {
  if (!status().ok() || !is_fit(key, value)) return PostResult::kFailed;
  // Whoever removes much gets nodes; they have to be given back first, for others need them.
  const bool has_many = kind == Kind::kRemove && pool_.count() + pending() >= kSpareNodes;
  if (free_.empty() || has_many || pool_.room() < pool_room_) {
    keep_pool_filled();
    // No further operation comes before some are done. The others may gather on.
    if (hot_.has_value()) hot_->hurry(pending_limit_ / 2);
    return PostResult::kWouldBlock;
  }
  const uint64_t hash = layout_.hash(key);
  if (buffers_ && answer_at_once(kind, hash, key, value, token)) return PostResult::kPosted;
  Operation& operation = operations_[free_.back()];
  operation.kind = kind;
  operation.token = token;
  operation.key_bytes = static_cast<uint16_t>(key.size());
  operation.value_bytes = static_cast<uint32_t>(value.size());
  operation.misreads = 0;
  operation.head = NodePointer();
  operation.is_published = false;
  char* const payload = operation.node + sizeof(NodeHeader);
  copy_bytes(payload, key.data(), key.size());
  if (!value.empty()) copy_bytes(payload + key.size(), value.data(), value.size());
  operation.hash = hash;
  operation.bucket = layout_.bucket(hash);
  free_.pop_back();
  if (hot_.has_value() && enter_block(operation)) return PostResult::kPosted;
  enter_bucket(operation);
  if (status().ok()) [[likely]]
    return PostResult::kPosted;
  free_.push_back(static_cast<uint32_t>(slot(operation)));
  return PostResult::kFailed;
}

HashtableReply FrontEnd::alone(Kind kind, std::string_view key, std::string_view value) {
  HashtableReply reply;
  if (pending() > 0) {
    refuse({StatusCode::kInvalidArgument,
            std::to_string(pending()) +
                " operations are pending; poll until there are none before a single call"});
    return reply;
  }
  is_alone_ = true;
  if (buffers_) {
    hot_->give_up_stuck(true);
    // Carries on what is written back, of which no reply comes.
    collect();
    while (take(&reply)) {
    }
  }
  PostResult posted = post(kind, key, value, 0);
  for (; posted == PostResult::kWouldBlock; posted = post(kind, key, value, 0)) {
    wait();
    take(&reply);
  }
  if (posted == PostResult::kPosted) {
    deliverable_ = acknowledged_.size();
    while (!take(&reply) && status().ok()) wait();
  }
  is_alone_ = false;
  if (buffers_) hot_->give_up_stuck(false);
  return reply;
}

bool FrontEnd::take(HashtableReply* reply) {
  for (;;) {
    if (!finished_.empty()) [[unlikely]] {
      *reply = finished_.back();
      finished_.pop_back();
      return true;
    }
    if (buffers_ && deliverable_ > 0) {
      take_acknowledged(reply);
      return true;
    }
    if (hot_.has_value()) {
      if (Operation* const operation = hot_->pop()) {
        if (leave_block(*operation, reply)) return true;
        continue;
      }
      if (buffers_) carry_strays();
    }
    if (collected_ == 0 || !status().ok()) {
      // What was posted on the way: whoever waits now waits for that.
      region_->flush();
      return false;
    }
    --collected_;
    if (handle(region_->take(), reply)) return true;
  }
}

bool FrontEnd::handle(const RemoteCompletion& done, HashtableReply* reply) {
  if (done.token > last_operation_) [[unlikely]] {
    handle_shared(done);
    return false;
  }
  Operation& operation = operations_[done.token];
  switch (operation.step) {
    case Step::kReadingWord:
      return walk(operation, NodePointer(done.value<uint64_t>()), reply);
    case Step::kCheckingWord:
      return take_check(operation, NodePointer(done.value<uint64_t>()), reply);
    case Step::kAtBlock:
      break;
    case Step::kReadingNode:
      return take_node(operation, done, reply);
    case Step::kCopying:
      return take_copy(operation, done);
    case Step::kPublishing:
      return take_publication(operation, NodePointer(done.value<uint64_t>()), reply);
  }
  assert(false);
  return false;
}

// What belongs to no single operation.
void FrontEnd::handle_shared(const RemoteCompletion& done) {
  if (done.token == SpareNodes::kIgnoredToken) return;
  if (done.token != kPoolToken) return hot_->handle(done);
  switch (pool_.handle(done)) {
    case SpareNodes::Event::kNone:
      break;
    case SpareNodes::Event::kEnd:
      resume_waiting();
      keep_pool_filled();
      break;
    case SpareNodes::Event::kFailed:
      expect(false);
      break;
    case SpareNodes::Event::kDamaged:
      damaged(nodes_.free_nodes.offset_bytes);
      break;
  }
}

// --- finding the key ---

void FrontEnd::enter_bucket(Operation& operation) {
  if (operation.is_search() || turns_.take(operation)) read_word(operation, Step::kReadingWord);
}

bool FrontEnd::walk(Operation& operation, NodePointer head, HashtableReply* reply) {
  if (head != operation.head) operation.misreads = 0;
  operation.head = head;
  operation.depth = 0;
  operation.found = false;
  operation.has_forward = false;
  return visit(operation, head, reply);
}

bool FrontEnd::visit(Operation& operation, NodePointer node, HashtableReply* reply) {
  if (node.is_null()) return absent(operation, reply);
  if (!nodes_.is_possible(node) || operation.depth >= kMostNodes) {
    damaged(nodes_.offset_bytes(node));
    return false;
  }
  operation.at = node;
  operation.step = Step::kReadingNode;
  expect(region_->post_read(nodes_.offset_bytes(node), nodes_.size_bytes(node), slot(operation)) ==
         PostResult::kPosted);
  return false;
}

bool FrontEnd::take_node(Operation& operation, const RemoteCompletion& done,
                         HashtableReply* reply) {
  Node node;
  if (!nodes_.parse(operation.at, done.bytes.data(), &node)) {
    read_again(operation);
    return false;
  }
  if (node.key == operation.key()) return found(operation, node, reply);
  operation.path[operation.depth++] = operation.at;
  return visit(operation, node.next, reply);
}

void FrontEnd::read_again(Operation& operation) {
  ++statistics_.rereads;
  if (++operation.misreads > kMostMisreads) return damaged(nodes_.offset_bytes(operation.at));
  read_word(operation, Step::kReadingWord);
}

void FrontEnd::read_word(Operation& operation, Step step) {
  operation.step = step;
  expect(region_->post_read(operation.bucket, slot(operation)) == PostResult::kPosted);
}

bool FrontEnd::found(Operation& operation, const Node& node, HashtableReply* reply) {
  operation.replaced = operation.at;
  operation.behind = node.next;
  if (node.payload.forwards()) [[unlikely]] {
    follow(operation, node);
    return false;
  }
  return act(operation, false, node.value, reply);
}

bool FrontEnd::act(Operation& operation, bool is_absent, std::string_view value,
                   HashtableReply* reply) {
  switch (operation.kind) {
    case Kind::kSearch:
      return finish(operation, is_absent ? HashtableOutcome::kNotFound : HashtableOutcome::kDone,
                    value, reply);
    case Kind::kInsert:
      if (!is_absent) return finish(operation, HashtableOutcome::kExists, {}, reply);
      break;
    case Kind::kRemove:
      if (is_absent) return finish(operation, HashtableOutcome::kNotFound, {}, reply);
      break;
    case Kind::kUpdate:
      break;
    case Kind::kDemote:
      if (!operation.has_forward) {
        end_demotion(operation);
        return false;
      }
  }
  operation.found = true;
  change(operation);
  return false;
}

bool FrontEnd::absent(Operation& operation, HashtableReply* reply) {
  if (operation.kind == Kind::kDemote) [[unlikely]] {
    end_demotion(operation);
    return false;
  }
  if (!operation.writes_entry()) {
    return finish(operation, HashtableOutcome::kNotFound, {}, reply);
  }
  if (operation.depth >= kMostNodes) {
    error_ = &crowded_;
    return finish(operation, HashtableOutcome::kFull, {}, reply);
  }
  change(operation);
  return false;
}

// --- publishing another state of the bucket ---

void FrontEnd::change(Operation& operation) {
  // Nobody overtakes those that wait: else what comes back might never be enough for them.
  const bool has_nodes = operation.taken_count >= operation.nodes();
  if (has_nodes || (waiting_.empty() && take_nodes(operation))) {
    write(operation);
  } else {
    set_changing(operation, false);
    waiting_.push_back(static_cast<uint32_t>(slot(operation)));
  }
  keep_pool_filled();
}

void FrontEnd::set_changing(Operation& operation, bool is_changing) {
  if (operation.is_changing == is_changing) return;
  operation.is_changing = is_changing;
  changing_ += is_changing ? 1 : -1;
}

bool FrontEnd::take_nodes(Operation& operation) {
  const uint32_t have = operation.taken_count;
  const uint32_t need = operation.nodes();
  if (have >= need) return true;
  if (need - have + (operation.found ? 0 : kLeftToUpdates) > pool_.count()) return false;
  while (operation.taken_count < need) operation.taken[operation.taken_count++] = pool_.take();
  return true;
}

void FrontEnd::write(Operation& operation) {
  set_changing(operation, true);
  operation.copied = 0;
  if (operation.copies() == 0) return publish(operation);
  operation.step = Step::kCopying;
  expect(region_->post_read(nodes_.offset_bytes(operation.path[0]),
                            nodes_.size_bytes(operation.path[0]),
                            slot(operation)) == PostResult::kPosted);
}

bool FrontEnd::take_copy(Operation& operation, const RemoteCompletion& done) {
  Node node;
  const uint32_t number = operation.copied;
  operation.at = operation.path[number];
  if (!nodes_.parse(operation.at, done.bytes.data(), &node)) {
    read_again(operation);
    return false;
  }
  const NodePointer to = operation.copy(number);
  copy_bytes(copy_.data() + sizeof(NodeHeader), node.bytes, node.payload.bytes());
  seal(copy_.data(), to, operation.behind_copy(number), node.payload);
  ++statistics_.copied_entries;
  expect(region_->post_write(nodes_.offset_bytes(to),
                             {copy_.data(), sizeof(NodeHeader) + node.payload.bytes()},
                             SpareNodes::kIgnoredToken) == PostResult::kPosted);
  if (++operation.copied == operation.depth) {
    publish(operation);
    return false;
  }
  const NodePointer next = operation.path[operation.copied];
  expect(region_->post_read(nodes_.offset_bytes(next), nodes_.size_bytes(next), slot(operation)) ==
         PostResult::kPosted);
  return false;
}

void FrontEnd::publish(Operation& operation) {
  if (operation.kind == Kind::kUpdate) turns_.overwrite(operation);
  NodePointer desired = operation.rest();
  if (operation.writes_entry()) {
    const Payload payload = operation.payload();
    if (payload.forwards()) {
      const uint64_t place = operation.place();
      copy_bytes(operation.node + sizeof(NodeHeader) + payload.key_bytes + payload.value_bytes,
                 &place, sizeof(place));
    }
    const NodePointer self = operation.taken[0].with_length(nodes_.length_of(payload.bytes()));
    seal(operation.node, self, desired, payload);
    expect(region_->post_write(nodes_.offset_bytes(self),
                               {operation.node, sizeof(NodeHeader) + payload.bytes()},
                               SpareNodes::kIgnoredToken) == PostResult::kPosted);
    desired = self;
  }
  operation.published = desired;
  operation.step = Step::kPublishing;
  expect(region_->post_compare_and_swap(operation.bucket, operation.head.word(), desired.word(),
                                        slot(operation)) == PostResult::kPosted);
}

bool FrontEnd::take_publication(Operation& operation, NodePointer before, HashtableReply* reply) {
  if (before != operation.head) {
    ++statistics_.lost_races;
    return walk(operation, before, reply);
  }
  set_changing(operation, false);
  // Nobody can reach these any more.
  if (operation.found) {
    for (uint32_t i = 0; i < operation.depth; ++i) pool_.give(operation.path[i]);
    pool_.give(operation.replaced);
  }
  const uint32_t used = operation.nodes();
  while (operation.taken_count > used) pool_.give(operation.taken[--operation.taken_count]);
  operation.taken_count = 0;
  bool done = false;
  if (operation.kind == Kind::kDemote) [[unlikely]] {
    go_on_with_demotion(operation);
  } else {
    if (operation.promised_place != 0) ++statistics_.hot_promotions;
    operation.is_published = true;
    done = finish(operation, HashtableOutcome::kDone, {}, reply);
  }
  if (!waiting_.empty()) [[unlikely]]
    resume_waiting();
  keep_pool_filled();
  return done;
}

bool FrontEnd::finish(Operation& operation, HashtableOutcome outcome, std::string_view value,
                      HashtableReply* reply) {
  give_back_nodes(operation);
  if (operation.is_write_back) [[unlikely]] {
    end_write_back(operation, outcome);
    if (operation.has_turn) end_turn(operation, outcome);
    return false;
  }
  count(operation.kind);
  *reply = {operation.token, outcome, value};
  free_.push_back(static_cast<uint32_t>(slot(operation)));
  if (operation.has_turn) end_turn(operation, outcome);
  return true;
}

void FrontEnd::end_turn(Operation& operation, HashtableOutcome outcome) {
  while (operation.overwritten != Operation::kNone) {
    Operation& one = operations_[operation.overwritten];
    operation.overwritten = one.next;
    ++statistics_.overwritten_updates;
    if (one.is_write_back) [[unlikely]] {
      end_write_back(one, outcome);
      continue;
    }
    count(one.kind);
    finished_.push_back({one.token, outcome, {}});
    free_.push_back(static_cast<uint32_t>(slot(one)));
  }
  Operation* const next = turns_.end(operation);
  if (next == nullptr) [[likely]]
    return;
  // What a node that forwards means, its block has to say.
  const bool is_known = operation.is_published && operation.writes_entry() &&
                        operation.place() == 0 && next->key() == operation.key() &&
                        next->kind != Kind::kInsert;
  is_known ? change_published(*next, operation) : read_word(*next, Step::kReadingWord);
}

// Begins with the bucket as the operation before has left it: if another front-end has come
// between, the compare-and-swap finds out.
void FrontEnd::change_published(Operation& operation, const Operation& published) {
  operation.head = published.published;
  operation.depth = 0;
  operation.found = true;
  operation.has_forward = false;
  operation.replaced = operation.head;
  operation.behind = published.rest();
  change(operation);
}

void FrontEnd::give_back_nodes(Operation& operation) {
  set_changing(operation, false);
  while (operation.taken_count > 0) pool_.give(operation.taken[--operation.taken_count]);
}

void FrontEnd::count(Kind kind) {
  switch (kind) {
    case Kind::kSearch:
      ++statistics_.searches;
      break;
    case Kind::kInsert:
      ++statistics_.inserts;
      break;
    case Kind::kUpdate:
      ++statistics_.updates;
      break;
    case Kind::kRemove:
      ++statistics_.removes;
      break;
    case Kind::kDemote:
      break;
  }
}

// --- nodes ---

void FrontEnd::resume_waiting() {
  size_t left = 0;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    Operation& operation = operations_[waiting_[i]];
    if (left == 0 && take_nodes(operation)) {
      write(operation);
    } else if (pool_.is_starved() && operation.kind == Kind::kDemote) {
      end_demotion(operation);
    } else if (left == 0 && pool_.is_starved() && changing_ == 0) {
      // Nothing comes back that own operations have taken.
      error_ = &full_;
      HashtableReply reply;
      if (finish(operation, HashtableOutcome::kFull, {}, &reply)) finished_.push_back(reply);
    } else {
      waiting_[left++] = waiting_[i];
    }
  }
  waiting_.resize(left);
}

void FrontEnd::keep_pool_filled() {
  if (pool_.is_busy() || closing_) return;
  const bool wanted =
      !waiting_.empty() || (pool_.count() < SpareNodes::kFew && !pool_.is_starved());
  if (wanted) {
    expect(pool_.begin_refill());
  } else if (pool_.count() > SpareNodes::kMany) {
    expect(pool_.begin_spill());
  }
}

}  // namespace verbena::hashtable
