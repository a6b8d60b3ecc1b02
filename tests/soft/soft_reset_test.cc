// Queue pairs that are reset and connected again, or destroyed, while their peers are at work.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <signal.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_control.h"
#include "tests/soft/places.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

void reset(const Node& node, ibv_qp* qp) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(node.control().modify_qp(qp, &attributes, IBV_QP_STATE), 0);
}

class ResetTest : public testing::TestWithParam<PlaceAndDepth> {
 protected:
  Place place() const { return std::get<0>(GetParam()); }
  ResponderOptions options() const { return {.srq_depth = std::get<1>(GetParam())}; }

  Node node_;
  Buffer buffer_{node_.domain, 8192};
};

INSTANTIATE_TEST_SUITE_P(Places, ResetTest, all_places_and_receives(), name_by_place_and_receives);

// Each generation leaves something behind: arrivals not polled, sends that wait, receives not used.
TEST_P(ResetTest, ManyLivesDoNotMix) {
  Random random(run_seed());
  End end(node_);
  Responder responder(place(), options());
  responder.add_buffer(8192);
  const bool shared = options().srq_depth != 0;
  uint64_t shared_posted = 0;
  const uint64_t generations = iterations(300);
  for (uint64_t generation = 1; generation <= generations; ++generation) {
    SCOPED_TRACE(testing::Message()
                 << "VERBENA_SEED=" << run_seed() << " generation " << generation);
    responder.connect(end);
    const uint64_t sends = random.below(6);
    const uint64_t receives = shared ? 8 - shared_posted : random.below(6);
    for (uint64_t i = 0; i < receives; ++i) {
      ASSERT_EQ(responder.post_receive(generation * 100 + i, {{0, 0, 4096}}), 0);
    }
    shared_posted += shared ? receives : 0;
    for (uint64_t i = 0; i < sends; ++i) {
      const size_t size = random.below(2) == 0 ? 16 : 2000;
      buffer_.at<uint64_t>(0) = generation;
      buffer_.at<uint64_t>(8) = i;
      ASSERT_EQ(post(end.qp(), {.id = generation * 100 + i, .sges = {buffer_.sge(0, size)}}), 0);
      if (i >= receives && !shared) break;  // it waits, and what follows would be overwritten
      ASSERT_EQ(wait_for_one(end.cq()).wr_id, generation * 100 + i);
      // Some are polled, the others are there when the generation ends.
      if (random.below(3) == 0) continue;
      const ibv_wc wc = responder.wait_for_one();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      if (shared) --shared_posted;
      if (!shared) {
        ASSERT_EQ(wc.wr_id / 100, generation);
      }
      ASSERT_EQ(responder.load(0, 0), generation);
    }
    // Either side first.
    if (random.below(2) == 0) {
      reset(node_, end.qp());
      responder.reset();
    } else {
      responder.reset();
      reset(node_, end.qp());
    }
    must(end.queue_pair().init(kAllAccess));
    ASSERT_TRUE(is_empty(end.cq()));
    ASSERT_TRUE(responder.is_empty());
  }
  if (shared) {
    // None of the shared receives was lost on the way.
    responder.connect(end);
    for (uint64_t i = shared_posted; i < 8; ++i) {
      ASSERT_EQ(responder.post_receive(i, {{0, 0, 4096}}), 0);
    }
    ASSERT_NE(responder.post_receive(9, {{0, 0, 4096}}), 0);
    for (uint64_t i = 0; i < 8; ++i) {
      ASSERT_EQ(post(end.qp(), {.id = i, .sges = {buffer_.sge(0, 8)}}), 0);
    }
    EXPECT_EQ(wait_for(end.cq(), 8).size(), 8u);
    EXPECT_EQ(responder.wait_for(8).size(), 8u);
  }
}

