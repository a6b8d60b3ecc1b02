#include "src/reproduce/figures.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "src/bench/experiment/workload.h"
#include "src/reproduce/quantity.h"

namespace verbena::reproduce {

namespace {

using nlohmann::json;

// What a figure shows upwards.
struct Ordinate {
  const Metric* metric = nullptr;
  std::string unit;
  double scale = 1;
};

// A claim and a part of its check that speaks of an experiment.
struct Mention {
  const Verdict* verdict;
  const Part* part;
};

std::string unit_of(const Mention& mention) {
  const Dimension dimension = mention.part->metric->dimension;
  for (const std::string& unit : {mention.part->unit, mention.verdict->claim->unit}) {
    if (!unit.empty() && in_unit(dimension, unit)) return unit;
  }
  return std::string(usual_unit(dimension));
}

bool states_value(const Mention& mention) {
  const Part& part = *mention.part;
  return part.shape == Shape::kStated && !part.over && !part.minus && !part.mean &&
         (part.value || mention.verdict->claim->number);
}

// What most of them speak of.
Ordinate common_ordinate(const std::vector<Mention>& mentions) {
  std::map<std::tuple<std::string_view, std::string, double>, size_t> votes;
  Ordinate common;
  size_t most = 0;
  for (const Mention& mention : mentions) {
    const Ordinate one{mention.part->metric, unit_of(mention), mention.part->scale};
    size_t& count = votes[{one.metric->name, one.unit, one.scale}];
    count += states_value(mention) ? mentions.size() : 1;
    if (count <= most) continue;
    most = count;
    common = one;
  }
  return common;
}

// By what the samples differ most, of what makes lines of them.
const Abscissa* best_abscissa(const std::vector<Sample>& samples) {
  constexpr std::array<std::string_view, 11> kNames = {
      "response",     "size",  "entries", "region",     "pending",
      "requesters",   "nodes", "threads", "responders", "responding-threads",
      "empty-percent"};
  const Abscissa* best = nullptr;
  size_t most = 0;
  for (const std::string_view name : kNames) {
    const Abscissa* one = find_abscissa(name);
    if (!lines_of(samples, *one).ok()) continue;
    std::set<double> values;
    for (const Sample& sample : samples) values.insert(one->value(sample.point));
    if (values.size() <= most) continue;
    most = values.size();
    best = one;
  }
  return best;
}

std::string line_text(const bench::Point& point) { return point.workload->line_text(point); }

// What tells lines of the same name from each other.
std::vector<std::string> variants_of(std::vector<Sample> samples, const Abscissa& along) {
  for (Sample& sample : samples) sample.other = sample.point;
  return labels_of(samples, {&along}, samples.front().point.workload->traits().line_axes);
}

class Figure {
 public:
  Figure(std::string experiment, std::vector<Mention> mentions, Source source)
      : experiment_(std::move(experiment)), mentions_(std::move(mentions)), source_(source) {}

  json in_topology(bench::Topology topology) {
    topology_ = topology;
    ordinate_ = common_ordinate(mentions_);
    read_samples();
    const Abscissa* along = samples_.empty() ? nullptr : best_abscissa(samples_);
    if (along == nullptr) return nullptr;
    variants_ = variants_of(samples_, *along);
    json figure = {{"experiment", experiment_}, {"topology", bench::topology_name(topology)},
                   {"x", along->name},          {"metric", ordinate_.metric->name},
                   {"unit", ordinate_.unit},    {"lines", lines(*along)},
                   {"stated", stated(*along)}};
    return figure;
  }

 private:
  void read_samples() {
    samples_.clear();
    const auto points = source_.experiments->points(experiment_);
    const std::optional<double> factor = in_unit(ordinate_.metric->dimension, ordinate_.unit);
    if (!points.ok() || !factor) return;
    for (const bench::Point& point : *points) {
      if (point.topology != topology_) continue;
      const Result<std::optional<double>> value = value_at(point, *ordinate_.metric, source_);
      if (!value.ok() || !*value) continue;
      samples_.push_back({point, point, **value * *factor * ordinate_.scale});
    }
  }

