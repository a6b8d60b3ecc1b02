// The promises of remote.h in clusters in virtual time, each from a seed, with faults.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/remote/simulated_regions_for_test.h"

namespace verbena::remote {
namespace {

constexpr uint64_t kClusters = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 20 : 300;
constexpr uint32_t kWords = 8;  // of each front-end's own
constexpr RemotePointer<uint64_t> kCounter{.offset_bytes = 0};

// What a front-end did, and what it knows to be done.
struct Notes {
  uint64_t adds_posted = 0;
  std::vector<uint64_t> tickets;  // what its adds found
  uint64_t written[kWords] = {};  // the last value that was posted
  uint64_t acknowledged[kWords] = {};
  uint64_t wrong = 0;
};

// Posts operations of all kinds, some at once and some one at a time, and checks what they find.
class Worker {
 public:
  Worker(uint32_t number, RemoteRegion& region, uint64_t seed, Notes& notes)
      : own_{64 + uint64_t{number} * 64}, region_(region), random_(seed), notes_(notes) {}

  void run(uint32_t operations) {
    Waiter waiter;
    uint32_t posted = 0;
    while ((posted < operations || region_.outstanding() > 0) && region_.status().ok()) {
      if (posted < operations && random_.below(4) != 0) {
        if (random_.below(8) == 0) {
          wait_for_one();
          ++posted;
        } else if (post_one()) {
          ++posted;
          continue;
        }
      }
      const uint32_t found = region_.poll([this](const RemoteCompletion& done) { take(done); });
      found > 0 ? waiter.progress() : waiter.idle();
    }
  }

 private:
  struct Posted {
    enum Kind { kAdd, kWrite, kRead } kind;
    uint32_t word = 0;
    uint64_t value = 0;  // that was written last when it was posted
  };

  bool post_one() {
    const auto word = static_cast<uint32_t>(random_.below(kWords));
    const uint64_t token = posted_.size();
    const Order order = random_.below(4) == 0 ? Order::kAfterReads : Order::kPosted;
    PostResult result = PostResult::kFailed;
    Posted posted{Posted::kAdd, word, notes_.written[word]};
    switch (random_.below(3)) {
      case 0:
        result = region_.post_fetch_and_add(kCounter, 1, token, order);
        if (result == PostResult::kPosted) ++notes_.adds_posted;
        break;
      case 1:
        posted.kind = Posted::kWrite;
        ++posted.value;
        result = region_.post_write(own_ + word, posted.value, token, order);
        if (result == PostResult::kPosted) notes_.written[word] = posted.value;
        break;
      default:
        posted.kind = Posted::kRead;
        result = region_.post_read(own_ + word, token, order);
    }
    if (result != PostResult::kPosted) return false;
    posted_.push_back(posted);
    return true;
  }

  void take(const RemoteCompletion& done) {
    if (done.token != taken_++) ++notes_.wrong;
    const Posted& posted = posted_[done.token];
    switch (posted.kind) {
      case Posted::kAdd:
        notes_.tickets.push_back(done.value<uint64_t>());
        break;
      case Posted::kWrite:
        notes_.acknowledged[posted.word] = posted.value;
        break;
      case Posted::kRead: {
        // All that was written before it, and nothing that was never written.
        const auto value = done.value<uint64_t>();
        if (value < posted.value || value > notes_.written[posted.word]) ++notes_.wrong;
        break;
      }
    }
  }

  void wait_for_one() {
    const auto word = static_cast<uint32_t>(random_.below(kWords));
    switch (random_.below(3)) {
      case 0: {
        ++notes_.adds_posted;
        const Result<uint64_t> before = region_.fetch_and_add(kCounter, 1);
        if (before.ok()) notes_.tickets.push_back(*before);
        break;
      }
      case 1: {
        const uint64_t expected = notes_.written[word];
        ++notes_.written[word];
        const Result<uint64_t> before =
            region_.compare_and_swap(own_ + word, expected, expected + 1);
        if (!before.ok()) break;
        if (*before != expected) ++notes_.wrong;
        notes_.acknowledged[word] = expected + 1;
        break;
      }
      default: {
        const Result<uint64_t> value = region_.read(own_ + word);
        if (value.ok() && *value != notes_.written[word]) ++notes_.wrong;
      }
    }
  }

