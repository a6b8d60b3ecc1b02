// A peer that breaks every rule: it scribbles over all that it can write of its victim's queues,
// and tells nonsense in its own. The victim may lose this connection, and nothing else.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <signal.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

using soft::Packet;
using soft::PeerQp;
using soft::Qp;

constexpr uint64_t kReceives = 16;
constexpr size_t kReceiveBytes = 4096;
constexpr size_t kTargetBytes = 64 * 1024;

// Which rules are broken.
enum class Attack { kVictimsQueues, kVictimsTables, kOwnQueues, kPackets };
std::ostream& operator<<(std::ostream& out, Attack attack) {
  const char* const names[] = {"VictimsQueues", "VictimsTables", "OwnQueues", "Packets"};
  return out << names[static_cast<int>(attack)];
}

struct Target {
  QueuePairAddress peer;
  uint64_t address;
  uint32_t key;
  uint64_t seed;
  Attack attack;
};

struct Area {
  std::byte* begin;
  size_t size_bytes;
};

Area area_of(void* begin, size_t size_bytes) {
  return {static_cast<std::byte*>(begin), size_bytes};
}

std::vector<Area> areas_of(const Attack attack, Qp& qp, Qp* own_shared_receiver) {
  PeerQp& peer = qp.peer;
  auto* header = const_cast<soft::Header*>(&peer.process->header());
  switch (attack) {
    case Attack::kVictimsQueues: {
      std::vector<Area> areas = {
          area_of(peer.shared, sizeof(soft::QpShared)),
          area_of(peer.packets.packets, (peer.packets.mask + 1) * sizeof(Packet)),
          area_of(peer.cq.shared, 2 * soft::kCacheLineBytes),
          area_of(peer.cq.shared->ready_bits, 64),
      };
      if (peer.srq.shared == nullptr) {
        areas.push_back(area_of(peer.receives.receives,
                                (peer.receives.mask + 1) * size_t{peer.receives.stride_bytes}));
      } else {
        areas.push_back(area_of(peer.srq.shared, sizeof(soft::SrqShared)));
        areas.push_back(area_of(peer.srq.ring, (peer.srq.ring_mask + 1) * sizeof(uint64_t)));
        areas.push_back(
            area_of(peer.srq.receives, peer.srq.receive_count * size_t{peer.srq.stride_bytes}));
      }
      return areas;
    }
    case Attack::kVictimsTables:
      return {area_of(header, soft::kCacheLineBytes), area_of(header->queue_pairs, 4096),
              area_of(header->regions, 64 * sizeof(soft::RegionEntry))};
    case Attack::kOwnQueues: {
      // Not in_flight: holding up whoever waits for it is tested by itself.
      soft::Header& own = qp.rnic->header();
      std::vector<Area> areas = {
          area_of(qp.shared, offsetof(soft::QpShared, in_flight)),
          area_of(&qp.shared->connection, sizeof(soft::ConnectionShared)),
          area_of(qp.recv_cq->shared, soft::kCacheLineBytes),
          area_of(own.regions, 64 * sizeof(soft::RegionEntry)),
      };
      if (own_shared_receiver != nullptr) {
        soft::Srq& srq = *own_shared_receiver->srq;
        areas.push_back(area_of(srq.shared, sizeof(soft::SrqShared)));
        areas.push_back(area_of(srq.ring, (srq.ring_mask + 1) * sizeof(uint64_t)));
        areas.push_back(
            area_of(srq.shared_receives, srq.depth * size_t{srq.shared_receive_stride_bytes}));
      } else {
        areas.push_back(area_of(qp.receives.shown(),
                                (qp.receives.mask() + 1) * size_t{qp.receives.stride_bytes()}));
      }
      return areas;
    }
    case Attack::kPackets:
      return {area_of(peer.packets.packets, (peer.packets.mask + 1) * sizeof(Packet))};
  }
  return {};
}

uint64_t nasty(Random& random, uint64_t before) {
  switch (random.below(6)) {
    case 0:
      return 0;
    case 1:
      return ~uint64_t{0};
    case 2:
      return random.below(300);
    case 3:
      return before ^ (uint64_t{1} << random.below(64));
    case 4:
      return before + random.below(5) - 2;
    default:
      return random.next();
  }
}

