#include "src/bench/load/closed_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/request_response/request_work.h"

namespace verbena::bench {
namespace {

// Answers by itself: what it is asked for, unless it is told to misbehave.
class FakeRequester {
 public:
  explicit FakeRequester(uint32_t pending) : point(request_response_workload().point()) {
    point.pending = pending;
    buffers_.resize(pending, std::vector<char>(settings().request_bytes));
  }
  const RequestResponseSettings& settings() const { return request_response_settings(point); }
  char* request_buffer(uint32_t slot) { return buffers_[slot].data(); }

  PostResult try_post(uint32_t slot, uint32_t bytes) {
    EXPECT_EQ(bytes, settings().request_bytes);
    EXPECT_FALSE(waiting_.contains(slot)) << "posted twice";
    if (fail_after == 0) {
      status_ = Status(StatusCode::kUnavailable, "broken");
      return PostResult::kFailed;
    }
    if (refuse_every != 0 && ++attempts_ % refuse_every == 0) return PostResult::kWouldBlock;
    --fail_after;
    ++posted;
    waiting_.insert(slot);
    order_.push_back(slot);
    deepest = std::max(deepest, waiting_.size());
    return PostResult::kPosted;
  }

  template <typename OnResponse>
  uint32_t poll(OnResponse&& on_response) {
    if (++polls_ % 3 != 0 || order_.empty()) return 0;
    const uint32_t slot = order_.front();
    order_.pop_front();
    waiting_.erase(slot);
    const std::vector<char> response(settings().response_bytes - (++answered_ == wrong_at ? 1 : 0));
    on_response(slot, std::span<const char>(response));
    return 1;
  }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return status_; }

  Point point;
  uint64_t fail_after = UINT64_MAX;
  uint64_t refuse_every = 0;
  uint64_t wrong_at = 0;
  uint64_t posted = 0;
  size_t deepest = 0;

 private:
  std::vector<std::vector<char>> buffers_;
  std::set<uint32_t> waiting_;
  std::deque<uint32_t> order_;
  uint64_t attempts_ = 0;
  uint64_t polls_ = 0;
  uint64_t answered_ = 0;
  Status status_;
};

// Answers nothing.
class SilentRequester : public FakeRequester {
 public:
  using FakeRequester::FakeRequester;
  template <typename OnResponse>
  uint32_t poll(OnResponse&&) {
    return 0;
  }
};

// Answers nothing, and its loop is told to end at the first poll.
class HaltingRequester : public FakeRequester {
 public:
  HaltingRequester(uint32_t pending, std::atomic<bool>& halt)
      : FakeRequester(pending), halt_(halt) {}
  template <typename OnResponse>
  uint32_t poll(OnResponse&&) {
    halt_ = true;
    return 0;
  }

 private:
  std::atomic<bool>& halt_;
};

constexpr uint64_t kLongNs = 60'000'000'000;

class ClosedLoopTest : public testing::Test {
 protected:
  template <bool kSteered = false, typename Requester>
  LoopOutcome run(const std::vector<Requester*>& targets, LoopOrders orders) {
    const Point& point = targets.front()->point;
    orders.pending = point.pending;
    // However busy the machine is, the number of requests ends the run.
    if (orders.length.requests != UINT64_MAX) orders.length.duration_ns = kLongNs;
    std::vector<MessageWork> works(targets.size(), MessageWork(point, /*verify=*/false, 0));
    ClosedLoop<Requester, MessageWork, kSteered> loop(targets, works, orders, halt_);
    return loop.run_timed({latency_.get(), 1});
  }
  LoopOutcome run(FakeRequester& requester, const RunLength& length) {
    return run(std::vector<FakeRequester*>{&requester}, {.length = length});
  }

  std::atomic<bool> halt_{false};
  std::unique_ptr<Histogram> latency_ = std::make_unique<Histogram>();
};

TEST_F(ClosedLoopTest, KeepsSoManyPendingAndCountsEachOnce) {
  FakeRequester requester(7);
  const LoopOutcome outcome = run(requester, {.requests = 1000});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.completed, 1000u);
  EXPECT_EQ(outcome.unanswered, 0u);
  EXPECT_EQ(outcome.mismatches, 0u);
  EXPECT_EQ(requester.posted, 1000u);
  EXPECT_EQ(requester.deepest, 7u);
  EXPECT_EQ(latency_->count(), 1000u);
  EXPECT_GT(outcome.elapsed_ns(), 0);
}

