// The order of doorbells, what a context that is not on chip does to those behind it, and who waits
// for room.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/recorder.h"

namespace verbena::sim {
namespace {

constexpr uint64_t kFetchNs = 100'000;  // of a context: long against all else

Profile slow_contexts() {
  Profile profile = test_profile();
  profile.context_miss = kFetchNs * kPsPerNs;
  return profile;
}

struct Pair {
  explicit Pair(Cluster& cluster) : near(cluster[0]), far(cluster[1]) { connect(near, far); }
  End near;
  End far;
};

class DoorbellsTest : public testing::Test {
 protected:
  // Inline WQEs go along with their doorbells.
  SendRequest write(uint64_t id, unsigned flags) {
    return {.id = id,
            .opcode = IBV_WR_RDMA_WRITE,
            .sges = {here_.sge(0, 8)},
            .flags = IBV_SEND_SIGNALED | flags,
            .remote_address = there_.address(),
            .rkey = there_.key()};
  }
  void warm(Pair& pair) {
    must_post(pair, 0, IBV_SEND_INLINE);
    cluster_.settle();
    take_all(pair.near);
  }
  void must_post(Pair& pair, uint64_t id, unsigned flags) {
    ASSERT_EQ(post(pair.near, write(id, flags)), 0);
  }
  std::string done(Pair& pair) { return text_of(take_all(pair.near)); }