TEST_P(ResetTest, OneSideConnectsBeforeTheOtherIsReset) {
  End end(node_);
  Responder responder(place(), options());
  responder.add_buffer(8192);
  responder.connect(end);
  for (uint64_t generation = 0; generation < 10; ++generation) {
    ASSERT_EQ(responder.post_receive(generation, {{0, 0, 64}}), 0);
    ASSERT_EQ(post(end.qp(), {.id = generation, .sges = {buffer_.sge(0, 8)}}), 0);
    ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(responder.wait_for_one().status, IBV_WC_SUCCESS);
    // This side is connected again before the other one has even begun.
    reset(node_, end.qp());
    must(end.queue_pair().init(kAllAccess));
    end.connect(responder.address());
    responder.reset();
    responder.connect(end.address());
    // And both directions go.
    ASSERT_EQ(post_receive(end.qp(), generation, {buffer_.sge(64, 64)}), 0);
    ASSERT_EQ(responder.send(generation, {{0, 0, 8}}), 0);
    ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(responder.wait_for_one().status, IBV_WC_SUCCESS);
  }
}

// A new generation that the other side knows nothing of must not be heard as the old one going on.
TEST_P(ResetTest, OneSideAloneCannotGoOn) {
  End end(node_);
  Responder responder(place(), options());
  responder.add_buffer(8192);
  responder.connect(end);
  for (uint64_t id = 0; id < 3; ++id) {
    ASSERT_EQ(responder.post_receive(id, {{0, 0, 64}}), 0);
    ASSERT_EQ(post(end.qp(), {.sges = {buffer_.sge(0, 8)}}), 0);
    ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(responder.wait_for_one().status, IBV_WC_SUCCESS);
  }
  reset(node_, end.qp());
  must(end.queue_pair().init(kAllAccess));
  end.connect(responder.address(), kImpatient);
  for (uint64_t id = 0; id < 5; ++id) {
    ASSERT_EQ(responder.post_receive(id, {{0, 0, 64}}), 0);
    ASSERT_EQ(post(end.qp(), {.id = id, .sges = {buffer_.sge(0, 8)}}), 0);
  }
  const std::vector<ibv_wc> got = wait_for(end.cq(), 5);
  ASSERT_EQ(got.size(), 5u);
  EXPECT_EQ(got[0].status, IBV_WC_RETRY_EXC_ERR);
  for (uint64_t id = 1; id < 5; ++id) EXPECT_EQ(got[id].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_TRUE(responder.is_empty());
}

TEST_P(ResetTest, APeerThatWasResetIsNotReachedByItsOldLifesSender) {
  End end(node_);
  Responder responder(place(), options());
  responder.add_buffer(8192);
  const Responder::Memory remote = responder.add_buffer(64);
  responder.connect(end, kImpatient);
  const SendRequest write{.opcode = IBV_WR_RDMA_WRITE,
                          .sges = {buffer_.sge(0, 8)},
                          .remote_address = remote.address,
                          .rkey = remote.key};
  buffer_.at<uint64_t>(0) = 1;
  ASSERT_EQ(post(end.qp(), write), 0);
  ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
  responder.reset();
  responder.connect(end.address());
  buffer_.at<uint64_t>(0) = 2;
  ASSERT_EQ(post(end.qp(), write), 0);
  EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(responder.load(1, 0), 1u);
}

// An error of an old generation must not reach the new one.
TEST_P(ResetTest, BlameEndsWithTheLife) {
  for (int round = 0; round < 50; ++round) {
    End end(node_);
    Responder responder(place(), options());
    const Responder::Memory remote = responder.add_buffer(64);
    responder.connect(end);
    ASSERT_EQ(post(end.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                              .sges = {buffer_.sge(0, 8)},
                              .remote_address = remote.address,
                              .rkey = remote.key ^ 1}),
              0);
    ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_REM_ACCESS_ERR);
    responder.reset();
    reset(node_, end.qp());
    must(end.queue_pair().init(kAllAccess));
    responder.connect(end);
    ASSERT_EQ(post(end.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                              .sges = {buffer_.sge(0, 8)},
                              .remote_address = remote.address,
                              .rkey = remote.key}),
              0);
    ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(responder.state(), IBV_QPS_RTS);
    if (place() == Place::kOtherProcess && round == 10) break;
  }
}

