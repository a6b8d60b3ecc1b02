#include "src/bench/request_response/responding_thread.h"

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/bench/request_response/answer_loop.h"
#include "src/bench/request_response/readable_memory.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_work.h"
#include "src/bench/run/responding_steps.h"
#include "src/rpc/designs.h"
#include "src/rpc/negotiation.h"

namespace verbena::bench {

namespace {

class RespondingThread final : public RespondingTarget {
 public:
  RespondingThread(NodeJob& job, uint32_t number, ThreadReport& report)
      : job_(job),
        number_(number),
        report_(report),
        settings_(request_response_settings(job.setup.point)) {}

  Status prepare() override {
    const Point& point = job_.setup.point;
    ResponderOptions options;
    options.request_max_bytes = settings_.request_bytes;
    options.response_max_bytes = settings_.response_bytes;
    options.pending = pending_per_queue_pair(point);
    options.max_connections = connections();
    options.inline_bytes = point.inline_bytes;
    options.signal_interval = point.signal_interval;
    options.post_batch = point.post_batch;
    options.receive_queues = settings_.receive_queues;
    options.transport = settings_.transport;
    options.blocking = point.wait == WaitMode::kBlock;
    options.huge_pages = point.huge_pages != 0;
    options.handshake_timeout_ns = kSetupTimeoutNs;
    if (reads()) {
      readable_ =
          std::make_unique<ReadableMemory>(point, pair_key(job_.setup.run_key, 0, 0, number_));
      options.readable = readable_->bytes();
      if (options.readable.empty()) {
        return Status(StatusCode::kLimitExceeded,
                      "not enough memory for what requesters read; lower --response or --pending");
      }
    }
    VERBENA_ASSIGN_OR_RETURN(responder_, make_responder(settings_.protocol, layout(), job_.device,
                                                        job_.domain, options));
    return Status::ok_status();
  }

  Status connect(std::unique_ptr<ControlConnection> control, uint32_t requesting) override {
    controls_.push_back(std::move(*control));
    const Status status = responder_->connect(controls_.back());
    if (!status.ok()) {
      controls_.pop_back();  // its requester learns it from that
      return status;
    }
    // Over UD all connections share a queue pair, and end with it: their numbers are free then.
    if (responder_->latest_connection() != requesting_.size()) {
      return Status(StatusCode::kUnavailable,
                    "the queue pair of all requesters failed before all were connected");
    }
    requesting_.push_back(requesting);
    return Status::ok_status();
  }

  Status answer(const Step& step) override {
    if (reads()) {
      // Costs nothing, in any unit; the thread sleeps.
      report_.report.costs = {{CpuCost{}, 0}};
      job_.team.finished();
      return sleep_until_halt(step);
    }
    return answer_phase(step.phase);
  }

 private:
  bool reads() const { return settings_.protocol == Protocol::kRead; }
  MarkLayout layout() const {
    return rpc::usable_layout(settings_.layout, job_.device.info().writes_in_order);
  }
  uint32_t connections() const {
    return static_cast<uint32_t>(job_.connections().responding[number_].peers.size());
  }

  Status answer_phase(const Phase& phase) {
    const Point& point = job_.setup.point;
    std::vector<uint64_t> keys;
    for (const uint32_t requesting : requesting_) {
      keys.push_back(pair_key(job_.setup.run_key, phase.number, requesting, number_));
    }
    AnswerWork work(point, phase.verify, std::move(keys));
    const bool block = point.wait == WaitMode::kBlock;
    PollCount polls;
    std::unique_ptr<PollCost> cost;
    if (phase.kind == PhaseKind::kCost) cost = std::make_unique<PollCost>(Side::kResponder);
    const uint64_t resent_before = resent();
    job_.team.finished();
    // Compiled for each design: nothing is chosen between a message and the handler.
    const Status status = rpc::with_transport(
        settings_.transport, settings_.protocol, layout(), settings_.receive_queues,
        [&]<typename Design>() {
          auto* const responder = dynamic_cast<typename Design::Responder*>(responder_.get());
          VERBENA_ASSERT(responder != nullptr);
          return answer_until_halt(*responder, job_.team.halt(), polls, block, cost.get(), work);
        });
    Report& report = report_.report;
    report.requests = work.requests();
    report.mismatches = work.mismatches();
    report.counters[kPolls] = polls.between().polls;
    report.counters[kEmptyPolls] = polls.between().empty_polls;
    if (settings_.transport != Transport::kRc) {
      report.counters[kResent] = resent() - resent_before;
      report.counters[kAnswered] = work.requests();
    }
    if (cost != nullptr && cost->per_message()) {
      report.costs = {{*cost->per_message(), cost->messages()}};
    }
    return status;
  }

  uint64_t resent() const {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < requesting_.size(); ++i) sum += responder_->statistics(i).resent;
    return sum;
  }

  // READ needs no responder, but somebody who notices that the requesters are gone.
  Status sleep_until_halt(Step step) {
    constexpr int64_t kSliceNs = 100'000'000;
    auto nothing = [](const Request&, std::span<char>) { return 0u; };
    while (!job_.team.halted()) {
      step = job_.team.next_within(step.number, kSliceNs);
      responder_->poll_with(nothing);
      if (!responder_->status().ok() && !job_.team.halted()) return responder_->status();
    }
    return Status::ok_status();
  }

  NodeJob& job_;
  uint32_t number_;
  ThreadReport& report_;
  const RequestResponseSettings& settings_;
  std::unique_ptr<ReadableMemory> readable_;
  std::deque<ControlConnection> controls_;  // outlive the responder
  std::vector<uint32_t> requesting_;        // by connection
  std::unique_ptr<Responder> responder_;
};

}  // namespace

void run_responding_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  run_responding_steps(job, number, std::make_unique<RespondingThread>(job, number, report),
                       report);
}

}  // namespace verbena::bench
