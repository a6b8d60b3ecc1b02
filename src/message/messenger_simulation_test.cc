// The promises of message.h in clusters in virtual time, each from a seed, with faults: every
// message comes once and in order, or its peer is reported; and nobody waits for ever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/fault_schedule_for_test.h"
#include "verbena/message.h"

namespace verbena::message {
namespace {

constexpr uint64_t kClusters = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 20 : 300;

// What every messenger of a cluster does: sends so many messages to each other one, and receives
// theirs.
struct Program {
  uint32_t members = 2;
  uint32_t messages = 20;
  bool late_receives = false;  // posted one after the other, else some ahead
  bool wildcards = false;
  uint32_t long_percent = 0;
  uint32_t one_sided = 0;   // puts, gets and atomics on each other member
  bool reuses = false;      // sends what is short from one buffer for each other member
  bool one_by_one = false;  // sends all messages to one member, then all to the next
};

constexpr uint64_t kSharedKey = 77;
constexpr uint64_t kUsedBufferBytes = 460;
constexpr uint64_t kPartBytes = 24'000;  // of each member, in the memory of each other one

class Member {
 public:
  Member(uint32_t number, const Program& program, uint64_t seed)
      : number_(number), program_(program), random_(seed ^ number), peers_(program.members) {}

  Status open(sim::Cluster::Member& node, const JobSecret& secret,
              const MessengerOptions& options) {
    VERBENA_ASSIGN_OR_RETURN(messenger_, open_messenger(node.device, node.domain, secret, options));
    // All parts, and a word that everybody adds to.
    exposed_.assign(kPartBytes * program_.members + 8, '\0');
    const iovec piece{exposed_.data(), exposed_.size()};
    return messenger_->exposed()
        .expose(
            {.pieces = {&piece, 1}, .access = kMemoryReadWrite, .has_key = true, .key = kSharedKey})
        .status();
  }
  Messenger& messenger() { return *messenger_; }
  bool is_open() const { return messenger_ != nullptr; }
  void close() { messenger_.reset(); }

  void meet(uint32_t other, const MessengerAddress& address) {
    const Result<PeerNumber> number = messenger_->add_peer(address);
    if (!number.ok()) return note(number.status().message());
    peers_[other].number = *number;
  }

  // One round. True: something was posted or came.
  bool step() {
    bool something = false;
    // With PollingSetPolicy::kHints, rings change hands.
    if (random_.below(20) == 0) {
      messenger_->hint(peers_[random_.below(peers_.size())].number,
                       static_cast<uint32_t>(random_.below(10)));
    }
    for (uint32_t other = 0; other < peers_.size(); ++other) {
      if (other == number_ || is_lost(other)) continue;
      something |= receive_next(other);
      something |= send_next(other);
      something |= access_next(other);
    }
    MessageCompletion done[8];
    const uint32_t found = messenger_->poll(done);
    for (uint32_t i = 0; i < found; ++i) take(done[i]);
    return something || found > 0;
  }
  // All is sent and received, except what a lost peer has to do with.
  bool is_done() const {
    for (uint32_t other = 0; other < peers_.size(); ++other) {
      const Peer& peer = peers_[other];
      if (other == number_ || is_lost(other)) continue;
      if (peer.sent < program_.messages || peer.confirmed < program_.messages ||
          peer.received < program_.messages || peer.accesses < program_.one_sided ||
          peer.accessing) {
        return false;
      }
    }
    return true;
  }
  bool is_lost(uint32_t other) const { return !messenger_->peer_status(peers_[other].number).ok(); }
  std::string loss(uint32_t other) const {
    return messenger_->peer_status(peers_[other].number).message();
  }
  std::string state() const {
    std::string text = fmt::format("member {}:", number_);
    for (const Peer& peer : peers_) {
      text += fmt::format(" {} sent, {} confirmed, {} received, {} accesses{};", peer.sent,
                          peer.confirmed, peer.received, peer.accesses,
                          peer.accessing ? " and one" : "");
    }
    return text;
  }
  const std::string& wrong() const { return wrong_; }
  uint64_t received_by_ring() const { return messenger_->statistics().ring_messages; }
  uint64_t sent_by_queue() const { return messenger_->statistics().queue_messages; }
  uint64_t gathered() const { return messenger_->statistics().gathered; }

