// Random lives of queue pairs and processes on soft0 against a reference model: they are made,
// connected, reset, failed and destroyed in every order of the two sides, and processes are killed,
// fork, become other programs and end, while messages are under way, receives wait and memory comes
// and goes. One command at a time, so that every outcome is known, and each failure replays from
// its seed. soft_model_test does the rest: what happens at the same time.
//
//   script   what a member is told, and what it answers
//   member   verbs
//   model    what has to come of it
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "tests/soft/process.h"
#include "tests/soft_lifecycle/model.h"
#include "tests/soft_lifecycle/script.h"

namespace verbena::soft_lifecycle {
namespace {

using soft_test::Child;
using State = QueuePairModel::State;

constexpr uint32_t kSteps = 400;

const char* name_of(Op op) {
  constexpr const char* kNames[] = {
      "make",           "destroy",  "connect", "reset", "to error",    "await state", "receive",
      "receive shared", "send",     "await",   "arm",   "await event", "register",    "deregister",
      "renew",          "scribble", "image",   "fork",  "exec",        "leave",       "close"};
  return kNames[static_cast<uint32_t>(op)];
}

class Story {
 public:
  explicit Story(uint64_t seed) : random_(seed) {
    for (uint32_t i = 0; i < kMembers; ++i) begin_life(i);
    for (uint32_t i = 0; i < kMembers * kQueuePairs; ++i) order_.push_back(i);
    for (uint32_t i = static_cast<uint32_t>(order_.size()); i > 1; --i) {
      std::swap(order_[i - 1], order_[random_.below(i)]);
    }
  }
  ~Story() {
    for (const pid_t pid : left_behind_) kill(pid, SIGKILL);
  }

  void run() {
    for (uint32_t step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
      act();
      settle();
      if (random_.below(4) == 0) check_images();
    }
    go_on_all();
    check_images();
    for (uint32_t i = 0; i < kMembers && !testing::Test::HasFailure(); ++i) end_in_order(i);
    if (testing::Test::HasFailure()) tell();
  }

 private:
  // ---- commands ----

  Answer tell_member(uint32_t member, const Command& command) {
    note(member, command);
    Child& child = *children_[member];
    child.link().put(command);
    auto answer = child.link().get<Answer>();
    if (answer.error != 0) {
      ADD_FAILURE() << "member " << member << ": " << name_of(command.op) << " of "
                    << command.object << " failed with error " << answer.error;
    }
    return answer;
  }

  void note(uint32_t member, const Command& command) {
    std::string line = "member " + std::to_string(member) + ": " + name_of(command.op) + " " +
                       std::to_string(command.object);
    if (command.op == Op::kSend) {
      line += " opcode " + std::to_string(command.opcode) + " of " + std::to_string(command.bytes) +
              " bytes, number " + std::to_string(command.id & ~kSendBit) +
              (command.remote != 0 ? ", key " + std::to_string(command.rkey) : "");
    }
    if (command.op == Op::kConnect) {
      line += " to queue pair " + std::to_string(command.peer.queue_pair_number) +
              (command.patient ? ", patient" : "");
    }
    if (command.op == Op::kReceive || command.op == Op::kReceiveShared) {
      line +=
          " of " + std::to_string(command.bytes) + " bytes, number " + std::to_string(command.id);
    }
    if (command.op == Op::kAwait) line += ", " + std::to_string(command.count) + " completions";
    if (command.op == Op::kMake && command.shared) line += " with shared receives";
    if (command.op == Op::kMake && command.unreliable) line += ", unreliable";
    history_.push_back(line);
  }
  void note(uint32_t member, const std::string& what) {
    history_.push_back("member " + std::to_string(member) + ": " + what);
  }

  // The latest commands, for whoever looks for the cause.
  void tell() const {
    std::string text;
    for (const std::string& line : history_) text += line + "\n";
    ADD_FAILURE() << "what happened:\n" << text;
  }

