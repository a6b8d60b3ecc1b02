// CG: the matrix lies on a grid of ranks, twice as wide as high where their number is no square.
#include <bit>
#include <vector>

#include "src/trace/nas_kernels.h"

namespace verbena::trace {

namespace {

constexpr uint32_t kInnerSteps = 25;
constexpr int32_t kCgTag = 1;

class Cg {
 public:
  explicit Cg(const NasRank& run) : run_(run) {
    const auto log = static_cast<uint32_t>(std::countr_zero(run.ranks));
    rows_ = 1u << (log / 2);
    columns_ = run.ranks / rows_;
    const uint32_t row = run.rank / columns_;
    const uint32_t column = run.rank % columns_;
    const uint64_t all = cg_size(run.size).rows;
    length_ = share(all, rows_, row);
    if (columns_ == rows_) {
      sent_ = length_;
      transposed_length_ = share(all, columns_, column);
      transposed_ = run.rank % rows_ * rows_ + run.rank / rows_;
    } else {
      const uint64_t both = share(all, columns_ / 2, column / 2);
      const bool first = run.rank % 2 == 0;
      sent_ = first ? (length_ + 1) / 2 : length_ / 2;
      transposed_length_ = first ? (both + 1) / 2 : both / 2;
      const uint32_t pair = run.rank / 2;
      transposed_ = 2 * (pair % rows_ * rows_ + pair / rows_) + run.rank % 2;
    }
    for (uint32_t wide = columns_; wide > 1; wide /= 2) {
      partners_.push_back(row * columns_ + (column + wide / 2) % wide + column / wide * wide);
    }
  }

  void write() {
    const double step_ns = run_.total_ns / run_.iterations / (kInnerSteps + 1);
    for (uint32_t i = 0; i < run_.iterations; ++i) {
      sum(1);
      for (uint32_t step = 0; step < kInnerSteps; ++step) {
        multiply(step_ns);
        sum(1);
        sum(1);
      }
      // How far off the result is.
      multiply(step_ns);
      sum(1);
      sum(2);
    }
  }

 private:
  static uint64_t share(uint64_t all, uint32_t parts, uint32_t part) {
    return all / parts + (part < all % parts ? 1 : 0);
  }

  void exchange(uint32_t with, uint64_t sent, uint64_t received, uint64_t array) {
    const uint32_t request =
        run_.out.start_receive(with, kCgTag, received * kDoubleBytes, NasRank::array(array));
    run_.out.send(with, kCgTag, sent * kDoubleBytes, NasRank::array(array + 1));
    run_.out.wait({&request, 1});
  }

  // Of the matrix and a vector: summed along the row, and to where its columns are.
  void multiply(double compute_ns) {
    run_.out.compute(compute_ns);
    for (size_t i = partners_.size(); i-- > 0;) {
      const bool first = i + 1 == partners_.size();
      const bool square = rows_ == columns_;
      const uint64_t sent = square || !first ? sent_ : length_ - sent_;
      exchange(partners_[i], sent, square ? length_ : sent_, 0);
    }
    if (!partners_.empty()) exchange(transposed_, sent_, transposed_length_, 2);
  }
  void sum(uint64_t numbers) {
    for (const uint32_t partner : partners_) exchange(partner, numbers, numbers, 4);
  }

  const NasRank& run_;
  uint32_t rows_ = 1;
  uint32_t columns_ = 1;
  uint64_t length_ = 0;  // of the vector's part of this row
  uint64_t sent_ = 0;    // of it, what goes to the transposed rank
  uint64_t transposed_length_ = 0;
  uint32_t transposed_ = 0;
  std::vector<uint32_t> partners_;  // half a row away, a quarter, ...
};

}  // namespace

void write_cg(const NasRank& run) { Cg(run).write(); }

}  // namespace verbena::trace
