// What each verb does when all is well, within a process and between two.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "tests/soft/places.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr uint32_t kMiB = 1 << 20;
constexpr uint32_t kImmediate = 0x12345678;

class TransferTest : public testing::TestWithParam<Place> {
 protected:
  void start(const ResponderOptions& options = {}) {
    responder_.emplace(GetParam(), options);
    responder_->connect(end_);
  }
  void post_and_wait(const SendRequest& request) {
    ASSERT_EQ(post(end_.qp(), request), 0);
    const ibv_wc wc = wait_for_one(end_.cq());
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
    EXPECT_EQ(wc.wr_id, request.id);
    EXPECT_EQ(wc.qp_num, end_.qp()->qp_num);
  }

  Node node_;
  End end_{node_};
  std::optional<Responder> responder_;
};

INSTANTIATE_TEST_SUITE_P(Places, TransferTest, all_places(), name_by_place);

class SizeTest : public testing::TestWithParam<std::tuple<Place, uint32_t>> {};

INSTANTIATE_TEST_SUITE_P(Sizes, SizeTest,
                         testing::Combine(all_places(), testing::Values(0, 1, 7, 8, 48, 111, 112,
                                                                        113, 4096, kMiB, 8 * kMiB)),
                         [](const auto& info) {
                           return place_name(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST_P(SizeTest, SendsWritesAndReadsTheSameBytes) {
  const auto [place, size] = GetParam();
  Node node;
  End end(node);
  Responder responder(place);
  responder.connect(end);
  const uint32_t guard = 64;
  Buffer local(node.domain, 2 * (size + guard));
  const Responder::Memory remote = responder.add_buffer(3 * (size + guard));
  fill_pattern(local.data(), size, 1);

  // SEND to the second of three parts; what lies around it stays as it is.
  responder.fill({0, 0, 3 * (size + guard)}, 2);
  ASSERT_EQ(responder.post_receive(70, {{0, size + guard, size + guard}}), 0);
  ASSERT_EQ(post(end.qp(), {.id = 7, .sges = {local.sge(0, size)}}), 0);
  const ibv_wc sent = wait_for_one(end.cq());
  EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent.opcode, IBV_WC_SEND);
  EXPECT_EQ(sent.wr_id, 7u);
  const ibv_wc received = responder.wait_for_one();
  EXPECT_EQ(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.opcode, IBV_WC_RECV);
  EXPECT_EQ(received.wr_id, 70u);
  EXPECT_EQ(received.byte_len, size);
  EXPECT_EQ(received.wc_flags & IBV_WC_WITH_IMM, 0u);
  EXPECT_TRUE(responder.has_pattern({0, size + guard, size}, 1));
  EXPECT_TRUE(responder.has_pattern({0, 0, size + guard}, 2));

  // WRITE to the first part.
  ASSERT_EQ(post(end.qp(), {.id = 8,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .sges = {local.sge(0, size)},
                            .remote_address = remote.address,
                            .rkey = remote.key}),
            0);
  const ibv_wc written = wait_for_one(end.cq());
  EXPECT_EQ(written.status, IBV_WC_SUCCESS);
  EXPECT_EQ(written.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_TRUE(responder.has_pattern({0, 0, size}, 1));

  // READ from the third part.
  responder.fill({0, 2 * (size + guard), size}, 3);
  ASSERT_EQ(post(end.qp(), {.id = 9,
                            .opcode = IBV_WR_RDMA_READ,
                            .sges = {local.sge(size + guard, size)},
                            .remote_address = remote.address + 2 * (size + guard),
                            .rkey = remote.key}),
            0);
  const ibv_wc read = wait_for_one(end.cq());
  EXPECT_EQ(read.status, IBV_WC_SUCCESS);
  EXPECT_EQ(read.opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(read.byte_len, size);
  EXPECT_TRUE(has_pattern(local.data() + size + guard, size, 3));
  EXPECT_TRUE(has_pattern(local.data(), size, 1));
  EXPECT_TRUE(responder.is_empty());
}

TEST_P(SizeTest, SharedReceiveQueueTakesEverySize) {
  const auto [place, size] = GetParam();
  Node node;
  End end(node);
  Responder responder(place, {.srq_depth = 4});
  responder.connect(end);
  Buffer local(node.domain, size + 64);
  responder.add_buffer(size + 64);
  fill_pattern(local.data(), size, 5);
  ASSERT_EQ(responder.post_receive(1, {{0, 0, size + 64}}), 0);
  ASSERT_EQ(post(end.qp(), {.sges = {local.sge(0, size)}}), 0);
  EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
  const ibv_wc received = responder.wait_for_one();
  EXPECT_EQ(received.status, IBV_WC_SUCCESS);
  EXPECT_EQ(received.byte_len, size);
  EXPECT_TRUE(responder.has_pattern({0, 0, size}, 5));
}

TEST_P(TransferTest, SendWithImmediate) {
  start();
  Buffer local(node_.domain, 4096);
  responder_->add_buffer(4096);
  for (const uint32_t size : {0u, 8u, 4096u}) {
    ASSERT_EQ(responder_->post_receive(size, {{0, 0, 4096}}), 0);
    post_and_wait({.id = size,
                   .opcode = IBV_WR_SEND_WITH_IMM,
                   .sges = {local.sge(0, size)},
                   .immediate = kImmediate});
    const ibv_wc received = responder_->wait_for_one();
    EXPECT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.opcode, IBV_WC_RECV);
    EXPECT_EQ(received.wc_flags & IBV_WC_WITH_IMM, static_cast<unsigned>(IBV_WC_WITH_IMM));
    EXPECT_EQ(received.imm_data, kImmediate);
    EXPECT_EQ(received.byte_len, size);
  }
}

TEST_P(TransferTest, WriteWithImmediateConsumesAReceiveButNotItsBuffer) {
  start();
  Buffer local(node_.domain, 4096);
  const Responder::Memory remote = responder_->add_buffer(8192);
  fill_pattern(local.data(), 4096, 1);
  for (const uint32_t size : {0u, 8u, 4096u}) {
    responder_->fill({0, 4096, 4096}, 2);
    ASSERT_EQ(responder_->post_receive(size, {{0, 4096, 4096}}), 0);
    post_and_wait({.id = size,
                   .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                   .sges = {local.sge(0, size)},
                   .remote_address = remote.address,
                   .rkey = remote.key,
                   .immediate = kImmediate});
    const ibv_wc received = responder_->wait_for_one();
    EXPECT_EQ(received.status, IBV_WC_SUCCESS);
    EXPECT_EQ(received.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(received.wr_id, size);
    EXPECT_EQ(received.wc_flags & IBV_WC_WITH_IMM, static_cast<unsigned>(IBV_WC_WITH_IMM));
    EXPECT_EQ(received.imm_data, kImmediate);
    EXPECT_EQ(received.byte_len, size);
    EXPECT_TRUE(responder_->has_pattern({0, 0, size}, 1));
    EXPECT_TRUE(responder_->has_pattern({0, 4096, 4096}, 2));
  }
}

TEST_P(TransferTest, WriteWithImmediateWithoutAnyBuffer) {
  start();
  const Responder::Memory remote = responder_->add_buffer(64);
  Buffer local(node_.domain, 64);
  ASSERT_EQ(responder_->post_receive(1, {}), 0);
  post_and_wait({.id = 3,
                 .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                 .sges = {local.sge(0, 64)},
                 .remote_address = remote.address,
                 .rkey = remote.key,
                 .immediate = kImmediate});
  EXPECT_EQ(responder_->wait_for_one().byte_len, 64u);
}

TEST_P(TransferTest, CompareAndSwap) {
  start();
  Buffer local(node_.domain, 64);
  const Responder::Memory remote = responder_->add_buffer(64);
  responder_->store(0, 8, 5);
  const auto swap = [&](uint64_t compare, uint64_t value) {
    post_and_wait({.opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
                   .sges = {local.sge(16, 8)},
                   .remote_address = remote.address + 8,
                   .rkey = remote.key,
                   .compare_add = compare,
                   .swap = value});
    return local.at<uint64_t>(16);
  };
  EXPECT_EQ(swap(4, 9), 5u);
  EXPECT_EQ(responder_->load(0, 8), 5u);
  EXPECT_EQ(swap(5, 9), 5u);
  EXPECT_EQ(responder_->load(0, 8), 9u);
}

TEST_P(TransferTest, FetchAndAddWrapsAround) {
  start();
  Buffer local(node_.domain, 64);
  const Responder::Memory remote = responder_->add_buffer(64);
  responder_->store(0, 0, ~uint64_t{0});
  post_and_wait({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                 .sges = {local.sge(0, 8)},
                 .remote_address = remote.address,
                 .rkey = remote.key,
                 .compare_add = 3});
  EXPECT_EQ(local.at<uint64_t>(0), ~uint64_t{0});
  EXPECT_EQ(responder_->load(0, 0), 2u);
}

TEST_P(TransferTest, AnAtomicsResultIsScattered) {
  start();
  Buffer local(node_.domain, 64);
  const Responder::Memory remote = responder_->add_buffer(64);
  responder_->store(0, 0, 0x1122334455667788);
  post_and_wait({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                 .sges = {local.sge(0, 3), local.sge(8, 0), local.sge(16, 5)},
                 .remote_address = remote.address,
                 .rkey = remote.key,
                 .compare_add = 1});
  EXPECT_EQ(local.at<uint64_t>(0), 0x667788u);
  EXPECT_EQ(local.at<uint64_t>(16), 0x1122334455u);
}

TEST_P(TransferTest, TheCompletionQueueSaysWhichAtomic) {
  start();
  Buffer local(node_.domain, 64);
  const Responder::Memory remote = responder_->add_buffer(64);
  ASSERT_EQ(post(end_.qp(), {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                             .sges = {local.sge(0, 8)},
                             .remote_address = remote.address,
                             .rkey = remote.key}),
            0);
  EXPECT_EQ(wait_for_one(end_.cq()).opcode, IBV_WC_FETCH_ADD);
  ASSERT_EQ(post(end_.qp(), {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
                             .sges = {local.sge(0, 8)},
                             .remote_address = remote.address,
                             .rkey = remote.key}),
            0);
  const ibv_wc wc = wait_for_one(end_.cq());
  EXPECT_EQ(wc.opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(wc.byte_len, 8u);
}

// The keys of a region that begins at 0 or elsewhere count from there.
TEST_P(TransferTest, AWholeRegionCanBeReachedAndNotOneByteMore) {
  start();
  Buffer local(node_.domain, 8192);
  const Responder::Memory remote = responder_->add_buffer(8192);
  fill_pattern(local.data(), 8192, 4);
  post_and_wait({.opcode = IBV_WR_RDMA_WRITE,
                 .sges = {local.sge(0, 8192)},
                 .remote_address = remote.address,
                 .rkey = remote.key});
  post_and_wait({.opcode = IBV_WR_RDMA_WRITE,
                 .sges = {local.sge(8191, 1)},
                 .remote_address = remote.address + 8191,
                 .rkey = remote.key});
  EXPECT_TRUE(responder_->has_pattern({0, 0, 8192}, 4));
}

TEST_P(TransferTest, TheResponderSendsToo) {
  start();
  Buffer local(node_.domain, 4096);
  responder_->add_buffer(4096);
  responder_->fill({0, 0, 4096}, 6);
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_EQ(post_receive(end_.qp(), id, {local.sge(id * 1024, 1024)}), 0);
  }
  for (uint32_t id = 0; id < 4; ++id) {
    ASSERT_EQ(responder_->send(id, {{0, id * 1024, 1024}}), 0);
  }
  const std::vector<ibv_wc> got = wait_for(end_.cq(), 4);
  ASSERT_EQ(got.size(), 4u);
  for (uint64_t id = 0; id < 4; ++id) EXPECT_EQ(got[id].wr_id, id);
  EXPECT_TRUE(has_pattern(local.data(), 1024, 6));
  responder_->wait_for(4);
}

// ---- contention ----

constexpr uint64_t kAddsPerProcess = 20'000;

struct CounterPlace {
  QueuePairAddress peer;
  uint64_t address;
  uint32_t key;
  uint64_t adds;
};

VERBENA_TEST_CHILD(add) {
  Node node;
  End end(node);
  Buffer local(node.domain, 64);
  link.put(end.address());
  const auto place = link.get<CounterPlace>();
  end.connect(place.peer);
  link.put(true);
  link.get<bool>();
  // Half of them by fetch-and-add, half by compare-and-swap.
  for (uint64_t done = 0; done < place.adds; ++done) {
    const bool swap = done % 2 == 1;
    SendRequest request{.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                        .sges = {local.sge(0, 8)},
                        .remote_address = place.address,
                        .rkey = place.key,
                        .compare_add = 1};
    if (swap) {
      request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
      request.compare_add = local.at<uint64_t>(0);
      request.swap = request.compare_add + 1;
    }
    for (bool added = false; !added;) {
      if (post(end.qp(), request) != 0) return 1;
      if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 2;
      const uint64_t before = local.at<uint64_t>(0);
      added = !swap || before == request.compare_add;
      request.swap = before + 1;
      if (swap) request.compare_add = before;
    }
  }
  link.put(true);
  link.get<bool>();
  return 0;
}

TEST(AtomicsTest, TwoProcessesAndTheOwnerAddUpExactly) {
  Node node;
  Buffer counter(node.domain, 64);
  const uint64_t adds = iterations(kAddsPerProcess);
  std::vector<Child> children;
  std::vector<std::unique_ptr<End>> ends;
  for (int i = 0; i < 2; ++i) {
    children.emplace_back("add");
    ends.push_back(std::make_unique<End>(node));
    ends.back()->connect(children.back().link().get<QueuePairAddress>());
    children.back().link().put(
        CounterPlace{ends.back()->address(), counter.address(), counter.key(), adds});
  }
  for (Child& child : children) child.link().get<bool>();
  for (Child& child : children) child.link().put(true);
  for (uint64_t done = 0; done < adds; ++done) {
    __atomic_fetch_add(&counter.at<uint64_t>(0), 1, __ATOMIC_ACQ_REL);
  }
  for (Child& child : children) child.link().get<bool>();
  EXPECT_EQ(__atomic_load_n(&counter.at<uint64_t>(0), __ATOMIC_ACQUIRE), 3 * adds);
  for (Child& child : children) {
    child.link().put(true);
    EXPECT_EQ(child.wait(), 0);
  }
}

}  // namespace
}  // namespace verbena::soft_test
