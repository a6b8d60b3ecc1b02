// What goes wrong at the peer or here: the status at both sides, and what follows from it.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ostream>
#include <set>
#include <vector>

#include "src/device/verbs_control.h"
#include "tests/soft/places.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr uint32_t kBytes = 8192;

class ErrorTest : public testing::TestWithParam<Place> {
 protected:
  void start(const ResponderOptions& options = {}) {
    responder_.emplace(GetParam(), options);
    responder_->connect(end_);
    remote_ = responder_->add_buffer(kBytes);
  }

  SendRequest to_remote(ibv_wr_opcode opcode, uint64_t offset, size_t size_bytes) {
    return {.id = 1,
            .opcode = opcode,
            .sges = {buffer_.sge(0, size_bytes)},
            .remote_address = remote_.address + offset,
            .rkey = remote_.key};
  }

  ibv_wc_status status_of(const SendRequest& request) {
    EXPECT_EQ(post(end_.qp(), request), 0);
    const ibv_wc wc = wait_for_one(end_.cq());
    EXPECT_EQ(wc.wr_id, request.id);
    EXPECT_EQ(wc.qp_num, end_.qp()->qp_num);
    return wc.status;
  }

  // Both queue pairs are in the error state, the responder by an event, and nothing was written.
  void expect_refused(const SendRequest& request, ibv_wc_status status, ibv_event_type event) {
    responder_->fill({0, 0, kBytes}, 3);
    EXPECT_EQ(status_of(request), status) << ibv_wc_status_str(status);
    EXPECT_EQ(state_of(node_, end_.qp()), IBV_QPS_ERR);
    EXPECT_EQ(responder_->wait_for_event(), event);
    EXPECT_EQ(responder_->state(), IBV_QPS_ERR);
    EXPECT_TRUE(responder_->has_pattern({0, 0, kBytes}, 3));
    EXPECT_FALSE(responder_->has_event());
    // What comes later is flushed.
    EXPECT_EQ(status_of({.id = 2, .sges = {buffer_.sge(0, 8)}}), IBV_WC_WR_FLUSH_ERR);
  }
  void expect_no_access(const SendRequest& request) {
    expect_refused(request, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
  }

  Node node_;
  Buffer buffer_{node_.domain, 2 * kBytes};
  End end_{node_};
  std::optional<Responder> responder_;
  Responder::Memory remote_{};
};

INSTANTIATE_TEST_SUITE_P(Places, ErrorTest, all_places(), name_by_place);

// ---- local ----

TEST_P(ErrorTest, ABadLocalKey) {
  start();
  SendRequest request = to_remote(IBV_WR_RDMA_WRITE, 0, 8);
  request.sges[0].lkey ^= 0x100;
  EXPECT_EQ(status_of(request), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(state_of(node_, end_.qp()), IBV_QPS_ERR);
  EXPECT_EQ(responder_->state(), IBV_QPS_RTS);
}

TEST_P(ErrorTest, OneByteBeyondALocalRegion) {
  start();
  SendRequest request = to_remote(IBV_WR_SEND, 0, 8);
  request.sges[0].addr = buffer_.address(2 * kBytes - 7);
  EXPECT_EQ(status_of(request), IBV_WC_LOC_PROT_ERR);
}

TEST_P(ErrorTest, OneByteBeforeALocalRegion) {
  start();
  SendRequest request = to_remote(IBV_WR_SEND, 0, 8);
  request.sges[0].addr = buffer_.address() - 1;
  EXPECT_EQ(status_of(request), IBV_WC_LOC_PROT_ERR);
}

TEST_P(ErrorTest, ALocalRangeThatWrapsAround) {
  start();
  SendRequest request = to_remote(IBV_WR_SEND, 0, 8);
  request.sges[0].addr = ~uint64_t{0} - 3;
  EXPECT_EQ(status_of(request), IBV_WC_LOC_PROT_ERR);
}

TEST_P(ErrorTest, ALocalRegionOfAnotherDomain) {
  start();
  ProtectionDomain other = must(ProtectionDomain::create(node_.device));
  Buffer foreign(other, 64);
  SendRequest request = to_remote(IBV_WR_RDMA_WRITE, 0, 8);
  request.sges[0] = foreign.sge(0, 8);
  EXPECT_EQ(status_of(request), IBV_WC_LOC_PROT_ERR);
}

TEST_P(ErrorTest, ADeregisteredLocalRegion) {
  start();
  Buffer gone(node_.domain, 64);
  SendRequest request = to_remote(IBV_WR_RDMA_WRITE, 0, 8);
  request.sges[0] = gone.sge(0, 8);
  gone.deregister();
  EXPECT_EQ(status_of(request), IBV_WC_LOC_PROT_ERR);
}

TEST_P(ErrorTest, AReadIntoMemoryThatIsReadOnlyHere) {
  start();
  Buffer read_only(node_.domain, 64, IBV_ACCESS_REMOTE_READ);
  SendRequest request = to_remote(IBV_WR_RDMA_READ, 0, 8);
  request.sges[0] = read_only.sge(0, 8);
  EXPECT_EQ(status_of(request), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(read_only.at<uint64_t>(0), 0u);
}

TEST_P(ErrorTest, AnAtomicWithoutRoomForItsResult) {
  start();
  for (const size_t size : {0, 7, 9}) {
    End end(node_);
    Responder responder(GetParam());
    responder.connect(end);
    const Responder::Memory remote = responder.add_buffer(64);
    ASSERT_EQ(post(end.qp(), {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                              .sges = {buffer_.sge(0, size)},
                              .remote_address = remote.address,
                              .rkey = remote.key,
                              .compare_add = 1}),
              0);
    EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(responder.load(0, 0), 0u);
  }
}

// ---- remote access ----

struct OneSided {
  const char* name;
  ibv_wr_opcode opcode;
};
constexpr OneSided kOneSided[] = {{"Write", IBV_WR_RDMA_WRITE},
                                  {"Read", IBV_WR_RDMA_READ},
                                  {"WriteWithImmediate", IBV_WR_RDMA_WRITE_WITH_IMM},
                                  {"CompareAndSwap", IBV_WR_ATOMIC_CMP_AND_SWP},
                                  {"FetchAndAdd", IBV_WR_ATOMIC_FETCH_AND_ADD}};
std::ostream& operator<<(std::ostream& out, const OneSided& verb) { return out << verb.name; }

class OneSidedTest : public testing::TestWithParam<std::tuple<Place, OneSided>> {
 protected:
  static Place place() { return std::get<0>(GetParam()); }
  static ibv_wr_opcode opcode() { return std::get<1>(GetParam()).opcode; }

  // Each case needs queue pairs of its own.
  void expect_no_access(const std::function<void(SendRequest&, Responder&)>& spoil,
                        unsigned queue_pair_access = kAllAccess,
                        unsigned region_access = kAllAccess, bool other_domain = false) {
    End end(node_);
    Responder responder(place(), {.access = queue_pair_access});
    responder.connect(end);
    const Responder::Memory remote = responder.add_buffer(kBytes, region_access, other_domain);
    responder.fill({0, 0, kBytes}, 3);
    ASSERT_EQ(responder.post_receive(1, {}), 0);
    SendRequest request{.id = 9,
                        .opcode = opcode(),
                        .sges = {buffer_.sge(0, 8)},
                        .remote_address = remote.address,
                        .rkey = remote.key};
    buffer_.at<uint64_t>(0) = 0;
    spoil(request, responder);
    ASSERT_EQ(post(end.qp(), request), 0);
    const ibv_wc wc = wait_for_one(end.cq());
    EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.wr_id, 9u);
    EXPECT_EQ(state_of(node_, end.qp()), IBV_QPS_ERR);
    EXPECT_EQ(responder.wait_for_event(), IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(responder.state(), IBV_QPS_ERR);
    // The receive that an immediate has met is at fault, any other is not.
    EXPECT_EQ(responder.wait_for_one().status,
              opcode() == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_LOC_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR);
    EXPECT_FALSE(responder.has_event());
    EXPECT_TRUE(responder.has_pattern({0, 0, kBytes}, 3));
    EXPECT_EQ(buffer_.at<uint64_t>(0), 0u);
  }
  static void leave(SendRequest&, Responder&) {}

  Node node_;
  Buffer buffer_{node_.domain, 64};
};

std::string error_case_name(const testing::TestParamInfo<std::tuple<Place, OneSided>>& info) {
  const auto [place, verb] = info.param;
  return std::string(verb.name) + "In" + place_name(place);
}

INSTANTIATE_TEST_SUITE_P(Verbs, OneSidedTest,
                         testing::Combine(all_places(), testing::ValuesIn(kOneSided)),
                         error_case_name);

TEST_P(OneSidedTest, ABadRemoteKey) {
  expect_no_access([](SendRequest& request, Responder&) { request.rkey ^= 1; });
  expect_no_access([](SendRequest& request, Responder&) { request.rkey ^= 0x100; });
  expect_no_access([](SendRequest& request, Responder&) { request.rkey = 0; });
  expect_no_access([](SendRequest& request, Responder&) { request.rkey = ~0u; });
}

TEST_P(OneSidedTest, OutOfBounds) {
  expect_no_access([](SendRequest& request, Responder&) {
    // Atomics go by eight; a byte too far is unaligned for them.
    const bool atomic = request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
                        request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    request.remote_address += kBytes - (atomic ? 0 : 7);
  });
  expect_no_access([](SendRequest& request, Responder&) { request.remote_address -= 8; });
  expect_no_access([](SendRequest& request, Responder&) { request.remote_address = ~uint64_t{7}; });
  expect_no_access([](SendRequest& request, Responder&) { request.remote_address = 0; });
}

TEST_P(OneSidedTest, ARegionWithoutRemoteAccess) {
  expect_no_access(leave, kAllAccess, IBV_ACCESS_LOCAL_WRITE);
}

TEST_P(OneSidedTest, AQueuePairWithoutRemoteAccess) { expect_no_access(leave, 0); }

TEST_P(OneSidedTest, ARegionOfAnotherDomain) {
  expect_no_access(leave, kAllAccess, kAllAccess, true);
}

TEST_P(OneSidedTest, ADeregisteredRegion) {
  expect_no_access([](SendRequest&, Responder& responder) { responder.deregister(0); });
}

class ImmediateErrorTest : public testing::TestWithParam<PlaceAndDepth> {};
INSTANTIATE_TEST_SUITE_P(Places, ImmediateErrorTest, all_places_and_receives(),
                         name_by_place_and_receives);

// As by an RNIC, which takes the receive before it looks at the key.
TEST_P(ImmediateErrorTest, TheReceiveThatItMetCompletesWithTheAccessError) {
  const auto [place, srq_depth] = GetParam();
  Node node;
  Buffer buffer(node.domain, 64);
  for (const int receives : {2, 0}) {
    End end(node, {.with_channel = true});
    Responder responder(place, {.srq_depth = srq_depth});
    responder.connect(end);
    const Responder::Memory remote = responder.add_buffer(kBytes);
    for (int i = 0; i < receives; ++i) {
      ASSERT_EQ(responder.post_receive(static_cast<uint64_t>(10 + i), {{0, 0, 64}}), 0);
    }
    ASSERT_EQ(post(end.qp(), {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                              .sges = {buffer.sge(0, 8)},
                              .remote_address = remote.address,
                              .rkey = remote.key ^ 0x100}),
              0);
    EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(responder.wait_for_event(), IBV_EVENT_QP_ACCESS_ERR);
    if (receives > 0) {
      const ibv_wc met = responder.wait_for_one();
      EXPECT_EQ(met.wr_id, 10u);
      EXPECT_EQ(met.status, IBV_WC_LOC_ACCESS_ERR) << ibv_wc_status_str(met.status);
      // Those of a shared queue stay for others.
      if (srq_depth == 0) {
        EXPECT_EQ(responder.wait_for_one().status, IBV_WC_WR_FLUSH_ERR);
      }
    }
    EXPECT_TRUE(responder.is_empty());
    EXPECT_EQ(responder.state(), IBV_QPS_ERR);
  }
}

// Each permission is looked at by itself.
TEST_P(OneSidedTest, OnlyTheOtherPermissions) {
  const unsigned needed = opcode() == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
                          : opcode() == IBV_WR_RDMA_WRITE || opcode() == IBV_WR_RDMA_WRITE_WITH_IMM
                              ? IBV_ACCESS_REMOTE_WRITE
                              : IBV_ACCESS_REMOTE_ATOMIC;
  expect_no_access(leave, kAllAccess & ~needed);
  expect_no_access(leave, kAllAccess, kAllAccess & ~needed);
}

// A region that was used before is remembered by the initiator; its end must count all the same.
TEST_P(OneSidedTest, ARegionDeregisteredAfterItWasUsed) {
  End end(node_);
  Responder responder(place());
  responder.connect(end);
  const Responder::Memory remote = responder.add_buffer(kBytes);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(responder.post_receive(1, {}), 0);
  SendRequest request{.opcode = opcode(),
                      .sges = {buffer_.sge(0, 8)},
                      .remote_address = remote.address,
                      .rkey = remote.key};
  ASSERT_EQ(post(end.qp(), request), 0);
  ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
  responder.deregister(0);
  // Another region in its place has another key.
  EXPECT_NE(responder.add_buffer(kBytes).key, remote.key);
  ASSERT_EQ(post(end.qp(), request), 0);
  EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(ErrorTest, OneByteMoreThanTheRegionHas) {
  start();
  expect_no_access(to_remote(IBV_WR_RDMA_WRITE, 0, kBytes + 1));
}

TEST_P(ErrorTest, NothingNeedsNoKey) {
  start();
  SendRequest request = to_remote(IBV_WR_RDMA_WRITE, 0, 0);
  request.rkey = 0;
  request.remote_address = 0;
  EXPECT_EQ(status_of(request), IBV_WC_SUCCESS);
}

TEST_P(ErrorTest, AnUnalignedAtomic) {
  start();
  expect_refused(to_remote(IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 8), IBV_WC_REM_INV_REQ_ERR,
                 IBV_EVENT_QP_REQ_ERR);
}

// ---- receives ----

TEST_P(ErrorTest, AReceiveThatIsTooShort) {
  for (const uint32_t size : {2u, 113u, 4096u}) {
    for (const uint32_t srq_depth : {0u, 4u}) {
      End end(node_);
      Responder responder(GetParam(), {.srq_depth = srq_depth});
      responder.connect(end);
      responder.add_buffer(kBytes);
      responder.fill({0, size, kBytes - size}, 3);
      ASSERT_EQ(responder.post_receive(5, {{0, 0, size / 2}, {0, size, size / 2 - 1}}), 0);
      ASSERT_EQ(post(end.qp(), {.id = 1, .sges = {buffer_.sge(0, size)}}), 0);
      EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_REM_INV_REQ_ERR);
      const ibv_wc wc = responder.wait_for_one();
      EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
      EXPECT_EQ(wc.wr_id, 5u);
      EXPECT_EQ(state_of(node_, end.qp()), IBV_QPS_ERR);
      EXPECT_EQ(responder.state(), IBV_QPS_ERR);
      EXPECT_TRUE(responder.has_pattern({0, size, kBytes - size}, 3));
    }
  }
}

TEST_P(ErrorTest, AReceiveWhoseMemoryIsDeregistered) {
  for (const uint32_t srq_depth : {0u, 4u}) {
    End end(node_);
    Responder responder(GetParam(), {.srq_depth = srq_depth});
    responder.connect(end);
    responder.add_buffer(kBytes);
    responder.fill({0, 0, kBytes}, 3);
    ASSERT_EQ(responder.post_receive(5, {{0, 0, kBytes}}), 0);
    responder.deregister(0);
    ASSERT_EQ(post(end.qp(), {.id = 1, .sges = {buffer_.sge(0, 4096)}}), 0);
    EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_REM_OP_ERR);
    EXPECT_EQ(responder.wait_for_one().status, IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(responder.state(), IBV_QPS_ERR);
    EXPECT_TRUE(responder.has_pattern({0, 0, kBytes}, 3));
  }
}

// A small message travels with its notice; only the receiver finds its memory gone.
TEST_P(ErrorTest, ASmallMessageForMemoryThatIsDeregistered) {
  start();
  responder_->fill({0, 0, kBytes}, 3);
  ASSERT_EQ(responder_->post_receive(5, {{0, 0, kBytes}}), 0);
  responder_->deregister(0);
  ASSERT_EQ(post(end_.qp(), {.id = 1, .sges = {buffer_.sge(0, 8)}}), 0);
  wait_for_one(end_.cq());
  EXPECT_EQ(responder_->wait_for_one().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(responder_->state(), IBV_QPS_ERR);
  EXPECT_TRUE(responder_->has_pattern({0, 0, kBytes}, 3));
}

TEST_P(ErrorTest, AReceiveThatNeverWasRegistered) {
  for (const uint32_t srq_depth : {0u, 4u}) {
    for (const uint32_t size : {8u, 4096u}) {
      End end(node_);
      Responder responder(GetParam(), {.srq_depth = srq_depth});
      responder.connect(end);
      responder.add_buffer(kBytes);
      responder.deregister(0);
      responder.add_buffer(kBytes);
      // The first entry is in order.
      ASSERT_EQ(responder.post_receive(5, {{1, 0, 4}, {0, 0, kBytes}}), 0);
      ASSERT_EQ(post(end.qp(), {.id = 1, .sges = {buffer_.sge(0, size)}}), 0);
      EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_REM_OP_ERR);
      EXPECT_EQ(responder.wait_for_one().status, IBV_WC_LOC_PROT_ERR);
      EXPECT_EQ(responder.state(), IBV_QPS_ERR);
    }
  }
}

TEST_P(ErrorTest, AReceiveIntoReadOnlyMemory) {
  start();
  responder_->add_buffer(kBytes, IBV_ACCESS_REMOTE_READ);
  ASSERT_EQ(responder_->post_receive(5, {{1, 0, kBytes}}), 0);
  EXPECT_EQ(status_of({.id = 1, .sges = {buffer_.sge(0, 4096)}}), IBV_WC_REM_OP_ERR);
  EXPECT_EQ(responder_->wait_for_one().status, IBV_WC_LOC_PROT_ERR);
}

// What arrived before an error is delivered, in order, before the rest is flushed.
TEST_P(ErrorTest, ArrivalsBeforeAnErrorAreDeliveredFirst) {
  start();
  for (uint64_t id = 0; id < 5; ++id) {
    ASSERT_EQ(responder_->post_receive(id, {{0, 0, id == 2 ? 4u : 64u}}), 0);
  }
  for (uint64_t id = 0; id < 3; ++id) {
    ASSERT_EQ(post(end_.qp(), {.id = id, .sges = {buffer_.sge(0, 8)}}), 0);
  }
  const std::vector<ibv_wc> sent = wait_for(end_.cq(), 3);
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[1].status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent[2].status, IBV_WC_REM_INV_REQ_ERR);
  const std::vector<ibv_wc> got = responder_->wait_for(5);
  ASSERT_EQ(got.size(), 5u);
  const ibv_wc_status wanted[] = {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR,
                                  IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR};
  for (uint64_t id = 0; id < 5; ++id) {
    EXPECT_EQ(got[id].wr_id, id);
    EXPECT_EQ(got[id].status, wanted[id]);
  }
}

// ---- flush ----

TEST_P(ErrorTest, TheErrorStateFlushesWhatWaitsInOrder) {
  start();
  for (uint64_t id = 0; id < 3; ++id) {
    ASSERT_EQ(post(end_.qp(), {.id = id, .sges = {buffer_.sge(0, 8)}, .flags = 0}), 0);
    ASSERT_EQ(post_receive(end_.qp(), 100 + id, {buffer_.sge(0, 64)}), 0);
  }
  must(end_.queue_pair().to_error());
  const std::vector<ibv_wc> got = wait_for(end_.cq(), 6);
  ASSERT_EQ(got.size(), 6u);
  uint64_t next_send = 0;
  uint64_t next_receive = 100;
  for (const ibv_wc& wc : got) {
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    uint64_t& next = wc.wr_id < 100 ? next_send : next_receive;
    EXPECT_EQ(wc.wr_id, next++);
  }
  EXPECT_TRUE(is_empty(end_.cq()));
}

TEST_P(ErrorTest, AQueuePairWithASharedReceiveQueueTellsOfItsLastReceive) {
  start({.srq_depth = 4});
  ASSERT_EQ(responder_->post_receive(1, {{0, 0, 64}}), 0);
  responder_->to_error();
  EXPECT_EQ(responder_->wait_for_event(), IBV_EVENT_QP_LAST_WQE_REACHED);
  // The shared receives are not this queue pair's to flush.
  EXPECT_TRUE(responder_->is_empty());
}

// Many queue pairs fail in one poll.
TEST(ManyErrorsTest, AllQueuePairsThatFailInOnePollFail) {
  Node node;
  Buffer buffer(node.domain, 8192);
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 1024}));
  constexpr size_t kPairs = 24;
  std::vector<std::unique_ptr<End>> senders;
  std::vector<std::unique_ptr<End>> receivers;
  for (size_t i = 0; i < kPairs; ++i) {
    senders.push_back(std::make_unique<End>(node));
    receivers.push_back(std::make_unique<End>(node, EndOptions{.send_cq = &cq, .recv_cq = &cq}));
    connect(*senders[i], *receivers[i]);
    ASSERT_EQ(post_receive(receivers[i]->qp(), i, {buffer.sge(0, 4)}), 0);
    ASSERT_EQ(post(senders[i]->qp(), {.sges = {buffer.sge(64, 8)}}), 0);
    ASSERT_EQ(wait_for_one(senders[i]->cq()).status, IBV_WC_REM_INV_REQ_ERR);
  }
  std::set<uint64_t> failed;
  while (failed.size() < kPairs) {
    ibv_wc wc[64];
    const int got = ibv_poll_cq(cq.get(), 64, wc);
    ASSERT_GE(got, 0);
    for (int i = 0; i < got; ++i) {
      EXPECT_EQ(wc[i].status, IBV_WC_LOC_LEN_ERR);
      EXPECT_TRUE(failed.insert(wc[i].wr_id).second);
    }
  }
  for (const auto& receiver : receivers) EXPECT_EQ(state_of(node, receiver->qp()), IBV_QPS_ERR);
  receivers.clear();
}