// ---- under fire ----

struct Order {
  QueuePairAddress peer;
  uint64_t address;
  uint32_t key;
};

// Sends and writes without end until told to stop; whatever happens to its queue pairs, it makes
// and connects the next.
VERBENA_TEST_CHILD(bombard) {
  Node node;
  Buffer buffer(node.domain, 1 << 20);
  for (;;) {
    End end(node);
    link.put(end.address());
    const auto order = link.get<Order>();
    if (order.peer.queue_pair_number == 0) return 0;
    end.connect(order.peer, {.retry_count = 1, .rnr_retry_count = 7, .ack_timeout = 1});
    link.put(true);
    for (uint64_t i = 0;; ++i) {
      SendRequest request{.sges = {buffer.sge(0, i % 3 == 0 ? 64 : 64 * 1024)}};
      if (i % 3 == 1) {
        request.opcode = IBV_WR_RDMA_WRITE;
        request.remote_address = order.address;
        request.rkey = order.key;
      }
      if (post(end.qp(), request) != 0) return 1;
      const ibv_wc wc = wait_for_one(end.cq());
      if (wc.status == IBV_WC_SUCCESS) continue;
      // The peer's queue pair, or its memory, is gone.
      if (wc.status != IBV_WC_RETRY_EXC_ERR && wc.status != IBV_WC_REM_ACCESS_ERR &&
          wc.status != IBV_WC_REM_OP_ERR) {
        return 2;
      }
      break;
    }
  }
}

// Destroys the queue pair that the test is connected to, and makes others in its place.
VERBENA_TEST_CHILD(replacer) {
  Node node;
  Buffer buffer(node, 4096);
  CompletionQueue cq = must(CompletionQueue::create(node.device, {}));
  const EndOptions on_queue{.send_cq = &cq, .recv_cq = &cq};
  auto destroyed = std::make_unique<End>(node, on_queue);
  link.put(destroyed->address());
  const auto test = link.get<QueuePairAddress>();
  destroyed.reset();
  std::vector<std::unique_ptr<End>> others;
  for (uint64_t id = 0; id < 8; ++id) {
    others.push_back(std::make_unique<End>(node, on_queue));
    others.back()->connect(test);
    if (post_receive(others.back()->qp(), id, {buffer.sge(id * 64, 64)}) != 0) return 1;
  }
  link.put(true);
  link.get<bool>();
  return is_empty(cq.get()) ? 0 : 2;
}

// One of them has its memory, and hears this one, too.
TEST(ReplacedTest, AnotherQueuePairInTheMemoryOfADestroyedOneGetsNothingOfIts) {
  Node node;
  Buffer buffer(node, 64);
  End end(node);
  Child child("replacer");
  end.connect(child.link().get<QueuePairAddress>(), kImpatient);
  child.link().put(end.address());
  child.link().get<bool>();
  ASSERT_EQ(post(end.qp(), {.id = 1, .sges = {buffer.sge(0, 8)}}), 0);
  EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_RETRY_EXC_ERR);
  child.link().put(true);
  EXPECT_EQ(child.wait(), 0);
}

class UnderFireTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Queues, UnderFireTest, testing::Bool(), [](const auto& info) {
  return info.param ? "SharedReceiveQueue" : "OwnReceives";
});

