#include "src/reproduce/finding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace verbena::reproduce {

namespace {

std::string number_text(double value) {
  return std::abs(value) >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

double value_of(const Sample& sample) { return sample.value; }

template <typename Samples, typename Read>
std::pair<double, double> extremes(const Samples& samples, Read read) {
  double low = read(*samples.begin());
  double high = low;
  for (const auto& sample : samples) {
    low = std::min(low, read(sample));
    high = std::max(high, read(sample));
  }
  return {low, high};
}

// How far values are apart: the highest is this share above the lowest.
template <typename Samples, typename Read>
double spread(const Samples& samples, Read read) {
  const auto [low, high] = extremes(samples, read);
  return low > 0 ? high / low - 1 : high > low ? HUGE_VAL : 0;
}

// "write/send 30.1, write/write 30.6"; "12..19" where there are many.
std::string list_text(const std::vector<Sample>& samples,
                      const std::vector<const Abscissa*>& known) {
  constexpr size_t kMost = 6;
  if (samples.size() > kMost) {
    const auto [low, high] = extremes(samples, value_of);
    return fmt::format("{}..{}", number_text(low), number_text(high));
  }
  const std::vector<std::string> labels = labels_of(samples, known);
  std::vector<std::string> texts;
  for (size_t i = 0; i < samples.size(); ++i) {
    texts.push_back(labels[i] + (labels[i].empty() ? "" : " ") + number_text(samples[i].value));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string place_text(const bench::Point& point, const std::vector<const Abscissa*>& at) {
  std::vector<std::string> texts;
  for (const Abscissa* one : at) {
    texts.push_back(fmt::format("{} {}", one->name, number_text(one->value(point))));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

class Finder {
 public:
  Finder(const Part& part, const Claim& claim, double tolerance, const Source& source)
      : part_(part), tolerance_(tolerance), source_(source) {
    stated_ = part.value ? part.value : claim.number;
    comparison_ = part.comparison.empty() ? std::string(claim.comparison()) : part.comparison;
    unit_ = part.unit.empty() ? claim.unit : part.unit;
    // Quotients, orders and places on an axis are stated in other units than what they are of.
    const bool of_metric = part.shape == Shape::kStated && !part.over && !unit_.empty();
    if (!of_metric && !in_unit(part.metric->dimension, unit_)) {
      unit_ = usual_unit(part.metric->dimension);
    }
    claim_unit_ = claim.unit;
    // Sizes are stated in KB, which are 1,024 bytes.
    if (claim.unit == "KB") x_unit_ = 1024;
  }

  Result<Finding> find() {
    VERBENA_ASSIGN_OR_RETURN(Finding finding, find_values());
    if (!finding.text.empty()) finding.text += unit_text();
    return finding;
  }

 private:
  Result<Finding> find_values() {
    if (part_.shape == Shape::kOrdered) return ordered();
    VERBENA_ASSIGN_OR_RETURN(samples_, quantity_of(part_, part_.of, unit_, source_));
    switch (part_.shape) {
      case Shape::kStated:
        return stated();
      case Shape::kSimilar:
        return similar();
      case Shape::kOvertakes:
        return overtakes();
      case Shape::kConverges:
        return converges();
      default:
        return lines();
    }
  }

  // Of what the text has; empty where that are plain numbers.
  std::string unit_text() const {
    std::string unit = unit_;
    switch (part_.shape) {
      case Shape::kReaches:
      case Shape::kHolds:
      case Shape::kOvertakes:
      case Shape::kConverges:
        unit = claim_unit_;  // of a place on the axis
        break;
      default:
        if (part_.over && part_.quotient_unit == QuotientUnit::kRatio) unit = "";
        if (part_.over && part_.quotient_unit != QuotientUnit::kRatio) unit = "percent";
    }
    if (unit.empty() || unit == "ratio" || unit == "count") return "";
    return unit == "percent" ? " %" : " " + unit;
  }

  // --- numbers ---

  // The end of what is stated that a value is beside, or the value itself.
  double bound_of(double value) const { return std::clamp(value, stated_->low, stated_->high); }

  // What errors are shares of. Of what is near 100 % the rest is what was found out.
  double scale_of(double bound) const {
    if (!part_.is_share()) return std::abs(bound);
    return std::min(std::abs(bound), std::abs(100 - bound));
  }

  // By which share of what is stated a value is beside it.
  double error_of(double value) const {
    const double bound = bound_of(value);
    const double scale = scale_of(bound);
    return scale == 0 ? value - bound : (value - bound) / scale;
  }

  bool is_stated(double value) const {
    if (comparison_ == "<") return value < stated_->high;
    if (comparison_ == ">") return value > stated_->low;
    if (comparison_ == ">=") return error_of(value) >= -tolerance_;
    return std::abs(error_of(value)) <= tolerance_;
  }

  Result<Finding> stated() {
    if (!stated_) return Status(StatusCode::kInvalidArgument, "the claim states no number");
    if (comparison_ == "<=") {  // "up to": the highest is the one that is stated
      const auto highest =
          std::max_element(samples_.begin(), samples_.end(),
                           [](const Sample& a, const Sample& b) { return a.value < b.value; });
      samples_ = {*highest};
    }
    Finding finding{.holds = true, .text = list_text(samples_, {})};
    double worst = 0;
    double worst_value = samples_[0].value;
    for (const Sample& sample : samples_) {
      finding.holds = finding.holds && is_stated(sample.value);
      const double error = error_of(sample.value);
      if (std::abs(error) < std::abs(worst)) continue;
      worst = error;
      worst_value = sample.value;
    }
    if (comparison_ != "<" && comparison_ != ">") {
      if (part_.is_share()) {
        const double bound = bound_of(worst_value);
        finding.error_points = worst_value - bound;
        finding.tolerance_points = tolerance_ * scale_of(bound);
      } else {
        finding.error = worst;
      }
    }
    if (samples_.size() == 1) finding.number = samples_[0].value;
    return finding;
  }

  // --- comparisons ---

  Result<Finding> similar() {
    double worst = 0;
    std::string text;
    for (const std::vector<Sample>& group : groups_of(samples_, part_.at)) {
      const double apart = spread(group, value_of);
      if (apart < worst) continue;
      worst = apart;
      const std::string where = place_text(group.front().point, part_.at);
      text = fmt::format("{}{}{}", where, where.empty() ? "" : ": ", list_text(group, part_.at));
    }
    return Finding{worst <= part_.within, fmt::format("{:.0f} % apart ({})", 100 * worst, text)};
  }

  static bool is_above(double high, double low) {
    return high - low > kOrderMargin * std::max(std::abs(high), std::abs(low));
  }

  Result<Finding> ordered() {
    std::vector<std::vector<std::vector<Sample>>> by_group;  // group, place, sample
    for (const Selection& selection : part_.groups) {
      VERBENA_ASSIGN_OR_RETURN(const std::vector<Sample> samples,
                               quantity_of(part_, selection, unit_, source_));
      by_group.push_back(groups_of(samples, part_.at));
      if (by_group.back().size() != by_group.front().size()) {
        return Status(StatusCode::kInvalidArgument, "the groups have no places in common");
      }
    }
    Finding finding{.holds = true, .text = ""};
    const char* sign = part_.ascending ? " < " : " > ";
    for (size_t place = 0; place < by_group[0].size(); ++place) {
      bool right = true;
      std::string text;
      for (size_t group = 0; group < by_group.size(); ++group) {
        const std::vector<Sample>& here = by_group[group][place];
        text += (group == 0 ? "" : " | ") + list_text(here, part_.at);
        if (group == 0) continue;
        const auto before = extremes(by_group[group - 1][place], value_of);
        const auto after = extremes(here, value_of);
        right = right && (part_.ascending ? is_above(after.first, before.second)
                                          : is_above(before.first, after.second));
      }
      const std::string where = place_text(by_group[0][place].front().point, part_.at);
      // The first place where it does not hold tells most.
      if (place == 0 || (finding.holds && !right)) {
        finding.text = fmt::format("{}{}{} {}", where, where.empty() ? "" : ": ", text,
                                   right ? "" : fmt::format("(not{}everywhere)", sign));
        while (finding.text.ends_with(' ')) finding.text.pop_back();
      }
      finding.holds = finding.holds && right;
    }
    return finding;
  }

  // --- along the horizontal axis ---

  static double at_line(const Line::value_type& entry) { return entry.second.value; }

  bool has_trend(const Line& line, bool up) const {
    const double sign = up ? 1 : -1;
    const double first = at_line(*line.begin());
    const double last = at_line(*line.rbegin());
    const double slack = part_.slack;
    bool goes = sign * (last - first) > slack * std::abs(first);
    size_t along = 0;
    for (auto next = std::next(line.begin()); next != line.end(); ++next) {
      const double before = at_line(*std::prev(next));
      const double step = sign * (at_line(*next) - before);
      if (step > 0) ++along;
      if (!part_.mostly) goes = goes && step >= -slack * std::abs(before);
    }
    return part_.mostly ? goes && 2 * along >= line.size() - 1 : goes;
  }

  // From which place on all values satisfy `good`; the size where the last one does not.
  template <typename Good>
  static size_t from_where(const Line& line, Good good) {
    size_t from = line.size();
    for (auto entry = line.rbegin(); entry != line.rend() && good(*entry); ++entry) --from;
    return from;
  }

  static double x_at(const Line& line, size_t place) {
    return std::next(line.begin(), static_cast<long>(place))->first;
  }

  // Whether the place is the claim's: what is stated may lie between two that were measured.
  bool is_threshold(const Line& line, size_t from) const {
    if (!stated_) return from < line.size();
    if (from >= line.size()) return false;
    const double stated = stated_->low * x_unit_;
    const double here = x_at(line, from);
    if (comparison_ == ">") return stated < here && (from == 0 || stated >= x_at(line, from - 1));
    return stated <= here && (from == 0 || stated > x_at(line, from - 1));
  }

  std::string x_text(const Line& line, size_t place) const {
    return place < line.size() ? number_text(x_at(line, place) / x_unit_) : "nowhere";
  }

  Finding threshold(const Line& line, size_t from) const {
    Finding finding{is_threshold(line, from), x_text(line, from)};
    if (from < line.size()) finding.number = x_at(line, from) / x_unit_;
    return finding;
  }

  Finding last_place(const Line& line) const {
    const double first = at_line(*line.begin());
    size_t count = 0;
    for (const auto& entry : line) {
      if (at_line(entry) < part_.share * first) break;
      ++count;
    }
    Finding finding{true, x_text(line, count - 1)};
    finding.number = x_at(line, count - 1) / x_unit_;
    if (stated_) {
      const double stated = stated_->low * x_unit_;
      finding.holds =
          stated >= x_at(line, count - 1) && (count == line.size() || stated < x_at(line, count));
    }
    return finding;
  }

  Finding of_line(const Line& line) const {
    const auto highest = extremes(line, at_line).second;
    std::vector<std::string> values;
    for (const auto& entry : line) values.push_back(number_text(at_line(entry)));
    const std::string text = fmt::format("{}", fmt::join(values, " "));
    switch (part_.shape) {
      case Shape::kRises:
        return {has_trend(line, true), text};
      case Shape::kFalls:
        return {has_trend(line, false), text};
      case Shape::kFlat:
        return {spread(line, at_line) <= part_.within, text};
      case Shape::kReaches:
        return threshold(line, from_where(line, [&](const auto& entry) {
                           return at_line(entry) >= part_.share * highest;
                         }));
      default:
        return last_place(line);
    }
  }

  Result<Finding> lines() {
    VERBENA_ASSIGN_OR_RETURN(const std::vector<Line> lines, lines_of(samples_, *part_.along));
    std::vector<Sample> firsts;
    for (const Line& line : lines) {
      if (line.size() < 2) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("a line along {} needs more than one value", part_.along->name));
      }
      firsts.push_back(line.begin()->second);
    }
    const std::vector<std::string> labels = labels_of(firsts, {part_.along});
    Finding finding{.holds = true, .text = ""};
    for (size_t i = 0; i < lines.size(); ++i) {
      const Finding one = of_line(lines[i]);
      finding.text += fmt::format("{}{}{}{}", i == 0 ? "" : "; ", labels[i],
                                  labels[i].empty() ? "" : ": ", one.text);
      finding.holds = finding.holds && one.holds;
      if (lines.size() == 1) finding.number = one.number;
    }
    return finding;
  }

  // One line with, at each place, the worst quotient of what is there.
  template <typename Worst>
  Finding worst_line(Worst worst, double at_least) const {
    Line line;
    for (const std::vector<Sample>& group : groups_of(samples_, {part_.along})) {
      Sample sample = group.front();
      sample.value = worst(group);
      line.emplace(part_.along->value(sample.point), sample);
    }
    return threshold(
        line, from_where(line, [&](const auto& entry) { return at_line(entry) >= at_least; }));
  }

  Result<Finding> overtakes() {
    VERBENA_ASSIGN_OR_RETURN(const std::vector<Sample> others,
                             samples_of(part_, *part_.than, unit_, source_));
    const auto worst = [&](const std::vector<Sample>& group) {
      double lowest = HUGE_VAL;
      for (const Sample& other : others) {
        if (part_.along->value(other.point) != part_.along->value(group.front().point)) continue;
        for (const Sample& one : group) lowest = std::min(lowest, one.value / other.value);
      }
      return lowest;
    };
    return worst_line(worst, part_.share);
  }

  Result<Finding> converges() {
    const auto closeness = [](const std::vector<Sample>& group) {
      return 1 / (1 + spread(group, value_of));
    };
    return worst_line(closeness, 1 / (1 + part_.within));
  }

  const Part& part_;
  double tolerance_;
  const Source& source_;
  std::optional<Range> stated_;
  std::string comparison_;
  std::string unit_;
  std::string claim_unit_;
  double x_unit_ = 1;
  std::vector<Sample> samples_;
};

}  // namespace

Result<Finding> find(const Part& part, const Claim& claim, double tolerance, const Source& source) {
  return Finder(part, claim, tolerance, source).find();
}

}  // namespace verbena::reproduce