// ---- keys ----

TEST(KeyTest, NoKeyOfTheLastManyComesBack) {
  Node node;
  std::set<uint32_t> keys;
  std::vector<std::byte> memory(4096);
  const size_t rounds = 3000;
  for (size_t round = 0; round < rounds; ++round) {
    MemoryRegion region =
        must(MemoryRegion::create(node.domain, memory.data(), memory.size(), kAllAccess));
    EXPECT_TRUE(keys.insert(region.rkey()).second) << "round " << round;
  }
}

TEST(KeyTest, ZeroIsNoKey) {
  Node node;
  std::vector<std::byte> memory(4096);
  MemoryRegion region =
      must(MemoryRegion::create(node.domain, memory.data(), memory.size(), kAllAccess));
  EXPECT_NE(region.rkey(), 0u);
  EXPECT_NE(region.lkey(), 0u);
}

// A region addressed from 0: the key's addresses are the given ones, not the process's.
TEST(KeyTest, AddressesMayBeginElsewhere) {
  Node node;
  End a(node);
  End b(node);
  connect(a, b);
  Buffer buffer(node.domain, 4096);
  const VerbsControl& control = node.control();
  for (const uint64_t start : {uint64_t{0}, uint64_t{1} << 60}) {
    ibv_mr* region = control.reg_mr(node.domain.get(), buffer.data(), 4096, start, kAllAccess);
    ASSERT_NE(region, nullptr);
    fill_pattern(buffer.data(), 2048, start + 1);
    ASSERT_EQ(post(a.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                            .sges = {{start, 2048, region->lkey}},
                            .remote_address = start + 2048,
                            .rkey = region->rkey}),
              0);
    ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
    EXPECT_TRUE(has_pattern(buffer.data() + 2048, 2048, start + 1));
    EXPECT_EQ(control.dereg_mr(region), 0);
  }
}

}  // namespace
}  // namespace verbena::soft_test