void scribble(Random& random, const Area& area) {
  auto* word = reinterpret_cast<uint64_t*>(area.begin + random.below(area.size_bytes / 8) * 8);
  const uint64_t before = load_relaxed(word);
  uint64_t value = nasty(random, before);
  // Half a word, or a byte, keeps what stands beside it plausible.
  const uint64_t width = random.below(3);
  const uint64_t mask = width == 0 ? ~uint64_t{0} : width == 1 ? 0xffffffffu : 0xffu;
  const uint64_t shift = width == 0 ? 0 : random.below(width == 1 ? 2 : 8) * (width == 1 ? 32 : 8);
  value = (before & ~(mask << shift)) | ((value & mask) << shift);
  store_release(word, value);
}

// A packet that the victim will take for the next one, with anything in it.
void forge(Random& random, PeerQp& peer) {
  const uint32_t position = peer.packets.next;
  Packet& packet = peer.packets.packets[position & peer.packets.mask];
  packet.byte_count = static_cast<uint32_t>(nasty(random, packet.byte_count));
  packet.immediate = static_cast<uint32_t>(random.next());
  packet.receive_index =
      static_cast<uint16_t>(random.below(3) == 0 ? random.next() : random.below(kReceives));
  packet.kind = static_cast<uint8_t>(random.below(3) == 0 ? random.next() : random.below(5));
  packet.inline_bytes = static_cast<uint8_t>(random.next());
  if (random.below(2) == 0) packet.byte_count = packet.inline_bytes;
  packet.mark.store(position + 1, std::memory_order_release);
  peer.packets.next = position + 1;
  if (peer.srq.shared != nullptr && packet.receive_index < peer.srq.receive_count) {
    peer.srq.receive(packet.receive_index).claim.store(random.next(), std::memory_order_relaxed);
  }
}

VERBENA_TEST_CHILD(attacker) {
  Node node;
  Buffer buffer(node.domain, kTargetBytes);
  for (;;) {
    SharedReceiveQueue srq =
        must(SharedReceiveQueue::create(node.domain, {.depth_wrs = kReceives, .max_sges = 4}));
    const auto with_srq = link.get<bool>();
    End end(node, {.shared_receive_queue = with_srq ? &srq : nullptr, .recv_depth = kReceives});
    link.put(end.address());
    link.put(Responder::Memory{buffer.address(), buffer.key()});
    const auto target = link.get<Target>();
    end.connect(target.peer, kImpatient);
    Qp& qp = soft::as_qp(end.qp());
    Random random(target.seed);
    const std::vector<Area> areas = areas_of(target.attack, qp, with_srq ? &qp : nullptr);
    // Tables are for all connections; what is wrong in them must not end the attacker's next one,
    // nor what is wrong in its own blocks their destruction.
    std::vector<std::vector<std::byte>> saved;
    if (target.attack == Attack::kVictimsTables || target.attack == Attack::kOwnQueues) {
      for (const Area& area : areas) saved.emplace_back(area.begin, area.begin + area.size_bytes);
    }
    link.get<bool>();
    while (!link.readable()) {
      for (int i = 0; i < 8; ++i) {
        if (target.attack == Attack::kPackets && random.below(2) == 0) {
          forge(random, qp.peer);
        } else {
          scribble(random, areas[random.below(areas.size())]);
        }
      }
      // Some honest work in between keeps the victim at it.
      if (with_srq) {
        post_receive(srq.get(), 1, {buffer.sge(0, kReceiveBytes)});
      } else {
        post_receive(end.qp(), 1, {buffer.sge(0, kReceiveBytes)});
      }
      SendRequest request{.sges = {buffer.sge(0, random.below(2) == 0 ? 64 : kReceiveBytes)},
                          .remote_address = target.address,
                          .rkey = target.key};
      if (random.below(4) == 0) request.opcode = IBV_WR_RDMA_WRITE;
      post(end.qp(), request);
      ibv_wc wc[8];
      ibv_poll_cq(end.cq(), 8, wc);
    }
    for (size_t i = 0; i < saved.size(); ++i) {
      memcpy(areas[i].begin, saved[i].data(), saved[i].size());
    }
    if (!link.get<bool>()) return 0;
    end.close();
    link.put(true);
  }
}