TEST_F(ClosedLoopTest, FewerRequestsThanSlots) {
  FakeRequester requester(16);
  EXPECT_EQ(run(requester, {.requests = 3}).completed, 3u);
}

TEST_F(ClosedLoopTest, EndsByTime) {
  FakeRequester requester(4);
  const LoopOutcome outcome = run(requester, {.duration_ns = 5'000'000});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_GE(outcome.elapsed_ns(), 5e6);
  EXPECT_EQ(outcome.completed, requester.posted);
}

TEST_F(ClosedLoopTest, EndsWhereNothingIsAnswered) {
  SilentRequester requester(3);
  const LoopOutcome outcome =
      run(std::vector<SilentRequester*>{&requester}, {.length = {}, .stall_ns = 20'000'000});
  EXPECT_EQ(outcome.status.code(), StatusCode::kTimeout);
  EXPECT_THAT(outcome.status.message(), testing::HasSubstr("3 pending requests"));
  EXPECT_EQ(outcome.unanswered, 3u);
}

TEST_F(ClosedLoopTest, RestingIsNoStall) {
  FakeRequester requester(2);
  LoopOrders orders{.length = {.requests = 4, .duration_ns = 60'000'000'000}};
  orders.active_ppm = Point::kAlwaysActive / 2;
  orders.think_ns = 200'000'000;
  orders.stall_ns = 20'000'000;
  orders.seed = 1;
  const LoopOutcome outcome = run<true>(std::vector<FakeRequester*>{&requester}, orders);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.completed, 4u);
}

TEST_F(ClosedLoopTest, ShowsThatItRuns) {
  FakeRequester answering(1);
  SilentRequester silent(1);
  std::atomic<uint64_t> activity{0};
  run(std::vector<FakeRequester*>{&answering},
      {.length = {.requests = 1000}, .activity = &activity});
  EXPECT_EQ(activity, 1001u);  // before the first post, and with each response
  activity = 0;
  run(std::vector<SilentRequester*>{&silent},
      {.length = {}, .stall_ns = 20'000'000, .activity = &activity});
  EXPECT_GT(activity, 10u);
}

TEST_F(ClosedLoopTest, PostsAgainWhatWasRefused) {
  FakeRequester requester(5);
  requester.refuse_every = 3;
  const LoopOutcome outcome = run(requester, {.requests = 500});
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.completed, 500u);
  EXPECT_EQ(requester.posted, 500u);
}

TEST_F(ClosedLoopTest, CountsWrongResponses) {
  FakeRequester requester(2);
  requester.wrong_at = 17;
  EXPECT_EQ(run(requester, {.requests = 100}).mismatches, 1u);
}

TEST_F(ClosedLoopTest, EndsWhereTheConnectionBreaks) {
  FakeRequester requester(4);
  requester.fail_after = 50;
  const LoopOutcome outcome = run(requester, {.requests = 100});
  EXPECT_EQ(outcome.status.message(), "broken");
  EXPECT_GT(outcome.unanswered, 0u);
}

TEST_F(ClosedLoopTest, EndsWhenTold) {
  HaltingRequester requester(1, halt_);
  const LoopOutcome outcome =
      run(std::vector<HaltingRequester*>{&requester}, {.length = {.requests = 10}});
  EXPECT_EQ(outcome.unanswered, 1u);
}

TEST_F(ClosedLoopTest, TheDurationCountsFromTheCommonBeginning) {
  FakeRequester requester(2);
  LoopOrders orders;
  orders.length.duration_ns = 1'000'000'000;
  orders.begin_ns = now_ns() - 2'000'000'000;
  // Over before it began: what is pending goes out once.
  EXPECT_EQ(run(std::vector<FakeRequester*>{&requester}, orders).completed, 2u);
}

// A thread that comes late, as where another one had its core, ends its settling with the others.
TEST_F(ClosedLoopTest, TheWindowIsThatOfTheCommonBeginning) {
  constexpr uint64_t kSecondNs = 1'000'000'000;
  FakeRequester requester(2);
  LoopOrders orders;
  orders.length.requests = 50;
  orders.settle_ns = 10 * kSecondNs;
  orders.begin_ns = now_ns() - 20 * kSecondNs;
  const LoopOutcome outcome = run<true>(std::vector<FakeRequester*>{&requester}, orders);
  EXPECT_EQ(outcome.completed, 50u) << "those were before the window";
  EXPECT_EQ(outcome.first_ns, orders.begin_ns + orders.settle_ns);
  EXPECT_GT(outcome.last_ns, now_ns()) << "until the duration of all is over";
}

