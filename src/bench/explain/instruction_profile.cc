#include "src/bench/explain/instruction_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "src/bench/experiment/topology.h"
#include "src/bench/run/run.h"

namespace verbena::bench {

namespace {

// Enough that each thread has the polls that callgrind_counter.h skips and keeps.
constexpr uint64_t kRequests = 400;
constexpr uint64_t kRoundsOfSlots = 100;
constexpr uint64_t kMostNs = 60'000'000'000;

struct SideSum {
  uint64_t polls = 0;
  uint64_t messages = 0;
  double instructions = 0;  // of all of them, without the counting itself
  std::map<std::string, double> functions{};
};

SideSum sum_of(std::span<const CallgrindDump> dumps, Side side) {
  SideSum sum;
  uint64_t counting = UINT64_MAX;  // what one pair of begin and end costs
  for (const CallgrindDump& dump : dumps) {
    if (dump.side == side && dump.messages == 0) counting = std::min(counting, dump.instructions());
  }
  if (counting == UINT64_MAX) counting = 0;
  for (const CallgrindDump& dump : dumps) {
    if (dump.side != side || dump.messages == 0) continue;
    ++sum.polls;
    sum.messages += dump.messages;
    sum.instructions +=
        static_cast<double>(dump.instructions() - std::min(counting, dump.instructions()));
    for (const auto& [function, count] : dump.instructions_by_function) {
      sum.functions[short_function_name(function)] += static_cast<double>(count);
    }
  }
  return sum;
}

// `dispatchers`: what carries the side's messages, and moves each of them twice.
std::optional<InstructionCost> cost_of(const SideSum& side, const SideSum& dispatchers) {
  if (side.polls == 0) return std::nullopt;
  const auto messages = static_cast<double>(side.messages);
  InstructionCost cost;
  cost.per_message = side.instructions / messages;
  cost.messages_per_poll = messages / static_cast<double>(side.polls);
  std::map<std::string, double> functions = side.functions;
  if (dispatchers.messages > 0) {
    const double moved = static_cast<double>(dispatchers.messages) / 2;
    cost.per_message += dispatchers.instructions / moved;
    for (const auto& [function, count] : dispatchers.functions) {
      functions[function] += count * messages / moved;
    }
  }
  cost.functions = largest_shares(functions);
  return cost;
}

// Takes them out of the folder.
std::vector<CallgrindDump> take_dumps(const std::string& folder) {
  std::vector<CallgrindDump> dumps;
  std::error_code unimportant;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unimportant)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::optional<CallgrindDump> dump = parse_callgrind_dump(text);
    if (!dump) continue;
    dumps.push_back(std::move(*dump));
    std::filesystem::remove(entry.path(), unimportant);
  }
  return dumps;
}

}  // namespace

InstructionProfile instruction_profile(std::span<const CallgrindDump> dumps) {
  return {.requester = cost_of(sum_of(dumps, Side::kRequester), sum_of(dumps, Side::kDispatcher)),
          .responder = cost_of(sum_of(dumps, Side::kResponder), {})};
}

Status InstructionProfiler::check() {
  if (!CallgrindCounter::kBuiltIn) {
    return Status(StatusCode::kUnsupported,
                  "this build cannot count instructions with valgrind; install it (package "
                  "valgrind) and build again");
  }
  if (output_of({"valgrind", "--tool=callgrind", "--version"}).ok()) return Status::ok_status();
  return Status(StatusCode::kUnsupported,
                "valgrind does not run here; install it (package valgrind)");
}

Status InstructionProfiler::start_nodes() {
  VERBENA_RETURN_IF_ERROR(folder_.status());
  // hwloc would say on every start that it does not ask the processor under valgrind. Nodes
  // register only memory of one thread; beside others soft0 would move its bytes through the
  // kernel, since valgrind lacks what it needs to move pages under their eyes. And valgrind counts
  // a string instruction once for each byte that it copies.
  const std::vector<std::string> launcher = {
      "env", "HWLOC_COMPONENTS=-x86", "VERBENA_QUIET_REGISTRATION=1",
      "GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=1073741824", "valgrind", "-q",
      "--tool=callgrind", "--collect-atstart=no",
      // Each thread counts for itself; none starves while another one polls.
      "--separate-threads=yes", "--fair-sched=try",
      // As callgrind_dump.h reads it.
      "--compress-strings=no", "--compress-pos=no", "--dump-line=no",
      fmt::format("--callgrind-out-file={}", folder_.file("dump.%p")),
      fmt::format("--log-file={}", folder_.file("log.%p"))};
  VERBENA_ASSIGN_OR_RETURN(pool_,
                           NodePool::on_this_host(device_, JobSecret::random(), 0, launcher));
  return Status::ok_status();
}

Result<InstructionProfile> InstructionProfiler::profile(const Point& point) {
  if (pool_ == nullptr) VERBENA_RETURN_IF_ERROR(start_nodes());
  VERBENA_ASSIGN_OR_RETURN(const Wiring wiring, wire(shape_of(point)));
  RunOptions options;
  options.cost_only = true;
  options.length.requests =
      std::max(kRequests, kRoundsOfSlots * point.pending * wiring.requesting.front().peers.size());
  options.length.duration_ns = kMostNs;
  RunFailure failure;
  const Result<RunResult> run = run_point(*pool_, point, options, 0, &failure);
  if (!failure.nodes_remain) pool_.reset();
  VERBENA_RETURN_IF_ERROR(run.status());
  InstructionProfile profile = instruction_profile(take_dumps(folder_.path()));
  // Where operations are none of the other side's business, it has no polls to count.
  if (run->responder_cost && run->responder_cost->cycles == 0) {
    profile.responder = InstructionCost{};
  }
  if (profile.requester && profile.responder) return profile;
  return Status(StatusCode::kUnsupported, "valgrind counted no instructions");
}

}  // namespace verbena::bench