 private:
  struct Peer {
    PeerNumber number = 0;
    uint32_t sent = 0;
    uint32_t confirmed = 0;
    uint32_t posted = 0;
    uint32_t received = 0;
    // One at a time, so that long ones are in order, too.
    uint32_t accesses = 0;
    bool accessing = false;
    // Filled again as soon as its send has completed, and other bytes until then.
    std::string buffer = std::string(kUsedBufferBytes, '\0');
    bool sending = false;
    std::string part = std::string(kPartBytes, '\0');  // as it is there
    uint64_t at = 0;
    std::string bytes;
    uint64_t fetched = 0;
    uint64_t fetched_before = 0;
  };
  struct Expected {
    std::string memory;
    uint32_t from = 0;
    uint32_t number = 0;
  };

  std::string text_of(uint32_t from, uint32_t to, uint32_t number) const {
    Random random(uint64_t{from} << 48 | uint64_t{to} << 32 | number);
    const bool is_long = random.below(100) < program_.long_percent;
    const uint64_t short_bytes = program_.reuses ? 120 + random.below(kUsedBufferBytes - 120) : 200;
    std::string text(is_long ? 3000 + random.below(20'000) : random.below(short_bytes), '\0');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(number * 5 + i * 3 + from);
    return text;
  }

  // The first behind this one that has not been sent all, and is there.
  uint32_t sends_to() const {
    uint32_t to = number_;
    do {
      to = (to + 1) % static_cast<uint32_t>(peers_.size());
    } while (to != number_ && (peers_[to].sent == program_.messages || is_lost(to)));
    return to;
  }

  bool send_next(uint32_t other) {
    Peer& peer = peers_[other];
    if (peer.sent == program_.messages) return false;
    if (program_.one_by_one && other != sends_to()) return false;
    auto text = std::make_unique<std::string>(text_of(number_, other, peer.sent));
    const bool reuses = program_.reuses && text->size() <= kUsedBufferBytes;
    if (reuses && peer.sending) return false;
    if (reuses) peer.buffer.replace(0, text->size(), *text);
    const iovec piece{reuses ? peer.buffer.data() : text->data(), text->size()};
    constexpr uint32_t kEnds[] = {kMessageDelivered, kMessageAcknowledged, 0};
    const PostResult result = messenger_->send({.peer = peer.number,
                                                .tag = number_,
                                                .pieces = {&piece, 1},
                                                .context = text.get(),
                                                .data = peer.sent,
                                                .flags = kEnds[random_.below(3)] | kMessageData});
    if (result != PostResult::kPosted) return false;
    ++peer.sent;
    if (reuses) {
      peer.sending = true;
      text->clear();
    }
    sends_.emplace(text.get(), std::move(text));
    return true;
  }
  bool receive_next(uint32_t other) {
    Peer& peer = peers_[other];
    const uint32_t ahead = program_.late_receives ? 1 : 6;
    if (peer.posted == program_.messages || peer.posted >= peer.received + ahead) return false;
    auto expected = std::make_unique<Expected>();
    expected->memory.assign(24'000, '\0');
    expected->from = other;
    expected->number = peer.posted;
    const iovec piece{expected->memory.data(), expected->memory.size()};
    const bool any = program_.wildcards && random_.below(2) == 0;
    const PostResult result = messenger_->receive({.source = any ? kAnyPeer : peer.number,
                                                   .tag = other,
                                                   .pieces = {&piece, 1},
                                                   .context = expected.get()});
    if (result != PostResult::kPosted) return false;
    ++peer.posted;
    receives_.emplace(expected.get(), std::move(expected));
    return true;
  }

  // A put of a part of its part there, a get of what it has put, or a fetch-and-add.
  bool access_next(uint32_t other) {
    Peer& peer = peers_[other];
    if (peer.accessing || peer.accesses == program_.one_sided) return false;
    const bool is_long = random_.below(100) < program_.long_percent;
    const uint64_t size = 1 + random_.below(is_long ? kPartBytes : 300);
    peer.at = random_.below(kPartBytes - size + 1);
    const uint64_t kind = random_.below(3);
    RemoteRange range{number_ * kPartBytes + peer.at, size, kSharedKey};
    PostResult result = PostResult::kFailed;
    if (kind == 2) {
      const uint64_t one = 1;
      const iovec operand{const_cast<uint64_t*>(&one), sizeof(one)};
      const iovec value{&peer.fetched, sizeof(peer.fetched)};
      range = {kPartBytes * program_.members, sizeof(one), kSharedKey};
      result = messenger_->atomic({.peer = peer.number,
                                   .operands = {&operand, 1},
                                   .results = {&value, 1},
                                   .remote = {&range, 1}});
    } else {
      peer.bytes.assign(size, '\0');
      for (char& byte : peer.bytes) byte = static_cast<char>(random_.next());
      const iovec piece{peer.bytes.data(), size};
      const OneSidedRequest request{
          .peer = peer.number, .pieces = {&piece, 1}, .remote = {&range, 1}};
      result = kind == 0 ? messenger_->put(request) : messenger_->get(request);
      if (result == PostResult::kPosted && kind == 0) peer.part.replace(peer.at, size, peer.bytes);
    }
    peer.accessing = result == PostResult::kPosted;
    return peer.accessing;
  }
  void take_access(const MessageCompletion& done) {
    Peer& peer = peers_[other_of(done.peer)];
    if (!peer.accessing) return note("a completion of no one-sided operation");
    peer.accessing = false;
    ++peer.accesses;
    if (done.outcome == MessageOutcome::kPeerLost) return;
    if (done.outcome != MessageOutcome::kOk) return note("a one-sided operation failed");
    if (done.event == MessageEvent::kGot &&
        peer.part.compare(peer.at, peer.bytes.size(), peer.bytes) != 0) {
      note("a get has other bytes than were put");
    }
    if (done.event == MessageEvent::kFetched) {
      if (peer.fetched_before != 0 && peer.fetched < peer.fetched_before) {
        note("a word that only rises has fallen");
      }
      peer.fetched_before = peer.fetched + 1;
    }
  }

  void take(const MessageCompletion& done) {
    if (done.event != MessageEvent::kSent && done.event != MessageEvent::kReceived) {
      return take_access(done);
    }
    if (done.event == MessageEvent::kSent) {
      const uint32_t other = other_of(done.peer);
      const auto sent = sends_.find(done.context);
      if (program_.reuses && sent != sends_.end() && sent->second->empty()) {
        peers_[other].sending = false;
        std::fill(peers_[other].buffer.begin(), peers_[other].buffer.end(), '!');
      }
      if (done.outcome == MessageOutcome::kOk) {
        ++peers_[other].confirmed;
      } else if (done.outcome != MessageOutcome::kPeerLost) {
        note("a send failed");
      }
      if (sends_.erase(done.context) != 1) note("a completion of no send");
      return;
    }
    const auto found = receives_.find(done.context);
    if (found == receives_.end()) return note("a completion of no receive");
    const Expected& expected = *found->second;
    if (done.outcome == MessageOutcome::kOk) {
      const std::string text = text_of(expected.from, number_, expected.number);
      if (done.data != expected.number || done.tag != expected.from || done.bytes != text.size() ||
          expected.memory.compare(0, text.size(), text) != 0) {
        note(fmt::format("message {} of member {} came in the place of message {}", done.data,
                         expected.from, expected.number));
      }
      ++peers_[expected.from].received;
    } else if (done.outcome != MessageOutcome::kPeerLost) {
      note("a receive failed");
    }
    receives_.erase(found);
  }
  uint32_t other_of(PeerNumber number) const {
    for (uint32_t other = 0; other < peers_.size(); ++other) {
      if (other != number_ && peers_[other].number == number) return other;
    }
    return number_;
  }
  void note(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  uint32_t number_;
  const Program program_;
  Random random_;
  std::vector<Peer> peers_;
  std::map<void*, std::unique_ptr<std::string>> sends_;
  std::map<void*, std::unique_ptr<Expected>> receives_;
  std::string wrong_;
  std::string exposed_;
  std::unique_ptr<Messenger> messenger_;  // goes before the memory of its operations
};

class SimulatedMessengers {
 public:
  SimulatedMessengers(uint64_t seed, const Program& program, const MessengerOptions& options,
                      const sim::FaultSchedule& faults)
      : cluster_(program.members, seed), options_(options) {
    for (uint32_t i = 0; i < program.members; ++i) {
      members_.push_back(std::make_unique<Member>(i, program, seed));
    }
    addresses_.resize(program.members);
    ended_.resize(program.members);
    faults_ = std::make_unique<sim::ScheduledFaults>(faults, seed, cluster_.simulation());
  }

  // False: a member of a node that lives waits for ever. All messengers are gone then.
  bool run() {
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < members_.size(); ++i) {
      threads.push_back(cluster_.start(i, [this, i] { body(i); }));
    }
    const bool ended = cluster_.simulation().run_until([this] { return all(ended_); }, kEndNs);
    if (!ended) {
      for (const auto& member : members_) states_ += member->state() + "\n";
    }
    // Where a node has crashed, or hangs, somebody else cleans up.
    for (uint32_t i = 0; !ended && i < members_.size(); ++i) cluster_.node(i).crash();
    threads.clear();
    bool cleaned = false;
    sim::Node& cleaner_node = cluster_.simulation().add_node(sim::test_profile());
    Thread cleaner;
    {
      const sim::OnNode here(cluster_.simulation(), cleaner_node);
      cleaner = start_thread("cleaner", [&] {
        for (const auto& member : members_) member->close();
        cleaned = true;
      });
    }
    cluster_.simulation().run_until([&] { return cleaned; }, 2 * kEndNs);
    return ended && cleaned;
  }

  Member& member(uint32_t i) { return *members_[i]; }
  bool crashed(uint32_t i) { return cluster_.node(i).crashed; }
  const std::string& failure() const { return failure_; }
  const std::string& states() const { return states_; }
  const std::vector<std::string>& losses() const { return losses_; }
  uint64_t by_ring() const { return by_ring_; }
  uint64_t by_queue() const { return by_queue_; }
  uint64_t gathered() const { return gathered_; }

 private:
  static constexpr uint64_t kEndNs = 400'000'000'000;

  bool all(const std::vector<bool>& done) {
    for (uint32_t i = 0; i < members_.size(); ++i) {
      if (!done[i] && !crashed(i)) return false;
    }
    return true;
  }

  void body(uint32_t number) {
    Member& member = *members_[number];
    const Status opened = member.open(cluster_[number], secret_, options_);
    if (!opened.ok()) failure_ = opened.message();
    if (!opened.ok()) return end(number);
    addresses_[number] = member.messenger().address();
    Waiter waiter;
    const auto all_open = [this] {
      for (uint32_t i = 0; i < members_.size(); ++i) {
        if (addresses_[i] == MessengerAddress{} && !crashed(i)) return false;
      }
      return true;
    };
    while (!all_open() && failure_.empty()) sleep_ns(1'000);
    for (uint32_t i = 0; i < members_.size(); ++i) {
      // One that crashed before it had an address is nobody to talk to.
      if (addresses_[i] == MessengerAddress{}) return end(number);
    }
    for (uint32_t i = 0; i < members_.size(); ++i) member.meet(i, addresses_[i]);
    finished_.resize(members_.size());
    // Until all are done: who ends early is a lost peer to others.
    while (!all(finished_)) {
      finished_[number] = member.is_done();
      member.step() ? waiter.progress() : waiter.idle();
    }
    for (uint32_t i = 0; i < members_.size(); ++i) {
      if (i != number && member.is_lost(i)) losses_.push_back(member.loss(i));
    }
    by_ring_ += member.received_by_ring();
    by_queue_ += member.sent_by_queue();
    gathered_ += member.gathered();
    end(number);
  }
  void end(uint32_t number) {
    finished_.resize(members_.size());
    finished_[number] = true;
    members_[number]->close();
    ended_[number] = true;
  }

  sim::Cluster cluster_;
  JobSecret secret_ = JobSecret::random();
  const MessengerOptions options_;
  std::unique_ptr<sim::ScheduledFaults> faults_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<MessengerAddress> addresses_;
  std::vector<bool> finished_;
  std::vector<bool> ended_;
  std::vector<std::string> losses_;
  std::string failure_;
  std::string states_;
  uint64_t by_ring_ = 0;
  uint64_t by_queue_ = 0;
  uint64_t gathered_ = 0;
};

sim::FaultSchedule draw_message_faults(Random& random) {
  sim::FaultSchedule faults;
  if (random.below(2) == 0) faults.loss_ppm = random.below(2) == 0 ? 1'000 : 20'000;
  if (random.below(4) == 0) {
    faults.delay_ppm = 10'000;
    faults.delay_most_ns = random.below(2) == 0 ? 5'000 : 300'000;
  }
  if (random.below(4) == 0) faults.link_flaps = 1 + static_cast<uint32_t>(random.below(4));
  if (random.below(4) == 0) faults.slow_percent = 200 + random.below(2'000);
  if (random.below(2) == 0) return faults;
  if (random.below(2) == 0) {
    faults.crashes = 1;
  } else {
    faults.queue_pair_errors = 1 + static_cast<uint32_t>(random.below(2));
  }
  return faults;
}

// What is not promised, in words; empty if all holds.
std::string broken_message_promise(uint64_t seed, std::string* description) {
  Random random(seed);
  Program program;
  program.members = 2 + static_cast<uint32_t>(random.below(4));
  program.messages = 5 + static_cast<uint32_t>(random.below(60));
  program.late_receives = random.below(3) == 0;
  program.wildcards = random.below(2) == 0;
  program.long_percent = random.below(2) == 0 ? 10 : 0;
  program.one_sided = random.below(2) == 0 ? static_cast<uint32_t>(random.below(40)) : 0;
  MessengerOptions options;
  options.max_peers = 16;
  options.max_operations = 512;
  options.max_completions = 1024;
  options.max_unexpected = random.below(3) == 0 ? 8 : 1024;
  options.unexpected_bytes = random.below(3) == 0 ? 1024 : 1 << 20;
  options.slot_bytes = 512;
  options.ring_slots = 2 + static_cast<uint32_t>(random.below(12));
  options.queue_credits = 6 + static_cast<uint32_t>(random.below(6));
  options.polling_set = static_cast<uint32_t>(random.below(4));
  options.policy = static_cast<PollingSetPolicy>(random.below(4));
  options.order = static_cast<PollingOrder>(random.below(3));
  if (random.below(2) == 0) options.inline_bytes = 0;
  options.long_messages = static_cast<LongMessages>(random.below(4));
  if (random.below(3) == 0) options.registered_bytes = random.below(2) * 32'768;
  const sim::FaultSchedule faults = draw_message_faults(random);
  program.reuses = random.below(2) == 0;
  if (program.reuses) {
    options.reused_buffers = ReusedBuffers::kPaper;
    options.reuse_speculation = 0.001;  // of at most 1,728 reuses
    options.reuse_index = random.below(2) == 0 ? ReusedIndex::kHash : ReusedIndex::kTree;
    options.reuse_buffers = random.below(4) == 0 ? 2 : 1024;
  }
  program.one_by_one = random.below(4) == 0;
  if (program.one_by_one) {
    program.messages += 80;
    options.polling_set = 1;
    options.policy = PollingSetPolicy::kDynamic;
  }
  *description = fmt::format(
      "{} members, {} messages{}{}, {} slots, {} credits, {} polled by policy {}, {} % long, {} "
      "one-sided, {} unexpected of {} bytes, long ones {}, {} bytes registered; {}",
      program.members, program.messages, program.reuses ? " from used buffers" : "",
      program.one_by_one ? " to one member after the other" : "", options.ring_slots,
      options.queue_credits, options.polling_set, static_cast<int>(options.policy),
      program.long_percent, program.one_sided, options.max_unexpected, options.unexpected_bytes,
      static_cast<int>(options.long_messages), options.registered_bytes, sim::describe(faults));

  SimulatedMessengers cluster(seed, program, options, faults);
  if (!cluster.run()) return "a member hangs\n" + cluster.states();
  if (!cluster.failure().empty()) return cluster.failure();
  for (uint32_t i = 0; i < program.members; ++i) {
    if (!cluster.member(i).wrong().empty()) return cluster.member(i).wrong();
  }
  if (faults.is_survivable() && !cluster.losses().empty()) return cluster.losses()[0];
  return "";
}

TEST(MessengerSimulationTest, PromisesHoldWhateverGoesWrong) {
  for (uint64_t seed = run_seed(); seed < run_seed() + kClusters; ++seed) {
    std::string description;
    const std::string broken = broken_message_promise(seed, &description);
    ASSERT_EQ(broken, "") << description << "\nagain: VERBENA_SEED=" << seed
                          << " build/release/bin/message_test --gtest_filter=MessengerSim*";
  }
}

TEST(MessengerSimulationTest, RingsCarryTheMessagesOfThoseThatArePolled) {
  for (const uint32_t places : {0u, 8u}) {
    Program program{.members = 3, .messages = 200};
    MessengerOptions options;
    options.max_peers = 16;
    options.max_unexpected = 1024;
    options.polling_set = places;
    options.policy = PollingSetPolicy::kAll;
    SimulatedMessengers cluster(run_seed(), program, options, {});
    ASSERT_TRUE(cluster.run()) << cluster.states();
    EXPECT_EQ(cluster.failure(), "");
    EXPECT_TRUE(cluster.losses().empty());
    if (places == 0) {
      EXPECT_EQ(cluster.by_ring(), 0u);
    } else {
      EXPECT_GT(cluster.by_ring(), 3 * 2 * 200u * 3 / 4);
    }
  }
}

// A message that finds the ring full waits for its credits, and goes by SEND only where they do not
// come soon.
TEST(MessengerSimulationTest, AFullRingIsWaitedForBeforeAMessageGoesBySend) {
  Program program{.members = 2, .messages = 2000};
  MessengerOptions options;
  options.max_peers = 16;
  options.max_unexpected = 1024;
  options.ring_slots = 4;
  options.polling_set = 8;
  options.policy = PollingSetPolicy::kAll;
  SimulatedMessengers cluster(run_seed(), program, options, {});
  ASSERT_TRUE(cluster.run()) << cluster.states();
  EXPECT_EQ(cluster.failure(), "");
  EXPECT_LT(cluster.by_queue(), 2000u);  // of 4,000; without waiting, 3,500
}

// Sends complete once the device has read the memory, and not before: every buffer is filled anew
// at that moment, and every payload is checked.
TEST(MessengerSimulationTest, UsedBuffersMayChangeOnceTheirSendIsOver) {
  for (const uint32_t places : {0u, 8u}) {
    Program program{.members = 3, .messages = 200, .reuses = true};
    MessengerOptions options;
    options.max_peers = 16;
    options.max_unexpected = 1024;
    options.polling_set = places;
    options.policy = PollingSetPolicy::kAll;
    options.slot_bytes = 576;
    options.inline_bytes = 0;
    options.reused_buffers = ReusedBuffers::kPaper;
    options.reuse_speculation = 0.001;
    SimulatedMessengers cluster(run_seed(), program, options, {});
    ASSERT_TRUE(cluster.run()) << cluster.states();
    EXPECT_EQ(cluster.failure(), "");
    EXPECT_TRUE(cluster.losses().empty());
    for (uint32_t i = 0; i < program.members; ++i) EXPECT_EQ(cluster.member(i).wrong(), "");
    EXPECT_GT(cluster.gathered(), 200u);
  }
}

// Confirmations and answers may come before the acknowledgement of what they are for, if that was
// lost: the device sends that once more then, from memory that has to be registered still.
TEST(MessengerSimulationTest, RegistrationsOutliveOperationsWhoseAcknowledgementIsLost) {
  constexpr uint32_t kBuffers = 150;
  constexpr uint64_t kPutBytes = 300;         // no more than a short put has
  constexpr uint64_t kQuietNs = 200'000'000;  // longer than a device waits
  constexpr uint64_t kQuietEndNs = 400'000'000'000;
  MessengerOptions options;
  options.max_peers = 4;
  options.slot_bytes = 576;
  options.inline_bytes = 0;
  options.reused_buffers = ReusedBuffers::kPaper;
  options.reuse_speculation = 0.001;
  options.registered_bytes = 0;  // none is kept
  sim::Cluster cluster(2, run_seed());
  const JobSecret secret = JobSecret::random();
  MessengerAddress address{};
  std::string exposed(kUsedBufferBytes, '\0');
  std::string lost;
  uint64_t gathered = 0;
  bool sent = false;
  bool received = false;
  uint32_t ended = 0;
  std::vector<Thread> threads;
  threads.push_back(cluster.start(0, [&] {
    auto opened = open_messenger(cluster[0].device, cluster[0].domain, secret, options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    Messenger& messenger = **opened;
    while (address == MessengerAddress{}) sleep_ns(1'000);
    const PeerNumber peer = messenger.add_peer(address).value();
    const RemoteRange range{0, kPutBytes, kSharedKey};
    std::vector<std::string> buffers(kBuffers, std::string(kPutBytes, 'b'));
    for (uint32_t i = 0; i < kBuffers && lost.empty(); ++i) {
      const iovec piece{buffers[i].data(), buffers[i].size()};
      // The second one from a buffer is gathered; nothing behind it is acknowledged in its place.
      for (uint32_t use = 0; use < 2 && lost.empty(); ++use) {
        const auto post = [&] {
          return i % 2 == 0
                     ? messenger.send(
                           {.peer = peer, .pieces = {&piece, 1}, .flags = kMessageDelivered})
                     : messenger.put({.peer = peer, .pieces = {&piece, 1}, .remote = {&range, 1}});
        };
        const auto wait = [&] {
          sleep_ns(1'000);
          if (!messenger.peer_status(peer).ok()) lost = messenger.peer_status(peer).message();
        };
        while (post() != PostResult::kPosted && lost.empty()) {
          messenger.progress();
          wait();
        }
        MessageCompletion done;
        while (messenger.poll({&done, 1}) == 0 && lost.empty()) wait();
      }
      sleep_ns(kQuietNs);
      messenger.progress();
    }
    gathered = messenger.statistics().gathered;
    sent = true;
    while (!received) sleep_ns(1'000'000);
    opened->reset();
    ++ended;
  }));
  threads.push_back(cluster.start(1, [&] {
    auto opened = open_messenger(cluster[1].device, cluster[1].domain, secret, options);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    Messenger& messenger = **opened;
    const iovec open_to_all{exposed.data(), exposed.size()};
    ASSERT_TRUE(messenger.exposed()
                    .expose({.pieces = {&open_to_all, 1},
                             .access = kMemoryReadWrite,
                             .has_key = true,
                             .key = kSharedKey})
                    .ok());
    std::string into(kUsedBufferBytes, '\0');
    const iovec piece{into.data(), into.size()};
    ASSERT_EQ(messenger.receive({.ignore = ~uint64_t{0}, .pieces = {&piece, 1}}),
              PostResult::kPosted);
    address = messenger.address();
    while (!sent) {
      MessageCompletion done;
      if (messenger.poll({&done, 1}) == 0) {
        sleep_ns(100'000);
      } else if (done.event == MessageEvent::kReceived) {
        static_cast<void>(messenger.receive({.ignore = ~uint64_t{0}, .pieces = {&piece, 1}}));
      }
    }
    received = true;
    opened->reset();
    ++ended;
  }));
  cluster.simulation().fabric().set_faults({.loss_ppm = 50'000});
  EXPECT_TRUE(cluster.simulation().run_until([&] { return ended == 2; }, kQuietEndNs));
  for (uint32_t i = 0; ended < 2 && i < 2; ++i) cluster.node(i).crash();
  threads.clear();
  EXPECT_EQ(lost, "");
  // The first ones may go by SEND, before there is a ring, and are copied then.
  EXPECT_GE(gathered, kBuffers - 10);
}

}  // namespace
}  // namespace verbena::message