// Connects to the attacker, who may be at it already. False if what it tells of its own queue pair
// cannot be, which is said so and leaves this queue pair as it was: unconnected.
bool connect_to_attacker(const Node& node, End& end, const QueuePairAddress& attacker,
                         Attack attack) {
  const Status status = end.queue_pair().connect(attacker, kImpatient);
  if (status.ok()) return true;
  EXPECT_EQ(attack, Attack::kOwnQueues) << status.message();
  EXPECT_NE(status.message().find("reports an inconsistent queue pair"), std::string::npos)
      << status.message();
  EXPECT_EQ(state_of(node, end.qp()), IBV_QPS_INIT);
  return false;
}

class AttackTest : public testing::TestWithParam<std::tuple<Attack, bool>> {};

std::string attack_case_name(const testing::TestParamInfo<std::tuple<Attack, bool>>& info) {
  const auto [attack, with_srq] = info.param;
  return testing::PrintToString(attack) + (with_srq ? "SharedReceiveQueue" : "OwnReceives");
}

INSTANTIATE_TEST_SUITE_P(Attacks, AttackTest,
                         testing::Combine(testing::Values(Attack::kVictimsQueues,
                                                          Attack::kVictimsTables,
                                                          Attack::kOwnQueues, Attack::kPackets),
                                          testing::Bool()),
                         attack_case_name);