  json lines(const Abscissa& along) const {
    std::map<std::pair<std::string, std::string>, std::map<double, double>> by_name;
    for (size_t i = 0; i < samples_.size(); ++i) {
      by_name[{variants_[i], line_text(samples_[i].point)}][along.value(samples_[i].point)] =
          samples_[i].value;
    }
    json list = json::array();
    for (const auto& [name, values] : by_name) {
      json line = {{"variant", name.first}, {"protocol", name.second}};
      for (const auto& [x, y] : values) {
        line["x"].push_back(x);
        line["y"].push_back(y);
      }
      list.push_back(std::move(line));
    }
    return list;
  }

  std::string variant_of(const bench::Point& point) const {
    for (size_t i = 0; i < samples_.size(); ++i) {
      if (samples_[i].point == point) return variants_[i];
    }
    return "";
  }

  json stated(const Abscissa& along) const {
    json list = json::array();
    for (const Mention& mention : mentions_) {
      const Part& part = *mention.part;
      if (!states_value(mention) || part.metric != ordinate_.metric ||
          part.scale != ordinate_.scale || part.of.experiment != experiment_) {
        continue;
      }
      const Claim& claim = *mention.verdict->claim;
      const Dimension dimension = part.metric->dimension;
      const double factor =
          *in_unit(dimension, ordinate_.unit) / *in_unit(dimension, unit_of(mention));
      const Range range = part.value ? *part.value : *claim.number;
      const auto samples = samples_of(part, part.of, ordinate_.unit, source_);
      if (!samples.ok()) continue;
      for (const Sample& sample : *samples) {
        if (sample.point.topology != topology_) continue;
        list.push_back({{"claim", claim.id},
                        {"protocol", line_text(sample.point)},
                        {"variant", variant_of(sample.point)},
                        {"x", along.value(sample.point)},
                        {"low", range.low * factor},
                        {"high", range.high * factor},
                        {"text", claim.text()},
                        {"verdict", outcome_name(mention.verdict->outcome)}});
      }
    }
    return list;
  }

  std::string experiment_;
  std::vector<Mention> mentions_;
  Source source_;
  bench::Topology topology_ = bench::Topology::kOneToOne;
  Ordinate ordinate_;
  std::vector<Sample> samples_;
  std::vector<std::string> variants_;  // of each sample
};

}  // namespace

json figures_json(const Catalog& catalog, const std::vector<Verdict>& verdicts,
                  const std::map<std::string, PaperData>& papers, Experiments& experiments) {
  json figures = json::array();
  for (const PaperChecks& paper : catalog.papers) {
    const auto data = papers.find(paper.paper);
    if (data == papers.end()) continue;
    std::vector<std::string> names;  // of experiments, in the order of the claims
    std::map<std::string, std::vector<Mention>> mentions;
    for (const Verdict& verdict : verdicts) {
      if (verdict.claim->paper != paper.paper || verdict.outcome == Outcome::kUnchecked) continue;
      for (const Part& part : catalog.check_of(*verdict.claim).parts) {
        const std::string& name = selections_of(part).front()->experiment;
        if (!mentions.contains(name)) names.push_back(name);
        mentions[name].push_back({&verdict, &part});
      }
    }
    const Source source{&experiments, &paper.uses, &data->second.measurements, data->second.runs};
    for (const std::string& name : names) {
      Figure figure(name, mentions[name], source);
      for (const bench::Topology topology : bench::all_topologies()) {
        json drawn = figure.in_topology(topology);
        if (drawn.is_null()) continue;
        drawn["paper"] = paper.paper;
        figures.push_back(std::move(drawn));
      }
    }
  }
  return figures;
}

}  // namespace verbena::reproduce
