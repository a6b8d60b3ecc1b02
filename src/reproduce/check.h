// How a claim is checked: which points of which experiment, which quantity of them, and what has to
// hold. Checks are data (check_file.h); this is what they say.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/reproduce/abscissa.h"
#include "src/reproduce/claim.h"
#include "src/reproduce/metric.h"
#include "verbena/status.h"

namespace verbena::reproduce {

// Values on axes as typed ("1,16"), by the axis' name.
using AxisTexts = std::map<std::string, std::string>;

// Points of an experiment: those that have one of the values on each axis.
struct Selection {
  std::string experiment;  // "msgproto-fig10a"
  std::optional<bench::Topology> topology{};
  AxisTexts axes{};
  // What this selection says itself, beside what the whole check says: in that, two quantities that
  // are put together differ on purpose.
  std::set<std::string> own{};
  bool own_topology = false;
};

// The points of these that a selection has, all of one workload. kInvalidArgument: that workload
// has no such axis, or no such value.
Result<std::vector<bench::Point>> chosen_points(const std::vector<bench::Point>& points,
                                                const Selection& selection);

// What has to hold of a quantity. "Lines" are those of a figure: points that differ only in what is
// on the horizontal axis, Part::along.
enum class Shape {
  kStated,  // every value is the claim's, as its relation says
  kRises,   // every line
  kFalls,
  kFlat,       // every line: its values differ by no more than `within`
  kSimilar,    // all values with the same `at` differ by no more than `within`
  kOrdered,    // every value of a group is above every value of the next one with the same `at`, by
               // kOrderMargin at least
  kReaches,    // every line: from which x on it has `share` of its maximum is the claim's value
  kHolds,      // every line: to which x it has `share` of its first value is the claim's value
  kOvertakes,  // from which x on all lines have at least `share` of those of `than`
  kConverges,  // from which x on all values differ by no more than `within`
};

// What the quotient of two quantities is told as: 1.4; 140 %; 40 % more; 60 % less.
enum class QuotientUnit { kRatio, kPercent, kChange, kReduction };

// By which share two values differ at least that are in order: two seeds differ by less.
inline constexpr double kOrderMargin = 0.02;

struct Part {
  Shape shape = Shape::kStated;
  const Metric* metric = nullptr;
  Selection of;
  // The quantity is `of` divided by `over`, or `of` less `minus`, for all points that agree on
  // every axis that neither selection sets itself, and on `along` and `at`. Of kOrdered, each group
  // takes the place of `of`, and of what `over` or `minus` do not set.
  std::optional<Selection> over{};
  std::optional<Selection> minus{};
  QuotientUnit quotient_unit = QuotientUnit::kRatio;
  std::optional<Selection> than{};
  std::vector<Selection> groups{};  // of kOrdered, the highest first; `of` is empty
  bool ascending = false;           // the lowest first
  std::vector<std::string> best{};  // only the highest value over these axes counts
  std::vector<std::string> most{};  // the same of what `over` or `minus` make
  bool mean = false;                // the mean of all values with the same `at` counts
  std::vector<const Abscissa*> at{};
  const Abscissa* along = nullptr;
  double scale = 1;  // the quantity is multiplied by it
  double within = 0.15;
  double share = 0.95;
  double slack = 0.05;  // a step against a trend that is none yet
  bool mostly = false;  // most steps of a trend go its way
  // In place of the claim's, where that is said in words.
  std::optional<Range> value{};
  std::string comparison{};
  std::string unit{};

  // The quantity is a share of a whole, in percent: it cannot be above 100.
  bool is_share() const {
    return over ? quotient_unit == QuotientUnit::kReduction
                : !minus && metric->dimension == Dimension::kShare;
  }
};

struct Check {
  std::string id;
  std::string unchecked{};  // why there are no parts
  std::vector<Part> parts{};
  std::string note{};   // how an unclear claim is read
  std::string lacks{};  // what the model is known to lack, told where the claim fails
};

// What is measured of an experiment, and how long: the standard is all of it.
struct Use {
  AxisTexts only{};
  uint64_t duration_ns = 0;  // 0: PaperChecks::duration_ns
  uint64_t operations = 0;   // of a run, instead of a time; 0: as long as it is to last
};

struct PaperChecks {
  std::string paper;
  std::string device;
  uint64_t duration_ns = 0;
  std::map<std::string, Use> uses{};
  std::vector<Check> checks{};
};

}  // namespace verbena::reproduce