TEST_P(AttackTest, TheVictimLosesTheConnectionAtMost) {
  const auto [attack, with_srq] = GetParam();
  Random random(run_seed());
  Node node;
  // Writing to a channel of an attacker that has gone must not be the end either.
  std::optional<Child> child(std::in_place, "attacker");
  Buffer landing(node.domain, kReceives * kReceiveBytes);
  Buffer target(node.domain, kTargetBytes);
  Buffer source(node.domain, kTargetBytes);
  fcntl(node.device.get()->async_fd, F_SETFL, O_NONBLOCK);
  // A connection of this process that has nothing to do with it all.
  End safe_a(node);
  End safe_b(node);
  connect(safe_a, safe_b);
  uint64_t failed = 0;
  uint64_t refused = 0;
  const size_t rounds = iterations(24);
  for (size_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << run_seed() << " round " << round);
    SharedReceiveQueue srq =
        must(SharedReceiveQueue::create(node.domain, {.depth_wrs = kReceives, .max_sges = 2}));
    End end(node, {.with_channel = true,
                   .shared_receive_queue = with_srq ? &srq : nullptr,
                   .recv_depth = kReceives});
    // Not for the attacker's good, but its words must not make a blocking read of this thread.
    fcntl(end.channel().get()->fd, F_SETFL, O_NONBLOCK);
    child->link().put(with_srq);
    const auto peer = child->link().get<QueuePairAddress>();
    const auto remote = child->link().get<Responder::Memory>();
    child->link().put(Target{end.address(), target.address(), target.key(), random.next(), attack});
    // Every second time the attack has begun before.
    const bool first = round % 2 == 0;
    if (first) {
      ASSERT_TRUE(connect_to_attacker(node, end, peer, attack));
    }
    child->link().put(true);
    if (!first && !connect_to_attacker(node, end, peer, attack)) ++refused;

    for (int step = 0; step < 400; ++step) {
      const uint64_t slot = random.below(kReceives);
      const std::vector<ibv_sge> sges = {landing.sge(slot * kReceiveBytes, 100),
                                         landing.sge(slot * kReceiveBytes + 100, 3996)};
      if (with_srq) {
        post_receive(srq.get(), slot, sges);
      } else {
        post_receive(end.qp(), slot, sges);
      }
      SendRequest request{.sges = {source.sge(0, random.below(2) == 0 ? 32 : 2048)},
                          .remote_address = remote.address,
                          .rkey = remote.key};
      const uint64_t kind = random.below(4);
      if (kind == 0) request.opcode = IBV_WR_RDMA_WRITE;
      if (kind == 1) request.opcode = IBV_WR_RDMA_READ;
      if (kind == 2) request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      post(end.qp(), request);
      ibv_req_notify_cq(end.cq(), static_cast<int>(random.below(2)));
      ibv_wc wc[8];
      const int got = ibv_poll_cq(end.cq(), 1 + static_cast<int>(random.below(8)), wc);
      ASSERT_LE(got, 8);
      // Completions name only what was posted, and fit into it.
      for (int i = 0; i < got; ++i) {
        if (wc[i].status != IBV_WC_SUCCESS) continue;
        ASSERT_LT(wc[i].wr_id, kReceives);
        if (wc[i].opcode != IBV_WC_RECV) continue;
        ASSERT_LE(wc[i].byte_len, kReceiveBytes);
      }
      ibv_cq* event_cq = nullptr;
      void* event_context = nullptr;
      if (node.control().get_cq_event(end.channel().get(), &event_cq, &event_context) == 0) {
        ASSERT_EQ(event_cq, end.cq());
        node.control().ack_cq_events(event_cq, 1);
      }
      // Whoever may open this process's descriptors can wake it for nothing, and no more than that.
      while (has_event(node)) {
        if (!wait_for_event(node)) {
          ASSERT_EQ(errno, EAGAIN);
        }
      }
      if (step % 50 == 49 && state_of(node, end.qp()) == IBV_QPS_ERR) {
        ++failed;
        // The next generation begins under fire, and has no peer.
        ibv_qp_attr attributes{};
        attributes.qp_state = IBV_QPS_RESET;
        ASSERT_EQ(node.control().modify_qp(end.qp(), &attributes, IBV_QP_STATE), 0);
        must(end.queue_pair().init(kAllAccess));
        if (!connect_to_attacker(node, end, peer, attack)) ++refused;
      }
      // The other connection works all the time.
      if (step % 20 != 0) continue;
      ASSERT_EQ(post_receive(safe_b.qp(), 7, {landing.sge(0, 64)}), 0);
      ASSERT_EQ(post(safe_a.qp(), {.sges = {source.sge(0, 8)}}), 0);
      ASSERT_EQ(wait_for_one(safe_a.cq()).status, IBV_WC_SUCCESS);
      ASSERT_EQ(wait_for_one(safe_b.cq()).status, IBV_WC_SUCCESS);
    }
    must(end.queue_pair().to_error());
    if (round + 1 == rounds) {
      child->link().put(false);
    } else {
      child->link().put(true);
      child->link().get<bool>();
    }
    end.close();
  }
  child->wait();
  RecordProperty("failed_connections", static_cast<int>(failed));
  RecordProperty("refused_connections", static_cast<int>(refused));

  // New objects work as ever.
  Buffer fresh(node.domain, 8192);
  End a(node);
  End b(node);
  connect(a, b);
  fill_pattern(fresh.data(), 2048, 1);
  ASSERT_EQ(post_receive(b.qp(), 1, {fresh.sge(4096, 4096)}), 0);
  ASSERT_EQ(post(a.qp(), {.sges = {fresh.sge(0, 2048)}}), 0);
  ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
  ASSERT_EQ(wait_for_one(b.cq()).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(has_pattern(fresh.data() + 4096, 2048, 1));
}

// ---- single broken rules, each with its consequence ----