  // ---- processes ----

  void begin_life(uint32_t member) {
    children_[member] = std::make_unique<Child>("lifecycle_member");
    const bool on_one_queue = random_.below(2) == 0;
    children_[member]->link().put(on_one_queue);
    const auto hello = children_[member]->link().get<Answer>();
    note(member, on_one_queue ? "begins a life on one completion queue" : "begins a life");
    model_.begin_life(member, on_one_queue, hello.arena);
  }

  void go_on_all() {
    for (uint32_t i = 0; i < kMembers; ++i) {
      if (!stopped_[i]) continue;
      children_[i]->signal(SIGCONT);
      stopped_[i] = false;
      note(i, "goes on");
    }
    settle();
  }

  // What learns of it has, when this returns.
  void end_life(uint32_t member, const Command* last) {
    go_on_all();
    keep_off_doubts();
    if (testing::Test::HasFailure()) return;
    std::vector<std::pair<QueuePairModel*, uint32_t>> missing;
    for (uint32_t i = 0; i < kMembers; ++i) {
      if (i == member) continue;
      for (uint32_t k = 0; k < kQueuePairs; ++k) {
        QueuePairModel& one = model_.queue_pair(i, k);
        const Missed missed = model_.would_miss(one, member);
        if (missed == Missed::kMaybe) reset(one);
        if (missed == Missed::kSurely) missing.emplace_back(&one, k);
      }
    }
    if (last != nullptr) {
      note(member, *last);
      children_[member]->link().put(*last);
    } else {
      note(member, "is killed");
      children_[member]->signal(SIGKILL);
    }
    for (const auto& [one, index] : missing) {
      tell_member(one->member, {.op = Op::kAwaitState, .object = index, .state = IBV_QPS_ERR});
      model_.miss(*one);
    }
    children_[member]->kill();
    model_.end_life(member);
    begin_life(member);
  }

  void end_in_order(uint32_t member) {
    go_on_all();
    for (QueuePairModel& one : model_.member(member).queue_pairs) release_those_who_wait(one);
    tell_member(member, {.op = Op::kClose});
    if (testing::Test::HasFailure()) return;
    EXPECT_EQ(children_[member]->wait(), 0) << "member " << member;
    model_.end_life(member);
  }

  // ---- queue pairs ----

  static uint32_t index_of(const MemberModel& member, const QueuePairModel& one) {
    return static_cast<uint32_t>(&one - member.queue_pairs.data());
  }
  uint32_t index_of(const QueuePairModel& one) { return index_of(model_.member(one.member), one); }
  QueuePairModel& any() {
    const auto which = static_cast<uint32_t>(random_.below(order_.size()));
    return model_.queue_pair(which / kQueuePairs, which % kQueuePairs);
  }
  // Whom it is mostly connected to; some to themselves.
  QueuePairModel& mate_of(const QueuePairModel& one) {
    const uint32_t own = one.member * kQueuePairs + index_of(one);
    uint32_t at = 0;
    while (order_[at] != own) ++at;
    const uint32_t mate = random_.below(12) == 0
                              ? static_cast<uint32_t>(random_.below(order_.size()))
                              : order_[at ^ 1];
    return model_.queue_pair(mate / kQueuePairs, mate % kQueuePairs);
  }

  void reset(QueuePairModel& one) {
    release_those_who_wait(one);
    tell_member(one.member, {.op = Op::kReset, .object = index_of(one)});
    model_.reset(one);
  }

  // What waits without end for one that goes is not the model's to say.
  void release_those_who_wait(const QueuePairModel& gone) {
    for (uint32_t i = 0; i < kMembers; ++i) {
      for (QueuePairModel& one : model_.member(i).queue_pairs) {
        if (&one == &gone || one.pending.empty() || model_.peer_of(one) != &gone) continue;
        if (stopped_[i]) go_on_all();
        one.pending.clear();  // two may wait for each other
        reset(one);
      }
    }
  }

