// What people write by hand, or tools and launchers leave: options, experiments, profiles, checks.
#include <string>

#include "src/bench/experiment/experiment_file.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/result/result_file.h"
#include "src/device/sim/rnic_profile.h"
#include "src/job/member.h"
#include "src/job/slurm_nodes.h"
#include "src/reproduce/check_file.h"
#include "src/reproduce/claim.h"
#include "tests/fuzz/targets.h"

namespace verbena::fuzz {
namespace {

Status run_profile(std::span<const std::byte> input) {
  const auto profile = sim::parse_profile(as_text(input), "fuzz");
  require_readable(profile.status());
  return profile.status();
}
std::vector<Bytes> profile_seeds() { return repository_files("profiles", ".toml"); }

Status run_experiment_file(std::span<const std::byte> input) {
  Status status;
  with_file(input, [&](const std::string& path) {
    const auto plan = bench::read_experiment_file(path);
    require_readable(plan.status());
    status = plan.status();
  });
  return status;
}
std::vector<Bytes> experiment_file_seeds() { return repository_files("experiments", ".toml"); }

Status run_check_file(std::span<const std::byte> input) {
  Status status;
  with_file(input, [&](const std::string& path) {
    const auto checks = reproduce::read_check_file(path);
    require_readable(checks.status());
    status = checks.status();
  });
  return status;
}
std::vector<Bytes> check_file_seeds() { return repository_files("reproduce/checks", ".toml"); }

Status run_claims(std::span<const std::byte> input) {
  Status status;
  with_file(input, [&](const std::string& path) {
    const auto claims = reproduce::read_claims(path);
    require_readable(claims.status());
    status = claims.status();
  });
  return status;
}
// The head of the list: mutations of a few lines find more than those of a thousand.
std::vector<Bytes> claims_seeds() {
  const std::vector<Bytes> files = repository_files("reproduce", "claims.csv");
  std::string head(as_text(files.at(0)).substr(0, 4000));
  head.resize(head.rfind('\n') + 1);
  return {as_bytes(head)};
}

Status run_size_list(std::span<const std::byte> input) {
  constexpr uint64_t kMin = 1;
  constexpr uint64_t kMax = uint64_t{1} << 30;
  const bench::ListLimits limits{.what = "size", .min = kMin, .max = kMax};
  const auto sizes = bench::parse_size_list(as_text(input), limits);
  require_readable(sizes.status());
  if (sizes.ok()) {
    require(!sizes->empty() && sizes->size() <= bench::kMaxListEntries, "a list has its limits");
    for (const uint64_t size : *sizes) {
      require(kMin <= size && size <= kMax, "a size is within its limits");
      require(!bench::size_text(size).empty(), "every size can be printed");
    }
  }
  require_readable(bench::parse_count_list(as_text(input), limits).status());
  require_readable(bench::parse_duration_ns(as_text(input)).status());
  require_readable(bench::parse_topology(as_text(input)).status());
  return sizes.status();
}
std::vector<Bytes> size_list_seeds() {
  return {as_bytes("64,4KiB"), as_bytes("64,...,4MiB"), as_bytes("1"), as_bytes("1,16,1 GiB")};
}

Status run_addresses(std::span<const std::byte> input) {
  const std::string text(as_text(input));
  const auto parts = job::split_address(text);
  require_readable(parts.status());
  if (parts.ok()) require(!parts->host.empty() && parts->port != 0, "an address is whole");
  static_cast<void>(job::address_of(text));
  const std::string node = job::first_slurm_node(text);
  require(node.size() <= text.size(), "the first node is a part of the list, without its brackets");
  return parts.status();
}
std::vector<Bytes> address_seeds() {
  return {as_bytes("node-a:7471"), as_bytes("[2001:db8::7]:7471"), as_bytes("node-a")};
}

// What an interrupted `bench --json` left.
const bench::ResultOrigin& result_origin() {
  static const bench::ResultOrigin origin{
      .device = "soft0", .command = "verbena bench", .plan = {{"seed", 1}}};
  return origin;
}
Status run_results(std::span<const std::byte> input) {
  const bench::Point point = bench::request_response_workload().point();
  const std::vector<bench::PointGroup> groups(1, bench::PointGroup(2, point));
  Status status;
  with_file(input, [&](const std::string& path) {
    const auto results = bench::read_results(path, result_origin(), groups);
    require_readable(results.status());
    status = results.status();
    if (!results.ok()) return;
    for (const bench::PointResult& result : *results) {
      require(result.number < 2, "a result is of a point of the plan");
      require(result.measured(), "a result that counts was measured");
    }
  });
  return status;
}
std::vector<Bytes> result_seeds() {
  std::vector<bench::PointResult> results(2);
  results[1].number = 1;
  for (bench::PointResult& result : results) {
    result.point = bench::request_response_workload().point();
    result.runs.push_back({.requests = 1000, .rate_per_s = 1e6, .p50_ns = 900, .p99_ns = 1000});
  }
  nlohmann::json document = bench::result_document(result_origin(), results);
  // Mutations depend on the seed alone, so they are the same on every machine and commit.
  document.erase("machine");
  document.erase("commit");
  return {as_bytes(document.dump(1))};
}

}  // namespace

std::vector<FuzzTarget> text_targets() {
  return {
      {"addresses", run_addresses, address_seeds},
      {"profile", run_profile, profile_seeds},
      {"size_list", run_size_list, size_list_seeds},
      {"experiment_file", run_experiment_file, experiment_file_seeds},
      {"results", run_results, result_seeds},
      {"claims", run_claims, claims_seeds},
      {"check_file", run_check_file, check_file_seeds},
  };
}

}  // namespace verbena::fuzz
