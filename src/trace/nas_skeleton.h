// What the NAS parallel benchmarks (NPB 2 and 3, their MPI versions) send, as recordings: written
// from the reports and from the published structure of the programs, without their numerics.
//
//   is  per iteration: allreduce of bucket sizes, alltoall of counts, alltoallv of the keys
//   cg  a grid of 2^k ranks: sums along a row, exchange with the transposed rank, scalars
//   mg  a grid in three dimensions: ghost planes with six neighbours on every level
//   ft  one transpose per 3-D FFT: alltoall of the whole array; a checksum
//   lu  a grid in two dimensions: short messages plane by plane in two wavefronts, then faces
//   ep  sums at the end
//   bt  multipartition of c*c ranks: faces with six neighbours, then pipelines in three dimensions
//   sp  as bt, with other sizes
//
// Computing takes as long as the kernel's published number of operations at a given rate, divided
// among the steps by the points that they work on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "src/trace/recording.h"
#include "verbena/status.h"

namespace verbena::trace {

enum class NasKernel : uint8_t { kIs, kCg, kMg, kFt, kLu, kEp, kBt, kSp };
inline constexpr std::array kNasKernels = {NasKernel::kIs, NasKernel::kCg, NasKernel::kMg,
                                           NasKernel::kFt, NasKernel::kLu, NasKernel::kEp,
                                           NasKernel::kBt, NasKernel::kSp};
constexpr const char* nas_kernel_name(NasKernel kernel) {
  constexpr std::array<const char*, kNasKernels.size()> kNames = {"is", "cg", "mg", "ft",
                                                                  "lu", "ep", "bt", "sp"};
  return kNames[static_cast<size_t>(kernel)];
}

enum class NasClass : uint8_t { kS, kW, kA, kB, kC };
inline constexpr std::array kNasClasses = {NasClass::kS, NasClass::kW, NasClass::kA, NasClass::kB,
                                           NasClass::kC};
constexpr const char* nas_class_name(NasClass size) {
  constexpr std::array<const char*, kNasClasses.size()> kNames = {"S", "W", "A", "B", "C"};
  return kNames[static_cast<size_t>(size)];
}

struct NasRun {
  NasKernel kernel = NasKernel::kCg;
  NasClass size = NasClass::kS;
  uint32_t ranks = 4;
  uint32_t iterations = 0;  // fewer than the class has; 0: all
  double mops_per_s = 300;  // of one rank, as the benchmarks count operations
};

// Of the class, for EP 1.
uint32_t nas_iterations(NasKernel kernel, NasClass size);
// Millions of operations of all iterations, as the programs print them.
double nas_mops(NasKernel kernel, NasClass size);
// Whether the program runs with so many ranks: powers of two, or squares, and points for each.
Status check_nas_run(const NasRun& run);

// Linked. What check_nas_run() says, where it refuses.
Result<RecordedJob> make_nas_recording(const NasRun& run);

}  // namespace verbena::trace