  void keep_off_doubts() {
    for (uint32_t i = 0; i < kMembers; ++i) {
      if (stopped_[i]) continue;
      for (QueuePairModel& one : model_.member(i).queue_pairs) {
        if (model_.is_doubtful(one)) reset(one);
      }
    }
  }

  // Those with the same completion queue.
  std::vector<QueuePairModel*> beside(QueuePairModel& one) {
    MemberModel& member = model_.member(one.member);
    std::vector<QueuePairModel*> all;
    for (QueuePairModel& other : member.queue_pairs) {
      const bool same = &other == &one || member.on_one_queue;
      if (same && other.state != State::kNone) all.push_back(&other);
    }
    return all;
  }

  // Everything that is due in a queue pair's completion queue comes, in the order of each queue
  // pair, and nothing else.
  void drain(QueuePairModel& one) {
    const std::vector<QueuePairModel*> all = beside(one);
    uint64_t count = 0;
    for (const QueuePairModel* each : all) count += each->sent.size() + each->got.size();
    const Answer answer = tell_member(
        one.member,
        {.op = Op::kAwait, .object = index_of(one), .count = static_cast<uint32_t>(count)});
    for (uint32_t i = 0; i < answer.count && !testing::Test::HasFailure(); ++i) {
      const Found& found = answer.found[i];
      EXPECT_LT(found.object, kQueuePairs) << "a completion of a queue pair that is gone";
      if (found.object < kQueuePairs) compare(model_.queue_pair(one.member, found.object), found);
    }
    if (testing::Test::HasFailure()) return;
    for (const QueuePairModel* each : all) {
      EXPECT_TRUE(each->sent.empty() && each->got.empty())
          << "member " << one.member << ", queue pair " << index_of(*each) << ": "
          << each->sent.size() << " sends and " << each->got.size()
          << " receives have not completed";
    }
  }

  void compare(QueuePairModel& one, const Found& found) {
    const bool sent = (found.id & kSendBit) != 0;
    std::deque<Due>& list = sent ? one.sent : one.got;
    const std::string where = "member " + std::to_string(one.member) + ", queue pair " +
                              std::to_string(index_of(one)) + ", " + (sent ? "send " : "receive ") +
                              std::to_string(found.id & ~kSendBit);
    if (list.empty()) {
      ADD_FAILURE() << where << " completes with status " << found.status
                    << ", and nothing was expected";
      return;
    }
    const Due due = list.front();
    list.pop_front();
    MemberModel& member = model_.member(one.member);
    if (!sent && one.shared) {
      const auto posted =
          std::find(member.shared_posted.begin(), member.shared_posted.end(), found.id);
      EXPECT_NE(posted, member.shared_posted.end()) << where << " was not posted";
      if (posted == member.shared_posted.end()) return;
      member.shared_posted.erase(posted);
      --member.shared_taken;
      member.shared_free.push_back(slot_of(found.id));
    } else {
      EXPECT_EQ(found.id, due.id) << where << " comes out of turn";
      (sent ? one.free_sends : one.free_receives).push_back(slot_of(found.id));
    }
    EXPECT_EQ(found.status, due.status) << where;
    if (found.status != due.status || found.status != IBV_WC_SUCCESS) return;
    EXPECT_EQ(found.bytes, due.bytes) << where;
    EXPECT_EQ(found.hash, due.hash) << where << " has other bytes";
  }

  // What waited and can go on has gone on when this returns.
  void settle() {
    bool moved = true;
    while (moved && !testing::Test::HasFailure()) {
      moved = false;
      keep_off_doubts();
      for (uint32_t i = 0; i < kMembers; ++i) {
        if (stopped_[i]) continue;
        for (QueuePairModel& one : model_.member(i).queue_pairs) {
          if (one.pending.empty()) continue;
          QueuePairModel* const peer = model_.peer_of(one);
          const State before = peer != nullptr ? peer->state : State::kNone;
          if (!model_.go_on(one)) continue;
          moved = true;
          drain(one);
          if (peer != nullptr) learn_of_failure(*peer, before);
        }
      }
    }
  }

