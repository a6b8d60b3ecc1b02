// What a program may rely on between two simulated RNICs without faults: as libibverbs says.
#include "src/device/sim/rnic.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "src/device/sim/cluster_for_test.h"

namespace verbena::sim {
namespace {

constexpr size_t kBufferBytes = 4 << 20;

class RnicTest : public testing::Test {
 protected:
  void connect_ends(const ReliabilityOptions& options = {}) { connect(a_, b_, options); }
  SendRequest write(uint64_t id, size_t offset, size_t bytes) {
    return {.id = id,
            .opcode = IBV_WR_RDMA_WRITE,
            .sges = {here_.sge(offset, bytes)},
            .remote_address = there_.address(offset),
            .rkey = there_.key()};
  }
  SendRequest read(uint64_t id, size_t offset, size_t bytes) {
    SendRequest request = write(id, offset, bytes);
    request.opcode = IBV_WR_RDMA_READ;
    return request;
  }
  SendRequest fetch_and_add(uint64_t id, size_t offset, uint64_t add) {
    return {.id = id,
            .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
            .sges = {here_.sge(id * 8, 8)},
            .remote_address = there_.address(offset),
            .rkey = there_.key(),
            .compare_add = add};
  }
  SendRequest send(uint64_t id, size_t offset, size_t bytes) {
    return {.id = id, .sges = {here_.sge(offset, bytes)}};
  }
  std::string sent() {
    cluster_.settle();
    return text_of(take_all(a_));
  }
  std::string received() {
    cluster_.settle();
    return text_of(take_all(b_));
  }

  Cluster cluster_;
  Buffer here_{cluster_[0], kBufferBytes};
  Buffer there_{cluster_[1], kBufferBytes};
  End a_{cluster_[0]};
  End b_{cluster_[1]};
};

// ---- verbs ----

TEST_F(RnicTest, ASendArrivesInItsReceive) {
  connect_ends();
  here_.fill(1, 0, 100);
  ASSERT_EQ(post_receive(b_, 17, {there_.sge(64, 4096)}), 0);
  ASSERT_EQ(post(a_, send(5, 0, 100)), 0);
  cluster_.settle();
  const std::vector<ibv_wc> got = take_all(b_);
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].wr_id, 17u);
  EXPECT_EQ(got[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(got[0].opcode, IBV_WC_RECV);
  EXPECT_EQ(got[0].byte_len, 100u);
  EXPECT_EQ(got[0].wc_flags, 0u);
  EXPECT_EQ(got[0].qp_num, b_.qp()->qp_num);
  EXPECT_TRUE(there_.has(1, 64, 100));
  EXPECT_EQ(there_.at<char>(164), 0);
  const std::vector<ibv_wc> done = take_all(a_);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].wr_id, 5u);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(done[0].opcode, IBV_WC_SEND);
}

TEST_F(RnicTest, ImmediatesComeWithTheirMessages) {
  connect_ends();
  here_.fill(2, 0, 64);
  for (uint64_t id = 0; id < 3; ++id) ASSERT_EQ(post_receive(b_, id, {there_.sge(0, 64)}), 0);
  SendRequest with_bytes = send(0, 0, 64);
  with_bytes.opcode = IBV_WR_SEND_WITH_IMM;
  with_bytes.immediate = 0x12345678;
  ASSERT_EQ(post(a_, with_bytes), 0);
  SendRequest written = write(1, 512, 5000);
  written.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  written.immediate = 7;
  here_.fill(3, 512, 5000);
  ASSERT_EQ(post(a_, written), 0);
  written.sges.clear();
  written.immediate = 8;
  written.rkey = 0;
  ASSERT_EQ(post(a_, written), 0);
  cluster_.settle();
  const std::vector<ibv_wc> got = take_all(b_);
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0].imm_data, 0x12345678u);
  EXPECT_EQ(got[0].opcode, IBV_WC_RECV);
  EXPECT_EQ(got[1].imm_data, 7u);
  EXPECT_EQ(got[1].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(got[1].byte_len, 5000u);
  EXPECT_EQ(got[2].imm_data, 8u);
  EXPECT_EQ(got[2].byte_len, 0u);
  for (const ibv_wc& one : got) EXPECT_NE(one.wc_flags & IBV_WC_WITH_IMM, 0u);
  EXPECT_TRUE(there_.has(3, 512, 5000));
  EXPECT_EQ(sent(), "0 success, 1 success, 1 success");
}

TEST_F(RnicTest, MessagesOfAllSizesAroundThePacketsBoundariesArriveWhole) {
  connect_ends();
  const size_t mtu = test_profile().mtu_bytes;
  std::vector<size_t> sizes = {1, 2, 63, 64, 65, 256, 1000};
  for (const size_t packets : {1, 2, 3, 17}) {
    for (const size_t bytes : {packets * mtu - 1, packets * mtu, packets * mtu + 1}) {
      sizes.push_back(bytes);
    }
  }
  sizes.push_back(1 << 20);
  uint64_t seed = 0;
  for (const size_t bytes : sizes) {
    SCOPED_TRACE(testing::Message() << bytes << " bytes");
    here_.fill(++seed, 3, bytes);
    ASSERT_EQ(post(a_, write(1, 3, bytes)), 0);
    ASSERT_EQ(sent(), "1 success");
    ASSERT_TRUE(there_.has(seed, 3, bytes));
    ASSERT_EQ(there_.at<char>(2), 0);

    there_.fill(++seed, 3, bytes);
    ASSERT_EQ(post(a_, read(2, 3, bytes)), 0);
    ASSERT_EQ(sent(), "2 success");
    ASSERT_TRUE(here_.has(seed, 3, bytes));

    here_.fill(++seed, 3, bytes);
    ASSERT_EQ(post_receive(b_, 3, {there_.sge(3, bytes)}), 0);
    ASSERT_EQ(post(a_, send(3, 3, bytes)), 0);
    ASSERT_EQ(sent(), "3 success");
    ASSERT_EQ(received(), "3 success");
    ASSERT_TRUE(there_.has(seed, 3, bytes));
  }
}

