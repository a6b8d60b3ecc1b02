// The skeletons of the NAS kernels: whole recordings, of the sizes that the kernels' descriptions
// give.
#include "src/trace/nas_skeleton.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace verbena::trace {
namespace {

struct Totals {
  uint64_t messages = 0;  // between two ranks
  uint64_t bytes = 0;
  std::map<Operation, uint64_t> calls;  // of rank 0
  uint64_t compute_ns = 0;              // of all ranks
};

Totals totals_of(const RecordedJob& job) {
  Totals totals;
  for (const RankRecording& rank : job.ranks) {
    for (const Event& event : rank.events) {
      totals.compute_ns += event.compute_ns;
      if (rank.rank == 0) ++totals.calls[event.operation];
      if (event.operation != Operation::kSend && event.operation != Operation::kStartSend) continue;
      ++totals.messages;
      totals.bytes += event.bytes;
    }
    totals.compute_ns += rank.last_compute_ns;
  }
  return totals;
}

RecordedJob made(NasKernel kernel, NasClass size, uint32_t ranks, uint32_t iterations = 0) {
  Result<RecordedJob> job = make_nas_recording(
      {.kernel = kernel, .size = size, .ranks = ranks, .iterations = iterations});
  EXPECT_TRUE(job.ok()) << job.status().message();
  return job.ok() ? std::move(*job) : RecordedJob{};
}

TEST(NasSkeletons, AreWholeForAllRanksAndClasses) {
  uint32_t runs = 0;
  for (const NasKernel kernel : kNasKernels) {
    for (const NasClass size : {NasClass::kS, NasClass::kW, NasClass::kA, NasClass::kB}) {
      for (const uint32_t ranks : {1u, 2u, 4u, 8u, 9u, 16u, 25u, 32u, 64u}) {
        const NasRun run{.kernel = kernel, .size = size, .ranks = ranks, .iterations = 2};
        if (!check_nas_run(run).ok()) continue;
        SCOPED_TRACE(testing::Message()
                     << nas_kernel_name(kernel) << nas_class_name(size) << ranks);
        const Result<RecordedJob> job = make_nas_recording(run);
        ASSERT_TRUE(job.ok()) << job.status().message();
        EXPECT_EQ(job->unmatched_sends + job->unmatched_receives, 0u);
        EXPECT_EQ(job->size(), ranks);
        // All of the work is done, but for what is rounded down.
        const double share = 2.0 / std::max(nas_iterations(kernel, size), 2u);
        const double expected_ns = nas_mops(kernel, size) * share * 1e9 / 300;
        EXPECT_NEAR(static_cast<double>(totals_of(*job).compute_ns), expected_ns,
                    expected_ns / 1e4 + 2.0 * ranks);
        ++runs;
      }
    }
  }
  EXPECT_GT(runs, 150u);
}

TEST(NasSkeletons, RefuseNumbersThatTheProgramsRefuse) {
  const auto refusal = [](NasKernel kernel, NasClass size, uint32_t ranks) {
    return check_nas_run({.kernel = kernel, .size = size, .ranks = ranks}).message();
  };
  EXPECT_THAT(refusal(NasKernel::kBt, NasClass::kB, 8),
              testing::HasSubstr("bt.B does not run with 8 ranks: it takes a square number"));
  EXPECT_THAT(refusal(NasKernel::kCg, NasClass::kA, 6), testing::HasSubstr("a power of two"));
  EXPECT_THAT(refusal(NasKernel::kFt, NasClass::kS, 128), testing::HasSubstr("too few points"));
  EXPECT_THAT(refusal(NasKernel::kLu, NasClass::kS, 64), testing::HasSubstr("too few points"));
  EXPECT_EQ(refusal(NasKernel::kEp, NasClass::kS, 7), "");
}

// A grid of 2 * 2: a step is one sum along the row and an exchange of 7000 numbers each, and two
// scalars.
TEST(NasSkeletons, CgHasItsExchanges) {
  const Totals totals = totals_of(made(NasKernel::kCg, NasClass::kA, 4));
  const uint64_t steps = 15 * (25 + 1);
  const uint64_t scalars = 15 * (1 + 2 * 25 + 2);
  EXPECT_EQ(totals.messages, 4 * (2 * steps + scalars));
  EXPECT_EQ(totals.bytes, 4 * (2 * steps * 7000 * 8 + scalars * 8 + 15 * 8));
  // Of 8 ranks two sums, of halves.
  const Totals eight = totals_of(made(NasKernel::kCg, NasClass::kB, 8));
  EXPECT_EQ(eight.messages, uint64_t{8 * 75} * ((25 + 1) * 3 + 2 * (1 + 2 * 25 + 2)));
  EXPECT_EQ(eight.bytes, uint64_t{8 * 75} * ((25 + 1) * 3 * 18750 * 8 + 2 * (1 + 2 * 25 + 3) * 8));
}

// Faces of 2 * 2 * 2 ranks: three axes, two ways, on every level.
TEST(NasSkeletons, MgHasItsPlanes) {
  const Totals totals = totals_of(made(NasKernel::kMg, NasClass::kB, 8));
  const uint64_t exchanges = 1 + 20 * (7 + 1 + 2 * 7 + 1);
  EXPECT_EQ(totals.messages, 8 * 6 * exchanges);
  EXPECT_EQ(totals.calls.at(Operation::kAllreduce), 4u);
}

// 62 planes, two messages each for an inner corner of a 2 * 2 grid, down and up.
TEST(NasSkeletons, LuHasItsWavefronts) {
  const Totals totals = totals_of(made(NasKernel::kLu, NasClass::kA, 4));
  // Each of the four borders between ranks is crossed once by a plane and sweep.
  const uint64_t planes = uint64_t{250} * 2 * 62 * 4;
  const uint64_t faces = uint64_t{251} * 2 * 4;
  EXPECT_EQ(totals.messages, planes + faces);
  // 31 of 32 points of a side lie inside.
  EXPECT_EQ(totals.bytes, planes * 5 * 31 * 8 + faces * 2 * 5 * 32 * 64 * 8);
}

TEST(NasSkeletons, FtMovesItsArray) {
  const RecordedJob job = made(NasKernel::kFt, NasClass::kA, 4);
  const Totals totals = totals_of(job);
  EXPECT_EQ(totals.messages, 0u);
  EXPECT_EQ(totals.calls.at(Operation::kAlltoall), 7u);
  EXPECT_EQ(totals.calls.at(Operation::kReduce), 6u);
  EXPECT_EQ(job.ranks[0].events[0].bytes, uint64_t{256} * 256 * 128 * 16 / 16);
}

TEST(NasSkeletons, IsMovesItsKeys) {
  const RecordedJob job = made(NasKernel::kIs, NasClass::kB, 8);
  const Totals totals = totals_of(job);
  EXPECT_EQ(totals.calls.at(Operation::kAllreduce), 10u);
  EXPECT_EQ(totals.calls.at(Operation::kAlltoall), 20u);
  EXPECT_EQ(job.ranks[0].events[0].bytes, (1024u + 5) * 4);
  EXPECT_EQ(job.ranks[3].list(job.ranks[3].events[2])[5], (uint64_t{1} << 25) / 64 * 4);
}

// 2 * 2 * 2 cells of 32 points a side: half of a rank's two cells have a neighbour at an end.
TEST(NasSkeletons, BtAndSpHaveTheirFacesAndPipelines) {
  const uint64_t face = 2 * 5 * 32 * 32 * 8;
  const Totals bt = totals_of(made(NasKernel::kBt, NasClass::kA, 4));
  EXPECT_EQ(bt.messages, uint64_t{4} * 200 * (6 + 3 * 2));
  EXPECT_EQ(bt.bytes, uint64_t{4} * 200 * (6 * face + 3 * (30 + 5) * 33 * 33 * 8));
  const Totals sp = totals_of(made(NasKernel::kSp, NasClass::kA, 4));
  EXPECT_EQ(sp.messages, uint64_t{4} * 400 * (6 + 3 * 2));
  EXPECT_EQ(sp.bytes, uint64_t{4} * 400 * (6 * face + 3 * (22 + 10) * 31 * 31 * 8));
}

}  // namespace
}  // namespace verbena::trace