  // The owner of a queue pair learns of a failure that its peer has caused by itself, and then all
  // that is due comes.
  void learn_of_failure(QueuePairModel& peer, State before) {
    if (before == peer.state || testing::Test::HasFailure()) return;
    // By a message that its receive refuses it is its own poll that fails it.
    const auto is_refused = [](const Due& due) {
      return due.status != IBV_WC_SUCCESS && due.status != IBV_WC_WR_FLUSH_ERR;
    };
    if (std::any_of(peer.got.begin(), peer.got.end(), is_refused)) drain(peer);
    tell_member(peer.member,
                {.op = Op::kAwaitState, .object = index_of(peer), .state = IBV_QPS_ERR});
  }

  // ---- what may happen ----

  void act() {
    QueuePairModel& one = any();
    const uint32_t member = one.member;
    if (stopped_[member]) {
      if (random_.below(4) == 0) go_on_all();
      return;
    }
    if (one.state == State::kNone && random_.below(8) != 0) return make(one);
    const uint64_t what = random_.below(100);
    if (what < 3) return end_or_stop(member);
    if (what < 5) return destroy(one);
    if (what < 14) return connect_both(one);
    if (what < 17) return reset_if_there(one);
    if (what < 18) return fail(one);
    if (what < 32) return receive(one);
    if (what < 37) return receive_shared(member);
    if (what < 68) return send(one);
    if (what < 78) return drain_if_there(one);
    if (what < 90) return arm_or_await_event(one);
    change_memory(member);
  }

  void end_or_stop(uint32_t member) {
    switch (random_.below(10)) {
      case 0:
      case 1: {
        const Command exec{.op = Op::kExec};
        return end_life(member, &exec);
      }
      case 2: {
        const Command leave{.op = Op::kLeave};
        return end_life(member, &leave);
      }
      case 3:
        end_in_order(member);
        if (!testing::Test::HasFailure()) begin_life(member);
        return;
      case 4:
      case 5:
        left_behind_.push_back(tell_member(member, {.op = Op::kFork}).pid);
        return;
      case 6:
      case 7:
        children_[member]->signal(SIGSTOP);
        stopped_[member] = true;
        note(member, "is stopped");
        return;
      default:
        return end_life(member, nullptr);
    }
  }

  void make(QueuePairModel& one) {
    // Mostly as its mate.
    const QueuePairModel& mate = mate_of(one);
    const bool follows = mate.state != State::kNone && random_.below(8) != 0;
    const Command command{.op = Op::kMake,
                          .object = index_of(one),
                          .shared = random_.below(3) == 0,
                          .unreliable = follows ? mate.unreliable : random_.below(3) == 0};
    const Answer answer = tell_member(one.member, command);
    model_.make(one, command, answer.address);
    note(one.member, "  it is " + std::to_string(answer.address.queue_pair_number));
  }

  void destroy(QueuePairModel& one) {
    if (one.state == State::kNone) return;
    release_those_who_wait(one);
    tell_member(one.member, {.op = Op::kDestroy, .object = index_of(one)});
    model_.destroy(one);
  }

  // Mostly both sides, one after the other.
  void connect_both(QueuePairModel& one) {
    QueuePairModel& mate = mate_of(one);
    if (mate.state == State::kNone && !stopped_[mate.member]) make(mate);
    connect(one, mate);
    settle();
    if (random_.below(4) != 0 && !stopped_[mate.member] && &mate != &one) connect(mate, one);
  }

  void connect(QueuePairModel& one, QueuePairModel& mate) {
    if (one.state == State::kNone || mate.address.queue_pair_number == 0) return;
    if (one.state != State::kInit) reset(one);
    const Command command{.op = Op::kConnect,
                          .object = index_of(one),
                          .patient = random_.below(3) == 0,
                          .peer = mate.address};
    tell_member(one.member, command);
    model_.connect(one, command);
  }

