#include "src/bench/explain/simulation_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "src/bench/explain/message_path.h"

namespace verbena::bench {

namespace {

using sim::Component;
using sim::Step;
using sim::Time;

// The format counts microseconds.
double us(Time time) { return static_cast<double>(time) / (1e3 * sim::kPsPerNs); }

const char* packet_text(sim::PacketKind kind) {
  switch (kind) {
    case sim::PacketKind::kRequest:
      return "request";
    case sim::PacketKind::kReadResponse:
      return "READ response";
    case sim::PacketKind::kAtomicResponse:
      return "atomic response";
    case sim::PacketKind::kAck:
      return "acknowledgement";
    case sim::PacketKind::kNak:
      return "negative acknowledgement";
  }
  return "";
}

class TraceMaker {
 public:
  explicit TraceMaker(const sim::Recorder& recorder) : recorder_(recorder) {}

  void add(const Step& step) {
    const uint64_t track = track_of(step);
    const bool thread = step.thread != sim::kNoThread;
    nlohmann::json args = {{"takes_ns", us(step.end - step.begin) * 1e3}};
    if (!thread || step.named) {
      args["queue_pair"] = fmt::format("{} of node {}", step.message.queue_pair, step.message.node);
      args["wqe"] = step.message.number;
    }
    if (!thread) args["packet"] = packet_text(step.packet);
    if (!thread && step.index != sim::kAllPackets) args["index"] = step.index;
    events_.push_back({{"ph", "X"},
                       {"name", sim::text_of(step.kind)},
                       {"cat", sim::is_wait(step.kind) ? "wait" : "service"},
                       {"pid", step.node},
                       {"tid", track},
                       {"ts", us(step.begin)},
                       {"dur", us(step.end - step.begin)},
                       {"args", std::move(args)}});
    tracks_of_steps_[key_of(step)] = track;
  }

  // Joins those of the message's steps that are in the trace.
  void add_flow(const MessagePath& path, size_t number) {
    std::vector<nlohmann::json> points;
    for (const Step& step : path.steps) {
      const auto track = tracks_of_steps_.find(key_of(step));
      if (track == tracks_of_steps_.end()) continue;
      points.push_back({{"ph", "t"},
                        {"name", "message"},
                        {"cat", "message"},
                        {"id", number},
                        {"pid", step.node},
                        {"tid", track->second},
                        {"ts", us(step.begin + (step.end - step.begin) / 2)}});
    }
    if (points.size() < 2) return;
    points.front()["ph"] = "s";
    points.back()["ph"] = "f";
    points.back()["bp"] = "e";
    events_.insert(events_.end(), points.begin(), points.end());
  }

  nlohmann::json finish() {
    nlohmann::json names = nlohmann::json::array();
    for (const auto& [node, lanes] : lanes_) {
      names.push_back({{"ph", "M"},
                       {"name", "process_name"},
                       {"pid", node},
                       {"args", {{"name", fmt::format("node {}", node)}}}});
      for (const auto& [track, text] : lanes.names) {
        names.push_back({{"ph", "M"},
                         {"name", "thread_name"},
                         {"pid", node},
                         {"tid", track},
                         {"args", {{"name", text}}}});
        names.push_back({{"ph", "M"},
                         {"name", "thread_sort_index"},
                         {"pid", node},
                         {"tid", track},
                         {"args", {{"sort_index", track}}}});
      }
    }
    for (nlohmann::json& event : events_) names.push_back(std::move(event));
    return {{"displayTimeUnit", "ns"}, {"traceEvents", std::move(names)}};
  }

 private:
  // So many tracks for each thing: threads first, then units, their waits behind them.
  static constexpr uint64_t kTracksEach = 1000;
  static constexpr uint64_t kFirstUnit = 1'000'000;

  using StepKey = std::tuple<sim::StepKind, uint32_t, uint32_t, Time>;
  // A message's own steps may begin later or be called a wait; they end where they did.
  static StepKey key_of(const Step& step) { return {step.kind, step.node, step.thread, step.end}; }

