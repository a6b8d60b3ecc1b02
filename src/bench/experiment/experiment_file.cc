#include "src/bench/experiment/experiment_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "src/bench/experiment/size_list.h"
#include "src/bench/workloads.h"

namespace verbena::bench {

namespace {

constexpr std::array<std::string_view, 4> kTextKeys = {"title", "paper", "figure", "notes"};
constexpr std::array<std::string_view, 6> kPlanKeys = {"kind",     "topology", "runs",
                                                       "duration", "requests", "verify"};
constexpr std::array<std::string_view, 3> kTableKeys = {"axes", "sweep", "machine"};
constexpr size_t kMaxFileBytes = size_t{1} << 20;

bool contains(auto& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  Result<Plan> read(const toml::table& file) {
    VERBENA_RETURN_IF_ERROR(check_keys(file));
    VERBENA_RETURN_IF_ERROR(read_about(file));
    VERBENA_RETURN_IF_ERROR(read_length(file));
    const toml::node* sweeps = file.get("sweep");
    if (sweeps == nullptr) {
      VERBENA_RETURN_IF_ERROR(add_sweep(file, nullptr));
      return std::move(plan_);
    }
    if (!sweeps->is_array_of_tables()) {
      return error(*sweeps, "'sweep' is not a list of tables; write [[sweep]] above each");
    }
    for (const toml::node& sweep : *sweeps->as_array()) {
      VERBENA_RETURN_IF_ERROR(add_sweep(file, sweep.as_table()));
    }
    return std::move(plan_);
  }

  Status error(uint32_t line, std::string_view what) const {
    return Status(StatusCode::kInvalidArgument, fmt::format("{} line {}: {}", path_, line, what));
  }

 private:
  Status error(const toml::node& node, std::string_view what) const {
    return error(node.source().begin.line, what);
  }

  Status check_keys(const toml::table& file) const {
    for (const auto& [key, node] : file) {
      if (contains(kTextKeys, key.str()) || contains(kPlanKeys, key.str()) ||
          contains(kTableKeys, key.str())) {
        continue;
      }
      return error(
          key.source().begin.line,
          fmt::format("there is no key '{}'; there are {}, {} and {}{}", key.str(),
                      fmt::join(kTextKeys, ", "), fmt::join(kPlanKeys, ", "),
                      fmt::join(kTableKeys, ", "),
                      workload_with_axis(key.str()) != nullptr ? "; put it below [axes]" : ""));
    }
    return Status::ok_status();
  }

  Status read_about(const toml::table& file) {
    for (const std::string_view key : kTextKeys) {
      const toml::node* node = file.get(key);
      if (node == nullptr) continue;
      VERBENA_ASSIGN_OR_RETURN(const std::string text, text_of(key, *node));
      plan_.about[std::string(key)] = text;
    }
    const toml::node* machine = file.get("machine");
    if (machine == nullptr) return Status::ok_status();
    if (!machine->is_table()) return error(*machine, "'machine' is not a table; write [machine]");
    for (const auto& [key, node] : *machine->as_table()) {
      VERBENA_ASSIGN_OR_RETURN(const std::string text, text_of(key.str(), node));
      plan_.about["machine"][std::string(key.str())] = text;
    }
    return Status::ok_status();
  }

  Status read_length(const toml::table& file) {
    if (const toml::node* runs = file.get("runs")) {
      VERBENA_ASSIGN_OR_RETURN(const uint64_t count, count_of("runs", *runs, kMaxRuns));
      plan_.runs = static_cast<uint32_t>(count);
    }
    if (const toml::node* verify = file.get("verify")) {
      if (!verify->is_boolean()) return error(*verify, "'verify' is true or false");
      plan_.run.verify = verify->as_boolean()->get();
    }
    const toml::node* duration = file.get("duration");
    const toml::node* requests = file.get("requests");
    if (duration != nullptr && requests != nullptr) {
      return error(*requests, "a run ends by 'requests' or by 'duration'; leave one out");
    }
    if (duration != nullptr) {
      VERBENA_ASSIGN_OR_RETURN(const std::string text, text_of("duration", *duration));
      const Result<uint64_t> duration_ns = parse_duration_ns(text);
      if (!duration_ns.ok()) return error(*duration, duration_ns.status().message());
      plan_.run.length.duration_ns = *duration_ns;
    }
    if (requests != nullptr) {
      VERBENA_ASSIGN_OR_RETURN(plan_.run.length.requests,
                               count_of("requests", *requests, kMaxRequests));
      plan_.run.length.duration_ns = kUnlimitedRunNs;
    }
    return Status::ok_status();
  }

  Status add_sweep(const toml::table& file, const toml::table* own) {
    VERBENA_ASSIGN_OR_RETURN(const Workload* workload, workload_in(file));
    VERBENA_ASSIGN_OR_RETURN(Sweep sweep, workload->traits().has_topology
                                              ? sweep_in_topology(file, own, *workload)
                                              : sweep_without_topology(file, own, *workload));
    if (const toml::node* axes = file.get("axes")) {
      if (!axes->is_table()) return error(*axes, "'axes' is not a table; write [axes]");
      VERBENA_RETURN_IF_ERROR(set_axes(*axes->as_table(), &sweep));
    }
    if (own != nullptr) VERBENA_RETURN_IF_ERROR(set_axes(*own, &sweep));
    plan_.sweeps.push_back(std::move(sweep));
    return Status::ok_status();
  }

  Result<const Workload*> workload_in(const toml::table& file) const {
    const Workload* workload = workloads().front();
    if (const toml::node* kind = file.get("kind")) {
      workload = find_workload(kind->value<std::string>().value_or(""));
      if (workload == nullptr) {
        std::vector<std::string> names;
        for (const Workload* other : workloads().subspan(1)) {
          names.push_back(fmt::format("\"{}\"", other->traits().name));
        }
        return error(*kind, fmt::format("'kind' is {}, or left out for {}", fmt::join(names, ", "),
                                        workloads().front()->traits().subject));
      }
    }
    const toml::node* verify = file.get("verify");
    if (verify != nullptr && !workload->traits().verifies) {
      return error(*verify, fmt::format("the bytes of {} are not verified; leave 'verify' out",
                                        workload->traits().subject));
    }
    return workload;
  }

  Result<Sweep> sweep_without_topology(const toml::table& file, const toml::table* own,
                                       const Workload& workload) const {
    for (const toml::table* table : {&file, own}) {
      const toml::node* topology = table != nullptr ? table->get("topology") : nullptr;
      if (topology == nullptr) continue;
      return error(*topology, fmt::format("{} have no topology; leave it out, or 'kind'",
                                          workload.traits().subject));
    }
    return Sweep::of(workload);
  }

  Result<Sweep> sweep_in_topology(const toml::table& file, const toml::table* own,
                                  const Workload& workload) const {
    const toml::node* topology = own != nullptr ? own->get("topology") : nullptr;
    if (topology == nullptr) topology = file.get("topology");
    if (topology == nullptr) {
      return error(own != nullptr ? own->source().begin.line : 1,
                   "no 'topology'; there are one-to-one, N-to-1 (or M:1), 1:M, N-to-M and M:M");
    }
    VERBENA_ASSIGN_OR_RETURN(const std::string name, text_of("topology", *topology));
    Result<Sweep> sweep = Sweep::in(name, workload);
    if (!sweep.ok()) return error(*topology, sweep.status().message());
    return sweep;
  }

  Status set_axes(const toml::table& table, Sweep* sweep) const {
    for (const auto& [key, node] : table) {
      if (key.str() == "topology") continue;
      if (sweep->workload().find_axis(key.str()) == nullptr) {
        return error(key.source().begin.line, sweep->set(key.str(), "").message());
      }
      VERBENA_ASSIGN_OR_RETURN(const std::string text, text_of(key.str(), node));
      const Status set = sweep->set(key.str(), text);
      if (!set.ok()) return error(node, set.message());
    }
    return Status::ok_status();
  }

  Result<uint64_t> count_of(std::string_view key, const toml::node& node, uint64_t most) const {
    const std::optional<int64_t> value = node.value<int64_t>();
    if (!node.is_integer() || !value || *value < 1 || static_cast<uint64_t>(*value) > most) {
      return error(node, fmt::format("'{}' is a whole number from 1 to {}", key, most));
    }
    return static_cast<uint64_t>(*value);
  }

  // As somebody would type it: lists with commas.
  Result<std::string> text_of(std::string_view key, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
    if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
    if (const auto* list = node.as_array(); list != nullptr && !list->empty()) {
      std::vector<std::string> entries;
      for (const toml::node& entry : *list) {
        if (entry.is_array()) return error(entry, fmt::format("'{}' has a list in a list", key));
        VERBENA_ASSIGN_OR_RETURN(std::string text, text_of(key, entry));
        entries.push_back(std::move(text));
      }
      return fmt::format("{}", fmt::join(entries, ","));
    }
    return error(node, fmt::format("'{}' is a number, a text, or a list of them", key));
  }

  std::string path_;
  Plan plan_;
};

}  // namespace

Result<Plan> read_experiment_file(const std::string& path) {
  std::ifstream file(path);
  std::string text(kMaxFileBytes, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file && !file.eof()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("cannot read the experiment {}: {}; name a file, or a figure of a "
                              "paper, such as msgproto-fig10a",
                              path, std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() == kMaxFileBytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is not an experiment file: it has more than {}", path,
                              size_text(kMaxFileBytes)));
  }
  Reader reader(path);
  try {
    return reader.read(toml::parse(text));
  } catch (const toml::parse_error& bad) {
    return reader.error(bad.source().begin.line, bad.description());
  }
}

}  // namespace verbena::bench
