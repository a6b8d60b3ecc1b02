#include "src/bench/join/join_threads.h"

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/join/join_settings.h"
#include "src/bench/join/join_tuples.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/run/responding_steps.h"
#include "src/bench/run/shuffle_connections.h"
#include "src/bench/run/socket_choice.h"
#include "verbena/apps/join.h"
#include "verbena/apps/shuffle.h"

namespace verbena::bench {

namespace {

// Of a node. An executor makes its own for each phase, since who registers memory is told in a
// simulation that something has come; then it is the acceptor's until all have connected, and the
// executor's again.
class JoinReceivers {
 public:
  explicit JoinReceivers(uint32_t count) : slots_(count) {}

  // Null: it could not be made.
  void give(uint32_t thread, uint64_t phase, std::unique_ptr<ShuffleReceiver> receiver) {
    {
      const std::lock_guard lock(mutex_);
      slots_[thread] = {std::move(receiver), phase};
    }
    given_.notify_all();
  }
  // Nothing more comes.
  void end(uint32_t thread) {
    {
      const std::lock_guard lock(mutex_);
      slots_[thread].phase = kEnded;
    }
    given_.notify_all();
  }
  // Null: there is none.
  ShuffleReceiver* await(uint32_t thread, uint64_t phase) {
    std::unique_lock lock(mutex_);
    given_.wait(lock, [&] { return slots_[thread].phase >= phase; });
    return slots_[thread].phase == phase ? slots_[thread].receiver.get() : nullptr;
  }

 private:
  static constexpr uint64_t kEnded = UINT64_MAX;

  struct Slot {
    std::unique_ptr<ShuffleReceiver> receiver;
    uint64_t phase = 0;
  };

  std::mutex mutex_;
  Condition given_;
  std::vector<Slot> slots_;
};

Status share_receivers(NodeJob& job) {
  return job.making_shared.run([&job] {
    job.shared = std::make_shared<JoinReceivers>(job.setup.point.threads);
    return Status::ok_status();
  });
}
JoinReceivers& receivers_of(const NodeJob& job) {
  return *static_cast<JoinReceivers*>(job.shared.get());
}

// A join before the timed one shows that the result is right, and touches all memory. In a
// simulation nothing has to be touched, and nothing but the timed one costs anything.
bool has_join(const Phase& phase) {
  return phase.kind == PhaseKind::kTimed || (phase.kind == PhaseKind::kWarmUp && phase.verify);
}

class JoinExecutor {
 public:
  JoinExecutor(NodeJob& job, uint32_t number, ThreadReport& report)
      : job_(job), number_(number), report_(report.report) {}

  Status serve(Step& step) {
    const Point& point = job_.setup.point;
    const JoinSettings& settings = join_settings(point);
    VERBENA_RETURN_IF_ERROR(run_at(settings.socket, job_.device));
    VERBENA_RETURN_IF_ERROR(share_receivers(job_));
    if (takes_part()) {
      tuples_.emplace(settings.tuples, settings.tuple_bytes, number_, join_executors(point));
    }
    job_.team.finished();
    for (;;) {
      step = job_.team.next(step.number);
      if (step.kind == StepKind::kLeave) {
        // It may have missed the last step that the acceptor has begun.
        receivers_of(job_).end(thread());
        return Status::ok_status();
      }
      if (step.kind == StepKind::kPrepare) {
        phase_ = step.phase;
        VERBENA_RETURN_IF_ERROR(prepare());
        job_.team.finished();
      } else if (step.kind == StepKind::kRun) {
        VERBENA_RETURN_IF_ERROR(run(step));
        job_.team.finished();
      }
    }
  }

 private:
  uint32_t thread() const { return number_ % job_.setup.point.threads; }
  bool takes_part() const { return number_ < join_executors(job_.setup.point); }

  Status prepare() {
    sender_.reset();
    if (!has_join(phase_) || !is_shuffled(job_.setup.point)) return Status::ok_status();
    const JoinSettings& settings = join_settings(job_.setup.point);
    const uint32_t executors = join_executors(job_.setup.point);
    // Executors have found it when they began.
    const int socket = choose_socket(settings.socket, job_.device).value();
    auto receiver = ShuffleReceiver::expose(job_.device, job_.domain,
                                            {.receiver = number_,
                                             .receivers = executors,
                                             .senders = executors,
                                             .socket = socket,
                                             .handshake_timeout_ns = kSetupTimeoutNs});
    receiver_ = receiver.ok() ? receiver->get() : nullptr;
    give(receiver.ok() ? std::move(*receiver) : nullptr);
    VERBENA_RETURN_IF_ERROR(receiver.status());
    VERBENA_ASSIGN_OR_RETURN(std::vector<ControlConnection> controls, reach_receivers(job_));
    VERBENA_ASSIGN_OR_RETURN(sender_,
                             open_shuffle_sender(job_.device, job_.domain, std::move(controls),
                                                 {.sender = number_,
                                                  .method = settings.method,
                                                  .batch = settings.batch,
                                                  .typical_record_bytes = settings.tuple_bytes,
                                                  .threads = job_.setup.point.threads,
                                                  .handshake_timeout_ns = kSetupTimeoutNs}));
    return Status::ok_status();
  }

