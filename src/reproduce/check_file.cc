#include "src/reproduce/check_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "src/bench/experiment/size_list.h"
#include "src/bench/workloads.h"

namespace verbena::reproduce {

namespace {

struct ShapeName {
  std::string_view name;
  Shape shape;
};
constexpr std::array kShapes = {
    ShapeName{"stated", Shape::kStated},       ShapeName{"rises", Shape::kRises},
    ShapeName{"falls", Shape::kFalls},         ShapeName{"flat", Shape::kFlat},
    ShapeName{"similar", Shape::kSimilar},     ShapeName{"ordered", Shape::kOrdered},
    ShapeName{"reaches", Shape::kReaches},     ShapeName{"holds", Shape::kHolds},
    ShapeName{"overtakes", Shape::kOvertakes}, ShapeName{"converges", Shape::kConverges},
};

struct QuotientName {
  std::string_view name;
  QuotientUnit unit;
};
constexpr std::array kQuotients = {
    QuotientName{"ratio", QuotientUnit::kRatio},
    QuotientName{"percent", QuotientUnit::kPercent},
    QuotientName{"change", QuotientUnit::kChange},
    QuotientName{"reduction", QuotientUnit::kReduction},
};

constexpr std::array<std::string_view, 28> kCheckKeys = {
    "id",   "in",   "where", "of",    "over",    "minus", "than",      "groups", "metric", "is",
    "as",   "best", "mean",  "at",    "along",   "scale", "within",    "share",  "slack",  "mostly",
    "note", "part", "value", "lacks", "compare", "unit",  "ascending", "most",
};

// Of the first workload that has one: which it is about, the experiment says.
const bench::Axis* find_axis(std::string_view name) {
  const bench::Workload* workload = bench::workload_with_axis(name);
  return workload == nullptr ? nullptr : workload->find_axis(name);
}

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  Result<PaperChecks> read(const toml::table& file) {
    VERBENA_ASSIGN_OR_RETURN(checks_.paper, required_text(file, "paper"));
    VERBENA_ASSIGN_OR_RETURN(checks_.device, required_text(file, "device"));
    if (const auto duration = file["duration"].value<std::string>()) {
      VERBENA_ASSIGN_OR_RETURN(checks_.duration_ns, bench::parse_duration_ns(*duration));
    }
    if (const toml::table* lists = file["lists"].as_table()) lists_ = lists;
    if (const toml::table* uses = file["experiment"].as_table()) {
      for (const auto& [name, node] : *uses) {
        if (!node.is_table()) return error(node, "an experiment is a table");
        VERBENA_ASSIGN_OR_RETURN(checks_.uses[std::string(name.str())], read_use(*node.as_table()));
      }
    }
    if (const toml::array* list = file["unchecked"].as_array()) {
      for (const toml::node& node : *list) VERBENA_RETURN_IF_ERROR(add_unchecked(node));
    }
    if (const toml::array* list = file["check"].as_array()) {
      for (const toml::node& node : *list) VERBENA_RETURN_IF_ERROR(add_check(node));
    }
    return std::move(checks_);
  }

  Status error(uint32_t line, std::string_view what) const {
    return Status(StatusCode::kInvalidArgument, fmt::format("{} line {}: {}", path_, line, what));
  }

 private:
  Status error(const toml::node& node, std::string_view what) const {
    return error(node.source().begin.line, what);
  }

  Result<std::string> required_text(const toml::table& table, std::string_view key) const {
    const auto text = table[key].value<std::string>();
    if (!text) return error(table, fmt::format("no text '{}'", key));
    return *text;
  }

  Result<Use> read_use(const toml::table& table) const {
    Use use;
    if (const auto text = table["duration"].value<std::string>()) {
      VERBENA_ASSIGN_OR_RETURN(use.duration_ns, bench::parse_duration_ns(*text));
    }
    if (const toml::node* count = table.get("operations")) {
      const auto operations = count->value<int64_t>();
      if (!operations || *operations < 1 || use.duration_ns != 0) {
        return error(*count, "'operations' is a number from 1 on, and instead of 'duration'");
      }
      use.operations = static_cast<uint64_t>(*operations);
    }
    if (const toml::table* only = table["only"].as_table()) {
      Selection selection;
      VERBENA_RETURN_IF_ERROR(add_axes(*only, &selection));
      use.only = selection.axes;
    }
    return use;
  }

  Status add_unchecked(const toml::node& node) {
    if (!node.is_table()) return error(node, "'unchecked' is not a list of tables");
    const toml::table& table = *node.as_table();
    VERBENA_ASSIGN_OR_RETURN(const std::string reason, required_text(table, "reason"));
    const toml::array* ids = table["ids"].as_array();
    if (ids == nullptr) return error(node, "no list 'ids'");
    for (const toml::node& id : *ids) {
      checks_.checks.push_back({.id = id.value_or(std::string()), .unchecked = reason});
    }
    return Status::ok_status();
  }