TEST_F(ClosedLoopTest, KeepsEveryTargetBusy) {
  FakeRequester first(3);
  FakeRequester second(3);
  const LoopOutcome outcome =
      run(std::vector<FakeRequester*>{&first, &second}, {.length = {.requests = 600}});
  EXPECT_EQ(outcome.completed, 600u);
  EXPECT_EQ(first.deepest, 3u);
  EXPECT_EQ(second.deepest, 3u);
  EXPECT_EQ(first.posted + second.posted, 600u);
  EXPECT_GT(first.posted, 200u);
  EXPECT_GT(second.posted, 200u);
}

TEST_F(ClosedLoopTest, DrawsATargetForEachRequest) {
  std::vector<std::unique_ptr<FakeRequester>> owners;
  std::vector<FakeRequester*> targets;
  for (int i = 0; i < 4; ++i) {
    owners.push_back(std::make_unique<FakeRequester>(2));
    targets.push_back(owners.back().get());
  }
  const LoopOrders orders{.length = {.requests = 4000}, .random_target = true, .seed = 5};
  const LoopOutcome outcome = run<true>(targets, orders);
  EXPECT_EQ(outcome.completed, 4000u);
  size_t deepest = 0;
  for (const FakeRequester* target : targets) {
    EXPECT_NEAR(static_cast<double>(target->posted), 1000, 150);
    deepest += target->deepest;
  }
  EXPECT_GE(deepest, 5u);  // two at once somewhere, but two in all
  EXPECT_LE(deepest, 8u);
}

TEST_F(ClosedLoopTest, RestsInsteadOfARequest) {
  FakeRequester requester(1);
  const LoopOrders orders{.length = {.requests = 1000},
                          .active_ppm = Point::kAlwaysActive / 4,
                          .think_ns = 10'000,
                          .seed = 7};
  const LoopOutcome outcome = run<true>(std::vector<FakeRequester*>{&requester}, orders);
  EXPECT_EQ(outcome.completed, 1000u);
  // Three rests for each request, on average.
  EXPECT_GE(outcome.elapsed_ns(), 2000 * 10'000.0);
}

TEST_F(ClosedLoopTest, ARunEndsWhileAllRest) {
  FakeRequester requester(3);
  const LoopOrders orders{
      .length = {.duration_ns = 3'000'000}, .active_ppm = 1, .think_ns = 1'000'000'000, .seed = 3};
  const LoopOutcome outcome = run<true>(std::vector<FakeRequester*>{&requester}, orders);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.unanswered, 0u);
}

TEST_F(ClosedLoopTest, CostIsCountedPerMessage) {
  FakeRequester requester(3);
  FakeRequester* const targets[] = {&requester};
  MessageWork works[] = {MessageWork(requester.point, /*verify=*/false, 0)};
  ClosedLoop<FakeRequester, MessageWork, false> loop(
      targets, works, {.pending = 3, .length = {.requests = 1000, .duration_ns = kLongNs}}, halt_);
  PollCost cost(Side::kRequester);
  EXPECT_EQ(loop.run_costed(cost).completed, 1000u);
  ASSERT_TRUE(cost.per_message().has_value());
  EXPECT_GT(cost.per_message()->cycles, 0);
  EXPECT_EQ(cost.messages(), 1000u);
}

TEST(PollCost, TheMeanOverThreadsCountsEachMessage) {
  const WeighedCost many{{.cycles = 100, .instructions = 300}, 30};
  const WeighedCost few{{.cycles = 200, .instructions = 700}, 10};
  const WeighedCost uncounted{{.cycles = 200}, 10};
  EXPECT_FALSE(mean_cost({}).has_value());
  EXPECT_EQ(mean_cost({many, few}), (CpuCost{.cycles = 125, .instructions = 400}));
  EXPECT_EQ(mean_cost({many, uncounted}), CpuCost{.cycles = 125});
  EXPECT_EQ(mean_cost({{CpuCost{}, 0}}), CpuCost{});
}

TEST(PollCost, HasNothingToSayWithoutMessages) {
  PollCost cost(Side::kRequester);
  EXPECT_EQ(cost.measure([] { return 0u; }), 0u);
  EXPECT_FALSE(cost.per_message().has_value());
}

}  // namespace
}  // namespace verbena::bench