  void reset_if_there(QueuePairModel& one) {
    if (one.state != State::kNone) reset(one);
  }

  void fail(QueuePairModel& one) {
    if (one.state == State::kNone) return;
    tell_member(one.member, {.op = Op::kError, .object = index_of(one)});
    model_.to_error(one);
  }

  void receive(QueuePairModel& one) {
    if (one.state == State::kNone || one.shared || one.free_receives.empty()) return;
    const Command command{.op = Op::kReceive,
                          .object = index_of(one),
                          .id = new_id(one.free_receives),
                          .bytes = random_.below(5) == 0 ? 64 : kSlotBytes};
    tell_member(one.member, command);
    model_.receive(one, command);
  }

  void receive_shared(uint32_t member) {
    std::vector<uint32_t>& free = model_.member(member).shared_free;
    if (free.empty()) return;
    const Command command{.op = Op::kReceiveShared, .id = new_id(free), .bytes = kSlotBytes};
    tell_member(member, command);
    model_.member(member).shared_posted.push_back(command.id);
  }

  void send(QueuePairModel& one) {
    if (one.state != State::kReady && one.state != State::kError) return;
    if (one.free_sends.empty()) return;
    Command command{.op = Op::kSend, .object = index_of(one), .seed = random_.next()};
    QueuePairModel* const peer = model_.peer_of(one);
    shape(command, peer, one.unreliable);
    const Attempt seen = model_.look_ahead(one, command);
    // Where nobody will be there, waiting without end may be given up.
    if (peer == nullptr && one.patient && !one.unreliable && one.state == State::kReady) return;
    // Several that wait for a shared receive: nobody says who gets it.
    if (seen == Attempt::kWaitsForReceive && one.patient && peer->shared) return;
    // A peer that is stopped learns of its failure later.
    if (seen == Attempt::kFailed && peer != nullptr && stopped_[peer->member]) return;
    command.id = kSendBit | new_id(one.free_sends);
    const State before = peer != nullptr ? peer->state : State::kNone;
    tell_member(one.member, command);
    const Attempt attempted = model_.post(one, command);
    if (attempted == Attempt::kFailed || random_.below(2) == 0) drain(one);
    if (peer != nullptr) learn_of_failure(*peer, before);
  }

  // What it asks for.
  void shape(Command& command, const QueuePairModel* peer, bool unreliable) {
    constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                          IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    constexpr uint32_t kSizes[] = {8, 64, 72, 200, 1000, kSlotBytes};
    command.bytes = kSizes[random_.below(6)];
    const uint64_t kind = random_.below(10);
    if (peer != nullptr && kind < (unreliable ? 2 : 4)) {
      const MemberModel& owner = model_.member(peer->member);
      const uint64_t region = random_.below(kRegions);
      if (owner.keys[region] != 0) {
        const Range& range = kRegionRanges[region];
        command.opcode = kOpcodes[kind];
        command.rkey = owner.keys[region];
        command.add = random_.next();
        if (command.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) command.bytes = 8;
        command.bytes = static_cast<uint32_t>(std::min<uint64_t>(command.bytes, range.size_bytes));
        // Some reach beyond the region's end.
        const uint64_t last = range.size_bytes - command.bytes + (random_.below(16) == 0 ? 8 : 0);
        command.remote = owner.arena + range.offset + random_.below(last / 8 + 1) * 8;
      }
    }
    const bool may_be_inline = command.bytes <= kInlineBytes &&
                               command.opcode != IBV_WR_RDMA_READ &&
                               command.opcode != IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (may_be_inline && random_.below(2) == 0) command.flags |= IBV_SEND_INLINE;
  }

  void drain_if_there(QueuePairModel& one) {
    if (one.state != State::kNone) drain(one);
  }

