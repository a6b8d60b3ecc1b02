// EP, IS and FT: whose messages are collective operations.
#include <vector>

#include "src/trace/nas_kernels.h"

namespace verbena::trace {

namespace {
constexpr uint64_t kIntBytes = 4;
// IS's: test values behind the bucket sizes.
constexpr uint64_t kIsTestValues = 5;
}  // namespace

// Counts of ten annuli, and two sums.
void write_ep(const NasRank& run) {
  run.out.compute(run.total_ns);
  run.out.collective(Operation::kAllreduce, kDoubleBytes, NasRank::array(0));
  run.out.collective(Operation::kAllreduce, kDoubleBytes, NasRank::array(1));
  run.out.collective(Operation::kAllreduce, 10 * kDoubleBytes, NasRank::array(2));
}

// The keys are taken as spread evenly; the program's are nearly so, by its buckets.
void write_is(const NasRank& run) {
  const uint64_t buckets = uint64_t{1} << is_bucket_exponent(run.size);
  const uint64_t keys = (uint64_t{1} << nas_exponent(NasKernel::kIs, run.size)) / run.ranks;
  std::vector<uint64_t> list;
  for (uint32_t way = 0; way < 2; ++way) {
    for (uint32_t to = 0; to < run.ranks; ++to) {
      // The remainder of one rank is that of all, so both ways agree.
      list.push_back(keys / run.ranks * kIntBytes);
    }
  }
  const double step_ns = run.total_ns / run.iterations / 2;
  for (uint32_t i = 0; i < run.iterations; ++i) {
    run.out.compute(step_ns);
    run.out.collective(Operation::kAllreduce, (buckets + kIsTestValues) * kIntBytes,
                       NasRank::array(0));
    run.out.collective(Operation::kAlltoall, kIntBytes, NasRank::array(1));
    run.out.collective_v(Operation::kAlltoall, list, NasRank::array(2));
    run.out.compute(step_ns);
  }
}

// One dimension is divided: a 3-D FFT is two dimensions, a transpose of all, and the third.
void write_ft(const NasRank& run) {
  constexpr uint64_t kComplexBytes = 2 * kDoubleBytes;
  const NasGrid grid = nas_grid(NasKernel::kFt, run.size);
  const uint64_t points = grid.x * grid.y * grid.z;
  const uint64_t pair_bytes = points / run.ranks / run.ranks * kComplexBytes;
  const double step_ns = run.total_ns / (run.iterations + 1);
  for (uint32_t i = 0; i <= run.iterations; ++i) {
    run.out.compute(step_ns * 2 / 3);
    run.out.collective(Operation::kAlltoall, pair_bytes, NasRank::array(0));
    run.out.compute(step_ns / 3);
    // The first one is the forward transform of what it begins with.
    if (i > 0) run.out.collective(Operation::kReduce, kComplexBytes, NasRank::array(1));
  }
}

}  // namespace verbena::trace
