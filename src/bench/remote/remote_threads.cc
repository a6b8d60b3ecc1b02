#include "src/bench/remote/remote_threads.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/remote/lock_operation.h"
#include "src/bench/remote/remote_settings.h"
#include "src/bench/remote/remote_targets.h"
#include "src/bench/remote/remote_thread.h"
#include "src/bench/remote/sequencer_operation.h"
#include "src/bench/remote/socket_targets.h"
#include "src/bench/remote/write_operation.h"
#include "src/bench/run/request_phases.h"
#include "src/bench/run/responding_steps.h"
#include "src/bench/run/socket_parts.h"
#include "src/bench/run/thread_connection.h"
#include "verbena/apps/lock_service.h"
#include "verbena/remote.h"
#include "verbena/remote_consolidation.h"

namespace verbena::bench {

namespace {

// --- requesting ---

Status connect(RemoteThread& thread) {
  NodeJob& job = *thread.job;
  const Point& point = thread.point();
  const RemoteSettings& settings = thread.settings();
  const uint32_t responding = job.wiring().requesting[thread.number].peers.front();
  VERBENA_ASSIGN_OR_RETURN(thread.control, reach(job, thread.number, responding));
  if (settings.version == WordVersion::kLocal) {
    if (thread.number == job.node().first_requesting) {
      job.shared = std::make_shared<LocalMemory>(point);
    }
    return Status::ok_status();
  }
  RemoteRegionOptions options;
  options.pending = point.pending;
  options.value_bytes = settings.consolidation == ConsolidationKind::kNone
                            ? std::max<uint32_t>(settings.size_bytes, sizeof(uint64_t))
                            : settings.block_bytes;
  options.threads = point.threads;
  options.handshake_timeout_ns = kSetupTimeoutNs;
  VERBENA_ASSIGN_OR_RETURN(thread.region,
                           open_region(job.device, job.domain, *thread.control, options));
  if (settings.version != WordVersion::kRpc) return Status::ok_status();
  VERBENA_ASSIGN_OR_RETURN(
      thread.client, LockClient::connect(job.device, job.domain, *thread.control,
                                         {.pending = point.pending,
                                          .call_timeout_ns = static_cast<int64_t>(kBenchLeaseNs),
                                          .handshake_timeout_ns = kSetupTimeoutNs}));
  return Status::ok_status();
}

template <typename Target>
void serve(const RemoteThread& thread, ThreadReport& report, const Step& step, Target target) {
  NodeJob& job = *thread.job;
  RequestPhases<Target, TargetPhases<Target>> phases(job, thread.number, {&target},
                                                     TargetPhases<Target>(target), report.report);
  job.team.finished();
  phases.serve(step);
}

void serve_sequencer(const RemoteThread& thread, ThreadReport& report, const Step& step) {
  switch (thread.settings().version) {
    case WordVersion::kLocal: {
      LocalSequencerOperation operation(thread);
      return serve(thread, report, step, OneAtATime(operation, thread.point().pending));
    }
    case WordVersion::kRemote: {
      RemoteSequencerOperation operation(thread);
      return serve(thread, report, step, Posted(operation));
    }
    case WordVersion::kRpc:
      break;
  }
  RpcSequencerOperation operation(thread);
  serve(thread, report, step, Posted(operation));
}

Status serve_writes(const RemoteThread& thread, ThreadReport& report, const Step& step) {
  const RemoteSettings& settings = thread.settings();
  if (settings.consolidation == ConsolidationKind::kNone) {
    NativeWrites writes(thread);
    serve(thread, report, step, Posted(writes));
    return Status::ok_status();
  }
  VERBENA_ASSIGN_OR_RETURN(
      std::unique_ptr<ConsolidatedRegion> consolidated,
      ConsolidatedRegion::create(
          *thread.region, {.block_bytes = settings.block_bytes,
                           .blocks = settings.kept_blocks,
                           .modifications = settings.theta,
                           .exclusive = settings.consolidation == ConsolidationKind::kExclusive}));
  ConsolidatedWrites writes(thread, std::move(consolidated));
  serve(thread, report, step, OneAtATime(writes, thread.point().pending));
  return Status::ok_status();
}

Status connect_and_serve(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  RemoteThread thread{.job = &job, .number = number};
  if (thread.settings().sockets > 1) {
    VERBENA_ASSIGN_OR_RETURN(const SocketRegions own, connect_socket_regions(job, number));
    SocketWrites writes(thread, own);
    serve(thread, report, step, Posted(writes));
    return Status::ok_status();
  }
  VERBENA_RETURN_IF_ERROR(connect(thread));
  switch (thread.settings().operation) {
    case RemoteOperation::kWrite:
      return serve_writes(thread, report, step);
    case RemoteOperation::kLock: {
      LockOperation operation(thread);
      serve(thread, report, step, OneAtATime(operation, thread.point().pending));
      break;
    }
    case RemoteOperation::kSequencer:
      serve_sequencer(thread, report, step);
  }
  return Status::ok_status();
}

// --- responding ---

class RemoteRespondingThread final : public RespondingTarget {
 public:
  RemoteRespondingThread(NodeJob& job, ThreadReport& report) : job_(job), report_(report) {}

