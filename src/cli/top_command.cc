// `verbena top`: what the processes that use soft0 do, live.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/output.h"
#include "src/base/runtime.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/result/text_table.h"
#include "src/cli/commands.h"
#include "src/cli/tool.h"
#include "src/device/soft_library.h"

namespace verbena::cli {

namespace {

using soft::Counts;
using soft::WatchedProcess;
using soft::WatchedQueuePair;

constexpr double kDefaultIntervalS = 1;
constexpr double kMinIntervalS = 0.001;
constexpr double kMaxIntervalS = 3600;
// Of the live view, per process.
constexpr size_t kMostQueuePairs = 8;

struct TopOptions {
  bool once = false;
  bool json = false;
  bool all = false;
  double interval_s = kDefaultIntervalS;
};

struct SeenProcess {
  WatchedProcess process{};
  std::vector<WatchedQueuePair> queue_pairs;
};

struct Snapshot {
  uint64_t time_ns = 0;
  std::vector<SeenProcess> processes;
  Counts device{};
};

// Per second, between two snapshots.
struct Rates {
  double requests = 0;
  double bytes = 0;
  double received = 0;
};

uint64_t requests_of(const Counts& counts) {
  uint64_t sum = 0;
  for (const uint64_t count : counts.requests) sum += count;
  return sum;
}

uint64_t errors_of(const Counts& counts) { return counts.errors + counts.receive_errors; }

const char* transport_text(uint32_t transport) {
  constexpr const char* kNames[] = {"?", "RC", "UC", "UD", "XRC", "XRC", "raw"};
  return kNames[transport < std::size(kNames) ? transport : 0];
}

const char* queue_pair_state_text(uint32_t state) {
  constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state < std::size(kNames) ? kNames[state] : "?";
}

Result<Snapshot> take_snapshot() {
  VERBENA_ASSIGN_OR_RETURN(const soft::SoftRnic* rnic, load_soft_rnic());
  Snapshot taken;
  taken.time_ns = machine_now_ns();
  const int error = rnic->watch->read(
      &taken,
      [](void* to, const WatchedProcess* process) {
        static_cast<Snapshot*>(to)->processes.push_back({*process, {}});
      },
      [](void* to, const WatchedQueuePair* queue_pair) {
        static_cast<Snapshot*>(to)->processes.back().queue_pairs.push_back(*queue_pair);
      },
      &taken.device);
  if (error != 0) return Status(StatusCode::kUnavailable, rnic->control->last_error());
  // Their counts are in the sum.
  std::erase_if(taken.processes, [](const SeenProcess& seen) { return seen.process.living == 0; });
  return taken;
}

// Counters of a queue pair that is new begin at zero; those of another one by the same number may
// be smaller than before.
Rates rates_of(const Counts& now, const Counts* before, double seconds) {
  if (seconds <= 0) return {};
  const auto rate = [&](uint64_t later, uint64_t earlier) {
    return later < earlier ? 0 : static_cast<double>(later - earlier) / seconds;
  };
  const Counts none{};
  const Counts& from = before != nullptr ? *before : none;
  return {rate(requests_of(now), requests_of(from)), rate(now.bytes, from.bytes),
          rate(now.received, from.received)};
}

class Earlier {
 public:
  explicit Earlier(const Snapshot& snapshot) {
    for (const SeenProcess& seen : snapshot.processes) {
      processes_[seen.process.pid] = &seen.process.counts;
      for (const WatchedQueuePair& queue_pair : seen.queue_pairs) {
        queue_pairs_[queue_pair.number] = &queue_pair.counts;
      }
    }
  }
  const Counts* process(int32_t pid) const { return find(processes_, pid); }
  const Counts* queue_pair(uint32_t number) const { return find(queue_pairs_, number); }