  const RemotePointer<uint64_t> own_;
  RemoteRegion& region_;
  Random random_;
  Notes& notes_;
  std::vector<Posted> posted_;
  uint64_t taken_ = 0;
};

// What is not promised, in words; empty if all holds.
std::string broken_promise(uint64_t seed, std::string* description) {
  Random random(seed);
  const auto front_ends = 1 + static_cast<uint32_t>(random.below(4));
  RemoteRegionOptions options;
  options.pending = 1 + static_cast<uint32_t>(random.below(12));
  options.signal_interval = 1 + static_cast<uint32_t>(random.below(options.pending));
  options.post_batch = 1 + static_cast<uint32_t>(random.below(options.pending));
  if (random.below(2) == 0) options.inline_bytes = 0;
  const sim::FaultSchedule faults = draw_faults(random);
  const auto operations = 20 + static_cast<uint32_t>(random.below(80));
  *description =
      fmt::format("{} front-ends, pending {}, signal {}, batch {}; {}", front_ends, options.pending,
                  options.signal_interval, options.post_batch, sim::describe(faults));

  SimulatedRegions regions(seed, front_ends, 64 + uint64_t{64} * front_ends, faults);
  std::vector<Notes> notes(front_ends);
  if (!regions.run(options, [&](uint32_t number, RemoteRegion& region) {
        Worker(number, region, seed ^ number, notes[number]).run(operations);
      })) {
    return "a front-end hangs";
  }
  std::vector<uint64_t> tickets;
  uint64_t adds_posted = 0;
  for (uint32_t i = 0; i < front_ends; ++i) {
    const Notes& mine = notes[i];
    const Status& status = regions.status(i);
    if (faults.is_survivable() && !status.ok()) return status.message();
    if (!status.ok() && status.code() != StatusCode::kUnavailable &&
        status.code() != StatusCode::kTimeout) {
      return status.message();
    }
    if (mine.wrong > 0) return fmt::format("front-end {} found {} wrong values", i, mine.wrong);
    tickets.insert(tickets.end(), mine.tickets.begin(), mine.tickets.end());
    adds_posted += mine.adds_posted;
    for (uint32_t word = 0; word < kWords && !regions.back_end_crashed(); ++word) {
      const auto value = regions.at<uint64_t>(64 + uint64_t{64} * i + word * sizeof(uint64_t));
      if (value < mine.acknowledged[word] || value > mine.written[word]) {
        return fmt::format("word {} of front-end {} is {}, not {} to {}", word, i, value,
                           mine.acknowledged[word], mine.written[word]);
      }
    }
  }
  std::sort(tickets.begin(), tickets.end());
  if (std::adjacent_find(tickets.begin(), tickets.end()) != tickets.end()) {
    return "two adds found the same value";
  }
  if (regions.back_end_crashed()) return "";
  const auto counter = regions.at<uint64_t>(kCounter.offset_bytes);
  if (counter < tickets.size() || counter > adds_posted ||
      (!tickets.empty() && tickets.back() >= counter)) {
    return fmt::format("the counter is {} after {} adds, {} of them known to be done", counter,
                       adds_posted, tickets.size());
  }
  if (faults.is_survivable() && counter != adds_posted) return "an add was lost or done twice";
  return "";
}

TEST(RemoteSimulationTest, PromisesHoldWhateverGoesWrong) {
  for (uint64_t seed = run_seed(); seed < run_seed() + kClusters; ++seed) {
    std::string description;
    const std::string broken = broken_promise(seed, &description);
    ASSERT_EQ(broken, "") << description << "\nagain: VERBENA_SEED=" << seed
                          << " build/release/bin/remote_test --gtest_filter=RemoteSimulation*";
  }
}

// A front-end learns of a back-end that has crashed, whether it waits for something or polls.
TEST(RemoteSimulationTest, ACrashOfTheBackEndEndsEveryWait) {
  for (const bool waits : {true, false}) {
    SimulatedRegions regions(run_seed(), 1, 64, {});
    ASSERT_TRUE(regions.run({}, [&](uint32_t, RemoteRegion& region) {
      ASSERT_TRUE(region.fetch_and_add(kCounter, 1).ok());
      regions.cluster().node(0).crash();
      if (waits) {
        EXPECT_EQ(region.fetch_and_add(kCounter, 1).status().code(), StatusCode::kUnavailable);
      } else {
        EXPECT_EQ(region.post_fetch_and_add(kCounter, 1, 1), PostResult::kPosted);
        Waiter waiter;
        while (region.status().ok()) {
          EXPECT_EQ(region.poll([](const RemoteCompletion&) {}), 0u);
          waiter.idle();
        }
      }
    })) << "it hangs";
    EXPECT_THAT(regions.status(0).message(), testing::HasSubstr("the back-end"));
    EXPECT_EQ(regions.at<uint64_t>(0), 1u);
  }
}

}  // namespace
}  // namespace verbena::remote
