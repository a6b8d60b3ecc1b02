#include "src/bench/shuffle/shuffle_threads.h"

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "src/base/runtime.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/run/application_phases.h"
#include "src/bench/run/responding_steps.h"
#include "src/bench/run/shuffle_connections.h"
#include "src/bench/run/socket_choice.h"
#include "src/bench/shuffle/shuffle_records.h"
#include "src/bench/shuffle/shuffle_sends.h"
#include "src/bench/shuffle/shuffle_settings.h"
#include "verbena/apps/shuffle.h"

namespace verbena::bench {

namespace {

Status open_and_send(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  VERBENA_RETURN_IF_ERROR(run_at(shuffle_settings(job.setup.point).socket, job.device));
  ShuffleSends sends(job, number);
  VERBENA_RETURN_IF_ERROR(sends.open());
  serve_application(job, number, sends, report.report, step);
  return Status::ok_status();
}

class ShuffleReceives {
 public:
  ShuffleReceives(NodeJob& job, uint32_t number, ThreadReport& report)
      : job_(job), number_(number), report_(report) {}

  Status listen_and_serve(Step& step) {
    VERBENA_RETURN_IF_ERROR(run_at(shuffle_settings(job_.setup.point).socket, job_.device));
    VERBENA_ASSIGN_OR_RETURN(ControlListener listener, listen_for_senders(job_));
    report_.address = {job_.address, listener.port()};
    job_.team.finished();
    if (!job_.team.await(StepKind::kConnect, step)) return Status::ok_status();
    job_.team.finished();
    return serve_phases(job_.team, step, report_.report,
                        [&](const Step& phase) { return receive_phase(listener, phase.phase); });
  }

 private:
  Status receive_phase(ControlListener& listener, const Phase& phase) {
    const Point& point = job_.setup.point;
    const ShuffleSettings& settings = shuffle_settings(point);
    // Cost and rate are told without what a check takes; the warm-up checks every byte.
    const bool verify = phase.verify;
    receiver_.reset();
    VERBENA_ASSIGN_OR_RETURN(const int socket, choose_socket(settings.socket, job_.device));
    VERBENA_ASSIGN_OR_RETURN(receiver_,
                             ShuffleReceiver::expose(job_.device, job_.domain,
                                                     {.receiver = number_,
                                                      .receivers = shuffle_receivers(point),
                                                      .senders = shuffle_senders(point),
                                                      .record_bytes = settings.record_bytes,
                                                      .buffer_bytes = settings.buffer_bytes,
                                                      .checksum = verify,
                                                      .socket = socket,
                                                      .handshake_timeout_ns = kSetupTimeoutNs}));
    VERBENA_RETURN_IF_ERROR(accept_senders(job_, listener, *receiver_));
    if (job_.team.halted()) return Status::ok_status();
    check_.reset();
    if (verify) {
      check_.emplace(static_cast<uint32_t>(phase.number), number_, shuffle_receivers(point),
                     shuffle_senders(point), settings.record_bytes);
    }
    records_ = cycles_ = 0;
    job_.team.finished();
    VERBENA_RETURN_IF_ERROR(receive_all());
    tell(settings.chunk);
    return Status::ok_status();
  }

  Status receive_all() {
    Waiter waiter;
    for (;;) {
      // Whatever was sent before is there: senders finish first.
      const bool halted = job_.team.halted();
      const uint64_t begun = PollCost::cycles_now();
      VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver_->next());
      if (span.empty()) {
        if (receiver_->finished() || halted) return Status::ok_status();
        waiter.idle();
        continue;
      }
      take(span);
      receiver_->release(span);
      cycles_ += PollCost::cycles_now() - begun;
      waiter.progress();
    }
  }

  void take(const ShuffleSpan& span) {
    if (!check_) {
      records_ += span.count();
      return;
    }
    span.for_each([&](std::string_view record, bool) {
      if (check_->take(span.sender(), record)) ++records_;
    });
  }

  void tell(uint32_t chunk) {
    Report& report = report_.report;
    report.counters[kReceivedRecords] = records_;
    report.counters[kReceiverCycles] = cycles_;
    // A sender whose stream has not ended is one whose records are not all there.
    if (check_) report.mismatches = check_->mismatches();
    if (records_ == 0) return;
    const double chunks = static_cast<double>(records_) / chunk;
    report.costs = {{CpuCost{.cycles = static_cast<double>(cycles_) / chunks},
                     static_cast<uint64_t>(chunks) + 1}};
  }

  NodeJob& job_;
  const uint32_t number_;
  ThreadReport& report_;
  std::unique_ptr<ShuffleReceiver> receiver_;
  std::optional<RecordCheck> check_;
  uint64_t records_ = 0;
  uint64_t cycles_ = 0;  // of polls that found records
};

}  // namespace

void run_shuffle_sender(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(open_and_send(job, number, report, step), step);
}

void run_shuffle_receiver(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kListen, step)) return;
  ShuffleReceives receives(job, number, report);
  job.team.end_with(receives.listen_and_serve(step), step);
}

}  // namespace verbena::bench