// Peers of one process, so that a test can write what a peer in another process could.
class BrokenRuleTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    connect(sender_, receiver_);
    for (uint64_t id = 0; id < 4; ++id) {
      ASSERT_EQ(GetParam() ? post_receive(srq_.get(), id, {buffer_.sge(0, 64)})
                           : post_receive(receiver_.qp(), id, {buffer_.sge(0, 64)}),
                0);
    }
  }
  void TearDown() override { receiver_.close(); }

  // Sends one message and lets `spoil` change its packet before the receiver looks.
  template <typename Spoil>
  void send_spoiled(Spoil&& spoil) {
    ASSERT_EQ(post(sender_.qp(), {.sges = {buffer_.sge(0, 8)}}), 0);
    ASSERT_EQ(wait_for_one(sender_.cq()).status, IBV_WC_SUCCESS);
    Qp& qp = soft::as_qp(receiver_.qp());
    spoil(qp.arrivals.packet(qp.arrivals.next));
  }
  void expect_error(ibv_wc_status status) {
    const ibv_wc wc = wait_for_one(receiver_.cq());
    EXPECT_EQ(wc.status, status);
    EXPECT_EQ(state_of(node_, receiver_.qp()), IBV_QPS_ERR);
  }
  void expect_fatal() {
    ASSERT_TRUE(wait_until([&] {
      ibv_wc wc;
      const int got = ibv_poll_cq(receiver_.cq(), 1, &wc);
      EXPECT_TRUE(got == 0 || wc.status == IBV_WC_WR_FLUSH_ERR);
      return state_of(node_, receiver_.qp()) == IBV_QPS_ERR;
    }));
    EXPECT_EQ(wait_for_event(node_), IBV_EVENT_QP_FATAL);
  }

  Node node_;
  Buffer buffer_{node_.domain, 4096};
  SharedReceiveQueue srq_ =
      must(SharedReceiveQueue::create(node_.domain, {.depth_wrs = 8, .max_sges = 1}));
  End sender_{node_};
  End receiver_{node_, {.shared_receive_queue = GetParam() ? &srq_ : nullptr}};
};

std::string name_by_queue(const testing::TestParamInfo<bool>& info) {
  return info.param ? "SharedReceiveQueue" : "OwnReceives";
}
INSTANTIATE_TEST_SUITE_P(Queues, BrokenRuleTest, testing::Bool(), name_by_queue);

// Packets name receives of shared queues, and no others.
class SharedReceiveRuleTest : public BrokenRuleTest {};
class OwnReceiveRuleTest : public BrokenRuleTest {};
INSTANTIATE_TEST_SUITE_P(Queues, SharedReceiveRuleTest, testing::Values(true), name_by_queue);
INSTANTIATE_TEST_SUITE_P(Queues, OwnReceiveRuleTest, testing::Values(false), name_by_queue);

TEST_P(BrokenRuleTest, MoreInlineBytesThanAPacketHas) {
  send_spoiled([](Packet& packet) {
    packet.inline_bytes = 200;
    packet.byte_count = 200;
  });
  expect_error(IBV_WC_LOC_LEN_ERR);
}

TEST_P(BrokenRuleTest, MoreBytesThanTheReceiveHas) {
  send_spoiled([](Packet& packet) { packet.byte_count = 65; });
  expect_error(IBV_WC_LOC_LEN_ERR);
}

TEST_P(BrokenRuleTest, TwoLengths) {
  send_spoiled([](Packet& packet) { packet.byte_count = 4; });
  expect_error(IBV_WC_LOC_LEN_ERR);
}

TEST_P(BrokenRuleTest, AnUnknownKind) {
  send_spoiled([](Packet& packet) { packet.kind = 0x0c; });
  expect_error(IBV_WC_LOC_LEN_ERR);
}

TEST_P(SharedReceiveRuleTest, AReceiveThatIsNotItsOwn) {
  send_spoiled([](Packet& packet) { packet.receive_index = 5; });
  expect_fatal();
}

TEST_P(SharedReceiveRuleTest, AReceiveThatThereIsNot) {
  send_spoiled([](Packet& packet) { packet.receive_index = 60000; });
  expect_fatal();
}

TEST_P(OwnReceiveRuleTest, APacketWithoutAReceive) {
  for (int i = 0; i < 4; ++i) {
    send_spoiled([](Packet&) {});
    EXPECT_EQ(wait_for_one(receiver_.cq()).status, IBV_WC_SUCCESS);
  }
  Qp& qp = soft::as_qp(receiver_.qp());
  qp.arrivals.packet(qp.arrivals.next).mark.store(qp.arrivals.next + 1);
  expect_fatal();
}

