#include "src/bench/load/open_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "src/base/histogram.h"

namespace verbena::bench {
namespace {

// Answers one request at every second poll, and refuses, breaks or falls silent where it is told.
class ArrivalRequester {
 public:
  char* request_buffer(uint32_t /*slot*/) { return nullptr; }
  PostResult try_post(uint32_t slot, uint32_t /*bytes*/) {
    if (breaks) {
      status_ = Status(StatusCode::kUnavailable, "broken");
      return PostResult::kFailed;
    }
    if (refuse_every != 0 && ++attempts_ % refuse_every == 0) return PostResult::kWouldBlock;
    EXPECT_EQ(std::count(under_way_.begin(), under_way_.end(), slot), 0) << "posted twice";
    under_way_.push_back(slot);
    deepest = std::max(deepest, under_way_.size());
    return PostResult::kPosted;
  }
  template <typename OnResponse>
  uint32_t poll(OnResponse&& on_response) {
    if (silent || ++polls_ % 2 != 0 || under_way_.empty()) return 0;
    const uint32_t slot = under_way_.front();
    under_way_.pop_front();
    ++answered;
    on_response(slot, std::span<const char>());
    return 1;
  }
  const Status& status() const { return status_; }

  bool breaks = false;
  bool silent = false;
  uint64_t refuse_every = 0;
  size_t deepest = 0;
  uint64_t answered = 0;

 private:
  std::deque<uint32_t> under_way_;
  uint64_t attempts_ = 0;
  uint64_t polls_ = 0;
  Status status_;
};

struct EmptyWork {
  static constexpr bool takes_time() { return false; }
  uint32_t prepare(uint32_t /*slot*/, char* /*request*/) { return 0; }
  bool check(uint32_t /*slot*/, std::span<const char> /*response*/) { return true; }
};

class OpenLoopTest : public testing::Test {
 protected:
  // However busy the machine is, the number of requests ends the run.
  OpenLoopOutcome run(std::vector<ArrivalRequester*> targets, LoopOrders orders,
                      const ArrivalOrders& arrivals) {
    orders.length.duration_ns = 60'000'000'000;
    std::vector<EmptyWork> works(targets.size());
    OpenLoop<ArrivalRequester, EmptyWork> loop(targets, works, orders, arrivals, halt_);
    return loop.run_timed({latency_.get(), 1});
  }

  std::atomic<bool> halt_{false};
  std::unique_ptr<Histogram> latency_ = std::make_unique<Histogram>();
};

TEST_F(OpenLoopTest, CountsEachRequestOnceAndKeepsToItsSlots) {
  std::array<ArrivalRequester, 2> targets;
  targets[1].refuse_every = 3;
  const OpenLoopOutcome outcome =
      run({&targets[0], &targets[1]}, {.pending = 3, .length = {.requests = 1000}},
          {.rate_per_s = 1e9});
  EXPECT_TRUE(outcome.loop.status.ok()) << outcome.loop.status.message();
  EXPECT_EQ(outcome.loop.completed, 1000u);
  EXPECT_EQ(outcome.loop.unanswered, 0u);
  EXPECT_EQ(outcome.arrivals, 1000u);
  EXPECT_EQ(latency_->count(), 1000u);
  for (const ArrivalRequester& target : targets) {
    EXPECT_LE(target.deepest, 3u);
    EXPECT_GT(target.answered, 0u);
  }
}

TEST_F(OpenLoopTest, SlotsBelongToTheThreadWhereTargetsAreDrawn) {
  std::array<ArrivalRequester, 3> targets;
  const OpenLoopOutcome outcome =
      run({&targets[0], &targets[1], &targets[2]},
          {.pending = 2, .length = {.requests = 3000}, .random_target = true, .seed = 1},
          {.rate_per_s = 1e9});
  EXPECT_EQ(outcome.loop.completed, 3000u);
  for (const ArrivalRequester& target : targets) EXPECT_GT(target.answered, 500u);
}

// However late this thread runs, no request is due before its time, and none is left out.
TEST_F(OpenLoopTest, SendsNothingBeforeItArrives) {
  ArrivalRequester target;
  constexpr uint64_t kRequests = 20;
  constexpr double kRatePerS = 1000;
  const OpenLoopOutcome outcome =
      run({&target}, {.pending = 4, .length = {.requests = kRequests}},
          {.arrivals = Arrivals::kEven, .rate_per_s = kRatePerS, .first_share = 0.5});
  EXPECT_EQ(outcome.loop.completed, kRequests);
  EXPECT_GE(outcome.loop.elapsed_ns(), (kRequests - 0.5) / kRatePerS * 1e9 * 0.999);
  EXPECT_NEAR(static_cast<double>(outcome.arrivals_ns), (kRequests + 0.5) / kRatePerS * 1e9, 1e4);
}

TEST_F(OpenLoopTest, EndsWhereNothingIsAnswered) {
  ArrivalRequester target;
  target.silent = true;
  const OpenLoopOutcome outcome =
      run({&target}, {.pending = 3, .length = {}, .stall_ns = 20'000'000}, {.rate_per_s = 1e9});
  EXPECT_EQ(outcome.loop.status.code(), StatusCode::kTimeout);
  EXPECT_THAT(outcome.loop.status.message(), testing::HasSubstr("3 pending requests"));
  EXPECT_EQ(outcome.loop.unanswered, 3u);
}

TEST_F(OpenLoopTest, WaitingForArrivalsIsNoStall) {
  ArrivalRequester target;
  const OpenLoopOutcome outcome =
      run({&target}, {.pending = 1, .length = {.requests = 3}, .stall_ns = 20'000'000},
          {.arrivals = Arrivals::kEven, .rate_per_s = 10});
  EXPECT_TRUE(outcome.loop.status.ok()) << outcome.loop.status.message();
  EXPECT_EQ(outcome.loop.completed, 3u);
}

TEST_F(OpenLoopTest, EndsWhereAConnectionBreaks) {
  ArrivalRequester target;
  target.breaks = true;
  const OpenLoopOutcome outcome = run({&target}, {.pending = 1, .length = {}}, {.rate_per_s = 1e9});
  EXPECT_EQ(outcome.loop.status.message(), "broken");
}

}  // namespace
}  // namespace verbena::bench