 private:
  template <typename Key>
  static const Counts* find(const std::map<Key, const Counts*>& known, Key key) {
    const auto found = known.find(key);
    return found == known.end() ? nullptr : found->second;
  }
  std::map<int32_t, const Counts*> processes_;
  std::map<uint32_t, const Counts*> queue_pairs_;
};

nlohmann::json counts_json(const Counts& counts, const Rates& rates) {
  // By ibv_wr_opcode; soft0 has no others.
  constexpr std::pair<uint32_t, const char*> kOpcodes[] = {
      {0, "write"},   {1, "write_with_imm"}, {2, "send"},          {3, "send_with_imm"},
      {4, "read"},    {5, "cmp_and_swap"},   {6, "fetch_and_add"}, {7, "local_inv"},
      {8, "bind_mw"}, {9, "send_with_inv"},  {15, "atomic_write"}};
  nlohmann::json by_opcode;
  for (const auto& [opcode, name] : kOpcodes) by_opcode[name] = counts.requests[opcode];
  return {{"requests", requests_of(counts)},
          {"requests_by_opcode", by_opcode},
          {"bytes", counts.bytes},
          {"errors", counts.errors},
          {"waits", counts.waits},
          {"received", counts.received},
          {"received_bytes", counts.received_bytes},
          {"receive_errors", counts.receive_errors},
          {"dropped", counts.dropped},
          {"requests_per_s", rates.requests},
          {"bytes_per_s", rates.bytes},
          {"received_per_s", rates.received}};
}

std::string json_text(const Snapshot& now, const Snapshot& before) {
  const Earlier earlier(before);
  const double seconds = static_cast<double>(now.time_ns - before.time_ns) * 1e-9;
  nlohmann::json processes = nlohmann::json::array();
  for (const SeenProcess& seen : now.processes) {
    const WatchedProcess& process = seen.process;
    nlohmann::json queue_pairs = nlohmann::json::array();
    for (const WatchedQueuePair& queue_pair : seen.queue_pairs) {
      nlohmann::json entry = {{"qp_number", queue_pair.number},
                              {"transport", transport_text(queue_pair.transport)},
                              {"state", queue_pair_state_text(queue_pair.state)},
                              {"peer", queue_pair.peer}};
      entry.update(
          counts_json(queue_pair.counts,
                      rates_of(queue_pair.counts, earlier.queue_pair(queue_pair.number), seconds)));
      queue_pairs.push_back(std::move(entry));
    }
    nlohmann::json entry = {{"pid", process.pid},
                            {"name", process.name},
                            {"queue_pair_count", process.queue_pairs},
                            {"queue_pairs", std::move(queue_pairs)}};
    entry.update(counts_json(process.counts,
                             rates_of(process.counts, earlier.process(process.pid), seconds)));
    processes.push_back(std::move(entry));
  }
  nlohmann::json text = {
      {"device", soft::kDeviceName},
      {"interval_s", seconds},
      {"total", counts_json(now.device, rates_of(now.device, &before.device, seconds))},
      {"processes", std::move(processes)}};
  // A process may have given itself a name that is no UTF-8.
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Of a name that a process has given itself.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return text;
}

std::vector<std::string> cells(const Counts& counts, const Rates& rates) {
  return {
      fmt::format("{:.0f}", rates.requests), bench::size_text(static_cast<uint64_t>(rates.bytes)),
      fmt::format("{:.0f}", rates.received), fmt::format("{}", requests_of(counts)),
      bench::size_text(counts.bytes),        fmt::format("{}", counts.received),
      fmt::format("{}", counts.waits),       fmt::format("{}", counts.dropped),
      fmt::format("{}", errors_of(counts))};
}

std::string table_text(const Snapshot& now, const Snapshot& before, bool all) {
  const Earlier earlier(before);
  const double seconds = static_cast<double>(now.time_ns - before.time_ns) * 1e-9;
  std::vector<std::vector<std::string>> rows = {{"process", "queue pair", "requests/s", "bytes/s",
                                                 "received/s", "requests", "bytes", "received",
                                                 "waits", "dropped", "errors"}};
  const auto add = [&rows](std::string first, std::string second, std::vector<std::string> rest) {
    std::vector<std::string> row = {std::move(first), std::move(second)};
    row.insert(row.end(), rest.begin(), rest.end());
    rows.push_back(std::move(row));
  };
  add("all, and ended", "", cells(now.device, rates_of(now.device, &before.device, seconds)));
  for (const SeenProcess& seen : now.processes) {
    const WatchedProcess& process = seen.process;
    add(fmt::format("{} {}", process.pid, printable(process.name)),
        fmt::format("{}", process.queue_pairs),
        cells(process.counts, rates_of(process.counts, earlier.process(process.pid), seconds)));
    size_t shown = 0;
    for (const WatchedQueuePair& queue_pair : seen.queue_pairs) {
      if (!all && shown == kMostQueuePairs) {
        add("", fmt::format("... {} more", seen.queue_pairs.size() - shown), {});
        break;
      }
      ++shown;
      add("",
          fmt::format("{:#08x} {} {}", queue_pair.number, transport_text(queue_pair.transport),
                      queue_pair_state_text(queue_pair.state)),
          cells(queue_pair.counts,
                rates_of(queue_pair.counts, earlier.queue_pair(queue_pair.number), seconds)));
    }
  }
  return bench::text_table(rows, 2);
}

// Waits; false if the user or the system wants an end.
bool wait_interval(int signals, double interval_s) {
  pollfd asked{.fd = signals, .events = POLLIN, .revents = 0};
  return poll(&asked, 1, static_cast<int>(interval_s * 1000)) == 0;
}

int show_top(const TopOptions& options) {
  if (!(options.interval_s >= kMinIntervalS && options.interval_s <= kMaxIntervalS)) {
    return report_usage_error(fmt::format("--interval {}: it can be from {} to {} seconds",
                                          options.interval_s, kMinIntervalS, kMaxIntervalS));
  }
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, signal);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  const FileDescriptor signals(signalfd(-1, &ends, SFD_CLOEXEC));
  Result<Snapshot> before = take_snapshot();
  if (!before.ok()) return report_error(before.status());
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  while (wait_interval(signals.get(), options.interval_s)) {
    Result<Snapshot> now = take_snapshot();
    if (!now.ok()) return report_error(now.status());
    if (options.json) {
      print_output("{}", json_text(*now, *before));
    } else {
      // To the upper left, and what was below is cleared.
      const bool refresh = terminal && !options.once;
      print_output("{}{}{}", refresh ? "\033[H\033[J" : "", table_text(*now, *before, options.all),
                   refresh || options.once ? "" : "\n");
    }
    if (flush_output() != 0) break;
    if (options.once) break;
    before = std::move(now);
  }
  return finish_output();
}

}  // namespace

void add_top_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "top", "Show live what the processes of this user do on soft0; Ctrl-C ends it");
  const auto options = std::make_shared<TopOptions>();
  command->add_flag("--once", options->once, "Print one view, of one interval, and end")
      ->option_text(" ");
  command->add_flag("--json", options->json, "Print a line of JSON for each interval")
      ->option_text(" ");
  command->add_flag("--all", options->all, "Show all queue pairs of each process, not 8 at most")
      ->option_text(" ");
  command->add_option("--interval", options->interval_s, "Time between two views")
      ->option_text("SECONDS (1)");
  command->footer(
      "Requests are those posted to send queues, and bytes what they moved. Who is the target of\n"
      "WRITEs and READs does nothing for them, so they count at the process that posts them.\n"
      "Waits are requests that first found no receive, or no peer.\n\n" +
      examples_text({"verbena top --once", "verbena top --once --json --interval 0.1"}));
  command->callback([&tool, options] { tool.exit_code = show_top(*options); });
}

}  // namespace verbena::cli