  Cluster cluster_{2, /*seed=*/1, slow_contexts()};
  Buffer here_{cluster_[0], 4096};
  Buffer there_{cluster_[1], 4096};
};

TEST_F(DoorbellsTest, AContextThatIsFetchedKeepsLaterDoorbellsWaiting) {
  for (const unsigned flags : {0u, unsigned{IBV_SEND_INLINE}}) {
    Pair known(cluster_);
    Pair unknown(cluster_);
    warm(known);
    must_post(unknown, 1, flags);
    must_post(known, 2, flags);
    cluster_.pass(kFetchNs * 9 / 10);
    EXPECT_EQ(done(known), "");
    cluster_.pass(kFetchNs / 2);
    EXPECT_EQ(done(known), "2 success");
  }
}

TEST_F(DoorbellsTest, EarlierDoorbellsDoNotWait) {
  Pair known(cluster_);
  Pair unknown(cluster_);
  warm(known);
  must_post(known, 1, IBV_SEND_INLINE);
  must_post(unknown, 2, IBV_SEND_INLINE);
  cluster_.pass(kFetchNs / 2);
  EXPECT_EQ(done(known), "1 success");
}

TEST_F(DoorbellsTest, ContextsAreFetchedOneAfterTheOther) {
  constexpr uint64_t kPairs = 5;
  std::vector<std::unique_ptr<Pair>> pairs;
  for (uint64_t i = 0; i < kPairs; ++i) pairs.push_back(std::make_unique<Pair>(cluster_));
  for (uint64_t i = 0; i < kPairs; ++i) must_post(*pairs[i], i, IBV_SEND_INLINE);
  cluster_.pass((kPairs - 1) * kFetchNs);
  // Its responder has fetched its side's context by then, too; that of the last has hardly begun.
  EXPECT_EQ(done(*pairs.front()), "0 success");
  EXPECT_EQ(done(*pairs.back()), "");
  cluster_.settle();
  EXPECT_EQ(done(*pairs.back()), "4 success");
}

// What is posted while a queue pair waits for its context is handled with the rest.
TEST_F(DoorbellsTest, DoorbellsOfAQueuePairThatWaitsAreHandledTogether) {
  constexpr uint64_t kPosts = 10;
  Pair pair(cluster_);
  Recorder recorder(1 << 16);
  cluster_.simulation().record(&recorder);
  for (uint64_t i = 0; i < kPosts; ++i) must_post(pair, i, 0);
  cluster_.settle();
  cluster_.simulation().record(nullptr);
  EXPECT_EQ(take_all(pair.near).size(), kPosts);
  std::vector<Time> fetched;
  for (const Step& step : recorder.steps()) {
    if (step.kind == StepKind::kWqeFetch) fetched.push_back(step.begin);
  }
  EXPECT_EQ(fetched, std::vector<Time>(kPosts, fetched.front()));
}

// A WQE that came along is of use to a queue pair that has nothing else to do.
TEST(DoorbellsOfBusyQueuePairsTest, TheirWqesAreFetchedThoughTheyCameAlong) {
  for (const uint64_t idle_only : {0, 1}) {
    Profile profile = test_profile();
    profile.blueflame_idle_only = idle_only;
    Cluster cluster(2, /*seed=*/1, profile);
    Buffer here(cluster[0], 64);
    Buffer there(cluster[1], 64);
    Pair pair(cluster);
    const auto fetches = [&](int posts) {
      Recorder recorder(1 << 16);
      cluster.simulation().record(&recorder);
      for (int i = 0; i < posts; ++i) {
        EXPECT_EQ(post(pair.near, {.opcode = IBV_WR_RDMA_READ,
                                   .sges = {here.sge(0, 8)},
                                   .remote_address = there.address(),
                                   .rkey = there.key()}),
                  0);
      }
      cluster.settle();
      cluster.simulation().record(nullptr);
      EXPECT_EQ(take_all(pair.near).size(), static_cast<size_t>(posts));
      return std::count_if(recorder.steps().begin(), recorder.steps().end(),
                           [](const Step& step) { return step.kind == StepKind::kWqeFetch; });
    };
    EXPECT_EQ(fetches(1), 0);
    EXPECT_EQ(fetches(4), idle_only == 1 ? 3 : 0);
    EXPECT_EQ(fetches(1), 0);
  }
}

// An inline payload makes its WQE longer, and the fetch of it.
TEST_F(DoorbellsTest, AWqeIsFetchedWithThePayloadThatItCarries) {
  const Profile& profile = cluster_.node(0).profile;
  const auto fetch_time = [this](unsigned flags) {
    constexpr uint32_t kBytes = 400;  // more than goes along with a doorbell
    End near(cluster_[0], {.max_inline_bytes = kBytes});
    End far(cluster_[1]);
    connect(near, far);
    Recorder recorder(1 << 10);
    cluster_.simulation().record(&recorder);
    SendRequest request = write(1, flags);
    request.sges = {here_.sge(0, kBytes)};
    EXPECT_EQ(post(near, request), 0);
    cluster_.settle();
    cluster_.simulation().record(nullptr);
    Time took = 0;
    for (const Step& step : recorder.steps()) {
      if (step.kind == StepKind::kWqeFetch) took += step.end - step.begin;
    }
    return took;
  };
  const auto moving = [&profile](uint64_t bytes) {
    return std::max(profile.bus_time(bytes, profile.pcie_down_kib), bytes * profile.dma_kib / 1024);
  };
  // 16 B each of control, address and gather list; or 4 B and 400 B after the first two.
  EXPECT_EQ(fetch_time(0), profile.pcie_read + moving(64));
  EXPECT_EQ(fetch_time(IBV_SEND_INLINE), profile.pcie_read + moving(448));
}

// Of WQEs that came along and are handled together, the first is sent at once; the RNIC keeps no
// copies of the others.
TEST_F(DoorbellsTest, EntriesThatComeAlongAndWaitAreFetchedAfterAll) {
  constexpr uint64_t kReads = 4;
  Pair pair(cluster_);
  Recorder recorder(1 << 16);
  cluster_.simulation().record(&recorder);
  for (uint64_t i = 0; i < kReads; ++i) {
    SendRequest request = write(i, 0);
    request.opcode = IBV_WR_RDMA_READ;
    ASSERT_EQ(post(pair.near, request), 0);
  }
  cluster_.settle();
  cluster_.simulation().record(nullptr);
  EXPECT_EQ(take_all(pair.near).size(), kReads);
  std::vector<uint64_t> fetched;
  for (const Step& step : recorder.steps()) {
    const bool again = step.kind == StepKind::kSendMiss && step.node == 0 &&
                       step.packet == PacketKind::kRequest &&
                       step.end - step.begin == cluster_.node(0).profile.pcie_read;
    if (again) fetched.push_back(step.message.number);
  }
  EXPECT_EQ(fetched, (std::vector<uint64_t>{1, 2, 3}));
}

TEST_F(DoorbellsTest, WhoPostsStandsStillWhenThereIsNoRoomForEntries) {
  Pair pair(cluster_);
  const uint64_t room = cluster_.node(0).rnic.wqe_room();
  std::vector<uint64_t> posted_ns;
  Thread thread = cluster_.start(0, [&] {
    for (uint64_t i = 0; i < room + 3; ++i) {
      must_post(pair, i, IBV_SEND_INLINE);
      posted_ns.push_back(now_ns());
    }
  });
  thread.join();
  EXPECT_LT(posted_ns[room - 1] - posted_ns[0], kFetchNs / 2);
  EXPECT_GT(posted_ns[room] - posted_ns[room - 1], kFetchNs / 2);
  EXPECT_LT(posted_ns[room + 2] - posted_ns[room], kFetchNs / 2);
  cluster_.settle();
  EXPECT_EQ(take_all(pair.near).size(), room + 3);
}

TEST_F(DoorbellsTest, PlainDoorbellsNeedNoRoom) {
  Pair pair(cluster_);
  const uint64_t room = cluster_.node(0).rnic.wqe_room();
  uint64_t took_ns = 0;
  Thread thread = cluster_.start(0, [&] {
    const uint64_t begin_ns = now_ns();
    for (uint64_t i = 0; i < room + 3; ++i) must_post(pair, i, 0);
    took_ns = now_ns() - begin_ns;
  });
  thread.join();
  EXPECT_LT(took_ns, kFetchNs / 2);
  cluster_.settle();
  EXPECT_EQ(take_all(pair.near).size(), room + 3);
}

// Where as many reads as there can be are under way, a long one can begin just before a short one
// and end behind it.
TEST(DoorbellsOrderTest, AFewWqesDoNotOvertakeManyOfTheirQueuePair) {
  constexpr uint64_t kMany = 8;
  Profile profile = test_profile();
  profile.pcie_reads_at_once = 2;
  Cluster cluster(2, /*seed=*/1, profile);
  Buffer here(cluster[0], 64);
  Buffer there(cluster[1], 64);
  std::vector<std::unique_ptr<Pair>> pairs;
  for (int i = 0; i < 3; ++i) pairs.push_back(std::make_unique<Pair>(cluster));
  SendRequest write{.opcode = IBV_WR_RDMA_WRITE,
                    .sges = {here.sge(0, 8)},
                    .remote_address = there.address(),
                    .rkey = there.key()};
  std::vector<ibv_send_wr> many(kMany, test::to_wr(write));
  for (uint64_t i = 0; i < kMany; ++i) {
    many[i].wr_id = i;
    many[i].next = i + 1 < kMany ? &many[i + 1] : nullptr;
  }
  for (const auto& pair : pairs) ASSERT_EQ(post(pair->near, write), 0);
  cluster.settle();  // now their contexts are on chip
  for (const auto& pair : pairs) ASSERT_EQ(take_all(pair->near).size(), 1u);
  for (int i = 1; i < 3; ++i) ASSERT_EQ(post(pairs[i]->near, write), 0);
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_send(pairs[0]->near.qp(), many.data(), &bad), 0);
  write.id = kMany;
  ASSERT_EQ(post(pairs[0]->near, write), 0);
  cluster.settle();
  EXPECT_EQ(text_of(take_all(pairs[0]->near)),
            "0 success, 1 success, 2 success, 3 success, 4 success, 5 success, 6 success, "
            "7 success, 8 success");
}

// The room is given on in the order of the posts, and every one comes to it.
TEST(DoorbellsOrderTest, ThreadsThatStandStillGoOnInTheirOrder) {
  constexpr uint64_t kThreads = 6;
  Profile profile = slow_contexts();
  profile.blueflame_queue = 0;
  profile.pcie_one_way = kPsPerNs;  // the bus holds one
  Cluster cluster(2, /*seed=*/1, profile);
  Buffer here(cluster[0], 64);
  Buffer there(cluster[1], 64);
  std::vector<std::unique_ptr<Pair>> pairs;
  for (uint64_t i = 0; i < kThreads; ++i) pairs.push_back(std::make_unique<Pair>(cluster));
  std::vector<uint64_t> order;
  std::vector<Thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.push_back(cluster.start(0, [&, i] {
      sleep_ns(1'000 * (i + 1));
      ASSERT_EQ(post(pairs[i]->near, {.id = i,
                                      .opcode = IBV_WR_RDMA_WRITE,
                                      .sges = {here.sge(0, 8)},
                                      .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
                                      .remote_address = there.address(),
                                      .rkey = there.key()}),
                0);
      order.push_back(i);
    }));
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_GT(now_ns(), (kThreads - 2) * kFetchNs) << "nobody had to wait";
  cluster.settle();
  for (uint64_t i = 0; i < kThreads; ++i) {
    EXPECT_EQ(text_of(take_all(pairs[i]->near)), std::to_string(i) + " success");
  }
}

// Messages per second of 16 threads that each keep more pending than the way takes.
double write_rate(Profile profile, Time one_way) {
  constexpr uint64_t kThreads = 16;
  constexpr uint64_t kPending = 128;
  constexpr uint64_t kMessages = 2'000;
  constexpr uint64_t kTimed = kThreads * kMessages / 2;
  profile.pcie_one_way = one_way;
  profile.cores = kThreads;
  Cluster cluster(2, /*seed=*/1, profile);
  Buffer here(cluster[0], 64);
  Buffer there(cluster[1], 64);
  std::vector<std::unique_ptr<Pair>> pairs;
  for (uint64_t i = 0; i < kThreads; ++i) pairs.push_back(std::make_unique<Pair>(cluster));
  std::vector<Thread> threads;
  uint64_t done = 0;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  for (const auto& pair : pairs) {
    threads.push_back(cluster.start(0, [&, end = &pair->near] {
      uint64_t posted = 0;
      uint64_t taken = 0;
      while (taken < kMessages) {
        while (posted < kMessages && posted - taken < kPending) {
          ASSERT_EQ(post(*end, {.id = posted++,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .sges = {here.sge(0, 8)},
                                .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
                                .remote_address = there.address(),
                                .rkey = there.key()}),
                    0);
        }
        ibv_wc completion;
        const int polled = ibv_poll_cq(end->cq(), 1, &completion);
        ASSERT_GE(polled, 0);
        if (polled == 0) continue;
        ++taken;
        ++done;
        // Neither the start nor the end, in which fewer threads send.
        if (done == kTimed / 2) begin_ns = now_ns();
        if (done == kTimed / 2 + kTimed) end_ns = now_ns();
      }
    }));
  }
  for (Thread& thread : threads) thread.join();
  return static_cast<double>(kTimed) * 1e9 / static_cast<double>(end_ns - begin_ns);
}

// What is on its way fills the bus, not the room on the chip.
TEST(DoorbellsRateTest, TheWayOverTheBusLimitsNoRate) {
  for (const char* name : {"connectx5-edr", "connectx6-hdr"}) {
    Profile profile = must(load_profile(name));
    const double near = write_rate(profile, 100 * kPsPerNs);
    const double far = write_rate(profile, 1'000 * kPsPerNs);
    EXPECT_NEAR(far, near, 0.03 * near) << name;
    // More than the room on the chip, given back after a way of 1 us, would let pass.
    EXPECT_GT(far, 1.5 * static_cast<double>(profile.blueflame_queue) * 1e6) << name;
  }
}

// Rooms do not get lost where queue pairs are reset, or in error, with doorbells on their way.
TEST(DoorbellsRateTest, WithoutRoomAndWayOneWqeComesAlongAtATime) {
  Profile profile = test_profile();
  profile.blueflame_queue = 0;
  profile.pcie_one_way = 0;
  Cluster cluster(2, /*seed=*/1, profile);
  Buffer here(cluster[0], 64);
  Buffer there(cluster[1], 64);
  Pair pair(cluster);
  std::vector<uint32_t> left(1);
  Thread thread = cluster.start(0, [&] {
    post_and_poll(pair.near, IBV_WR_RDMA_READ, here, there, 20, 4, 0, left);
    ++left[0];
  });
  thread.join();
  EXPECT_EQ(left[0], 1u);
}

TEST_F(DoorbellsTest, DoorbellsThatMeanNothingGiveTheirRoomBack) {
  const uint64_t room = cluster_.node(0).rnic.wqe_room();
  for (int round = 0; round < 20; ++round) {
    Pair pair(cluster_);
    uint64_t took_ns = 0;
    Thread thread = cluster_.start(0, [&] {
      const uint64_t begin_ns = now_ns();
      for (uint64_t i = 0; i < room; ++i) must_post(pair, i, IBV_SEND_INLINE);
      took_ns = now_ns() - begin_ns;
    });
    thread.join();
    EXPECT_LT(took_ns, kFetchNs / 2) << "round " << round;
    cluster_.pass(static_cast<uint64_t>(round) * 100);
    if (round % 2 == 0) {
      pair.near.reset();
    } else {
      must(pair.near.queue_pair().to_error());
    }
    cluster_.settle();
  }
}

// The lock's line lies with who posted last.
TEST_F(DoorbellsTest, ALockThatAnotherThreadHeldLastTakesLonger) {
  Pair first(cluster_);
  Pair second(cluster_);
  warm(first);
  warm(second);
  uint64_t alone_ns = 0;
  uint64_t handed_ns = 0;
  Thread one = cluster_.start(0, [&] {
    must_post(first, 1, IBV_SEND_INLINE);
    sleep_ns(20'000);
    const uint64_t begin_ns = now_ns();
    must_post(first, 2, IBV_SEND_INLINE);
    alone_ns = now_ns() - begin_ns;
  });
  Thread other = cluster_.start(0, [&] {
    sleep_ns(50'000);
    const uint64_t begin_ns = now_ns();
    must_post(second, 3, IBV_SEND_INLINE);
    handed_ns = now_ns() - begin_ns;
  });
  one.join();
  other.join();
  const Profile& profile = cluster_.node(0).profile;
  const uint64_t more_ns = (profile.cpu_line_transfer + profile.blueflame_lock_contended -
                            profile.blueflame_lock_alone) /
                           kPsPerNs;
  // Building the WQE takes not always the same.
  EXPECT_GT(handed_ns, alone_ns + more_ns / 2);
  EXPECT_LT(handed_ns, alone_ns + 2 * more_ns);
}

// Two dedicated registers and two shared ones: queue pairs 0 and 1 have one each; of the others,
// every second one shares one.
class RegistersTest : public testing::Test {
 protected:
  static Profile profile() {
    Profile profile = must(load_profile("connectx6-hdr"));
    profile.doorbell_registers = 4;
    profile.dedicated_registers = 2;
    profile.jitter_percent = 0;
    profile.shared_queue_lines = 0;  // a queue pair's next thread is to pay for registers only
    return profile;
  }
  static constexpr uint64_t kPosts = 64;
  // How long the posts of so many threads take, each to a queue pair of its own, at the same time.
  uint64_t post_all_ns(const std::vector<size_t>& pairs, unsigned flags) {
    uint64_t longest_ns = 0;
    std::vector<Thread> threads;
    for (const size_t pair : pairs) {
      threads.push_back(cluster_.start(0, [&, end = &pairs_[pair]->near] {
        const uint64_t begin_ns = now_ns();
        for (uint64_t i = 0; i < kPosts; ++i) {
          ASSERT_EQ(post(*end, {.id = i,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .sges = {here_.sge(0, 8)},
                                .flags = IBV_SEND_SIGNALED | flags,
                                .remote_address = there_.address(),
                                .rkey = there_.key()}),
                    0);
        }
        longest_ns = std::max(longest_ns, now_ns() - begin_ns);
      }));
    }
    for (Thread& thread : threads) thread.join();
    cluster_.settle();
    for (const size_t pair : pairs) EXPECT_EQ(take_all(pairs_[pair]->near).size(), kPosts);
    return longest_ns;
  }
  uint64_t post_both_ns(size_t one, size_t other, unsigned flags) {
    return post_all_ns({one, other}, flags);
  }
  RegistersTest() {
    for (int i = 0; i < 9; ++i) pairs_.push_back(std::make_unique<Pair>(cluster_));
  }

  Cluster cluster_{2, /*seed=*/1, profile()};
  Buffer here_{cluster_[0], 64};
  Buffer there_{cluster_[1], 64};
  std::vector<std::unique_ptr<Pair>> pairs_;
};

TEST_F(RegistersTest, ThreadsThatShareOneWaitForEachOther) {
  for (const unsigned flags : {unsigned{IBV_SEND_INLINE}, 0u}) {
    const uint64_t dedicated_ns = post_both_ns(0, 1, flags);
    const uint64_t apart_ns = post_both_ns(2, 3, flags);
    const uint64_t shared_ns = post_both_ns(2, 4, flags);
    EXPECT_GT(apart_ns, dedicated_ns);  // a lock that nobody else holds
    EXPECT_LT(apart_ns, dedicated_ns * 3 / 2);
    EXPECT_GT(shared_ns, apart_ns * 3 / 2);
  }
}

// All who spin for a lock take its line when it is handed on, so the more they are the longer that
// takes: several threads post less together than two.
TEST_F(RegistersTest, HandingALockOnTakesLongerTheMoreThreadsWait) {
  const auto of_each_ns = [&](const std::vector<size_t>& sharing) {
    return static_cast<double>(post_all_ns(sharing, IBV_SEND_INLINE)) /
           static_cast<double>(sharing.size() * kPosts);
  };
  const double two_ns = of_each_ns({2, 4});
  const double four_ns = of_each_ns({2, 4, 6, 8});
  // Of four, one has the lock and three wait: who comes finds two before it, where of two there is
  // none.
  const double more_ns =
      2 * static_cast<double>(cluster_.node(0).profile.blueflame_lock_waiter) / kPsPerNs;
  EXPECT_NEAR(four_ns - two_ns, more_ns, 0.25 * more_ns);
}

TEST_F(RegistersTest, ADestroyedQueuePairGivesItsOwnBack) {
  const uint64_t dedicated_ns = post_both_ns(0, 1, IBV_SEND_INLINE);
  pairs_[1].reset();
  pairs_[1] = std::make_unique<Pair>(cluster_);
  const uint64_t again_ns = post_both_ns(0, 1, IBV_SEND_INLINE);
  EXPECT_LT(again_ns, dedicated_ns + 64);  // of a register with a lock: more for each post
}

// libmlx4: one register of a context, whose lock only WQEs that come along take.
TEST_F(DoorbellsTest, WithOneRegisterPlainDoorbellsDoNotWait) {
  ASSERT_EQ(cluster_.node(0).profile.doorbell_registers, 1u);
  Pair first(cluster_);
  Pair second(cluster_);
  warm(first);
  warm(second);
  const auto both_ns = [&](unsigned flags) {
    std::vector<Thread> threads;
    uint64_t longest_ns = 0;
    for (Pair* const pair : {&first, &second}) {
      threads.push_back(cluster_.start(0, [&, pair] {
        const uint64_t begin_ns = now_ns();
        for (uint64_t i = 0; i < 8; ++i) must_post(*pair, i, flags);
        longest_ns = std::max(longest_ns, now_ns() - begin_ns);
      }));
    }
    for (Thread& thread : threads) thread.join();
    cluster_.settle();
    take_all(first.near);
    take_all(second.near);
    return longest_ns;
  };
  EXPECT_LT(both_ns(0), both_ns(IBV_SEND_INLINE));
}

}  // namespace
}  // namespace verbena::sim