  Status add_check(const toml::node& node) {
    if (!node.is_table()) return error(node, "'check' is not a list of tables");
    const toml::table& table = *node.as_table();
    Check check;
    VERBENA_ASSIGN_OR_RETURN(check.id, required_text(table, "id"));
    check.note = table["note"].value_or(std::string());
    check.lacks = table["lacks"].value_or(std::string());
    const toml::array* parts = table["part"].as_array();
    if (parts == nullptr) {
      VERBENA_RETURN_IF_ERROR(add_part(table, &check));
    } else {
      for (const toml::node& part : *parts) {
        if (!part.is_table()) return error(part, "'part' is not a list of tables");
        toml::table merged = table;
        merged.erase("part");
        for (const auto& [key, value] : *part.as_table()) merged.insert_or_assign(key, value);
        VERBENA_RETURN_IF_ERROR(add_part(merged, &check));
      }
    }
    checks_.checks.push_back(std::move(check));
    return Status::ok_status();
  }

  Status add_part(const toml::table& table, Check* check) const {
    const auto wrong = [&](std::string_view what) {
      return error(table, fmt::format("{}: {}", check->id, what));
    };
    for (const auto& [key, node] : table) {
      if (std::find(kCheckKeys.begin(), kCheckKeys.end(), key.str()) == kCheckKeys.end()) {
        return wrong(fmt::format("there is no key '{}'", key.str()));
      }
    }
    Part part;
    const std::string shape = table["is"].value_or(std::string("stated"));
    const auto named = std::find_if(kShapes.begin(), kShapes.end(),
                                    [&](const ShapeName& one) { return one.name == shape; });
    if (named == kShapes.end()) return wrong(fmt::format("nothing can be '{}'", shape));
    part.shape = named->shape;
    const std::string metric = table["metric"].value_or(std::string("value-bandwidth"));
    part.metric = find_metric(metric);
    if (part.metric == nullptr) return wrong(fmt::format("there is no metric '{}'", metric));
    const std::string quotient = table["as"].value_or(std::string("ratio"));
    const auto told = std::find_if(kQuotients.begin(), kQuotients.end(),
                                   [&](const QuotientName& one) { return one.name == quotient; });
    if (told == kQuotients.end()) {
      return wrong("'as' is ratio, percent, change or reduction");
    }
    part.quotient_unit = told->unit;
    VERBENA_RETURN_IF_ERROR(add_selections(table, *check, &part));
    VERBENA_RETURN_IF_ERROR(add_abscissas(table, *check, &part));
    part.mean = table["mean"].value_or(part.mean);
    part.ascending = table["ascending"].value_or(part.ascending);
    part.mostly = table["mostly"].value_or(part.mostly);
    part.scale = table["scale"].value_or(part.scale);
    part.within = table["within"].value_or(part.within);
    part.share = table["share"].value_or(part.share);
    part.slack = table["slack"].value_or(part.slack);
    part.comparison = table["compare"].value_or(std::string());
    part.unit = table["unit"].value_or(std::string());
    if (const auto value = table["value"].value<double>()) part.value = Range{*value, *value};
    if (const toml::array* range = table["value"].as_array()) {
      if (range->size() != 2) return wrong("'value' is a number or [lowest, highest]");
      part.value = Range{range->get(0)->value_or(0.0), range->get(1)->value_or(0.0)};
    }
    check->parts.push_back(std::move(part));
    return Status::ok_status();
  }

  Status add_selections(const toml::table& table, const Check& check, Part* part) const {
    Selection base;
    VERBENA_ASSIGN_OR_RETURN(base.experiment, required_text(table, "in"));
    if (const toml::table* where = table["where"].as_table()) {
      VERBENA_RETURN_IF_ERROR(add_axes(*where, &base));
    }
    const auto further = [&](std::string_view key, std::optional<Selection>* selection) -> Status {
      const toml::table* own = table[key].as_table();
      if (own == nullptr) return Status::ok_status();
      *selection = base;
      return add_own(*own, &**selection);
    };
    std::optional<Selection> of = base;
    VERBENA_RETURN_IF_ERROR(further("of", &of));
    part->of = *of;
    VERBENA_RETURN_IF_ERROR(further("over", &part->over));
    VERBENA_RETURN_IF_ERROR(further("minus", &part->minus));
    VERBENA_RETURN_IF_ERROR(further("than", &part->than));
    if (const toml::array* groups = table["groups"].as_array()) {
      for (const toml::node& group : *groups) {
        if (!group.is_table()) return error(group, "a group is a table");
        Selection selection = base;
        VERBENA_RETURN_IF_ERROR(add_own(*group.as_table(), &selection));
        part->groups.push_back(std::move(selection));
      }
    }
    const bool ordered = part->shape == Shape::kOrdered;
    if (ordered != (part->groups.size() >= 2)) {
      return error(table, fmt::format("{}: 'ordered' has two 'groups' or more, nothing else has "
                                      "any",
                                      check.id));
    }
    if ((part->shape == Shape::kOvertakes) != part->than.has_value()) {
      return error(table, fmt::format("{}: 'overtakes' has 'than', nothing else has", check.id));
    }
    return Status::ok_status();
  }

