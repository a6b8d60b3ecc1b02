// The values that a check compares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/reproduce/check.h"
#include "src/reproduce/experiments.h"
#include "src/reproduce/measurements.h"
#include "src/reproduce/metric.h"
#include "verbena/status.h"

namespace verbena::reproduce {

struct Sample {
  bench::Point point;
  bench::Point other;  // of the second quantity, where there is one; else as `point`
  double value = 0;
};

// One line of a figure: values by what is on the horizontal axis.
using Line = std::map<double, Sample>;

// What values are taken from.
struct Source {
  Experiments* experiments = nullptr;
  const std::map<std::string, Use>* uses = nullptr;
  const Measurements* measurements = nullptr;
  size_t seeds = SIZE_MAX;      // the first so many runs of a point, of which the median counts
  std::optional<size_t> run{};  // this one alone, in place of it
};

// The metric at a point, in its own unit; nothing where the runs did not measure it.
//   kUnavailable     a run failed, or was interrupted
Result<std::optional<double>> value_at(const bench::Point& point, const Metric& metric,
                                       const Source& source);

// The metric over the points of a selection, in `unit`, only the best over Part::best.
//   kUnavailable     a point could not be measured
//   kUnsupported     the run did not measure this metric
//   kInvalidArgument a defect of the check
Result<std::vector<Sample>> samples_of(const Part& part, const Selection& selection,
                                       std::string_view unit, const Source& source);

// The quantity of a part: `of`, divided by `over` or less `minus`, scaled. `of` is that of the
// part, or one of its groups.
Result<std::vector<Sample>> quantity_of(const Part& part, const Selection& of,
                                        std::string_view unit, const Source& source);

// Those with the same value on every abscissa of `at` together, in ascending order.
std::vector<std::vector<Sample>> groups_of(const std::vector<Sample>& samples,
                                           const std::vector<const Abscissa*>& at);

// The samples as lines along `along`; kInvalidArgument where one place has two values.
Result<std::vector<Line>> lines_of(const std::vector<Sample>& samples, const Abscissa& along);

// What tells these samples from each other, in words: "write/write", "read 16". Empty where there
// is one of them, or the abscissas and axes that are known alone tell them apart.
std::vector<std::string> labels_of(const std::vector<Sample>& samples,
                                   const std::vector<const Abscissa*>& known,
                                   std::span<const std::string_view> known_axes = {});

}  // namespace verbena::reproduce
