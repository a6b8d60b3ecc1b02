#include "src/bench/log/log_threads.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/log/log_appends.h"
#include "src/bench/log/log_settings.h"
#include "src/bench/log/log_tail.h"
#include "src/bench/run/application_phases.h"
#include "src/bench/run/responding_steps.h"
#include "src/bench/run/socket_parts.h"
#include "src/bench/run/thread_connection.h"
#include "verbena/apps/log.h"

namespace verbena::bench {

namespace {

// How often a store makes trimmed space free.
constexpr uint64_t kMaintainNs = 1'000'000;

// --- who opens what: all stores take each front-end in in this order ---

// Several replicas become one log by the first front-end, over connections of its own, which end
// then: it calls itself by the number behind the last one.
bool is_formed(const Point& point) { return point.responder_nodes > 1; }
uint32_t former_number(const Point& point) { return point.nodes * point.threads; }
bool writes_log(const Point& point, uint32_t requesting) {
  return !is_log_reader(point, requesting);
}
// Where no thread does nothing but reading, writers read to make room.
bool reads_log(const Point& point, uint32_t requesting) {
  return is_log_reader(point, requesting) || log_settings(point).readers == 0;
}

struct FrontEnd {
  std::vector<std::unique_ptr<ControlConnection>> controls;
  std::optional<LogTail> tail;
  std::optional<LogAppends> appends;
};

// To each replica; `number` is that of the front-end, or former_number().
Result<std::vector<std::unique_ptr<ControlConnection>>> reach_replicas(const NodeJob& job,
                                                                       uint32_t number) {
  std::vector<std::unique_ptr<ControlConnection>> controls;
  for (uint32_t responding = 0; responding < job.setup.point.responder_nodes; ++responding) {
    VERBENA_ASSIGN_OR_RETURN(auto control, reach(job, number, responding));
    controls.push_back(std::move(control));
  }
  return controls;
}
std::vector<ControlConnection*> pointers_to(
    const std::vector<std::unique_ptr<ControlConnection>>& controls) {
  std::vector<ControlConnection*> pointers;
  for (const auto& control : controls) pointers.push_back(control.get());
  return pointers;
}

Status open(NodeJob& job, uint32_t number, FrontEnd& front_end) {
  const Point& point = job.setup.point;
  std::vector<std::unique_ptr<ControlConnection>> former;
  if (number == 0 && is_formed(point)) {
    VERBENA_ASSIGN_OR_RETURN(former, reach_replicas(job, former_number(point)));
  }
  const SocketUse use = socket_use(log_settings(point));
  VERBENA_RETURN_IF_ERROR(run_on_own_socket(point, use, number));
  VERBENA_RETURN_IF_ERROR(share_sockets(job, use, number));
  const SocketDevice device = socket_device(job, use, number);
  VERBENA_ASSIGN_OR_RETURN(front_end.controls, reach_replicas(job, number));
  const std::vector<ControlConnection*> replicas = pointers_to(front_end.controls);
  if (!former.empty()) {
    VERBENA_RETURN_IF_ERROR(
        form_log(job.device, job.domain, pointers_to(former), kSetupTimeoutNs).status());
  }
  if (reads_log(point, number)) {
    const bool trims = is_log_reader(point, number) && number == first_log_reader(point);
    front_end.tail.emplace(point, trims);
    VERBENA_RETURN_IF_ERROR(front_end.tail->open(*device.device, *device.domain, replicas));
  }
  if (!writes_log(point, number)) return Status::ok_status();
  front_end.appends.emplace(job, number, device, front_end.tail);
  return front_end.appends->open(replicas);
}

// --- readers ---

// Reads until all writers have ended the phase.
Status read_phase(NodeJob& job, LogTail& tail) {
  Waiter waiter;
  while (!tail.is_over() && !job.team.halted()) {
    VERBENA_ASSIGN_OR_RETURN(const size_t count, tail.read());
    count > 0 ? waiter.progress() : waiter.idle();
  }
  return Status::ok_status();
}

Status serve_reader(NodeJob& job, LogTail& tail, Report& report, Step& step) {
  job.team.finished();
  for (;;) {
    step = job.team.next(step.number);
    if (step.kind == StepKind::kLeave) return Status::ok_status();
    if (step.kind == StepKind::kPrepare) {
      report = Report{};
      report.first_ns = UINT64_MAX;  // nothing of what is timed
      tail.begin(step.phase, step.phase.verify);
      job.team.finished();
    } else if (step.kind == StepKind::kRun) {
      VERBENA_RETURN_IF_ERROR(read_phase(job, tail));
      tail.end(report);
      job.team.finished();
    }
  }
}

Status open_and_serve(NodeJob& job, uint32_t number, ThreadReport& report, Step& step) {
  FrontEnd front_end;
  VERBENA_RETURN_IF_ERROR(open(job, number, front_end));
  if (!front_end.appends) return serve_reader(job, *front_end.tail, report.report, step);
  serve_application(job, number, *front_end.appends, report.report, step);
  return Status::ok_status();
}

// --- back-ends ---

class LogStoreThread final : public RespondingTarget {
 public:
  LogStoreThread(NodeJob& job, ThreadReport& report) : job_(job), report_(report) {}