  struct Lanes {
    std::map<uint64_t, Time> busy_until;  // by track
    std::map<uint64_t, std::string> names;
  };

  uint64_t track_of(const Step& step) {
    Lanes& lanes = lanes_[step.node];
    if (step.thread != sim::kNoThread) {
      const sim::Recorder::Thread& thread = recorder_.threads()[step.thread];
      const uint64_t track = 1 + thread.number;
      lanes.names[track] = fmt::format("thread {} {}", thread.number, thread.name);
      return track;
    }
    const bool wait = sim::is_wait(step.kind);
    const Component component = sim::component_of(step.kind);
    const auto place = 2 * static_cast<uint64_t>(component) + (wait ? 1 : 0);
    uint64_t track = kFirstUnit + place * kTracksEach;
    const uint64_t first = track;
    while (lanes.busy_until[track] > step.begin && track + 1 < first + kTracksEach) ++track;
    lanes.busy_until[track] = step.end;
    lanes.names[track] = fmt::format("{}{}", sim::text_of(component), wait ? ", waiting" : "");
    return track;
  }

  const sim::Recorder& recorder_;
  std::vector<nlohmann::json> events_;
  std::map<uint32_t, Lanes> lanes_;  // by node
  std::map<StepKey, uint64_t> tracks_of_steps_;
};

Time begin_of(const sim::Recorder::Taken& taken) { return taken.posted_ns * sim::kPsPerNs; }

// The message and those whose responses were taken next to its, by which are under way the longest.
std::vector<sim::Recorder::Taken> around(const std::vector<sim::Recorder::Taken>& taken,
                                         const sim::Recorder::Taken& chosen, Time complete_until) {
  const auto at = std::find_if(taken.begin(), taken.end(), [&](const auto& one) {
    return one.taken == chosen.taken && one.thread == chosen.thread &&
           one.response == chosen.response;
  });
  const auto place = static_cast<size_t>(at - taken.begin());
  const size_t first = place - std::min(place, kMostTracedMessages / 2);
  std::vector<sim::Recorder::Taken> list;
  for (size_t i = first; i < taken.size() && list.size() < kMostTracedMessages; ++i) {
    if (taken[i].taken <= complete_until) list.push_back(taken[i]);
  }
  return list;
}

}  // namespace

nlohmann::json simulation_trace(const sim::Recorder& recorder, MarkLayout layout,
                                const sim::Recorder::Taken& chosen) {
  const std::vector<sim::Recorder::Taken> messages =
      around(recorder.taken(), chosen, recorder.complete_until());
  Time begin = begin_of(chosen);
  Time end = chosen.taken;
  for (const sim::Recorder::Taken& one : messages) {
    begin = std::min(begin, begin_of(one));
    end = std::max(end, one.taken);
  }
  std::vector<Step> steps;
  for (const Step& step : recorder.steps()) {
    if (step.end > begin && step.begin < end) steps.push_back(step);
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.begin < b.begin; });
  // The chosen message is what matters: what is left out lies around it.
  if (steps.size() > kMostTracedSteps) {
    const auto middle =
        std::lower_bound(steps.begin(), steps.end(), begin_of(chosen),
                         [](const Step& step, Time when) { return step.begin < when; });
    const size_t before =
        std::min<size_t>(static_cast<size_t>(middle - steps.begin()), kMostTracedSteps / 10);
    steps.erase(steps.begin(), middle - static_cast<std::ptrdiff_t>(before));
    if (steps.size() > kMostTracedSteps) steps.resize(kMostTracedSteps);
  }
  TraceMaker trace(recorder);
  for (const Step& step : steps) trace.add(step);
  const MessagePaths paths(recorder, layout);
  size_t number = 0;
  for (const sim::Recorder::Taken& one : messages) {
    if (const Result<MessagePath> path = paths.find(one); path.ok()) {
      trace.add_flow(*path, ++number);
    }
  }
  return trace.finish();
}

}  // namespace verbena::bench