// A sender takes no receive that its peer cannot have, whatever the peer says.
TEST_P(OwnReceiveRuleTest, MoreCreditsThanReceives) {
  Qp& qp = soft::as_qp(receiver_.qp());
  for (int i = 0; i < 4; ++i) {
    send_spoiled([](Packet&) {});
    EXPECT_EQ(wait_for_one(receiver_.cq()).status, IBV_WC_SUCCESS);
  }
  const uint64_t too_many = qp.receives.credits() + qp.receives.mask() + 2;
  for (const uint64_t credits : {too_many, uint64_t{3}, uint64_t{~0u}, ~uint64_t{0}}) {
    qp.shared->connection.credits.store(credits);
    ASSERT_EQ(post(sender_.qp(), {.sges = {buffer_.sge(0, 8)}}), 0);
    EXPECT_EQ(soft::as_qp(sender_.qp()).waiting.count(), 1u);
    ASSERT_EQ(post_receive(receiver_.qp(), 0, {buffer_.sge(0, 64)}), 0);
    EXPECT_EQ(wait_for_one(sender_.cq()).status, IBV_WC_SUCCESS);
    EXPECT_EQ(wait_for_one(receiver_.cq()).status, IBV_WC_SUCCESS);
  }
}

// The peer's word on what is at fault may not be about another kind of object.
TEST_P(BrokenRuleTest, AFaultOfAnyKindIsAnEventOfTheQueuePair) {
  Qp& qp = soft::as_qp(receiver_.qp());
  qp.shared->reliable.fault.store(soft::make_fault(qp.generation, IBV_EVENT_CQ_ERR));
  qp.rnic->wake();
  expect_fatal();
}

TEST_P(BrokenRuleTest, AFaultOfAnotherLifeIsNone) {
  Qp& qp = soft::as_qp(receiver_.qp());
  qp.shared->reliable.fault.store(soft::make_fault(qp.generation - 1, IBV_EVENT_QP_ACCESS_ERR));
  qp.rnic->wake();
  ASSERT_TRUE(wait_until([&] { return qp.shared->reliable.fault.load() == 0; }));
  send_spoiled([](Packet&) {});
  EXPECT_EQ(wait_for_one(receiver_.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(state_of(node_, receiver_.qp()), IBV_QPS_RTS);
}

// Once two polls would have completed one receive, its number must not be free twice.
TEST_P(SharedReceiveRuleTest, AReceiveThatIsDeliveredTwice) {
  uint16_t index = 0;
  send_spoiled([&](Packet& packet) { index = packet.receive_index; });
  EXPECT_EQ(wait_for_one(receiver_.cq()).status, IBV_WC_SUCCESS);
  send_spoiled([&](Packet& packet) { packet.receive_index = index; });
  expect_fatal();
  for (uint64_t id = 0; id < 6; ++id) {
    ASSERT_EQ(post_receive(srq_.get(), id, {buffer_.sge(0, 64)}), id < 5 ? 0 : ENOMEM);
  }
}

// ---- holding up ----

VERBENA_TEST_CHILD(always_in_flight) {
  Node node;
  End end(node);
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  soft::as_qp(end.qp()).shared->in_flight.store(1);
  link.put(true);
  link.get<bool>();
  return 0;
}

// Memory is taken from it. A queue pair stays until it goes on or ends, because its messages may go
// to memory that stays registered.
TEST(HoldUpTest, APeerThatSeemsToStandStillIsWaitedForOnlySoLong) {
  Node node;
  Child child("always_in_flight");
  End end(node);
  end.connect(child.link().get<QueuePairAddress>());
  child.link().put(end.address());
  child.link().get<bool>();
  { Buffer buffer(node.domain, 4096); }
  EXPECT_EQ(node.control().destroy_qp(end.qp()), EBUSY);
  child.link().put(true);
  EXPECT_EQ(child.wait(), 0);
}

// One that is killed in there is not waited for at all.
TEST(HoldUpTest, APeerKilledInTheMiddleIsNotWaitedFor) {
  Node node;
  Child child("always_in_flight");
  auto end = std::make_unique<End>(node);
  end->connect(child.link().get<QueuePairAddress>());
  child.link().put(end->address());
  child.link().get<bool>();
  child.kill();
  { Buffer buffer(node.domain, 4096); }
  end.reset();
}

}  // namespace
}  // namespace verbena::soft_test