  void arm_or_await_event(QueuePairModel& one) {
    if (one.state == State::kNone) return;
    const std::vector<QueuePairModel*> all = beside(one);
    const auto is_due = [](const QueuePairModel* each) { return each->event_due; };
    if (!one.armed) {
      tell_member(one.member, {.op = Op::kArm, .object = index_of(one)});
      for (QueuePairModel* each : all) each->armed = true;
    } else if (std::any_of(all.begin(), all.end(), is_due)) {
      tell_member(one.member, {.op = Op::kAwaitEvent, .object = index_of(one)});
      for (QueuePairModel* each : all) each->armed = each->event_due = false;
    }
  }

  // ---- memory ----

  void change_memory(uint32_t member) {
    MemberModel& owner = model_.member(member);
    const auto region = static_cast<uint32_t>(random_.below(kRegions));
    switch (random_.below(4)) {
      case 0:
      case 1:
        if (owner.registered[region]) {
          tell_member(member, {.op = Op::kDeregister, .object = region});
        } else {
          owner.keys[region] = tell_member(member, {.op = Op::kRegister, .object = region}).key;
        }
        owner.registered[region] = !owner.registered[region];
        return;
      case 2:
        return renew(member);
      default: {
        const uint64_t offset = random_.below(kArenaBytes / 8 - 64) * 8;
        const Command command{
            .op = Op::kScribble, .bytes = 512, .seed = random_.next(), .offset = offset};
        tell_member(member, command);
        const std::vector<std::byte> bytes = pattern(command.seed, command.bytes);
        std::copy(bytes.begin(), bytes.end(), owner.image.begin() + static_cast<long>(offset));
      }
    }
  }

  void renew(uint32_t member) {
    MemberModel& owner = model_.member(member);
    const uint64_t begin = random_.below(kArenaBytes / kPageBytes) * kPageBytes;
    const uint64_t bytes = std::min((1 + random_.below(4)) * kPageBytes, kArenaBytes - begin);
    for (uint32_t i = 0; i < kRegions; ++i) {
      const uint64_t first = kRegionRanges[i].offset / kPageBytes * kPageBytes;
      if (owner.registered[i] && first < begin + bytes && kRegionRanges[i].end() > begin) return;
    }
    tell_member(member, {.op = Op::kRenew,
                         .remaps = random_.below(2) == 0,
                         .bytes = static_cast<uint32_t>(bytes),
                         .offset = begin});
    std::fill_n(owner.image.begin() + static_cast<long>(begin), bytes, std::byte{});
  }

  void check_images() {
    for (uint32_t i = 0; i < kMembers && !testing::Test::HasFailure(); ++i) {
      if (stopped_[i]) continue;
      const Answer answer = tell_member(i, {.op = Op::kImage});
      const auto& image = model_.member(i).image;
      EXPECT_EQ(answer.hash, hash_of(image.data(), image.size()))
          << "member " << i << " has other bytes in its memory";
      history_.pop_back();
    }
  }

  // With a slot that nothing uses.
  uint64_t new_id(std::vector<uint32_t>& free) {
    const uint32_t slot = free.back();
    free.pop_back();
    return ++ids_ << 8 | slot;
  }

  Random random_;
  Model model_;
  std::unique_ptr<Child> children_[kMembers];
  bool stopped_[kMembers] = {};
  std::vector<uint32_t> order_;  // of queue pairs; neighbours are mates
  std::vector<pid_t> left_behind_;
  std::vector<std::string> history_;
  uint64_t ids_ = 0;
};

TEST(SoftLifecycleTest, EveryOrderOfLivesAndEndsComesOutAsTheModelSays) {
  Random random(run_seed());
  for (size_t i = 0; i < soft_test::iterations(40); ++i) {
    const uint64_t seed = random.next();
    SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << run_seed() << ", story " << i);
    Story(seed).run();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace verbena::soft_lifecycle
