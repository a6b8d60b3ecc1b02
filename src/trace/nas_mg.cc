// MG: V-cycles over grids of 2^k points, each with half as many points a side as the one above.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "src/trace/nas_kernels.h"

namespace verbena::trace {

namespace {

class Mg {
 public:
  explicit Mg(const NasRank& run)
      : run_(run),
        top_(static_cast<uint32_t>(std::countr_zero(nas_grid(NasKernel::kMg, run.size).x))) {
    const auto log = static_cast<uint32_t>(std::countr_zero(run.ranks));
    sides_[0] = 1u << (log / 3);
    sides_[1] = 1u << ((log - log / 3) / 2);
    sides_[2] = run.ranks / (sides_[0] * sides_[1]);
    place_ = {run.rank % sides_[0], run.rank / sides_[0] % sides_[1],
              run.rank / (sides_[0] * sides_[1])};
    // The work of a cycle is what its passes over grids have of points.
    double points = 0;
    for (uint32_t level = 1; level <= top_; ++level) points += passes(level) * std::exp2(3 * level);
    ns_per_point_ = run.total_ns / run.iterations / points;
  }

  void write() {
    exchange(top_);
    norm();
    for (uint32_t i = 0; i < run_.iterations; ++i) {
      for (uint32_t level = top_; level > 1; --level) pass(level, level - 1);
      pass(1, 1);
      for (uint32_t level = 2; level <= top_; ++level) {
        pass(level, level);
        pass(level, level);
      }
      pass(top_, top_);
    }
    norm();
  }

 private:
  // Down from it, and up to it twice; the coarsest has one, and the finest one more.
  double passes(uint32_t level) const { return level == 1 ? 1 : 3 + (level == top_ ? 1 : 0); }
  void pass(uint32_t worked_on, uint32_t exchanged) {
    run_.out.compute(ns_per_point_ * std::exp2(3 * worked_on));
    exchange(exchanged);
  }
  void norm() {
    run_.out.collective(Operation::kAllreduce, kDoubleBytes, NasRank::array(12));
    run_.out.collective(Operation::kAllreduce, kDoubleBytes, NasRank::array(13));
  }

  // Of ghost planes. Where a level has fewer points than ranks along a side, every second one or
  // fewer take part, those next to each other in this.
  void exchange(uint32_t level) {
    std::array<uint32_t, 3> strides{};
    std::array<uint64_t, 3> sizes{};
    for (size_t axis = 0; axis < 3; ++axis) {
      const uint32_t points = 1u << level;
      strides[axis] = std::max(sides_[axis] / points, 1u);
      sizes[axis] = std::max(points / sides_[axis], 1u) + 2;
      if (place_[axis] % strides[axis] != 0) return;
    }
    const std::array<uint64_t, 3> planes = {(sizes[1] - 2) * (sizes[2] - 2),
                                            sizes[0] * (sizes[2] - 2), sizes[0] * sizes[1]};
    for (size_t axis = 0; axis < 3; ++axis) {
      if (sides_[axis] > strides[axis]) exchange_axis(axis, strides[axis], planes[axis]);
    }
  }
  void exchange_axis(size_t axis, uint32_t stride, uint64_t plane) {
    const uint32_t up = neighbour(axis, stride);
    const uint32_t down = neighbour(axis, sides_[axis] - stride);
    const auto tag = static_cast<int32_t>(2 * axis);
    const uint64_t bytes = plane * kDoubleBytes;
    const std::array<uint32_t, 2> requests = {
        run_.out.start_receive(up, tag, bytes, NasRank::array(0)),
        run_.out.start_receive(down, tag + 1, bytes, NasRank::array(1))};
    run_.out.send(up, tag + 1, bytes, NasRank::array(2));
    run_.out.send(down, tag, bytes, NasRank::array(3));
    run_.out.wait({requests.data(), 1});
    run_.out.wait({requests.data() + 1, 1});
  }
  uint32_t neighbour(size_t axis, uint32_t distance) const {
    std::array<uint32_t, 3> place = place_;
    place[axis] = (place[axis] + distance) % sides_[axis];
    return place[0] + sides_[0] * (place[1] + sides_[1] * place[2]);
  }

  const NasRank& run_;
  const uint32_t top_;
  std::array<uint32_t, 3> sides_{};
  std::array<uint32_t, 3> place_{};
  double ns_per_point_ = 0;
};

}  // namespace

void write_mg(const NasRank& run) { Mg(run).write(); }

}  // namespace verbena::trace
