// BT and SP: of c * c * c cells each of c * c ranks has c, no two of them in the same slice along
// any dimension, so that all ranks work at every stage of a solve.
#include <array>
#include <cmath>
#include <vector>

#include "src/trace/nas_kernels.h"

namespace verbena::trace {

namespace {

constexpr uint64_t kCellUnknowns = 5;

class Multipartition {
 public:
  Multipartition(const NasRank& run, NasKernel kernel)
      : run_(run),
        block_(kernel == NasKernel::kBt),
        points_(nas_grid(kernel, run.size).x),
        cells_(static_cast<uint32_t>(std::lround(std::sqrt(run.ranks)))) {
    const uint32_t i = run.rank % cells_;
    const uint32_t j = run.rank / cells_;
    for (uint32_t cell = 0; cell < cells_; ++cell) {
      places_.push_back({(i + cell) % cells_, (j + cells_ - cell) % cells_, cell});
    }
    const uint32_t left = (i + cells_ - 1) % cells_;
    const uint32_t right = (i + 1) % cells_;
    const uint32_t below = (j + cells_ - 1) % cells_ * cells_;
    const uint32_t above = (j + 1) % cells_ * cells_;
    behind_ = {right + j * cells_, i + above, left + above};
    before_ = {left + j * cells_, i + below, right + below};
  }

  void write() {
    // The right-hand side and each of the three solves have a quarter of an iteration's work.
    const double quarter_ns = run_.total_ns / run_.iterations / 4;
    for (uint32_t i = 0; i < run_.iterations; ++i) {
      faces();
      run_.out.compute(quarter_ns);
      for (size_t axis = 0; axis < 3; ++axis) {
        solve(axis, quarter_ns, /*forward=*/true);
        solve(axis, quarter_ns, /*forward=*/false);
      }
    }
    // How far off the result is.
    run_.out.collective(Operation::kAllreduce, kCellUnknowns * kDoubleBytes, NasRank::array(20));
    run_.out.collective(Operation::kAllreduce, kCellUnknowns * kDoubleBytes, NasRank::array(21));
  }

 private:
  using Place = std::array<uint32_t, 3>;

  uint64_t side(uint32_t place) const {
    return points_ / cells_ + (place < points_ % cells_ ? 1 : 0);
  }
  // Of a side's points, those that are not on the border of the grid.
  uint64_t inner(uint32_t place) const {
    return side(place) - (place == 0 ? 1 : 0) - (place + 1 == cells_ ? 1 : 0);
  }

  // Of all cells with a neighbour at that end of an axis: two planes of their points.
  uint64_t face_bytes(size_t axis, bool at_end) const {
    uint64_t points = 0;
    for (const Place& place : places_) {
      if (place[axis] == (at_end ? cells_ - 1 : 0)) continue;
      points += side(place[(axis + 1) % 3]) * side(place[(axis + 2) % 3]);
    }
    return 2 * kCellUnknowns * points * kDoubleBytes;
  }
  void faces() {
    if (cells_ == 1) return;
    std::vector<uint32_t> requests;
    for (size_t axis = 0; axis < 3; ++axis) {
      const auto tag = static_cast<int32_t>(2 * axis);
      requests.push_back(run_.out.start_receive(behind_[axis], tag, face_bytes(axis, true),
                                                NasRank::array(2 * axis)));
      requests.push_back(run_.out.start_receive(before_[axis], tag + 1, face_bytes(axis, false),
                                                NasRank::array(2 * axis + 1)));
    }
    for (size_t axis = 0; axis < 3; ++axis) {
      const auto tag = static_cast<int32_t>(2 * axis);
      requests.push_back(run_.out.start_send(behind_[axis], tag + 1, face_bytes(axis, true),
                                             NasRank::array(6 + 2 * axis)));
      requests.push_back(run_.out.start_send(before_[axis], tag, face_bytes(axis, false),
                                             NasRank::array(7 + 2 * axis)));
    }
    run_.out.wait(requests);
  }

  // Of the cell at a place: what its neighbour along the axis needs. BT's messages have room for
  // the largest cell, with a block of 5 * 5 beside the unknowns; SP's have 22 numbers of two rows
  // of the matrix for each line, and on the way back the unknowns of two points.
  uint64_t stage_bytes(const Place& place, size_t axis, bool forward) const {
    if (block_) {
      const uint64_t most = points_ / cells_ + 1;
      const uint64_t numbers =
          forward ? kCellUnknowns * kCellUnknowns + kCellUnknowns : kCellUnknowns;
      return most * most * numbers * kDoubleBytes;
    }
    const uint64_t points = inner(place[(axis + 1) % 3]) * inner(place[(axis + 2) % 3]);
    return points * (forward ? 22 : 10) * kDoubleBytes;
  }

  void solve(size_t axis, double total_ns, bool forward) {
    // Elimination takes about twice as long as substitution.
    const double stage_ns = total_ns * (forward ? 2 : 1) / 3 / cells_;
    const uint32_t from = forward ? before_[axis] : behind_[axis];
    const uint32_t to = forward ? behind_[axis] : before_[axis];
    const auto tag = static_cast<int32_t>(8 + 2 * axis + (forward ? 1 : 0));
    uint32_t sent = 0;
    for (uint32_t stage = 0; stage < cells_; ++stage) {
      const Place& place = at(axis, forward ? stage : cells_ - 1 - stage);
      const uint64_t bytes = stage_bytes(place, axis, forward);
      if (stage > 0) {
        const uint32_t request = run_.out.start_receive(from, tag, bytes, NasRank::array(14));
        // What does not need the neighbour's part is done meanwhile.
        run_.out.compute(stage_ns / 2);
        const std::array<uint32_t, 2> both = {request, sent};
        run_.out.wait(both);
        run_.out.compute(stage_ns / 2);
      } else {
        run_.out.compute(stage_ns);
      }
      if (stage + 1 < cells_) sent = run_.out.start_send(to, tag, bytes, NasRank::array(15));
    }
  }
  const Place& at(size_t axis, uint32_t slice) const {
    for (const Place& place : places_) {
      if (place[axis] == slice) return place;
    }
    return places_.front();
  }

  const NasRank& run_;
  const bool block_;
  const uint64_t points_;
  const uint32_t cells_;  // a side
  std::vector<Place> places_;
  std::array<uint32_t, 3> before_{};
  std::array<uint32_t, 3> behind_{};
};

}  // namespace

void write_multipartition(const NasRank& run, NasKernel kernel) {
  Multipartition(run, kernel).write();
}

}  // namespace verbena::trace