TEST_F(RnicTest, MessagesWithoutBytesNeedNoMemory) {
  connect_ends();
  ASSERT_EQ(post_receive(b_, 1, {}), 0);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND}) {
    ASSERT_EQ(post(a_, {.id = 1, .opcode = opcode}), 0);
  }
  EXPECT_EQ(sent(), "1 success, 1 success, 1 success");
  EXPECT_EQ(received(), "1 success");
}

TEST_F(RnicTest, AtomicsReturnWhatWasThere) {
  connect_ends();
  there_.at<uint64_t>(4096) = 40;
  ASSERT_EQ(post(a_, fetch_and_add(1, 4096, 2)), 0);
  SendRequest swap = fetch_and_add(2, 4096, 42);
  swap.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  swap.swap = 99;
  ASSERT_EQ(post(a_, swap), 0);
  swap.id = 3;
  swap.sges = {here_.sge(24, 8)};
  ASSERT_EQ(post(a_, swap), 0);  // compares with what is no longer there
  cluster_.settle();
  const std::vector<ibv_wc> done = take_all(a_);
  ASSERT_EQ(text_of(done), "1 success, 2 success, 3 success");
  EXPECT_EQ(done[0].opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(done[1].opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(here_.at<uint64_t>(8), 40u);
  EXPECT_EQ(here_.at<uint64_t>(16), 42u);
  EXPECT_EQ(here_.at<uint64_t>(24), 99u);
  EXPECT_EQ(there_.at<uint64_t>(4096), 99u);
}

TEST_F(RnicTest, GatherAndScatterListsCutWhereTheyLike) {
  connect_ends();
  here_.fill(9, 0, 9000);
  // 9,000 bytes from three places into three others, with other boundaries.
  ASSERT_EQ(post_receive(b_, 1, {there_.sge(0, 10), there_.sge(10, 7000), there_.sge(7010, 1990)}),
            0);
  SendRequest request = send(1, 0, 0);
  request.sges = {here_.sge(0, 3000), here_.sge(3000, 1), here_.sge(3001, 5999)};
  ASSERT_EQ(post(a_, request), 0);
  ASSERT_EQ(sent(), "1 success");
  ASSERT_EQ(received(), "1 success");
  EXPECT_TRUE(there_.has(9, 0, 9000));

  there_.fill(10, 20'000, 9000);
  SendRequest back = read(2, 20'000, 0);
  back.sges = {here_.sge(20'000, 4000), here_.sge(24'000, 4999), here_.sge(28'999, 1)};
  ASSERT_EQ(post(a_, back), 0);
  ASSERT_EQ(sent(), "2 success");
  EXPECT_TRUE(here_.has(10, 20'000, 9000));
}

TEST_F(RnicTest, InlineBytesAreThoseOfThePost) {
  connect_ends();
  std::vector<char> bytes(100, 'x');  // not registered
  SendRequest request = write(1, 0, 0);
  request.sges = {{reinterpret_cast<uint64_t>(bytes.data()), 60, 0},
                  {reinterpret_cast<uint64_t>(bytes.data()) + 60, 40, 0}};
  request.flags |= IBV_SEND_INLINE;
  ASSERT_EQ(post(a_, request), 0);
  std::fill(bytes.begin(), bytes.end(), 'y');
  ASSERT_EQ(sent(), "1 success");
  EXPECT_EQ(std::string(&there_.at<char>(0), 100), std::string(100, 'x'));

  request.sges = {here_.sge(0, 257)};
  EXPECT_EQ(post(a_, request), ENOMEM);
}

TEST_F(RnicTest, ASharedReceiveQueueServesAllItsQueuePairs) {
  SharedReceiveQueue queue =
      must(SharedReceiveQueue::create(cluster_[1].domain, {.depth_wrs = 16, .max_sges = 1}));
  const EndOptions shared{.shared_receive_queue = &queue};
  End first(cluster_[1], shared);
  End second(cluster_[1], shared);
  End other(cluster_[0]);
  connect(a_, first);
  connect(other, second);
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_EQ(post_receive(queue, id, {there_.sge(id * 64, 64)}), 0);
    here_.fill(id, id * 64, 64);
  }
  EXPECT_EQ(post_receive(first, 0, {}), EINVAL);
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_EQ(post(id % 2 == 0 ? a_ : other, send(id, id * 64, 64)), 0);
    cluster_.settle();
  }
  EXPECT_EQ(text_of(take_all(first)), "0 success, 2 success");
  EXPECT_EQ(text_of(take_all(second)), "1 success, 3 success");
  for (uint64_t id = 0; id < 4; ++id) EXPECT_TRUE(there_.has(id, id * 64, 64));
}

// The receive of a long message is in use until its completion, however many others come and go.
TEST_F(RnicTest, AReceiveThatIsBeingFilledIsNotGivenAway) {
  constexpr uint32_t kDepth = 2;
  SharedReceiveQueue queue =
      must(SharedReceiveQueue::create(cluster_[1].domain, {.depth_wrs = kDepth, .max_sges = 1}));
  const EndOptions shared{.shared_receive_queue = &queue};
  End first(cluster_[1], shared);
  End second(cluster_[1], shared);
  End other(cluster_[0]);
  connect(a_, first);
  connect(other, second);
  constexpr size_t kLong = 1 << 20;
  here_.fill(1, 0, kLong);
  ASSERT_EQ(post_receive(queue, 1, {there_.sge(0, kLong)}), 0);
  ASSERT_EQ(post_receive(queue, 2, {there_.sge(2 << 20, 64)}), 0);
  ASSERT_EQ(post(a_, send(1, 0, kLong)), 0);
  cluster_.pass(20'000);
  uint64_t small = 0;
  for (; take_all(first).empty(); ++small) {
    here_.fill(small, 2 << 20, 64);
    ASSERT_EQ(post(other, send(2, 2 << 20, 64)), 0);
    std::vector<ibv_wc> got;
    for (int us = 0; us < 1000 && got.empty(); ++us) {
      cluster_.pass(1000);
      got = take_all(second);
    }
    ASSERT_EQ(text_of(got), std::to_string(2 + small) + " success");
    ASSERT_TRUE(there_.has(small, 2 << 20, 64));
    ASSERT_EQ(post_receive(queue, 3 + small, {there_.sge(2 << 20, 64)}), 0);
  }
  EXPECT_GT(small, 0u);
  EXPECT_TRUE(there_.has(1, 0, kLong));
}

// ---- queues ----

TEST_F(RnicTest, ASendQueueIsFullUntilASignaledCompletionIsPolled) {
  connect_ends();
  SendRequest quiet = write(1, 0, 8);
  quiet.flags = 0;
  for (int i = 0; i < 127; ++i) ASSERT_EQ(post(a_, quiet), 0);
  ASSERT_EQ(post(a_, write(2, 0, 8)), 0);
  EXPECT_EQ(post(a_, quiet), ENOMEM);
  cluster_.settle();
  EXPECT_EQ(post(a_, quiet), ENOMEM);
  EXPECT_EQ(sent(), "2 success");
  EXPECT_EQ(post(a_, quiet), 0);
  EXPECT_EQ(sent(), "");
}

TEST_F(RnicTest, AReceiveQueueIsFullUntilOneIsUsed) {
  connect_ends();
  for (uint64_t id = 0; id < 128; ++id) ASSERT_EQ(post_receive(b_, id, {there_.sge(0, 64)}), 0);
  EXPECT_EQ(post_receive(b_, 128, {there_.sge(0, 64)}), ENOMEM);
  ASSERT_EQ(post(a_, send(1, 0, 64)), 0);
  EXPECT_EQ(received(), "0 success");
  EXPECT_EQ(post_receive(b_, 128, {there_.sge(0, 64)}), 0);
}

// The sum of its entries does not fit 32 bits.
TEST_F(RnicTest, AReceiveMayBeLongerThanAnyMessage) {
  connect_ends();
  const size_t half = size_t{1} << 31;
  ASSERT_EQ(post_receive(b_, 5, {there_.sge(0, half), there_.sge(0, half)}), 0);
  here_.fill(1, 0, 64);
  ASSERT_EQ(post(a_, send(1, 0, 64)), 0);
  EXPECT_EQ(sent(), "1 success");
  EXPECT_EQ(received(), "5 success");
  EXPECT_TRUE(there_.has(1, 0, 64));
}

TEST_F(RnicTest, ListsOfRequestsStopAtTheFirstBadOne) {
  connect_ends();
  std::vector<ibv_sge> sges = {here_.sge(0, 8)};
  ibv_send_wr good{};
  good.wr_id = 1;
  good.sg_list = sges.data();
  good.num_sge = 1;
  good.opcode = IBV_WR_RDMA_WRITE;
  good.send_flags = IBV_SEND_SIGNALED;
  good.wr.rdma = {there_.address(), there_.key()};
  ibv_send_wr wrong = good;
  wrong.num_sge = 5;
  ibv_send_wr never = good;
  good.next = &wrong;
  wrong.next = &never;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(a_.qp(), &good, &bad), EINVAL);
  EXPECT_EQ(bad, &wrong);
  EXPECT_EQ(sent(), "1 success");
}

TEST_F(RnicTest, NothingIsSentBeforeItIsConnected) {
  EXPECT_EQ(post(a_, send(1, 0, 8)), EINVAL);
  EXPECT_EQ(post_receive(a_, 1, {here_.sge(0, 8)}), 0);
}

// Neither may be on its way, so the queue would stand still for ever.
TEST_F(RnicTest, ReadsAndAtomicsNeedAConnectionThatHasThem) {
  connect_ends({.max_outstanding_reads = 0});
  EXPECT_EQ(post(a_, read(1, 0, 8)), EINVAL);
  EXPECT_EQ(post(a_, fetch_and_add(1, 0, 1)), EINVAL);
  ASSERT_EQ(post(a_, write(2, 0, 8)), 0);
  EXPECT_EQ(sent(), "2 success");
  must(a_.queue_pair().to_error());
  EXPECT_EQ(post(a_, read(3, 0, 8)), 0);
  EXPECT_EQ(sent(), "3 Work Request Flushed Error");
}

TEST_F(RnicTest, AFullCompletionQueueIsAnError) {
  End narrow(cluster_[0], {.cq_depth = 2});
  connect(narrow, b_);
  for (uint64_t id = 0; id < 3; ++id) ASSERT_EQ(post(narrow, write(id, 0, 8)), 0);
  cluster_.settle();
  ibv_wc one;
  EXPECT_LT(ibv_poll_cq(narrow.cq(), 1, &one), 0);
}

// ---- order ----

TEST_F(RnicTest, AReadSeesTheWritesBeforeIt) {
  connect_ends();
  for (uint64_t round = 1; round <= 200; ++round) {
    here_.fill(round, 0, 20'000);
    ASSERT_EQ(post(a_, write(1, 0, 20'000)), 0);
    SendRequest back = read(2, 19'000, 1000);
    back.sges = {here_.sge(40'000, 1000)};
    ASSERT_EQ(post(a_, back), 0);
    ASSERT_EQ(sent(), "1 success, 2 success");
    ASSERT_EQ(std::memcmp(here_.data() + 19'000, here_.data() + 40'000, 1000), 0) << round;
  }
}

TEST_F(RnicTest, AnAtomicSeesTheWritesBeforeIt) {
  connect_ends();
  for (uint64_t round = 1; round <= 50; ++round) {
    // Its last bytes are the word.
    here_.at<uint64_t>(100'000) = round * 1000;
    ASSERT_EQ(post(a_, write(1, 8, 100'000)), 0);
    ASSERT_EQ(post(a_, fetch_and_add(0, 100'000, 1)), 0);
    ASSERT_EQ(sent(), "1 success, 0 success");
    ASSERT_EQ(here_.at<uint64_t>(0), round * 1000);
  }
}

TEST_F(RnicTest, AFencedRequestWaitsForTheReadsBeforeIt) {
  connect_ends();
  for (uint64_t round = 1; round <= 20; ++round) {
    there_.fill(round, 0, 60'000);
    here_.fill(round + 1000, 100'000, 60'000);
    ASSERT_EQ(post(a_, read(1, 0, 60'000)), 0);
    SendRequest over = write(2, 0, 60'000);
    over.sges = {here_.sge(100'000, 60'000)};
    over.flags |= IBV_SEND_FENCE;
    ASSERT_EQ(post(a_, over), 0);
    ASSERT_EQ(sent(), "1 success, 2 success");
    ASSERT_TRUE(here_.has(round, 0, 60'000));
    ASSERT_TRUE(there_.has(round + 1000, 0, 60'000));
  }
}

TEST_F(RnicTest, ReadsAndAtomicsCompleteInTheirOrder) {
  connect_ends();
  const uint64_t seed = run_seed();
  SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << seed);
  Random random(seed);
  for (int round = 0; round < 50; ++round) {
    std::string expected;
    there_.at<uint64_t>(1 << 20) = 0;
    for (uint64_t id = 1; id <= 60; ++id) {
      switch (random.below(3)) {
        case 0:
          ASSERT_EQ(post(a_, read(id, 4096, 1 + random.below(9000))), 0);
          break;
        case 1:
          ASSERT_EQ(post(a_, fetch_and_add(id, 1 << 20, 1)), 0);
          break;
        default:
          ASSERT_EQ(post(a_, write(id, 2 << 20, random.below(5000))), 0);
      }
      expected += (id > 1 ? ", " : "") + std::to_string(id) + " success";
    }
    ASSERT_EQ(sent(), expected);
  }
}

// ---- not ready ----

TEST_F(RnicTest, ASendWaitsUntilAReceiveIsPosted) {
  connect_ends({.min_rnr_timer = 1});
  here_.fill(1, 0, 64);
  ASSERT_EQ(post(a_, send(1, 0, 64)), 0);
  ASSERT_EQ(post(a_, write(2, 4096, 8)), 0);
  here_.at<uint64_t>(4096) = 7;
  cluster_.pass(5'000'000);
  EXPECT_EQ(text_of(take_all(a_)), "");
  EXPECT_EQ(there_.at<uint64_t>(4096), 0u) << "what is behind a waiting send overtook it";
  ASSERT_EQ(post_receive(b_, 9, {there_.sge(0, 64)}), 0);
  EXPECT_EQ(sent(), "1 success, 2 success");
  EXPECT_EQ(received(), "9 success");
  EXPECT_TRUE(there_.has(1, 0, 64));
}

// No doorbell tells of receives: the RNIC reads how many there are, and then the WQEs.
TEST_F(RnicTest, ASendWaitsForAReceiveThatWasNotFetchedAhead) {
  connect_ends();
  const auto took_ns = [this](uint64_t id) {
    EXPECT_EQ(post(a_, send(id, 0, 64)), 0);
    uint64_t ns = 0;
    for (; take_all(b_).empty() && ns < 1'000'000; ns += 5) cluster_.pass(5);
    cluster_.settle();
    return ns;
  };
  ASSERT_EQ(post_receive(b_, 1, {there_.sge(0, 64)}), 0);
  took_ns(1);  // brings the state of both queue pairs onto the RNICs
  for (uint64_t id = 2; id <= 3; ++id) ASSERT_EQ(post_receive(b_, id, {there_.sge(0, 64)}), 0);
  const uint64_t unknown_ns = took_ns(2);
  const uint64_t fetched_ns = took_ns(3);
  const uint64_t read_ns = test_profile().pcie_read / 1000;
  EXPECT_GE(unknown_ns + 10, fetched_ns + 2 * read_ns);
  EXPECT_LT(unknown_ns, fetched_ns + 3 * read_ns);
}

TEST_F(RnicTest, RnrRetriesEndWithAnErrorAndFlush) {
  connect_ends({.rnr_retry_count = 2, .min_rnr_timer = 1});
  ASSERT_EQ(post(a_, write(1, 0, 8)), 0);
  for (uint64_t id = 2; id <= 4; ++id) ASSERT_EQ(post(a_, send(id, 0, 64)), 0);
  const uint64_t begin_ns = now_ns();
  EXPECT_EQ(sent(),
            "1 success, 2 RNR retry counter exceeded, 3 Work Request Flushed Error, "
            "4 Work Request Flushed Error");
  EXPECT_EQ(a_.state(), IBV_QPS_ERR);
  // The responder knows of no error.
  EXPECT_EQ(b_.state(), IBV_QPS_RTS);
  EXPECT_GE(now_ns() - begin_ns, 2 * 10'000u);
  EXPECT_LT(now_ns() - begin_ns, 100'000'000u);
}

// The timer of unanswered requests must stand still while the receiver is not ready.
TEST_F(RnicTest, WaitingForAReceiverForLongIsNoTimeOut) {
  connect_ends({.retry_count = 0, .ack_timeout = 8, .min_rnr_timer = 0});  // 1 ms; 655 ms
  ASSERT_EQ(post(a_, send(1, 0, 64)), 0);
  cluster_.pass(10'000'000);
  ASSERT_EQ(post_receive(b_, 9, {there_.sge(0, 64)}), 0);
  const uint64_t events = cluster_.simulation().events();
  // A second of virtual time takes few events.
  cluster_.pass(1'000'000'000);
  EXPECT_LT(cluster_.simulation().events() - events, 10'000u);
  EXPECT_EQ(sent(), "1 success");
}

// ---- errors ----

constexpr char kFlushedAfter[] = ", 8 Work Request Flushed Error";

TEST_F(RnicTest, ForeignMemoryIsARemoteAccessError) {
  Buffer read_only(cluster_[1], 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  Buffer local(cluster_[1], 4096, IBV_ACCESS_LOCAL_WRITE);
  ProtectionDomain other = must(ProtectionDomain::create(cluster_[1].device));
  std::vector<std::byte> memory(4096);
  MemoryRegion elsewhere = must(MemoryRegion::create(other, memory.data(), 4096, kAllAccess));
  struct Case {
    const char* what;
    ibv_wr_opcode opcode;
    uint64_t address;
    uint32_t rkey;
  };
  const auto elsewhere_address = reinterpret_cast<uint64_t>(memory.data());
  for (const Case& one :
       {Case{"unknown key", IBV_WR_RDMA_WRITE, there_.address(), there_.key() + 1},
        Case{"beyond the end", IBV_WR_RDMA_WRITE, there_.address(kBufferBytes - 7), there_.key()},
        Case{"before the begin", IBV_WR_RDMA_READ, there_.address() - 1, there_.key()},
        Case{"around the end of addresses", IBV_WR_RDMA_READ, UINT64_MAX - 3, there_.key()},
        Case{"write to read-only memory", IBV_WR_RDMA_WRITE, read_only.address(), read_only.key()},
        Case{"atomic on read-only memory", IBV_WR_ATOMIC_FETCH_AND_ADD, read_only.address(),
             read_only.key()},
        Case{"read of local memory", IBV_WR_RDMA_READ, local.address(), local.key()},
        Case{"another protection domain", IBV_WR_RDMA_WRITE, elsewhere_address, elsewhere.rkey()},
        Case{"another protection domain", IBV_WR_RDMA_READ, elsewhere_address, elsewhere.rkey()}}) {
    SCOPED_TRACE(one.what);
    End a(cluster_[0]);
    End b(cluster_[1]);
    connect(a, b);
    ASSERT_EQ(post_receive(b, 20, {there_.sge(0, 64)}), 0);
    ASSERT_EQ(post(a, write(6, 0, 64)), 0);
    SendRequest request = write(7, 0, 8);
    request.opcode = one.opcode;
    request.remote_address = one.address;
    request.rkey = one.rkey;
    ASSERT_EQ(post(a, request), 0);
    ASSERT_EQ(post(a, write(8, 0, 64)), 0);
    cluster_.settle();
    EXPECT_EQ(text_of(take_all(a)),
              std::string("6 success, 7 remote access error") + kFlushedAfter);
    EXPECT_EQ(text_of(take_all(b)), "20 Work Request Flushed Error");
    EXPECT_EQ(a.state(), IBV_QPS_ERR);
    EXPECT_EQ(b.state(), IBV_QPS_ERR);
  }
}

TEST_F(RnicTest, ReadsBeforeARemoteAccessErrorAreAnswered) {
  connect_ends();
  there_.fill(4, 0, 100'000);
  ASSERT_EQ(post(a_, read(1, 0, 100'000)), 0);
  ASSERT_EQ(post(a_, fetch_and_add(0, 1 << 20, 1)), 0);
  SendRequest wrong = write(2, 0, 8);
  wrong.rkey += 1;
  ASSERT_EQ(post(a_, wrong), 0);
  EXPECT_EQ(sent(), "1 success, 0 success, 2 remote access error");
  EXPECT_TRUE(here_.has(4, 8, 0) && std::memcmp(here_.data() + 8, there_.data() + 8, 99'000) == 0);
}

TEST_F(RnicTest, AMisalignedAtomicIsAnInvalidRequest) {
  connect_ends();
  ASSERT_EQ(post(a_, fetch_and_add(1, 4, 1)), 0);
  EXPECT_EQ(sent(), "1 remote invalid request error");
}

TEST_F(RnicTest, MemoryThatIsNotRegisteredHereIsALocalProtectionError) {
  connect_ends();
  Buffer read_only(cluster_[0], 4096, 0);
  ASSERT_EQ(post(a_, write(1, 0, 64)), 0);
  SendRequest wrong = write(2, 0, 64);
  wrong.sges[0].lkey += 1;
  ASSERT_EQ(post(a_, wrong), 0);
  ASSERT_EQ(post(a_, write(3, 0, 64)), 0);
  EXPECT_EQ(sent(), "1 success, 2 local protection error, 3 Work Request Flushed Error");

  a_.reset();
  b_.reset();
  connect_ends();
  wrong = read(4, 0, 64);
  wrong.sges = {read_only.sge(0, 64)};
  ASSERT_EQ(post(a_, wrong), 0);
  EXPECT_EQ(sent(), "4 local protection error");
}

TEST_F(RnicTest, AReceiveThatIsTooShortIsALengthError) {
  connect_ends();
  ASSERT_EQ(post_receive(b_, 10, {there_.sge(0, 5000)}), 0);
  ASSERT_EQ(post_receive(b_, 11, {there_.sge(0, 63)}), 0);
  ASSERT_EQ(post_receive(b_, 12, {there_.sge(0, 64)}), 0);
  ASSERT_EQ(post(a_, send(1, 0, 5000)), 0);
  ASSERT_EQ(post(a_, send(2, 0, 64)), 0);
  ASSERT_EQ(post(a_, send(3, 0, 64)), 0);
  EXPECT_EQ(sent(), "1 success, 2 remote invalid request error, 3 Work Request Flushed Error");
  EXPECT_EQ(received(), "10 success, 11 local length error, 12 Work Request Flushed Error");
}

// Nobody may be told that bytes arrived which were not placed.
TEST_F(RnicTest, AReceiveIntoForeignMemoryIsAProtectionError) {
  Buffer read_only(cluster_[1], 4096, IBV_ACCESS_REMOTE_READ);
  Buffer gone(cluster_[1], 4096);
  gone.deregister();
  ProtectionDomain other = must(ProtectionDomain::create(cluster_[1].device));
  Buffer elsewhere(other, 4096);
  std::vector<ibv_sge> wrong = {read_only.sge(0, 4096), gone.sge(0, 4096), elsewhere.sge(0, 4096),
                                there_.sge(kBufferBytes - 64, 4096)};
  for (const bool is_shared : {false, true}) {
    for (const ibv_sge& second : wrong) {
      SCOPED_TRACE(testing::Message() << is_shared << " " << &second - wrong.data());
      SharedReceiveQueue queue =
          must(SharedReceiveQueue::create(cluster_[1].domain, {.depth_wrs = 4, .max_sges = 2}));
      EndOptions options;
      if (is_shared) options.shared_receive_queue = &queue;
      End a(cluster_[0]);
      End b(cluster_[1], options);
      connect(a, b);
      const auto receive = [&](uint64_t id) {
        const std::vector<ibv_sge> sges = {there_.sge(0, 3000), second};
        ASSERT_EQ(is_shared ? post_receive(queue, id, sges) : post_receive(b, id, sges), 0);
      };
      for (uint64_t id = 10; id < 13; ++id) receive(id);
      here_.fill(1, 0, 4096);
      ASSERT_EQ(post(a, send(1, 0, 3000)), 0);  // which does not come to the second entry
      ASSERT_EQ(post(a, send(2, 0, 3000 + 65)), 0);
      ASSERT_EQ(post(a, send(3, 0, 8)), 0);
      cluster_.settle();
      EXPECT_EQ(text_of(take_all(a)),
                "1 success, 2 remote operation error, 3 Work Request Flushed Error");
      EXPECT_EQ(text_of(take_all(b)), std::string("10 success, 11 local protection error") +
                                          (is_shared ? "" : ", 12 Work Request Flushed Error"));
      EXPECT_EQ(b.state(), IBV_QPS_ERR);
      EXPECT_TRUE(there_.has(1, 0, 3000));
    }
  }
}

TEST_F(RnicTest, AReadIntoMemoryThatWasDeregisteredIsAProtectionError) {
  for (const bool is_atomic : {false, true}) {
    End a(cluster_[0]);
    End b(cluster_[1]);
    connect(a, b);
    Buffer into(cluster_[0], 64);
    ASSERT_EQ(post(a, write(1, 0, 64)), 0);
    SendRequest request = is_atomic ? fetch_and_add(2, 0, 1) : read(2, 0, 64);
    request.sges = {into.sge(0, is_atomic ? 8 : 64)};
    ASSERT_EQ(post(a, request), 0);
    ASSERT_EQ(post(a, write(3, 0, 64)), 0);
    into.deregister();
    cluster_.settle();
    EXPECT_EQ(text_of(take_all(a)),
              "1 success, 2 local protection error, 3 Work Request Flushed Error");
  }
}

TEST_F(RnicTest, ToTheErrorStateFlushesAllThatIsPosted) {
  connect_ends();
  for (uint64_t id = 10; id < 13; ++id) ASSERT_EQ(post_receive(b_, id, {there_.sge(0, 64)}), 0);
  must(b_.queue_pair().to_error());
  EXPECT_EQ(received(),
            "10 Work Request Flushed Error, 11 Work Request Flushed Error, "
            "12 Work Request Flushed Error");
  ASSERT_EQ(post_receive(b_, 13, {there_.sge(0, 64)}), 0);
  ASSERT_EQ(post(b_, {.id = 14, .flags = 0}), 0);
  cluster_.settle();
  const std::vector<ibv_wc> late = take_all(b_);
  EXPECT_EQ(late.size(), 2u);
  for (const ibv_wc& one : late) EXPECT_EQ(one.status, IBV_WC_WR_FLUSH_ERR);
}

// Each receive completes once, in order, also the one that a message is filling.
TEST_F(RnicTest, AnErrorFlushesTheReceiveThatIsBeingFilled) {
  connect_ends();
  for (uint64_t id = 10; id < 13; ++id) {
    ASSERT_EQ(post_receive(b_, id, {there_.sge(0, 1 << 20)}), 0);
  }
  ASSERT_EQ(post(a_, send(1, 0, 64)), 0);
  ASSERT_EQ(post(a_, send(2, 0, 1 << 20)), 0);
  cluster_.pass(50'000);
  must(b_.queue_pair().to_error());
  EXPECT_EQ(received(), "10 success, 11 Work Request Flushed Error, 12 Work Request Flushed Error");
  const std::string outcome = sent();
  EXPECT_EQ(outcome, "1 success, 2 transport retry counter exceeded");
}

TEST_F(RnicTest, APeerThatDoesNotAnswerIsARetryError) {
  connect_ends({.retry_count = 3, .ack_timeout = 8});
  cluster_.node(1).crash();
  ASSERT_EQ(post(a_, write(1, 0, 64)), 0);
  ASSERT_EQ(post(a_, write(2, 0, 64)), 0);
  constexpr uint64_t kTimeoutNs = 4096 << 8;
  cluster_.pass(4 * kTimeoutNs - 1);
  EXPECT_EQ(text_of(take_all(a_)), "");
  cluster_.pass(2 * kTimeoutNs);
  EXPECT_EQ(text_of(take_all(a_)),
            "1 transport retry counter exceeded, 2 Work Request Flushed Error");
}

// The clock of a time-out begins with the request, not with the one before.
TEST_F(RnicTest, ARequestAfterAPauseHasItsWholeTimeOut) {
  connect_ends({.retry_count = 0, .ack_timeout = 8});
  constexpr uint64_t kTimeoutNs = 4096 << 8;
  for (uint64_t id = 1; id <= 40; ++id) {
    ASSERT_EQ(post(a_, write(id, 0, 64)), 0);
    cluster_.pass(kTimeoutNs - 20'000 + id * 1000);
    EXPECT_EQ(text_of(take_all(a_)), std::to_string(id) + " success");
  }
}

// ---- reset ----

TEST_F(RnicTest, AfterAResetItConnectsAgain) {
  for (int round = 0; round < 5; ++round) {
    connect_ends({.retry_count = 0, .ack_timeout = 8});
    here_.fill(static_cast<uint64_t>(round), 0, 64);
    ASSERT_EQ(post_receive(b_, 1, {there_.sge(0, 64)}), 0);
    ASSERT_EQ(post(a_, send(1, 0, 64)), 0);
    cluster_.settle();
    ASSERT_EQ(text_of(take_all(a_)), "1 success");
    ASSERT_EQ(text_of(take_all(b_)), "1 success");
    ASSERT_TRUE(there_.has(static_cast<uint64_t>(round), 0, 64));
    // Both are reset in the middle of something.
    ASSERT_EQ(post_receive(b_, 2, {there_.sge(0, 1 << 20)}), 0);
    ASSERT_EQ(post(a_, send(2, 0, 1 << 20)), 0);
    ASSERT_EQ(post(a_, write(3, 0, 100'000)), 0);
    ASSERT_EQ(post(a_, read(4, 0, 100'000)), 0);
    cluster_.pass(static_cast<uint64_t>(round) * 997);
    a_.reset();
    b_.reset();
  }
}

TEST_F(RnicTest, AfterAResetItDoesNotConnectToItsFormerPeer) {
  connect_ends();
  a_.reset();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_2048;
  attributes.dest_qp_num = b_.qp()->qp_num;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.dlid = 3;  // there are two nodes
  constexpr int kToReady = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  EXPECT_EQ(cluster_[0].control().modify_qp(a_.qp(), &attributes, kToReady), EINVAL);
  attributes.ah_attr.dlid = 2;
  EXPECT_EQ(cluster_[0].control().modify_qp(a_.qp(), &attributes, kToReady), 0);
}

// Its doorbell is still on its way when the queue pair is reset and used for another connection.
TEST_F(RnicTest, ADoorbellOfBeforeAResetMeansNothing) {
  connect_ends();
  here_.fill(1, 0, 64);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_EQ(post(a_, write(id, 0, 64)), 0);
  a_.reset();
  b_.reset();
  connect_ends();
  EXPECT_EQ(sent(), "");
  EXPECT_FALSE(there_.has(1, 0, 64)) << "a request of before the reset was sent";
  here_.fill(2, 0, 64);
  ASSERT_EQ(post(a_, write(4, 0, 64)), 0);
  EXPECT_EQ(sent(), "4 success");
  EXPECT_TRUE(there_.has(2, 0, 64));
}

// The fetch of a receive is under way when its queue pair is reset.
TEST_F(RnicTest, AReceiveQueueFetchesAgainAfterAReset) {
  const uint64_t step_ns = 25;
  for (uint64_t after_ns = 0; after_ns < 4000; after_ns += step_ns) {
    connect_ends({.retry_count = 1, .ack_timeout = 8});
    ASSERT_EQ(post_receive(b_, 1, {there_.sge(0, 64)}), 0);
    ASSERT_EQ(post(a_, send(1, 0, 64)), 0);
    cluster_.pass(after_ns);
    a_.reset();
    b_.reset();
    connect_ends({.retry_count = 1, .ack_timeout = 8});
    for (uint64_t id = 2; id <= 4; ++id) ASSERT_EQ(post_receive(b_, id, {there_.sge(0, 64)}), 0);
    for (uint64_t id = 2; id <= 4; ++id) ASSERT_EQ(post(a_, send(id, 0, 64)), 0);
    ASSERT_EQ(sent(), "2 success, 3 success, 4 success") << "reset after " << after_ns << " ns";
    ASSERT_EQ(received(), "2 success, 3 success, 4 success");
    a_.reset();
    b_.reset();
  }
}

// What was sent is on its way, whatever becomes of the sender and its memory.
TEST_F(RnicTest, WhatWasSentArrivesAsItWas) {
  for (uint64_t after_ns = 400; after_ns < 3000; after_ns += 50) {
    End a(cluster_[0]);
    End b(cluster_[1]);
    connect(a, b);
    Buffer from(cluster_[0], 4096);
    from.fill(after_ns, 0, 64);
    std::memset(there_.data(), 0, 64);
    SendRequest request = write(1, 0, 64);
    request.sges = {from.sge(0, 64)};
    ASSERT_EQ(post(a, request), 0);
    cluster_.pass(after_ns);
    a.close();
    from.deregister();
    std::memset(from.data(), 0xee, 64);
    cluster_.settle();
    const bool nothing = there_.at<uint64_t>(0) == 0 && there_.at<uint64_t>(56) == 0;
    ASSERT_TRUE(nothing || there_.has(after_ns, 0, 64)) << after_ns;
  }
}

TEST_F(RnicTest, AReadNeverReturnsWhatIsNotThere) {
  for (uint64_t after_ns = 400; after_ns < 3000; after_ns += 50) {
    End a(cluster_[0]);
    End b(cluster_[1]);
    connect(a, b, {.retry_count = 1, .ack_timeout = 8});
    Buffer from(cluster_[1], 4096);
    from.fill(after_ns, 0, 64);
    std::memset(here_.data(), 0, 64);
    SendRequest request = read(1, 0, 64);
    request.remote_address = from.address();
    request.rkey = from.key();
    ASSERT_EQ(post(a, request), 0);
    cluster_.pass(after_ns);
    from.deregister();
    std::memset(from.data(), 0xee, 64);
    cluster_.settle();
    const std::vector<ibv_wc> done = take_all(a);
    ASSERT_EQ(done.size(), 1u);
    if (done[0].status == IBV_WC_SUCCESS) {
      ASSERT_TRUE(here_.has(after_ns, 0, 64)) << after_ns;
    } else {
      ASSERT_EQ(done[0].status, IBV_WC_REM_ACCESS_ERR) << after_ns;
    }
  }
}

TEST_F(RnicTest, RegistersWhatAnRnicRegisters) {
  const auto complaint = [&](uint64_t bytes, unsigned access) {
    return MemoryRegion::create(cluster_[0].domain, here_.data(), bytes, access).status();
  };
  for (const unsigned access : {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC}) {
    EXPECT_EQ(complaint(64, access).message(),
              "cannot register 64 bytes: remote write or atomic access needs "
              "IBV_ACCESS_LOCAL_WRITE too");
    EXPECT_TRUE(complaint(64, access | IBV_ACCESS_LOCAL_WRITE).ok());
  }
  EXPECT_TRUE(complaint(64, IBV_ACCESS_REMOTE_READ).ok());
  EXPECT_EQ(complaint(UINT64_MAX, kAllAccess).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(complaint((uint64_t{1} << 46) + 1, kAllAccess).code(), StatusCode::kInvalidArgument);
}

TEST_F(RnicTest, AKeyOutlivesItsRegionByNothing) {
  const uint32_t key = there_.key();
  there_.deregister();
  for (int i = 0; i < 200; ++i) {
    Buffer next(cluster_[1], 64);
    ASSERT_NE(next.key(), key);
  }
}

TEST_F(RnicTest, WhatIsInUseIsNotDestroyed) {
  const VerbsControl& control = cluster_[0].control();
  ibv_context* const context = cluster_[0].device.get();
  ibv_pd* const domain = control.alloc_pd(context);
  ibv_mr* const region = control.reg_mr(domain, here_.data(), 64, 0, kAllAccess);
  EXPECT_EQ(control.dealloc_pd(domain), EBUSY);
  EXPECT_EQ(control.dereg_mr(region), 0);
  ibv_ah_attr address{};
  address.dlid = 1;
  address.port_num = 1;
  ibv_ah* const handle = control.create_ah(domain, &address);
  EXPECT_EQ(control.dealloc_pd(domain), EBUSY);
  EXPECT_EQ(control.destroy_ah(handle), 0);
  ibv_srq_init_attr shared{};
  shared.attr = {.max_wr = 1, .max_sge = 1, .srq_limit = 0};
  ibv_srq* const queue = control.create_srq(domain, &shared);
  EXPECT_EQ(control.dealloc_pd(domain), EBUSY);

  ibv_comp_channel* const channel = control.create_comp_channel(context);
  ibv_cq* const cq = control.create_cq(context, 4, nullptr, channel, 0);
  EXPECT_EQ(control.destroy_comp_channel(channel), EBUSY);
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_RC;
  init.send_cq = init.recv_cq = cq;
  init.srq = queue;
  ibv_qp* const qp = control.create_qp(domain, &init);
  EXPECT_EQ(control.destroy_cq(cq), EBUSY);
  EXPECT_EQ(control.destroy_srq(queue), EBUSY);
  EXPECT_EQ(control.destroy_qp(qp), 0);
  EXPECT_EQ(control.dealloc_pd(domain), EBUSY);
  EXPECT_EQ(control.destroy_srq(queue), 0);
  EXPECT_EQ(control.destroy_comp_channel(channel), EBUSY);
  EXPECT_EQ(control.destroy_cq(cq), 0);
  EXPECT_EQ(control.destroy_comp_channel(channel), 0);
  EXPECT_EQ(control.dealloc_pd(domain), 0);
}

// ---- events ----

TEST_F(RnicTest, ACompletionChannelWakesItsThreadAtTheTimeOfTheCompletion) {
  CompletionChannel channel = must(CompletionChannel::create(cluster_[1].device));
  End b(cluster_[1], {.channel = &channel});
  connect(a_, b);
  ASSERT_EQ(post_receive(b, 1, {there_.sge(0, 64)}), 0);
  uint64_t woken_ns = 0;
  Status timed_out;
  std::string got;
  Thread waiter = cluster_.start(1, [&] {
    ASSERT_EQ(ibv_req_notify_cq(b.cq(), 0), 0);
    timed_out = channel.wait(5'000).status();
    const Result<ibv_cq*> cq = channel.wait(-1);
    ASSERT_TRUE(cq.ok());
    EXPECT_EQ(*cq, b.cq());
    woken_ns = now_ns();
    got = text_of(take_all(b));
    // Not armed again: nothing comes.
    EXPECT_EQ(channel.wait(50'000).status().code(), StatusCode::kTimeout);
  });
  Thread sender = cluster_.start(0, [&] {
    sleep_ns(20'000);
    ASSERT_EQ(post(a_, send(1, 0, 64)), 0);
  });
  sender.join();
  waiter.join();
  EXPECT_EQ(timed_out.code(), StatusCode::kTimeout);
  EXPECT_EQ(got, "1 success");
  EXPECT_GT(woken_ns, 20'000u);
  EXPECT_LT(woken_ns, 25'000u);
}

TEST_F(RnicTest, APollerSeesAWriteWhenItHasArrived) {
  connect_ends();
  uint64_t seen_ns = 0;
  Thread poller = cluster_.start(1, [&] {
    std::vector<std::byte> memory(64);
    MemoryRegion mine =
        must(MemoryRegion::create(cluster_[1].domain, memory.data(), 64, kAllAccess));
    Thread sender = [&] {
      const OnNode here(cluster_.simulation(), cluster_.node(0));
      return start_thread("sender", [&] {
        here_.fill(1, 0, 8);
        ASSERT_EQ(post(a_, {.id = 1,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .sges = {here_.sge(0, 8)},
                            .remote_address = reinterpret_cast<uint64_t>(memory.data()),
                            .rkey = mine.rkey()}),
                  0);
      });
    }();
    const uint64_t begin_ns = now_ns();
    Waiter waiter;
    while (memory[0] == std::byte{0}) waiter.idle();
    seen_ns = now_ns() - begin_ns;
    sender.join();
  });
  poller.join();
  EXPECT_GT(seen_ns, 500u);
  EXPECT_LT(seen_ns, 5'000u);
}

}  // namespace
}  // namespace verbena::sim