  Status prepare() override {
    const Point& point = job_.setup.point;
    const WordVersion version = remote_settings(point).version;
    if (version == WordVersion::kLocal) return Status::ok_status();
    const SocketUse use = socket_use(remote_settings(point));
    if (use.sockets > 1) {
      VERBENA_ASSIGN_OR_RETURN(parts_, ExposedParts::expose(job_, use, socket_bytes(point)));
      return Status::ok_status();
    }
    const uint32_t threads = point.nodes * point.threads;
    VERBENA_ASSIGN_OR_RETURN(region_, expose_region(job_.device, job_.domain,
                                                    {.size_bytes = exposed_bytes(point),
                                                     .max_connections = threads,
                                                     .handshake_timeout_ns = kSetupTimeoutNs}));
    if (version != WordVersion::kRpc) return Status::ok_status();
    VERBENA_ASSIGN_OR_RETURN(server_, LockServer::create(job_.device, job_.domain,
                                                         {.locks = 1,
                                                          .sequencers = 1,
                                                          .lease_ns = kBenchLeaseNs,
                                                          .max_connections = threads,
                                                          .pending = point.pending}));
    return Status::ok_status();
  }

  uint32_t expected_connections(uint32_t requesters) const override {
    const Point& point = job_.setup.point;
    const SocketUse use = socket_use(remote_settings(point));
    return use.sockets > 1 ? socket_connections(point, use) : requesters;
  }

  Status connect(std::unique_ptr<ControlConnection> control, uint32_t requesting) override {
    if (parts_ != nullptr) return parts_->accept(std::move(control), requesting);
    controls_.push_back(std::move(control));
    if (region_ != nullptr) VERBENA_RETURN_IF_ERROR(region_->accept(*controls_.back()));
    if (server_ != nullptr) VERBENA_RETURN_IF_ERROR(server_->connect(*controls_.back()));
    return Status::ok_status();
  }

  Status answer(const Step& step) override {
    // What the RNIC does costs nothing here, in any unit.
    if (server_ == nullptr) report_.report.costs = {{CpuCost{}, 0}};
    job_.team.finished();
    if (server_ != nullptr) serve_calls(step.phase);
    return Status::ok_status();
  }

 private:
  void serve_calls(const Phase& phase) {
    std::unique_ptr<PollCost> cost;
    if (phase.kind == PhaseKind::kCost) cost = std::make_unique<PollCost>(Side::kResponder);
    Waiter waiter;
    while (!job_.team.halted()) {
      const uint32_t found =
          cost != nullptr ? cost->measure([this] { return server_->poll(); }) : server_->poll();
      report_.report.requests += found;
      found > 0 ? waiter.progress() : waiter.idle();
    }
    if (cost != nullptr && cost->per_message()) {
      report_.report.costs = {{*cost->per_message(), cost->messages()}};
    }
  }

  NodeJob& job_;
  ThreadReport& report_;
  // What connections use goes after them.
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<ExposedRegion> region_;
  std::unique_ptr<LockServer> server_;
  std::unique_ptr<ExposedParts> parts_;  // of a point with several sockets
};

}  // namespace

void run_remote_requesting_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(connect_and_serve(job, number, report, step), step);
}

void run_remote_responding_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  run_responding_steps(job, number, std::make_unique<RemoteRespondingThread>(job, report), report);
}

}  // namespace verbena::bench