  void give(std::unique_ptr<ShuffleReceiver> receiver) {
    receivers_of(job_).give(thread(), phase_.number, std::move(receiver));
  }

  Status run(const Step& step) {
    report_ = Report{};
    report_.first_ns = UINT64_MAX;  // nothing of what is timed
    if (!has_join(phase_) || !takes_part()) return Status::ok_status();
    const uint64_t begun_ns = now_ns();
    const uint64_t begun_cycles = PollCost::cycles_now();
    ArrowArrayStream result;
    const Result<JoinStatistics> done = join(phase_.verify ? &result : nullptr);
    if (!done.ok()) {
      // So that the others are told.
      sender_.reset();
      give(nullptr);
      return done.status();
    }
    const uint64_t cycles = PollCost::cycles_now() - begun_cycles;
    const uint64_t ended_ns = now_ns();
    report_.requests = 2 * tuples_->count();
    report_.first_ns = begun_ns - step.begin_ns;
    report_.last_ns = ended_ns - step.begin_ns;
    report_.latencies = {{.ns = ended_ns - begun_ns, .count = 1}};
    report_.counters[kJoinedTuples] = report_.requests;
    report_.counters[kOuterTuples] = tuples_->count();
    report_.counters[kResultRows] = done->result_rows;
    report_.counters[kShuffleNs] = done->shuffle_ns;
    report_.counters[kPartitionNs] = done->partition_ns;
    report_.counters[kProbeNs] = done->probe_ns;
    // Those of oneTBB have their cores as long as this one waits for them.
    report_.counters[kJoinCycles] = cycles * join_threads(job_.setup.point);
    if (phase_.verify) report_.mismatches = tuples_->mismatches(&result);
    return Status::ok_status();
  }

  Result<JoinStatistics> join(ArrowArrayStream* result) {
    ArrowArrayStream inner;
    ArrowArrayStream outer;
    tuples_->inner(&inner);
    tuples_->outer(&outer);
    const JoinOptions options = JoinTuples::options(join_threads(job_.setup.point));
    if (!is_shuffled(job_.setup.point)) return join_tables(&inner, &outer, options, result);
    return join_shuffled(&inner, &outer, options, {*sender_, *receiver_, &job_.domain}, result);
  }

  NodeJob& job_;
  const uint32_t number_;
  Report& report_;
  std::optional<JoinTuples> tuples_;
  std::unique_ptr<ShuffleSender> sender_;
  ShuffleReceiver* receiver_ = nullptr;
  Phase phase_;
};

Status accept_phase(NodeJob& job, uint32_t number, ControlListener& listener, const Phase& phase) {
  if (has_join(phase) && is_shuffled(job.setup.point)) {
    ShuffleReceiver* const receiver =
        receivers_of(job).await(number % job.setup.point.threads, phase.number);
    if (receiver == nullptr) return Status::ok_status();
    VERBENA_RETURN_IF_ERROR(accept_senders(job, listener, *receiver));
    if (job.team.halted()) return Status::ok_status();
  }
  job.team.finished();
  return Status::ok_status();
}

Status listen_and_accept(NodeJob& job, uint32_t number, ThreadReport& report, Step& step) {
  VERBENA_ASSIGN_OR_RETURN(ControlListener listener, listen_for_senders(job));
  report.address = {job.address, listener.port()};
  job.team.finished();
  if (!job.team.await(StepKind::kConnect, step)) return Status::ok_status();
  VERBENA_RETURN_IF_ERROR(share_receivers(job));
  job.team.finished();
  return serve_phases(job.team, step, report.report, [&](const Step& phase) {
    return accept_phase(job, number, listener, phase.phase);
  });
}

}  // namespace

void run_join_executor(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  JoinExecutor executor(job, number, report);
  job.team.end_with(executor.serve(step), step);
}

void run_join_acceptor(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kListen, step)) return;
  job.team.end_with(listen_and_accept(job, number, report, step), step);
}

}  // namespace verbena::bench
