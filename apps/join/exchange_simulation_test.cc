// Distributed joins in clusters in virtual time, each from a seed, with faults.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "join/executors_for_test.h"
#include "join/join_for_test.h"
#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/fault_schedule_for_test.h"
#include "src/remote/simulated_regions_for_test.h"
#include "tests/test_seed.h"

namespace verbena::join_app {
namespace {

constexpr bool kSanitized = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER;
constexpr uint64_t kClusters = kSanitized ? 20 : 200;
// Longer than any time-out.
constexpr uint64_t kEndNs = 200'000'000'000;

struct Shape {
  uint32_t executors = 1;
  ExecutorOptions options;
  sim::FaultSchedule faults;

  explicit Shape(Random& random) {
    executors = 1 + static_cast<uint32_t>(random.below(5));
    options.receiver.buffer_bytes = 4096ull << random.below(4);
    options.receiver.max_record_bytes = 1 << 20;
    options.registered_rows = random.below(2) == 0;
    options.sender.method = static_cast<ShuffleMethod>(random.below(3));
    options.sender.batch = 1 + static_cast<uint32_t>(random.below(16));
    options.sender.pending = 1 + static_cast<uint32_t>(random.below(8));
    options.join.kind = static_cast<JoinKind>(random.below(4));
    options.join.threads = 1;
    options.join.keys = {{"key0", "right_key0"}};
    faults = remote::draw_faults(random);
    // Threads of a crashed node end without giving anything back.
    if (kSanitized) faults.crashes = 0;
  }
};
std::string describe(const Shape& shape) {
  return fmt::format("{} executors, kind {}, {}, batch {}, {}", shape.executors,
                     static_cast<int>(shape.options.join.kind),
                     shuffle_method_name(shape.options.sender.method), shape.options.sender.batch,
                     sim::describe(shape.faults));
}

// What is not as promised, in words.
std::string broken_promise(const Shape& shape, Random& random, uint64_t seed) {
  const char* const format = random.below(2) == 0 ? "l" : "u";
  const Case keys = {"key", {{format, format}}};
  const TestTable left = draw_table(random, keys, true, 20 + random.below(200), 90);
  const TestTable right = draw_table(random, keys, false, 20 + random.below(200), 90);
  const std::vector<TestTable> left_parts = in_parts(left, shape.executors, random);
  const std::vector<TestTable> right_parts = in_parts(right, shape.executors, random);

  const JobSecret secret = JobSecret::random();
  sim::Cluster cluster(shape.executors, seed);
  std::vector<ExecutorForTest> executors(shape.executors);
  std::vector<Thread> threads;
  for (uint32_t i = 0; i < shape.executors; ++i) {
    const sim::OnNode here(cluster.simulation(), cluster.node(i));
    executors[i].expose(cluster[i], secret, i, shape.executors, shape.options);
  }
  const sim::ScheduledFaults faults(shape.faults, seed, cluster.simulation());
  for (uint32_t i = 0; i < shape.executors; ++i) {
    threads.push_back(cluster.start(
        i, [&, i] { executors[i].run(executors, left_parts[i], right_parts[i], seed + i); }));
  }
  const auto has_ended = [&](uint32_t i) {
    return executors[i].ended() || cluster.node(i).crashed;
  };
  const bool ended = cluster.simulation().run_until(
      [&] {
        for (uint32_t i = 0; i < shape.executors; ++i) {
          if (!has_ended(i)) return false;
        }
        return true;
      },
      kEndNs);
  if (!ended) {
    // To join their threads would take for ever.
    for (uint32_t i = 0; i < shape.executors; ++i) cluster.node(i).crash();
    return "an executor hangs";
  }
  bool all_joined = true;
  for (uint32_t i = 0; i < shape.executors; ++i) {
    const bool joined = executors[i].ended() && executors[i].status().ok();
    all_joined = all_joined && joined;
    if (!joined && shape.faults.is_survivable()) {
      return fmt::format("executor {} failed: {}", i, executors[i].status().message());
    }
    if (executors[i].ended() && !joined && executors[i].status().message().empty()) {
      return fmt::format("executor {} failed without a reason", i);
    }
  }
  if (!all_joined) return "";
  return sorted_rows(executors) == expected_rows(left, right, shape.options.join)
             ? ""
             : "the executors' rows are not those of the join";
}

TEST(ExchangeSimulationTest, TheJoinIsRightOrFailsWhateverGoesWrong) {
  for (uint64_t seed = run_seed(); seed < run_seed() + kClusters; ++seed) {
    Random random(seed);
    const Shape shape(random);
    ASSERT_EQ(broken_promise(shape, random, seed), "")
        << describe(shape) << "\nagain: VERBENA_SEED=" << seed
        << " build/release/bin/join_test --gtest_filter=ExchangeSimulation*";
  }
  report_count("seeds", kClusters);
}

}  // namespace
}  // namespace verbena::join_app
