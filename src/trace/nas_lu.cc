// LU: a wavefront from one corner of the grid to the other, plane by plane, and back.
#include <bit>

#include "src/trace/nas_kernels.h"

namespace verbena::trace {

namespace {

constexpr uint64_t kUnknowns = 5;
constexpr uint32_t kNobody = UINT32_MAX;

class Lu {
 public:
  explicit Lu(const NasRank& run) : run_(run), points_(nas_grid(NasKernel::kLu, run.size).x) {
    const auto log = static_cast<uint32_t>(std::countr_zero(run.ranks));
    const uint32_t wide = 1u << ((log + 1) / 2);
    const uint32_t high = run.ranks / wide;
    const uint32_t row = run.rank % wide;
    const uint32_t column = run.rank / wide;
    if (row > 0) north_ = run.rank - 1;
    if (row + 1 < wide) south_ = run.rank + 1;
    if (column > 0) west_ = run.rank - wide;
    if (column + 1 < high) east_ = run.rank + wide;
    x_ = share(wide, row);
    y_ = share(high, column);
    // Without the points on the border.
    inner_x_ = x_ - (north_ == kNobody ? 1 : 0) - (south_ == kNobody ? 1 : 0);
    inner_y_ = y_ - (west_ == kNobody ? 1 : 0) - (east_ == kNobody ? 1 : 0);
  }

  void write() {
    // Of the work of an iteration, each sweep and the right-hand side have a third.
    const double third_ns = run_.total_ns / run_.iterations / 3;
    right_hand_side(0);
    norm();
    for (uint32_t i = 0; i < run_.iterations; ++i) {
      sweep(third_ns, {.from_x = north_, .from_y = west_, .to_x = south_, .to_y = east_}, 0);
      sweep(third_ns, {.from_x = south_, .from_y = east_, .to_x = north_, .to_y = west_}, 2);
      right_hand_side(third_ns);
    }
    norm();
  }

 private:
  struct Way {
    uint32_t from_x, from_y, to_x, to_y;
  };

  uint64_t share(uint32_t parts, uint32_t part) const {
    return points_ / parts + (part < points_ % parts ? 1 : 0);
  }
  void norm() {
    run_.out.collective(Operation::kAllreduce, kUnknowns * kDoubleBytes, NasRank::array(8));
  }

  // All planes but the first and the last one.
  void sweep(double total_ns, const Way& way, int32_t tag) {
    const uint64_t along_y = kUnknowns * inner_y_ * kDoubleBytes;
    const uint64_t along_x = kUnknowns * inner_x_ * kDoubleBytes;
    const uint64_t planes = points_ - 2;
    for (uint64_t plane = 0; plane < planes; ++plane) {
      if (way.from_x != kNobody) run_.out.receive(way.from_x, tag, along_y, NasRank::array(0));
      if (way.from_y != kNobody) run_.out.receive(way.from_y, tag + 1, along_x, NasRank::array(1));
      run_.out.compute(total_ns / static_cast<double>(planes));
      if (way.to_x != kNobody) run_.out.send(way.to_x, tag, along_y, NasRank::array(2));
      if (way.to_y != kNobody) run_.out.send(way.to_y, tag + 1, along_x, NasRank::array(3));
    }
  }

  // Two planes of ghost cells, along one dimension and then along the other.
  void right_hand_side(double total_ns) {
    faces(north_, south_, 2 * kUnknowns * y_ * points_ * kDoubleBytes, 4);
    run_.out.compute(total_ns / 2);
    faces(west_, east_, 2 * kUnknowns * x_ * points_ * kDoubleBytes, 6);
    run_.out.compute(total_ns / 2);
  }
  void faces(uint32_t before, uint32_t behind, uint64_t bytes, int32_t tag) {
    shift(before, behind, bytes, tag);
    shift(behind, before, bytes, tag + 1);
  }
  void shift(uint32_t from, uint32_t to, uint64_t bytes, int32_t tag) {
    uint32_t request = 0;
    if (from != kNobody) request = run_.out.start_receive(from, tag, bytes, NasRank::array(4));
    if (to != kNobody) run_.out.send(to, tag, bytes, NasRank::array(5));
    if (from != kNobody) run_.out.wait({&request, 1});
  }

  const NasRank& run_;
  const uint64_t points_;
  uint32_t north_ = kNobody;
  uint32_t south_ = kNobody;
  uint32_t west_ = kNobody;
  uint32_t east_ = kNobody;
  uint64_t x_ = 0;
  uint64_t y_ = 0;
  uint64_t inner_x_ = 0;
  uint64_t inner_y_ = 0;
};

}  // namespace

void write_lu(const NasRank& run) { Lu(run).write(); }

}  // namespace verbena::trace
