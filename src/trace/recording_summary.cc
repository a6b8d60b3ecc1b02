#include "src/trace/recording_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

namespace verbena::trace {

namespace {

struct Sum {
  uint64_t calls = 0;
  uint64_t bytes = 0;
  void add(uint64_t more) {
    ++calls;
    bytes += more;
  }
};

bool is_send(const Event& event) {
  return event.operation == Operation::kSend || event.operation == Operation::kStartSend;
}

// Of one rank, what it sends between two, and what it contributes to a collective operation.
uint64_t bytes_of_event(const RankRecording& rank, const Event& event) {
  const auto list = rank.list(event);
  if (event.operation == Operation::kWait || list.empty()) return event.bytes;
  const size_t sent = event.operation == Operation::kAlltoall ? list.size() / 2 : list.size();
  return std::accumulate(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(sent),
                         uint64_t{0});
}

std::string bytes_text(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.4g} {}", value, kUnits[unit]);
}
std::string seconds_text(uint64_t ns) {
  return fmt::format("{:.6g} s", static_cast<double>(ns) / 1e9);
}

std::map<std::string, CallCount> calls_of(const RecordedJob& job) {
  std::map<std::string, CallCount> calls;
  for (const RankRecording& rank : job.ranks) {
    for (const CallCount& call : rank.calls) {
      CallCount& sum = calls[call.name];
      sum.calls += call.calls;
      sum.duration_ns += call.duration_ns;
      sum.replayed = sum.replayed && call.replayed;
    }
  }
  return calls;
}

struct Times {
  uint64_t elapsed_ns = 0;  // of the longest rank
  uint64_t all_ns = 0;
  uint64_t in_calls_ns = 0;
};
Times times_of(const RecordedJob& job) {
  Times times;
  for (const RankRecording& rank : job.ranks) {
    times.elapsed_ns = std::max(times.elapsed_ns, rank.elapsed_ns);
    times.all_ns += rank.elapsed_ns;
    for (const CallCount& call : rank.calls) times.in_calls_ns += call.duration_ns;
  }
  return times;
}

}  // namespace

std::string headline(const RecordedJob& job) {
  Sum messages;
  Sum collectives;
  for (const RankRecording& rank : job.ranks) {
    for (const Event& event : rank.events) {
      if (is_send(event)) messages.add(event.bytes);
      if (is_collective(event.operation)) collectives.add(0);
    }
  }
  return fmt::format(
      "{}: {} ranks, {}, {} messages of {} between two, {} calls of collective "
      "operations",
      job.name, job.size(), seconds_text(times_of(job).elapsed_ns), messages.calls,
      bytes_text(messages.bytes), collectives.calls);
}

std::string omissions_text(const RecordedJob& job) {
  std::string text;
  for (const auto& [name, call] : calls_of(job)) {
    if (call.replayed) continue;
    text += name.starts_with("(") ? "not replayed: calls on communicators between groups\n"
                                  : fmt::format("not replayed: {} calls of {}\n", call.calls, name);
  }
  if (job.unmatched_sends > 0) {
    text += fmt::format("not replayed: {} messages that no recorded call received\n",
                        job.unmatched_sends);
  }
  if (job.unmatched_receives > 0) {
    text += fmt::format(
        "not replayed: {} receives that nothing came for, or that nobody waited "
        "for\n",
        job.unmatched_receives);
  }
  if (job.buffered_sends > 0) {
    text += fmt::format(
        "{} blocking sends are not waited for, since the program needs its MPI to "
        "copy them\n",
        job.buffered_sends);
  }
  for (const RankRecording& rank : job.ranks) {
    if (rank.threads <= 1) continue;
    text += fmt::format("cannot be replayed: rank {} calls MPI from {} threads\n", rank.rank,
                        rank.threads);
    break;
  }
  return text;
}

std::string summary_text(const RecordedJob& job) {
  std::string text = headline(job) + "\n";
  const Times times = times_of(job);
  if (times.all_ns > 0) {
    const double share = 100 * static_cast<double>(std::min(times.in_calls_ns, times.all_ns)) /
                         static_cast<double>(times.all_ns);
    text += fmt::format("of the time of all ranks {:.1f} % in MPI, {:.1f} % computing\n", share,
                        100 - share);
  }

  std::map<Operation, Sum> by_operation;
  std::map<uint32_t, Sum> by_size;
  std::map<std::pair<uint32_t, uint32_t>, Sum> by_pair;
  for (const RankRecording& rank : job.ranks) {
    for (const Event& event : rank.events) {
      by_operation[event.operation].add(bytes_of_event(rank, event));
      if (!is_send(event)) continue;
      by_size[static_cast<uint32_t>(std::bit_width(event.bytes))].add(event.bytes);
      by_pair[{rank.rank, event.peer}].add(event.bytes);
    }
  }
  text += fmt::format("\n{:<26} {:>12} {:>14}\n", "operation", "calls", "bytes");
  for (const auto& [operation, sum] : by_operation) {
    text += fmt::format("{:<26} {:>12} {:>14}\n", operation_name(operation), sum.calls,
                        operation == Operation::kWait ? "-" : bytes_text(sum.bytes));
  }
  const auto calls = calls_of(job);
  if (!calls.empty()) {
    text += fmt::format("\n{:<26} {:>12} {:>14}\n", "MPI function", "calls", "time of all");
    for (const auto& [name, call] : calls) {
      if (name.starts_with("(")) continue;
      text += fmt::format("{:<26} {:>12} {:>14}{}\n", name, call.calls,
                          seconds_text(call.duration_ns), call.replayed ? "" : "  not replayed");
    }
  }
  if (!by_size.empty()) {
    text += fmt::format("\n{:<26} {:>12} {:>14}\n", "messages up to", "messages", "bytes");
    for (const auto& [width, sum] : by_size) {
      const uint64_t most = width == 0 ? 0 : (uint64_t{1} << width) - 1;
      text += fmt::format("{:<26} {:>12} {:>14}\n",
                          width <= 10 ? fmt::format("{} B", most) : "< " + bytes_text(most + 1),
                          sum.calls, bytes_text(sum.bytes));
    }
    constexpr size_t kMostPairs = 20;
    std::vector<std::pair<std::pair<uint32_t, uint32_t>, Sum>> pairs(by_pair.begin(),
                                                                     by_pair.end());
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
    text += fmt::format("\n{:<26} {:>12} {:>14}\n", "from, to", "messages", "bytes");
    for (size_t i = 0; i < std::min(pairs.size(), kMostPairs); ++i) {
      const auto& [pair, sum] = pairs[i];
      text += fmt::format("{:<26} {:>12} {:>14}\n", fmt::format("{}, {}", pair.first, pair.second),
                          sum.calls, bytes_text(sum.bytes));
    }
    if (pairs.size() > kMostPairs) {
      text += fmt::format("... and {} pairs with less\n", pairs.size() - kMostPairs);
    }
  }
  const std::string omitted = omissions_text(job);
  return omitted.empty() ? text : text + "\n" + omitted;
}

}  // namespace verbena::trace
