#include "src/bench/request_response/responding_thread.h"

#include <deque>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/request_response/answer_loop.h"
#include "src/bench/request_response/readable_memory.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_work.h"
#include "src/bench/run/responding_steps.h"
#include "src/rpc/designs.h"
#include "src/rpc/negotiation.h"

namespace verbena::bench {

namespace {

template <typename Design>
class RespondingThread final : public RespondingTarget {
  using Responder = typename Design::Responder;
  static constexpr bool kReads = std::is_same_v<Responder, rpc::ReadResponder>;

 public:
  RespondingThread(NodeJob& job, uint32_t number, ThreadReport& report)
      : job_(job), number_(number), report_(report) {}

  Status prepare() override {
    const Point& point = job_.setup.point;
    const RequestResponseSettings& settings = request_response_settings(point);
    ResponderOptions options;
    options.request_max_bytes = settings.request_bytes;
    options.response_max_bytes = settings.response_bytes;
    options.pending = pending_per_queue_pair(point);
    options.max_connections = connections();
    options.inline_bytes = point.inline_bytes;
    options.signal_interval = point.signal_interval;
    options.post_batch = point.post_batch;
    options.receive_queues = settings.receive_queues;
    options.transport = settings.transport;
    options.blocking = point.wait == WaitMode::kBlock;
    options.huge_pages = point.huge_pages != 0;
    options.handshake_timeout_ns = kSetupTimeoutNs;
    if constexpr (kReads) {
      readable_ =
          std::make_unique<ReadableMemory>(point, pair_key(job_.setup.run_key, 0, 0, number_));
      options.readable = readable_->bytes();
      if (options.readable.empty()) {
        return Status(StatusCode::kLimitExceeded,
                      "not enough memory for what requesters read; lower --response or --pending");
      }
    }
    VERBENA_ASSIGN_OR_RETURN(responder_, Responder::create(job_.device, job_.domain, options));
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
    if constexpr (kReads) {
      // Costs nothing, in any unit; the thread sleeps.
      report_.report.costs = {{CpuCost{}, 0}};
      job_.team.finished();
      return sleep_until_halt(step);
    } else {
      return step.phase.verify ? answer_with<true>(step.phase) : answer_with<false>(step.phase);
    }
  }

 private:
  uint32_t connections() const {
    return static_cast<uint32_t>(job_.connections().responding[number_].peers.size());
  }

  template <bool kVerify>
  Status answer_with(const Phase& phase) {
    const Point& point = job_.setup.point;
    std::vector<uint64_t> keys;
    for (const uint32_t requesting : requesting_) {
      keys.push_back(pair_key(job_.setup.run_key, phase.number, requesting, number_));
    }
    AnswerWork<kVerify> work(point, std::move(keys));
    const bool block = point.wait == WaitMode::kBlock;
    PollCount polls;
    std::unique_ptr<PollCost> cost;
    if (phase.kind == PhaseKind::kCost) cost = std::make_unique<PollCost>(Side::kResponder);
    const uint64_t resent_before = resent();
    job_.team.finished();
    const Status status =
        cost != nullptr ? answer_until_halt(
                              *responder_, job_.team.halt(), polls, block,
                              [&] { return cost->measure([&] { return responder_->poll(work); }); })
                        : answer_until_halt(*responder_, job_.team.halt(), polls, block,
                                            [&] { return responder_->poll(work); });
    Report& report = report_.report;
    report.requests = work.requests();
    report.mismatches = work.mismatches();
    report.counters[kPolls] = polls.between().polls;
    report.counters[kEmptyPolls] = polls.between().empty_polls;
    if (rpc::kTransportOf<Design> != Transport::kRc) {
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
    const auto nothing = [](const Request&, std::span<char>) { return 0u; };
    while (!job_.team.halted()) {
      step = job_.team.next_within(step.number, kSliceNs);
      responder_->poll(nothing);
      if (!responder_->status().ok() && !job_.team.halted()) return responder_->status();
    }
    return Status::ok_status();
  }

  NodeJob& job_;
  uint32_t number_;
  ThreadReport& report_;
  std::unique_ptr<ReadableMemory> readable_;
  std::deque<ControlConnection> controls_;  // outlive the responder
  std::vector<uint32_t> requesting_;        // by connection
  std::unique_ptr<Responder> responder_;
};

}  // namespace

void run_responding_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  const RequestResponseSettings& settings = request_response_settings(job.setup.point);
  const MarkLayout layout = rpc::usable_layout(settings.layout, job.device.info().writes_in_order);
  auto target =
      rpc::with_transport(settings.transport, settings.protocol, layout, settings.receive_queues,
                          [&]<typename Design>() -> std::unique_ptr<RespondingTarget> {
                            return std::make_unique<RespondingThread<Design>>(job, number, report);
                          });
  run_responding_steps(job, number, std::move(target), report);
}

}  // namespace verbena::bench
