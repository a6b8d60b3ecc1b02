#include "src/bench/run/point_node.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/run/placement.h"

namespace verbena::bench {

namespace {

void add_counters(const Report& one, Report* sum) {
  for (size_t c = 0; c < sum->counters.size(); ++c) sum->counters[c] += one.counters[c];
}

}  // namespace

PointNode::PointNode(const Device& device, const ProtectionDomain& domain, const JobSecret& secret,
                     std::string address, Setup setup, std::shared_ptr<const JobWiring> wiring)
    : job_{.device = device,
           .domain = domain,
           .secret = secret,
           .setup = std::move(setup),
           .shared_wiring = std::move(wiring),
           .address = std::move(address)} {
  job_.activity = std::make_unique<ThreadActivity[]>(node().requesting);
}

PointNode::~PointNode() {
  job_.team.begin({.kind = StepKind::kLeave}, 0);
  threads_.clear();  // joins
}

Status PointNode::start() {
  VERBENA_RETURN_IF_ERROR(job_.team.open());
  VERBENA_RETURN_IF_ERROR(start_threads());
  begin_step({.kind = StepKind::kListen}, node().responding);
  return Status::ok_status();
}

void PointNode::begin_step(const Step& step, uint32_t participants) {
  step_ = step.kind;
  watches_.assign(node().requesting, SilenceWatch(stall_ns_, now_ns()));
  job_.team.begin(step, participants);
}

Status PointNode::start_threads() {
  const uint32_t count = threads_of(node(), job_.setup.point);
  const Workload& workload = *job_.setup.point.workload;
  reports_.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = "request";
    ThreadRole role = ThreadRole::kRequesting;
    uint32_t thread = i;
    uint32_t number = node().first_requesting + thread;
    if (i >= node().requesting + node().responding) {
      name = "dispatch";
      role = ThreadRole::kDispatching;
      thread = 0;
      number = job_.connections().nodes[job_.setup.node].first_requesting;
    } else if (i >= node().requesting) {
      name = "respond";
      role = ThreadRole::kResponding;
      thread = i - node().requesting;
      number = node().first_responding + thread;
    }
    const ThreadBody run = workload.body(role, job_.setup.point);
    const int cpu = i < job_.setup.cpus.size() ? job_.setup.cpus[i] : -1;
    threads_.push_back(
        start_thread(fmt::format("{}-{}", name, thread), [this, i, run, number, cpu] {
          if (cpu >= 0 && !pin_this_thread(cpu)) {
            log_warning("cannot pin a thread to CPU {}; results will vary more", cpu);
          }
          run(job_, number, reports_[i]);
        }));
    if (!threads_.back().joinable()) {
      return Status(StatusCode::kLimitExceeded,
                    fmt::format("cannot start thread {} of {}; raise the limit of processes "
                                "(ulimit -u, pids.max) or lower --threads",
                                i + 1, count));
    }
  }
  return Status::ok_status();
}

Status PointNode::begin(const Message& message) {
  switch (message.kind) {
    case MessageKind::kConnect:
      if (message.addresses.size() != job_.wiring().responding.size()) {
        return Status(
            StatusCode::kProtocolViolation,
            "the coordinator lists another number of responding threads than the point has");
      }
      job_.addresses = message.addresses;
      begin_step({.kind = StepKind::kConnect}, all_threads());
      return Status::ok_status();
    case MessageKind::kPhase:
      stall_ns_ = message.phase.stall_ns;
      begin_step({.kind = StepKind::kPrepare, .phase = message.phase}, all_threads());
      return Status::ok_status();
    case MessageKind::kGo: {
      const bool same_clock = message.go.host == host_identity();
      begin_step({.kind = StepKind::kRun, .begin_ns = same_clock ? message.go.now_ns : now_ns()},
                 node().requesting);
      return Status::ok_status();
    }
    case MessageKind::kEndOfPhase:
      begin_step({.kind = StepKind::kEnd}, all_threads() - node().requesting);
      return Status::ok_status();
    default:
      return Status(StatusCode::kProtocolViolation, "the coordinator's messages are out of order");
  }
}

Status PointNode::stalled() {
  if (step_ != StepKind::kRun) return Status::ok_status();
  const uint64_t now = now_ns();
  for (uint32_t i = 0; i < node().requesting; ++i) {
    const uint64_t count = job_.activity[i].count.load(std::memory_order_relaxed);
    if (!watches_[i].too_long(now, count) || count == 0) continue;
    return Status(StatusCode::kTimeout,
                  fmt::format("its thread request-{} has not returned from a call of the device "
                              "for {:.1f} s; its queues "
                              "may be damaged, or this is a defect: 'gdb -p {}' shows where it is",
                              i, static_cast<double>(watches_[i].silent_ns()) / 1e9, getpid()));
  }
  return Status::ok_status();
}

Message PointNode::answer() {
  Message message;
  switch (step_) {
    case StepKind::kListen:
      message.kind = MessageKind::kListening;
      for (uint32_t i = node().requesting; i < node().requesting + node().responding; ++i) {
        message.addresses.push_back(reports_[i].address);
      }
      break;
    case StepKind::kConnect:
      message.kind = MessageKind::kConnected;
      break;
    case StepKind::kPrepare:
      message.kind = MessageKind::kBegun;
      break;
    case StepKind::kRun:
      message.kind = MessageKind::kFinished;
      message.report = merged(0, node().requesting);
      break;
    default:
      message.kind = MessageKind::kReport;
      message.report = merged(node().requesting, node().responding);
      if (job_.has_dispatcher()) {
        const Report& dispatcher = reports_.back().report;
        message.report.dispatcher_costs = dispatcher.dispatcher_costs;
        add_counters(dispatcher, &message.report);
      }
      break;
  }
  return message;
}

namespace {

// Threads share a clock, so most of their counts are of the same few thousand times.
void combine(std::vector<LatencyCount>& latencies) {
  std::sort(latencies.begin(), latencies.end(), [](const LatencyCount& a, const LatencyCount& b) {
    return std::tie(a.kind, a.ns) < std::tie(b.kind, b.ns);
  });
  size_t combined = 0;
  for (const LatencyCount& one : latencies) {
    LatencyCount* const last = combined == 0 ? nullptr : &latencies[combined - 1];
    if (last != nullptr && last->kind == one.kind && last->ns == one.ns) {
      last->count += one.count;
    } else {
      latencies[combined++] = one;
    }
  }
  latencies.resize(combined);
}

}  // namespace

Report PointNode::merged(uint32_t first, uint32_t count) const {
  Report sum;
  if (count > 0) sum.first_ns = UINT64_MAX;
  for (uint32_t i = first; i < first + count; ++i) {
    const Report& one = reports_[i].report;
    sum.requests += one.requests;
    sum.unanswered += one.unanswered;
    sum.mismatches += one.mismatches;
    sum.arrivals += one.arrivals;
    sum.arrivals_ns = std::max(sum.arrivals_ns, one.arrivals_ns);
    sum.first_ns = std::min(sum.first_ns, one.first_ns);
    sum.last_ns = std::max(sum.last_ns, one.last_ns);
    add_counters(one, &sum);
    sum.layout = one.layout;
    sum.costs.insert(sum.costs.end(), one.costs.begin(), one.costs.end());
    sum.latencies.insert(sum.latencies.end(), one.latencies.begin(), one.latencies.end());
  }
  combine(sum.latencies);
  return sum;
}

}  // namespace verbena::bench