  Status add_abscissas(const toml::table& table, const Check& check, Part* part) const {
    const auto find = [&](const std::string& name, const Abscissa** found) -> Status {
      *found = find_abscissa(name);
      if (*found != nullptr) return Status::ok_status();
      return error(table, fmt::format("{}: nothing is drawn along '{}'", check.id, name));
    };
    if (const auto along = table["along"].value<std::string>()) {
      VERBENA_RETURN_IF_ERROR(find(*along, &part->along));
    }
    for (const std::string& name : texts_of(table.get("at"))) {
      part->at.emplace_back();
      VERBENA_RETURN_IF_ERROR(find(name, &part->at.back()));
    }
    for (const auto& [key, axes] : {std::pair{"best", &part->best}, {"most", &part->most}}) {
      for (const std::string& name : texts_of(table.get(key))) {
        const bench::Axis* axis = find_axis(name);
        if (axis == nullptr) return error(table, fmt::format("there is no axis '{}'", name));
        axes->emplace_back(axis->name);
      }
    }
    if (!part->most.empty() && !part->over && !part->minus) {
      return error(table, "'most' is of a quotient or a difference: give over or minus");
    }
    const bool along_needed = part->shape != Shape::kStated && part->shape != Shape::kSimilar &&
                              part->shape != Shape::kOrdered;
    if (along_needed && part->along == nullptr) {
      return error(table, fmt::format("{}: no 'along'", check.id));
    }
    return Status::ok_status();
  }

  Status add_own(const toml::table& table, Selection* selection) const {
    for (const auto& [key, node] : table) {
      selection->own_topology = selection->own_topology || key.str() == "topology";
      if (const bench::Axis* axis = find_axis(key.str())) selection->own.emplace(axis->name);
    }
    return add_axes(table, selection);
  }

  Status add_axes(const toml::table& table, Selection* selection) const {
    for (const auto& [key, node] : table) {
      const std::string text = fmt::format("{}", fmt::join(texts_of(&node), ","));
      if (text.empty()) return error(node, fmt::format("'{}' is empty", key.str()));
      if (key.str() == "in") {
        selection->experiment = text;
        continue;
      }
      if (key.str() == "topology") {
        VERBENA_ASSIGN_OR_RETURN(selection->topology, bench::parse_topology(text));
        continue;
      }
      const bench::Axis* axis = find_axis(key.str());
      if (axis == nullptr) return error(node, fmt::format("there is no axis '{}'", key.str()));
      selection->axes[std::string(axis->name)] = text;
    }
    return Status::ok_status();
  }

  // As somebody would type them; "@name" stands for a list.
  std::vector<std::string> texts_of(const toml::node* node) const {
    std::vector<std::string> texts;
    if (node == nullptr) return texts;
    if (const toml::array* list = node->as_array()) {
      for (const toml::node& entry : *list) {
        for (std::string& text : texts_of(&entry)) texts.push_back(std::move(text));
      }
    } else if (const auto* text = node->as_string()) {
      if (!text->get().starts_with('@')) return {text->get()};
      return lists_ == nullptr ? texts : texts_of(lists_->get(text->get().substr(1)));
    } else if (const auto* number = node->as_integer()) {
      texts.push_back(fmt::format("{}", number->get()));
    } else if (const auto* number = node->as_floating_point()) {
      texts.push_back(fmt::format("{}", number->get()));
    }
    return texts;
  }

  std::string path_;
  const toml::table* lists_ = nullptr;
  PaperChecks checks_;
};

}  // namespace

Result<PaperChecks> read_check_file(const std::string& path) {
  Reader reader(path);
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Status(StatusCode::kNotFound,
                  fmt::format("there are no checks {}; install verbena again", path));
  }
  try {
    const toml::table file = toml::parse_file(path);
    return reader.read(file);
  } catch (const toml::parse_error& bad) {
    return reader.error(bad.source().begin.line, bad.description());
  }
}

}  // namespace verbena::reproduce