TEST_P(UnderFireTest, DestroyingWhileThePeerSends) {
  Node node;
  Random random(run_seed());
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 16}));
  Child child("bombard");
  const size_t rounds = iterations(100);
  Buffer landing(node.domain, 1 << 20);
  for (size_t round = 0; round < rounds; ++round) {
    std::optional<Buffer> target(std::in_place, node.domain, 64 * 1024);
    std::optional<End> end(std::in_place, node,
                           EndOptions{.shared_receive_queue = GetParam() ? &srq : nullptr});
    end->connect(child.link().get<QueuePairAddress>());
    child.link().put(Order{end->address(), target->address(), target->key()});
    child.link().get<bool>();
    const auto post_one = [&] {
      return GetParam() ? post_receive(srq.get(), 1, {landing.sge(0, 64 * 1024)})
                        : post_receive(end->qp(), 1, {landing.sge(0, 64 * 1024)});
    };
    while (post_one() == 0) {
    }
    const uint64_t messages = random.below(100);
    for (uint64_t i = 0; i < messages; ++i) {
      ASSERT_EQ(wait_for_one(end->cq()).status, IBV_WC_SUCCESS);
      ASSERT_EQ(post_one(), 0);
    }
    if (random.below(2) == 0) {
      target.reset();  // memory first, in the middle of WRITEs
      end.reset();
    } else {
      end.reset();
      target.reset();
    }
  }
  // Shared receives taken by queue pairs that are gone were given back.
  if (GetParam()) {
    size_t posted = 0;
    while (post_receive(srq.get(), 1, {landing.sge(0, 64)}) == 0) ++posted;
    End a(node);
    End b(node, {.shared_receive_queue = &srq});
    connect(a, b);
    for (int i = 0; i < 16; ++i) {
      ASSERT_EQ(post(a.qp(), {.sges = {landing.sge(0, 8)}}), 0);
      ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(wait_for(b.cq(), 16).size(), 16u);
  }
  child.link().get<QueuePairAddress>();
  child.link().put(Order{});
  EXPECT_EQ(child.wait(), 0);
}

// ---- leaks ----

size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

TEST(LeakTest, ObjectsThatComeAndGoLeaveNothing) {
  Node node;
  const auto cycle = [&] {
    Buffer buffer(node.domain, 64 * 1024);
    SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 64}));
    End a(node, {.with_channel = true});
    End b(node, {.shared_receive_queue = &srq});
    connect(a, b);
    ASSERT_EQ(post_receive(srq.get(), 1, {buffer.sge(0, 64)}), 0);
    ASSERT_EQ(post(a.qp(), {.sges = {buffer.sge(64, 8)}}), 0);
    ASSERT_EQ(wait_for_one(b.cq()).status, IBV_WC_SUCCESS);
  };
  for (int i = 0; i < 20; ++i) cycle();
  const size_t descriptors = open_descriptors();
  const size_t mapped = mappings();
  for (int i = 0; i < 300; ++i) cycle();
  EXPECT_TRUE(wait_until([&] { return open_descriptors() <= descriptors + 2; }));
  EXPECT_TRUE(wait_until([&] { return mappings() <= mapped + 20; }));
}

TEST(LeakTest, PeersThatComeAndGoLeaveNothing) {
  Node node;
  Buffer buffer(node.domain, 4096);
  const auto cycle = [&](int i) {
    End end(node);
    Responder responder(Place::kOtherProcess);
    responder.connect(end);
    const Responder::Memory remote = responder.add_buffer(4096);
    ASSERT_EQ(post(end.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                              .sges = {buffer.sge(0, 8)},
                              .remote_address = remote.address,
                              .rkey = remote.key}),
              0);
    ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
    if (i % 2 == 0) responder.end(SIGKILL);
  };
  for (int i = 0; i < 4; ++i) cycle(i);
  const size_t descriptors = open_descriptors();
  const size_t mapped = mappings();
  for (int i = 0; i < 20; ++i) cycle(i);
  // The service thread sees a killed peer when it has its turn.
  EXPECT_TRUE(wait_until([&] { return open_descriptors() <= descriptors + 2; }));
  EXPECT_TRUE(wait_until([&] { return mappings() <= mapped + 10; }));
}

}  // namespace
}  // namespace verbena::soft_test
