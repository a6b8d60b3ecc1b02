#include "src/memory/reuse_thresholds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "src/base/assert.h"

namespace verbena {

namespace {

constexpr uint32_t kPageOfModelBytes = 4096;
constexpr uint32_t kLeastOfPaperBytes = 128;

struct PaperRow {
  uint32_t bytes;
  uint32_t eager_write;
  uint32_t eager_send;
  uint32_t one_sided;

  uint32_t least(ReusePath path) const {
    switch (path) {
      case ReusePath::kEagerWrite:
        return eager_write;
      case ReusePath::kEagerSend:
        return eager_send;
      case ReusePath::kOneSided:
        return one_sided;
    }
    return kNeverPays;
  }
};

// "bufreuse" table 2.
constexpr PaperRow kPaperRows[] = {
    {512, 432, 1568, 196}, {1024, 200, 448, 128}, {2048, 110, 224, 128},
    {3072, 76, 131, 125},  {4096, 60, 95, 56},    {5120, 48, 75, 33},
    {6144, 40, 65, 29},    {7168, 36, 55, 26},    {8192, 32, 49, 25},
};

double paper_least(ReusePath path, uint32_t bytes) {
  const PaperRow& first = kPaperRows[0];
  if (bytes <= first.bytes) return double(first.least(path)) * first.bytes / bytes;
  const PaperRow* const above = std::find_if(std::begin(kPaperRows), std::end(kPaperRows),
                                             [&](const PaperRow& r) { return r.bytes >= bytes; });
  if (above == std::end(kPaperRows)) return std::prev(above)->least(path);
  const PaperRow& below = *std::prev(above);
  const double way = double(bytes - below.bytes) / (above->bytes - below.bytes);
  return below.least(path) + way * (double(above->least(path)) - below.least(path));
}

}  // namespace

const char* reuse_path_name(ReusePath path) {
  switch (path) {
    case ReusePath::kEagerWrite:
      return "eager WRITE";
    case ReusePath::kEagerSend:
      return "eager SEND";
    case ReusePath::kOneSided:
      return "one-sided";
  }
  return "?";
}

uint32_t least_reuses(const ReuseCosts& costs) {
  const double saved = costs.copy_ns - costs.overhead_ns;
  if (!(saved > 0)) return kNeverPays;
  const double least = std::floor(costs.registration_ns / saved) + 1;
  return least < double{kNeverPays} ? static_cast<uint32_t>(least) : kNeverPays;
}

double copied_ns(ReusePath path, const ReuseCosts& costs, uint64_t messages) {
  const double copies = path == ReusePath::kOneSided ? 1 : 2;
  return static_cast<double>(messages) * (copies * costs.copy_ns + costs.transfer_ns);
}

double in_place_ns(ReusePath path, const ReuseCosts& costs, uint64_t messages) {
  const double copies = path == ReusePath::kOneSided ? 0 : 1;
  const double message_ns = copies * costs.copy_ns + costs.transfer_ns + costs.overhead_ns;
  return static_cast<double>(messages) * message_ns + costs.registration_ns;
}

double theoretical_improvement(const ReuseCosts& costs, double latency_ns) {
  return (costs.copy_ns - costs.overhead_ns) / latency_ns;
}

ReuseCosts ReuseCostModel::of(uint32_t bytes) const {
  const uint32_t pages = bytes / kPageOfModelBytes + (bytes % kPageOfModelBytes != 0 ? 1 : 0);
  return {.registration_ns = registration_ns + pages * registration_page_ns,
          .copy_ns = copy_ns + bytes * copy_byte_ns,
          .overhead_ns = overhead_ns};
}

ReuseThresholds::ReuseThresholds() { least_.fill(kNeverPays); }

template <typename Function>
ReuseThresholds ReuseThresholds::tabulate(uint32_t least_bytes, Function&& least_of) {
  ReuseThresholds thresholds;
  thresholds.least_bytes_ = least_bytes;
  for (uint32_t step = 0; step < kSteps; ++step) {
    thresholds.least_[step] = least_of((step + 1) * kStepBytes);
  }
  return thresholds;
}

ReuseThresholds ReuseThresholds::from_costs(const ReuseCostModel& costs, uint32_t least_bytes) {
  return tabulate(least_bytes,
                  [&](uint32_t bytes) { return verbena::least_reuses(costs.of(bytes)); });
}

ReuseThresholds ReuseThresholds::of_paper(ReusePath path) {
  return tabulate(kLeastOfPaperBytes, [&](uint32_t bytes) {
    return static_cast<uint32_t>(std::ceil(paper_least(path, bytes)));
  });
}

}  // namespace verbena
