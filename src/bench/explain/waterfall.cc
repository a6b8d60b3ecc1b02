#include "src/bench/explain/waterfall.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/bench/result/text_table.h"

namespace verbena::bench {

namespace {

using sim::Component;
using sim::Step;
using sim::Time;

constexpr uint64_t kBarWidth = 32;

double ns(Time time) { return static_cast<double>(time) / sim::kPsPerNs; }
std::string ns_text(Time time) { return fmt::format("{:.1f}", ns(time)); }

// Where in the whole the step lies; shorter ones than a place get a thin mark.
std::string bar(const MessagePath& path, Time begin, Time end, bool wait) {
  const Time all = std::max<Time>(path.end() - path.begin(), 1);
  const auto place = [&](Time time) { return (time - path.begin()) * kBarWidth / all; };
  const uint64_t first = std::min(place(begin), kBarWidth - 1);
  const uint64_t length = std::min(place(end), kBarWidth) - std::min(place(begin), kBarWidth);
  std::string text(first, ' ');
  if (length == 0) text += wait ? "·" : "▏";
  for (uint64_t i = 0; i < length; ++i) text += wait ? "░" : "█";
  return text + std::string(kBarWidth - first - std::max<uint64_t>(length, 1), ' ');
}

std::string share_text(Time part, Time all) {
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(all));
}

}  // namespace

std::string place_text(const Step& step, const std::vector<sim::Recorder::Thread>& threads) {
  if (step.thread != sim::kNoThread && step.thread < threads.size()) {
    return fmt::format("thread {}", threads[step.thread].number);
  }
  return sim::text_of(sim::component_of(step.kind));
}

std::string waterfall_text(const MessagePath& path,
                           const std::vector<sim::Recorder::Thread>& threads) {
  std::string text = fmt::format("{:>10}  {:>9}  {:<{}}  {:>4}  {:<14}  {}\n", "at ns", "takes ns",
                                 "", kBarWidth, "node", "unit", "what");
  const Time begin = path.begin();
  for (const Step& step : merged(path.steps)) {
    const bool wait = sim::is_wait(step.kind);
    text += fmt::format("{:>10}  {:>9}  {}  {:>4}  {:<14}  {}{}{}\n", ns_text(step.begin - begin),
                        ns_text(step.end - step.begin), bar(path, step.begin, step.end, wait),
                        step.node, place_text(step, threads), wait ? "(" : "",
                        sim::text_of(step.kind), wait ? ")" : "");
  }
  if (path.beside.empty()) return text;
  text += "beside it, not waited for:\n";
  for (const BesidePath& one : path.beside) {
    text += fmt::format("{:>10}  {:>9}  {:<{}}  {:>4}  {:<14}  {}\n", ns_text(one.begin - begin),
                        ns_text(one.end - one.begin), "", kBarWidth, one.node, "", one.text);
  }
  return text;
}

std::string summary_text(const MessagePath& path) {
  constexpr size_t kComponents = static_cast<size_t>(Component::kNone) + 1;
  std::array<Time, kComponents> serves{};
  std::array<Time, kComponents> waits{};
  Time served = 0;
  for (const Step& step : path.steps) {
    const auto component = static_cast<size_t>(sim::component_of(step.kind));
    const Time took = step.end - step.begin;
    (sim::is_wait(step.kind) ? waits : serves)[component] += took;
    if (!sim::is_wait(step.kind)) served += took;
  }
  const Time all = path.sum();
  std::vector<std::vector<std::string>> rows = {
      {"unit", "serves ns", "share", "keeps waiting ns", "share"}};
  for (size_t i = 0; i < kComponents; ++i) {
    if (serves[i] + waits[i] == 0) continue;
    rows.push_back({sim::text_of(static_cast<Component>(i)), ns_text(serves[i]),
                    share_text(serves[i], all), ns_text(waits[i]), share_text(waits[i], all)});
  }
  rows.push_back({"all", ns_text(served), share_text(served, all), ns_text(all - served),
                  share_text(all - served, all)});
  return text_table(rows, 1);
}

std::string sum_text(const MessagePath& path) {
  const std::string sum = fmt::format(
      "The steps add up to {} ns; the requesting thread measured {} "
      "ns, on a clock of whole nanoseconds",
      ns_text(path.sum()), path.measured_ns);
  if (path.adds_up()) return sum + ": nothing is missing.\n";
  return sum + fmt::format(": {} ns are not explained.\n", ns_text(path.unexplained()));
}

}  // namespace verbena::bench
