// The kernels' files, for nas_skeleton.cc.
#pragma once

#include <cstdint>

#include "src/trace/nas_skeleton.h"
#include "src/trace/recording.h"

namespace verbena::trace {

// One rank of a run, as it is written down.
struct NasRank {
  RankBuilder& out;
  uint32_t rank;
  uint32_t ranks;
  NasClass size;
  uint32_t iterations;
  double total_ns;  // that the rank computes

  // The arrays of a rank lie far from each other.
  static constexpr uint64_t array(uint64_t number) { return (number + 1) << 36; }
};

inline constexpr uint64_t kDoubleBytes = 8;

// Points along a dimension, or whatever the size of a class is.
struct NasGrid {
  uint64_t x, y, z;
};
NasGrid nas_grid(NasKernel kernel, NasClass size);
// The exponent of the number of keys (IS), pairs (EP); IS's of the buckets.
uint32_t nas_exponent(NasKernel kernel, NasClass size);
uint32_t is_bucket_exponent(NasClass size);
struct CgSize {
  uint64_t rows, nonzeros;
};
CgSize cg_size(NasClass size);

void write_ep(const NasRank& run);
void write_is(const NasRank& run);
void write_ft(const NasRank& run);
void write_cg(const NasRank& run);
void write_mg(const NasRank& run);
void write_lu(const NasRank& run);
void write_multipartition(const NasRank& run, NasKernel kernel);

}  // namespace verbena::trace
