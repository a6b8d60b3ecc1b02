#include "src/trace/nas_skeleton.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <utility>

#include "src/trace/nas_kernels.h"

namespace verbena::trace {

namespace {

template <typename Value>
Value of_class(NasClass size, const std::array<Value, kNasClasses.size()>& values) {
  return values[static_cast<size_t>(size)];
}

Status refused(const NasRun& run, std::string_view why) {
  return {StatusCode::kInvalidArgument,
          fmt::format("{}.{} does not run with {} ranks: {}", nas_kernel_name(run.kernel),
                      nas_class_name(run.size), run.ranks, why)};
}

uint32_t integer_root(uint32_t number) {
  return static_cast<uint32_t>(std::lround(std::sqrt(static_cast<double>(number))));
}

void write_rank(NasKernel kernel, const NasRank& rank) {
  switch (kernel) {
    case NasKernel::kIs:
      return write_is(rank);
    case NasKernel::kCg:
      return write_cg(rank);
    case NasKernel::kMg:
      return write_mg(rank);
    case NasKernel::kFt:
      return write_ft(rank);
    case NasKernel::kLu:
      return write_lu(rank);
    case NasKernel::kEp:
      return write_ep(rank);
    case NasKernel::kBt:
    case NasKernel::kSp:
      return write_multipartition(rank, kernel);
  }
}

}  // namespace

NasGrid nas_grid(NasKernel kernel, NasClass size) {
  const auto cube = [](uint64_t n) { return NasGrid{n, n, n}; };
  switch (kernel) {
    case NasKernel::kMg:
      return cube(of_class<uint64_t>(size, {32, 128, 256, 256, 512}));
    case NasKernel::kFt:
      return of_class<NasGrid>(size,
                               {NasGrid{64, 64, 64}, NasGrid{128, 128, 32}, NasGrid{256, 256, 128},
                                NasGrid{512, 256, 256}, NasGrid{512, 512, 512}});
    case NasKernel::kLu:
      return cube(of_class<uint64_t>(size, {12, 33, 64, 102, 162}));
    case NasKernel::kBt:
      return cube(of_class<uint64_t>(size, {12, 24, 64, 102, 162}));
    default:
      return cube(of_class<uint64_t>(size, {12, 36, 64, 102, 162}));
  }
}

uint32_t nas_exponent(NasKernel kernel, NasClass size) {
  if (kernel == NasKernel::kIs) return of_class<uint32_t>(size, {16, 20, 23, 25, 27});
  return of_class<uint32_t>(size, {24, 25, 28, 30, 32});
}

uint32_t is_bucket_exponent(NasClass size) { return size == NasClass::kS ? 9 : 10; }

CgSize cg_size(NasClass size) {
  return of_class<CgSize>(size, {CgSize{1400, 7}, CgSize{7000, 8}, CgSize{14000, 11},
                                 CgSize{75000, 13}, CgSize{150000, 15}});
}

uint32_t nas_iterations(NasKernel kernel, NasClass size) {
  switch (kernel) {
    case NasKernel::kIs:
      return 10;
    case NasKernel::kCg:
      return of_class<uint32_t>(size, {15, 15, 15, 75, 75});
    case NasKernel::kMg:
      return of_class<uint32_t>(size, {4, 4, 4, 20, 20});
    case NasKernel::kFt:
      return of_class<uint32_t>(size, {6, 6, 6, 20, 20});
    case NasKernel::kLu:
      return of_class<uint32_t>(size, {50, 300, 250, 250, 250});
    case NasKernel::kBt:
      return of_class<uint32_t>(size, {60, 200, 200, 200, 200});
    case NasKernel::kSp:
      return of_class<uint32_t>(size, {100, 400, 400, 400, 400});
    case NasKernel::kEp:
      break;
  }
  return 1;
}

double nas_mops(NasKernel kernel, NasClass size) {
  const NasGrid grid = nas_grid(kernel, size);
  const double points = static_cast<double>(grid.x * grid.y * grid.z);
  const auto n = static_cast<double>(grid.x);
  const double iterations = nas_iterations(kernel, size);
  switch (kernel) {
    case NasKernel::kIs:
      return iterations * std::exp2(nas_exponent(kernel, size)) / 1e6;
    case NasKernel::kEp:
      return std::exp2(nas_exponent(kernel, size) + 1) / 1e6;
    case NasKernel::kCg: {
      const CgSize cg = cg_size(size);
      const auto nonzeros = static_cast<double>(cg.nonzeros);
      const double row = nonzeros * (nonzeros + 1);
      return 2 * iterations * static_cast<double>(cg.rows) * (3 + row + 25 * (5 + row) + 3) / 1e6;
    }
    case NasKernel::kMg:
      return 58 * iterations * points / 1e6;
    case NasKernel::kFt: {
      const double log = std::log(points);
      return points * (14.8157 + 7.19641 * log + (5.23518 + 7.21113 * log) * iterations) / 1e6;
    }
    case NasKernel::kLu:
      return iterations * (1984.77 * points - 10923.3 * n * n + 27770.9 * n - 144010.0) / 1e6;
    case NasKernel::kBt:
      return iterations * (3478.8 * points - 17655.7 * n * n + 28023.7 * n) / 1e6;
    case NasKernel::kSp:
      break;
  }
  return iterations * (881.174 * points - 4683.91 * n * n + 11484.5 * n - 19272.4) / 1e6;
}

Status check_nas_run(const NasRun& run) {
  if (run.ranks == 0 || run.ranks > 1024) {
    return refused(run, "choose from 1 to 1024");
  }
  const NasGrid grid = nas_grid(run.kernel, run.size);
  if (run.kernel == NasKernel::kBt || run.kernel == NasKernel::kSp) {
    const uint32_t root = integer_root(run.ranks);
    if (root * root != run.ranks) return refused(run, "it takes a square number, such as 4 or 9");
    // A cell has three points in each direction, as the programs ask.
    if (root * 3 > grid.x) return refused(run, "the grid has too few points for so many");
    return Status::ok_status();
  }
  if (run.kernel == NasKernel::kEp) return Status::ok_status();
  if (!std::has_single_bit(run.ranks)) return refused(run, "it takes a power of two");
  const auto log = static_cast<uint32_t>(std::countr_zero(run.ranks));
  uint64_t most = run.ranks;
  switch (run.kernel) {
    case NasKernel::kIs:
      most = uint64_t{1} << is_bucket_exponent(run.size);
      break;
    case NasKernel::kFt:
      // The array is divided in one dimension.
      most = std::min(grid.z, grid.y);
      break;
    case NasKernel::kMg:
      most = grid.x * grid.y * grid.z / 8;
      break;
    case NasKernel::kLu:
      most = (uint64_t{1} << ((log + 1) / 2)) * 4 > grid.x ? 0 : run.ranks;
      break;
    default:
      break;
  }
  return run.ranks <= most ? Status::ok_status()
                           : refused(run, "the class has too few points for so many");
}

Result<RecordedJob> make_nas_recording(const NasRun& run) {
  VERBENA_RETURN_IF_ERROR(check_nas_run(run));
  const uint32_t all = nas_iterations(run.kernel, run.size);
  const uint32_t iterations = run.iterations == 0 ? all : std::min(run.iterations, all);
  const double mops = nas_mops(run.kernel, run.size) * iterations / all;
  RecordedJob job;
  job.name = fmt::format("the skeleton of {}.{}.{}", nas_kernel_name(run.kernel),
                         nas_class_name(run.size), run.ranks);
  for (uint32_t rank = 0; rank < run.ranks; ++rank) {
    RankBuilder builder(rank, run.ranks);
    write_rank(run.kernel, {.out = builder,
                            .rank = rank,
                            .ranks = run.ranks,
                            .size = run.size,
                            .iterations = iterations,
                            .total_ns = mops * 1e9 / run.mops_per_s / run.ranks});
    job.ranks.push_back(builder.take());
  }
  VERBENA_RETURN_IF_ERROR(link_job(job));
  return job;
}

}  // namespace verbena::trace
