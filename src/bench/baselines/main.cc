// verbena-bench-peers: Verbena beside UCX's shared memory, perftest, memcpy, gRPC, ZeroMQ, nng,
// Redis and memcached, in one interleaved run, with the ratios that it promises. `make bench-peers`
// calls it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "src/base/machine.h"
#include "src/base/runtime.h"
#include "src/bench/baselines/applications.h"
#include "src/bench/baselines/comparison.h"
#include "src/bench/baselines/contenders/contenders.h"
#include "src/bench/baselines/copies.h"
#include "src/bench/baselines/echo.h"
#include "src/bench/baselines/external.h"
#include "src/bench/baselines/ping_pong.h"
#include "src/bench/baselines/queue_pair_memory.h"
#include "src/bench/baselines/records.h"
#include "src/bench/baselines/rpc_echo.h"
#include "src/bench/result/result_file.h"
#include "src/bench/result/statistics.h"
#include "src/bench/result/text_table.h"
#include "src/bench/run/progress.h"

namespace verbena::bench::baselines {
namespace {

struct Options {
  std::string json = "build/bench-peers.json";
  uint64_t rounds = 7;
  uint64_t round_trips = 400'000;
  std::string only;  // measures those whose name contains it, and judges nothing
};

// Some milliseconds before and after each measurement.
constexpr uint64_t kHandOffRoundTrips = 20'000;

constexpr const char* kLine = "cache line, one way";
constexpr const char* kWrite = "8 B WRITE, one way";
constexpr const char* kPut = "UCX posix put_lat, 8 B";
constexpr const char* kPerftest = "ib_write_lat under verbena run, 8 B";
constexpr const char* kPerftestSend = "ib_send_lat under verbena run, 8 B";
constexpr const char* kPerftestDatagram = "ib_send_lat -c UD under verbena run, 8 B";
constexpr const char* kVerbsPut = "UCX rc_verbs put_lat under verbena run, 8 B";
constexpr const char* kVerbsMessage = "UCX rc_verbs am_lat under verbena run, 8 B";
constexpr const char* kPerftestBandwidth = "ib_write_bw under verbena run, 64 KiB";
constexpr const char* kCopyBandwidth64 = "memcpy, 64 KiB";
constexpr const char* kWriteRate = "8 B WRITEs of one thread";
constexpr const char* kSendInCrowd = "8 B SEND, one way, one of 1,000 queue pairs";
constexpr const char* kQueuePairMemory = "memory of each of 1,000 connected queue pairs";
constexpr const char* kSend = "8 B SEND, one way";
constexpr const char* kMessage = "UCX posix am_lat, 8 B";
constexpr const char* kRpc = "64 B/64 B WRITE/WRITE, round trip";
constexpr const char* kMessage64 = "UCX posix am_lat, 64 B";
constexpr const char* kWriteBandwidth = "1 MiB WRITE";
constexpr const char* kCopyBandwidth = "memcpy, 1 MiB";
constexpr const char* kAgain = "registration of 4 KiB, again";
constexpr const char* kGigabyte = "registration of 1 GiB";

// --- applications ---

constexpr const char* kLog = "log, 64 B entries in batches of 32";
constexpr const char* kFile = "file append by writev(), 64 B entries in batches of 32";
constexpr const char* kShuffle = "shuffle, 256 B records to 4 receivers";
constexpr const char* kRecordCopy = "memcpy, 256 B records to 4 places";
constexpr const char* kEntryUnit = "M entries/s";
constexpr const char* kWriteUnit = "M WRITEs/s";
constexpr uint32_t kCrowd = 1000;
constexpr uint64_t kMebibyte = uint64_t{1} << 20;
constexpr uint64_t kPerftestBytes = uint64_t{64} << 10;
constexpr uint32_t kStorePending = 32;

struct KeyValueStore {
  const char* name;
  Result<double> (*rate)(const CpuPair&, const KeyValuePlan&);
  uint32_t most_pending;
  uint64_t slower;  // about so many times; it gets that many fewer operations
};
constexpr KeyValueStore kStores[] = {{"hashtable", hashtable_rate, kStorePending, 1},
                                     {"Redis", redis_rate, kStorePending, 40},
                                     {"memcached", memcached_rate, 1, 40}};

std::string store_name(const char* store, bool updates, uint32_t pending) {
  return fmt::format("{}, {}{}", store, updates ? "update" : "search",
                     pending > 1 ? fmt::format(", {} pending", pending) : "");
}

// One at a time they are measured in time, else in operations.
Contender store_contender(const CpuPair& cpus, const KeyValueStore& store, bool updates,
                          uint32_t pending, uint64_t round_trips) {
  const KeyValuePlan plan = {.updates = updates,
                             .pending = pending,
                             .operations = round_trips * (pending > 1 ? 4 : 1) / store.slower};
  const auto measure = [=, rate = store.rate]() -> Result<double> {
    VERBENA_ASSIGN_OR_RETURN(const double rate_per_s, rate(cpus, plan));
    return pending > 1 ? rate_per_s / 1e6 : 1e9 / rate_per_s;
  };
  return {store_name(store.name, updates, pending), pending > 1 ? "M operations/s" : "ns", measure};
}

void add_applications(const CpuPair& cpus, uint64_t trips, std::vector<Contender>& list) {
  for (const bool updates : {false, true}) {
    for (const uint32_t pending : {1u, kStorePending}) {
      for (const KeyValueStore& store : kStores) {
        if (pending > store.most_pending) continue;
        list.push_back(store_contender(cpus, store, updates, pending, trips));
      }
    }
  }
  const auto millions = [=](Result<double> (*rate)(const CpuPair&, uint64_t)) {
    return [=]() -> Result<double> {
      VERBENA_ASSIGN_OR_RETURN(const double rate_per_s, rate(cpus, trips / 4));
      return rate_per_s / 1e6;
    };
  };
  list.push_back({kLog, kEntryUnit, millions(log_rate)});
  list.push_back({kFile, kEntryUnit, millions(file_append_rate)});
  const uint64_t slices = std::max<uint64_t>(trips / 4000, 10);
  list.push_back({kShuffle, "B/s", [=] { return shuffle_bandwidth(cpus, slices); }});
  list.push_back({kRecordCopy, "B/s", [=] { return record_copy_bandwidth(cpus, slices); }});
}

void add_application_targets(std::vector<Target>& list) {
  for (const bool updates : {false, true}) {
    for (const uint32_t pending : {1u, kStorePending}) {
      const std::string ours = store_name("hashtable", updates, pending);
      for (const KeyValueStore& store : kStores) {
        if (store.rate == hashtable_rate || pending > store.most_pending) continue;
        list.push_back({.name = fmt::format("{} against {}, times the rate", ours, store.name),
                        .ours = ours,
                        .peer = store_name(store.name, updates, pending),
                        .limit = pending > 1 ? 5.0 : 50.0,
                        .at_least = true,
                        .times_faster = pending == 1});
      }
    }
  }
  list.push_back({.name = kLog, .ours = kLog, .peer = "", .limit = 5, .at_least = true});
  list.push_back({.name = fmt::format("{} against a file", kLog),
                  .ours = kLog,
                  .peer = kFile,
                  .limit = 0.5,
                  .at_least = true});
  list.push_back({.name = fmt::format("{} against memcpy, bandwidth", kShuffle),
                  .ours = kShuffle,
                  .peer = kRecordCopy,
                  .limit = 0.5,
                  .at_least = true});
}

// --- echoes: the whole way there and back ---

constexpr const char* kRateUnit = "M requests/s";

struct EchoSystem {
  const char* name;
  std::function<Result<double>(const CpuPair&, const EchoPlan&)> echo;
  uint64_t slower;  // about so many times; it gets that many fewer requests
};

const std::vector<EchoSystem>& echo_systems() {
  const auto rpc = [](Protocol protocol) {
    return [protocol](const CpuPair& cpus, const EchoPlan& plan) {
      return rpc_echo(cpus, protocol, plan);
    };
  };
  static const std::vector<EchoSystem>* const list = new std::vector<EchoSystem>{
      {"WRITE/WRITE", rpc(Protocol::kWriteWrite), 1},
      {"SEND/SEND", rpc(Protocol::kSendSend), 1},
      {"gRPC", grpc_echo, 100},
      {"ZeroMQ", zeromq_echo, 40},
      {"nng", nng_echo, 40},
  };
  return *list;
}

constexpr uint32_t kEchoBytes[] = {64, 4096};
constexpr uint32_t kEchoPending = 16;

std::string echo_name(const char* system, uint32_t bytes, uint32_t pending) {
  const std::string size =
      bytes < 1024 ? fmt::format("{} B", bytes) : fmt::format("{} KiB", bytes / 1024);
  return fmt::format("{} echo, {}{}", size, system,
                     pending > 1 ? fmt::format(", {} pending", pending) : "");
}

// One at a time they are measured in time, else in requests.
Contender echo_contender(const CpuPair& cpus, const EchoSystem& system, uint32_t bytes,
                         uint32_t pending, uint64_t round_trips) {
  EchoPlan plan;
  plan.bytes = bytes;
  plan.pending = pending;
  plan.requests = round_trips * (pending > 1 ? 4 : 1) / system.slower;
  const auto measure = [=]() -> Result<double> {
    VERBENA_ASSIGN_OR_RETURN(const double rate_per_s, system.echo(cpus, plan));
    return pending > 1 ? rate_per_s / 1e6 : 1e9 / rate_per_s;
  };
  return {echo_name(system.name, bytes, pending), pending > 1 ? kRateUnit : "ns", measure};
}

std::string tool_path() {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "verbena")
      .string();
}

std::vector<Contender> contenders(const CpuPair& cpus, const Options& options) {
  const uint64_t trips = options.round_trips;
  const uint64_t copies = trips / 50;
  const auto perftest = [=](const char* program, const char* connection) {
    return [=] { return perftest_one_way_ns(cpus, tool_path(), program, connection, trips); };
  };
  const auto verbs = [=](const char* test) {
    return [=] { return ucx_verbs_one_way_ns(cpus, tool_path(), test, 8, trips); };
  };
  const auto divided = [](double by, const std::function<Result<double>()>& measure) {
    return [=]() -> Result<double> {
      VERBENA_ASSIGN_OR_RETURN(const double value, measure());
      return value / by;
    };
  };
  // Those of one ratio stand side by side.
  std::vector<Contender> list = {
      {kLine, "ns", [=] { return cache_line_one_way_ns(cpus, trips); }},
      {kPerftest, "ns", perftest("ib_write_lat", "RC")},
      {kVerbsPut, "ns", verbs("put_lat")},
      {kPut, "ns", [=] { return ucx_one_way_ns(cpus, "put_lat", 8, trips); }},
      {kWrite, "ns", [=] { return write_one_way_ns(cpus, trips); }},
      {kRpc, "ns", [=] { return write_write_round_trip_ns(cpus, trips); }},
      {kSendInCrowd, "ns", [=] { return send_one_way_ns(cpus, trips, kCrowd); }},
      {kSend, "ns", [=] { return send_one_way_ns(cpus, trips); }},
      {kMessage, "ns", [=] { return ucx_one_way_ns(cpus, "am_lat", 8, trips); }},
      {kVerbsMessage, "ns", verbs("am_lat")},
      {kPerftestSend, "ns", perftest("ib_send_lat", "RC")},
      {kPerftestDatagram, "ns", perftest("ib_send_lat", "UD")},
      {kMessage64, "ns", [=] { return ucx_one_way_ns(cpus, "am_lat", 64, trips); }},
      {kWriteBandwidth, "B/s", [=] { return write_bandwidth(cpus, kMebibyte, copies); }},
      {kCopyBandwidth, "B/s", [=] { return memcpy_bandwidth(cpus, kMebibyte, copies); }},
      {kPerftestBandwidth, "B/s",
       [=] { return perftest_write_bandwidth(cpus, tool_path(), kPerftestBytes, 4 * copies); }},
      {kCopyBandwidth64, "B/s", [=] { return memcpy_bandwidth(cpus, kPerftestBytes, 4 * copies); }},
      {kWriteRate, kWriteUnit, divided(1e6, [=] { return write_rate(cpus, 10 * trips); })},
      {kQueuePairMemory, "KiB",
       divided(1024, [=] { return queue_pair_memory_bytes(cpus, kCrowd); })},
      {kAgain, "us", [=] { return registration_again_us(cpus, 1000); }},
      {kGigabyte, "s", [=] { return registration_of_gigabyte_s(cpus); }},
  };
  for (const uint32_t bytes : kEchoBytes) {
    for (const uint32_t pending : {1u, kEchoPending}) {
      for (const EchoSystem& system : echo_systems()) {
        list.push_back(echo_contender(cpus, system, bytes, pending, trips));
      }
    }
  }
  add_applications(cpus, trips, list);
  return list;
}

// Against each of the others, one at a time and pipelined.
std::vector<Target> echo_targets() {
  constexpr double kTimesAsFast = 10;
  std::vector<Target> list;
  for (const uint32_t bytes : kEchoBytes) {
    for (const uint32_t pending : {1u, kEchoPending}) {
      const std::string ours = echo_name("WRITE/WRITE", bytes, pending);
      for (const char* peer : {"gRPC", "ZeroMQ", "nng"}) {
        list.push_back({.name = fmt::format("{} against {}, times the rate", ours, peer),
                        .ours = ours,
                        .peer = echo_name(peer, bytes, pending),
                        .limit = kTimesAsFast,
                        .at_least = true,
                        .times_faster = pending == 1});
      }
    }
  }
  return list;
}

std::vector<Target> all_targets() {
  std::vector<Target> list = {
      {"8 B WRITE ping-pong against UCX put_lat", kWrite, kPut, 1.2},
      {"8 B SEND ping-pong against UCX am_lat", kSend, kMessage, 1.2},
      {"ib_write_lat under verbena run against UCX put_lat", kPerftest, kPut, 1.2},
      {"ib_send_lat under verbena run against UCX am_lat", kPerftestSend, kMessage, 0.9},
      {"UCX put_lat by rc_verbs under verbena run against its shared memory", kVerbsPut, kPut, 1.1},
      {"UCX am_lat by rc_verbs under verbena run against its shared memory", kVerbsMessage,
       kMessage, 1.2},
      {"ib_send_lat by UD against RC", kPerftestDatagram, kPerftestSend, 1.2},
      {"64 KiB ib_write_bw under verbena run against memcpy, bandwidth", kPerftestBandwidth,
       kCopyBandwidth64, 0.95, true},
      {kWriteRate, kWriteRate, "", 40, true},
      {kQueuePairMemory, kQueuePairMemory, "", 64},
      {"8 B SEND on one of 1,000 connected queue pairs against on the only one", kSendInCrowd,
       kSend, 1.1},
      {"1 MiB WRITE against memcpy, bandwidth", kWriteBandwidth, kCopyBandwidth, 0.95, true},
      {"64 B/64 B WRITE/WRITE round trip against 8 B WRITE one way", kRpc, kWrite, 3},
      {"registration of 4 KiB already converted", kAgain, "", 20},
      {"registration of 1 GiB", kGigabyte, "", 1},
      // Of twice UCX's one way, 0.8; and of that, 1.3.
      {"64 B WRITE/WRITE round trip against UCX am_lat one way", echo_name("WRITE/WRITE", 64, 1),
       kMessage64, 1.6},
      {"64 B SEND/SEND round trip against UCX am_lat one way", echo_name("SEND/SEND", 64, 1),
       kMessage64, 2.08},
      {"64 B WRITE/WRITE requests of one responder thread, 16 pending",
       echo_name("WRITE/WRITE", 64, kEchoPending), "", 8, true},
  };
  for (Target& target : echo_targets()) list.push_back(std::move(target));
  add_application_targets(list);
  return list;
}

const std::vector<Target>& targets() {
  static const std::vector<Target>* const list = new std::vector<Target>(all_targets());
  return *list;
}

std::string value_text(double value, const std::string& unit) {
  if (unit == "ns") return time_text(value);
  if (unit == "us") return time_text(value * 1e3);
  if (unit == "s") return time_text(value * 1e9);
  if (unit == "KiB") return fmt::format("{:.1f} KiB", value);
  if (unit.starts_with("M ")) return rate_text(value * 1e6);
  return bandwidth_text(value);
}

void print_medians(const Comparison& comparison) {
  std::vector<double> hand_offs_ns;
  std::vector<std::vector<std::string>> rows = {
      {"measured", "median", "lowest", "highest", "hand-offs"}};
  for (const Contender& contender : comparison.contenders()) {
    const Summary summary = summarize(contender.values);
    std::vector<double> in_hand_offs;
    for (size_t i = 0; i < contender.values.size(); ++i) {
      in_hand_offs.push_back(contender.values[i] / contender.hand_offs_ns[i]);
      hand_offs_ns.push_back(contender.hand_offs_ns[i]);
    }
    rows.push_back({contender.name, value_text(summary.median, contender.unit),
                    value_text(summary.min, contender.unit),
                    value_text(summary.max, contender.unit),
                    contender.unit == "ns" ? fmt::format("{:.2f}", median(in_hand_offs)) : "-"});
  }
  const Summary hand_off = summarize(hand_offs_ns);
  fmt::print(
      "{}\nA cache line took {:.0f} ns from CPU to CPU (median; {:.0f} to {:.0f} ns), which is "
      "a hand-off.\n\n",
      text_table(rows, 1), hand_off.median, hand_off.min, hand_off.max);
}

std::vector<Verdict> print_verdicts(const Comparison& comparison) {
  std::vector<Verdict> verdicts;
  std::vector<std::vector<std::string>> rows = {{"promised", "ratio", "target", "holds", "rounds"}};
  for (const Target& target : targets()) {
    const Verdict verdict = comparison.judge(target);
    const char* sign = target.at_least ? ">=" : "<=";
    std::string unit;
    for (const Contender& contender : comparison.contenders()) {
      if (target.peer.empty() && contender.name == target.ours) unit = " " + contender.unit;
    }
    rows.push_back({target.name, fmt::format("{:.3g}{}", verdict.ratio, unit),
                    fmt::format("{} {:g}{}", sign, target.limit, unit),
                    verdict.holds ? "yes" : "NO", std::to_string(verdict.rounds)});
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
  if (options.only.empty()) {
    const Status writable = check_writable(options.json);
    if (!writable.ok()) return fail(writable.message());
  }
  const CpuPair pair{{cpus[0], cpus[1]}};
  fmt::print("{}, {} rounds on the CPUs {} and {}\n\n", this_machine().cpu_model, options.rounds,
             cpus[0], cpus[1]);
  std::fflush(stdout);

  std::vector<Contender> chosen = contenders(pair, options);
  std::erase_if(chosen, [&](const Contender& one) {
    return one.name.find(options.only) == std::string::npos;
  });
  Comparison comparison(std::move(chosen),
                        [&pair] { return cache_line_one_way_ns(pair, kHandOffRoundTrips); });
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
  if (!options.only.empty()) return 0;
  const std::vector<Verdict> verdicts = print_verdicts(comparison);
  const Status written = write_json_file(options.json, to_json(verdicts, comparison));
  if (!written.ok()) return fail(written.message());
  fmt::print("\nWritten to {}\n", options.json);
  return 0;
}

}  // namespace
}  // namespace verbena::bench::baselines

int main(int argc, char** argv) {
  verbena::bench::baselines::Options options;
  CLI::App app("Verbena beside UCX's shared memory, perftest and memcpy, in one interleaved run.",
               "verbena-bench-peers");
  app.add_option("--json", options.json, "Where the ratios are written")->capture_default_str();
  app.add_option("--rounds", options.rounds, "How often the contenders take turns")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--round-trips", options.round_trips, "Messages per latency measurement")
      ->capture_default_str()
      ->check(CLI::Range(1000, 100'000'000));
  app.add_option("--only", options.only,
                 "Measure only those whose name contains this; writes nothing");
  CLI11_PARSE(app, argc, argv);
  return verbena::bench::baselines::measure(options);
}