  Status prepare() override {
    const Point& point = job_.setup.point;
    const uint32_t front_ends = point.nodes * point.threads;
    controls_.resize(expected_connections(front_ends));
    VERBENA_ASSIGN_OR_RETURN(store_,
                             LogStore::expose(job_.device, job_.domain,
                                              {.capacity_bytes = log_settings(point).capacity_bytes,
                                               .max_writers = log_writers(point),
                                               .replicated = point.responder_nodes > 1,
                                               .max_connections = 2 * front_ends + 1,
                                               .handshake_timeout_ns = kSetupTimeoutNs}));
    return Status::ok_status();
  }

  // One more forms the log.
  uint32_t expected_connections(uint32_t requesters) const override {
    return requesters + (is_formed(job_.setup.point) ? 1 : 0);
  }

  // Front-ends wait for all stores, so these take them in in one order: once all have come.
  Status connect(std::unique_ptr<ControlConnection> control, uint32_t requesting) override {
    if (requesting >= controls_.size() || controls_[requesting] != nullptr) {
      return {StatusCode::kProtocolViolation,
              "a front-end of the log has an impossible number; run the same release on all sides"};
    }
    controls_[requesting] = std::move(control);
    const auto missing = std::count(controls_.begin(), controls_.end(), nullptr);
    return missing > 0 ? Status::ok_status() : accept_all();
  }

  Status answer(const Step& /*step*/) override {
    // What the RNIC does costs nothing here, in any unit, and making room hardly anything.
    report_.report.costs = {{CpuCost{}, 0}};
    job_.team.finished();
    while (!job_.team.halted()) {
      store_->maintain();
      sleep_ns(kMaintainNs);
    }
    return Status::ok_status();
  }

 private:
  Status accept_all() {
    const Point& point = job_.setup.point;
    if (is_formed(point)) VERBENA_RETURN_IF_ERROR(store_->accept(*controls_.back()));
    for (uint32_t number = 0; number < former_number(point); ++number) {
      ControlConnection& control = *controls_[number];
      const uint32_t handshakes =
          (reads_log(point, number) ? 1 : 0) + (writes_log(point, number) ? 1 : 0);
      for (uint32_t i = 0; i < handshakes; ++i) VERBENA_RETURN_IF_ERROR(store_->accept(control));
    }
    return Status::ok_status();
  }

  NodeJob& job_;
  ThreadReport& report_;
  // What connections use goes after them.
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<LogStore> store_;
};

}  // namespace

void run_log_front_end(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(open_and_serve(job, number, report, step), step);
}

void run_log_store(NodeJob& job, uint32_t number, ThreadReport& report) {
  run_responding_steps(job, number, std::make_unique<LogStoreThread>(job, report), report);
}

}  // namespace verbena::bench
