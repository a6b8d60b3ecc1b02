// verbena-bench-peers: Verbena beside UCX's shared memory, perftest and memcpy, in one interleaved
// run, with the ratios that it promises. `make bench-peers` calls it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "src/base/machine.h"
#include "src/base/runtime.h"
#include "src/bench/peers/comparison.h"
#include "src/bench/peers/copies.h"
#include "src/bench/peers/external.h"
#include "src/bench/peers/ping_pong.h"
#include "src/bench/progress.h"
#include "src/bench/result_file.h"
#include "src/bench/statistics.h"
#include "src/bench/text_table.h"

namespace verbena::bench::peers {
namespace {

struct Options {
  std::string json = "build/bench-peers.json";
  uint64_t rounds = 7;
  uint64_t round_trips = 400'000;
};

constexpr const char* kLine = "cache line, one way";
constexpr const char* kWrite = "8 B WRITE, one way";
constexpr const char* kPut = "UCX posix put_lat, 8 B";
constexpr const char* kPerftest = "ib_write_lat under verbena run, 8 B";
constexpr const char* kSend = "8 B SEND, one way";
constexpr const char* kMessage = "UCX posix am_lat, 8 B";
constexpr const char* kRpc = "64 B/64 B WRITE/WRITE, round trip";
constexpr const char* kWriteBandwidth = "1 MiB WRITE";
constexpr const char* kCopyBandwidth = "memcpy, 1 MiB";
constexpr const char* kAgain = "registration of 4 KiB, again";
constexpr const char* kGigabyte = "registration of 1 GiB";

std::string tool_path() {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "verbena")
      .string();
}

std::vector<Contender> contenders(const CpuPair& cpus, const Options& options) {
  const uint64_t trips = options.round_trips;
  const uint64_t copies = trips / 50;
  // Those of one ratio stand side by side.
  return {
      {kLine, "ns", [=] { return cache_line_one_way_ns(cpus, trips); }},
      {kPerftest, "ns", [=] { return perftest_write_one_way_ns(cpus, tool_path(), trips); }},
      {kPut, "ns", [=] { return ucx_one_way_ns(cpus, "put_lat", trips); }},
      {kWrite, "ns", [=] { return write_one_way_ns(cpus, trips); }},
      {kRpc, "ns", [=] { return write_write_round_trip_ns(cpus, trips); }},
      {kSend, "ns", [=] { return send_one_way_ns(cpus, trips); }},
      {kMessage, "ns", [=] { return ucx_one_way_ns(cpus, "am_lat", trips); }},
      {kWriteBandwidth, "B/s", [=] { return write_bandwidth(cpus, copies); }},
      {kCopyBandwidth, "B/s", [=] { return memcpy_bandwidth(cpus, copies); }},
      {kAgain, "us", [=] { return registration_again_us(cpus, 1000); }},
      {kGigabyte, "s", [=] { return registration_of_gigabyte_s(cpus); }},
  };
}

const std::vector<Target>& targets() {
  static const std::vector<Target>* const list = new std::vector<Target>{
      {"8 B WRITE ping-pong against UCX put_lat", kWrite, kPut, 1.2},
      {"8 B SEND ping-pong against UCX am_lat", kSend, kMessage, 1.2},
      {"ib_write_lat under verbena run against UCX put_lat", kPerftest, kPut, 1.8},
      {"1 MiB WRITE against memcpy, bandwidth", kWriteBandwidth, kCopyBandwidth, 0.95, true},
      {"64 B/64 B WRITE/WRITE round trip against 8 B WRITE one way", kRpc, kWrite, 3},
      {"registration of 4 KiB already converted", kAgain, "", 20},
      {"registration of 1 GiB", kGigabyte, "", 1},
  };
  return *list;
}

std::string value_text(double value, const std::string& unit) {
  if (unit == "ns") return time_text(value);
  if (unit == "us") return time_text(value * 1e3);
  if (unit == "s") return time_text(value * 1e9);
  return bandwidth_text(value);
}

void print_medians(const Comparison& comparison) {
  double line = 0;
  std::vector<std::vector<std::string>> rows = {
      {"measured", "median", "lowest", "highest", "hand-offs"}};
  for (const Contender& contender : comparison.contenders()) {
    const Summary summary = summarize(contender.values);
    if (contender.name == kLine) line = summary.median;
    rows.push_back({contender.name, value_text(summary.median, contender.unit),
                    value_text(summary.min, contender.unit),
                    value_text(summary.max, contender.unit),
                    contender.unit == "ns" ? fmt::format("{:.2f}", summary.median / line) : "-"});
  }
  fmt::print("{}\n", text_table(rows, 1));
}

std::vector<Verdict> print_verdicts(const Comparison& comparison) {
  std::vector<Verdict> verdicts;
  std::vector<std::vector<std::string>> rows = {{"promised", "ratio", "target", "holds"}};
  for (const Target& target : targets()) {
    const Verdict verdict = comparison.judge(target);
    const char* sign = target.at_least ? ">=" : "<=";
    std::string unit;
    for (const Contender& contender : comparison.contenders()) {
      if (target.peer.empty() && contender.name == target.ours) unit = " " + contender.unit;
    }
    rows.push_back({target.name, fmt::format("{:.3g}{}", verdict.ratio, unit),
                    fmt::format("{} {:g}{}", sign, target.limit, unit),
                    verdict.holds ? "yes" : "NO"});
    verdicts.push_back(verdict);
  }
  fmt::print("{}", text_table(rows, 1));
  return verdicts;
}

int fail(const std::string& message) {
  fmt::print(stderr, "verbena-bench-peers: error: {}\n", message);
  return 1;
}

int measure(const Options& options) {
  const std::vector<int> cpus = usable_cpus();
  if (cpus.size() < 2)
    return fail("this needs two CPUs, there is one; allow the process another one");
  const Status writable = check_writable(options.json);
  if (!writable.ok()) return fail(writable.message());
  const CpuPair pair{{cpus[0], cpus[1]}};
  fmt::print("{}, {} rounds on the CPUs {} and {}\n\n", this_machine().cpu_model, options.rounds,
             cpus[0], cpus[1]);
  std::fflush(stdout);

  Comparison comparison(contenders(pair, options));
  Progress progress(options.rounds * comparison.contenders().size());
  for (uint64_t round = 0; round < options.rounds; ++round) {
    const Status status = comparison.run_round(round, [&](const std::string& name) {
      progress.step(fmt::format("round {}: {}", round + 1, name));
    });
    if (!status.ok()) {
      progress.clear();
      return fail(status.message());
    }
  }
  progress.clear();
  print_medians(comparison);
  const std::vector<Verdict> verdicts = print_verdicts(comparison);
  const Status written = write_json_file(options.json, to_json(verdicts, comparison));
  if (!written.ok()) return fail(written.message());
  fmt::print("\nWritten to {}\n", options.json);
  return 0;
}

}  // namespace
}  // namespace verbena::bench::peers

int main(int argc, char** argv) {
  verbena::bench::peers::Options options;
  CLI::App app("Verbena beside UCX's shared memory, perftest and memcpy, in one interleaved run.",
               "verbena-bench-peers");
  app.add_option("--json", options.json, "Where the ratios are written")->capture_default_str();
  app.add_option("--rounds", options.rounds, "How often the contenders take turns")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--round-trips", options.round_trips, "Messages per latency measurement")
      ->capture_default_str()
      ->check(CLI::Range(1000, 100'000'000));
  CLI11_PARSE(app, argc, argv);
  return verbena::bench::peers::measure(options);
}
