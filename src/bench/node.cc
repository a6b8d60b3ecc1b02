#include "src/bench/node.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/bench/dispatched_threads.h"
#include "src/bench/interrupt.h"
#include "src/bench/messages.h"
#include "src/bench/node_job.h"
#include "src/bench/placement.h"
#include "src/bench/requesting_thread.h"
#include "src/bench/responding_thread.h"

namespace verbena::bench {

namespace {

constexpr int64_t kForeverNs = INT64_MAX;
constexpr int kInterruptLookMs = 50;

// The address of this host that a connection uses, without the port.
std::string own_address(const ControlConnection& control) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char host[NI_MAXHOST] = {};
  if (getsockname(control.descriptor(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "127.0.0.1";
  }
  return host;
}

// One point: its threads, from set-up to tear-down.
class PointServer {
 public:
  PointServer(const Device& device, const ProtectionDomain& domain, const JobSecret& secret,
              ControlConnection& control, Setup setup, rpc::Wiring wiring)
      : control_(control),
        job_{.device = device,
             .domain = domain,
             .secret = secret,
             .setup = std::move(setup),
             .wiring = std::move(wiring),
             .connections = {},
             .address = own_address(control)} {
    job_.connections = job_.setup.point.model == ConnectionModel::kDispatcher
                           ? rpc::with_dispatchers(job_.wiring)
                           : job_.wiring;
  }

  // Returns the message that ended the point, normally the request to tear down; all threads have
  // ended then.
  Result<Message> serve() {
    Result<Message> next = start_and_serve();
    job_.team.begin({.kind = StepKind::kLeave}, 0);
    threads_.clear();  // joins
    return next;
  }

 private:
  Result<Message> start_and_serve() {
    VERBENA_RETURN_IF_ERROR(job_.team.open());
    VERBENA_RETURN_IF_ERROR(start_threads());
    Result<Message> next = take_step({.kind = StepKind::kListen}, node().responding);
    while (next.ok() && !left(next->kind)) {
      next = carry_out(*next);
    }
    return next;
  }

  const rpc::WiredNode& node() const { return job_.node(); }
  uint32_t all_threads() const { return static_cast<uint32_t>(reports_.size()); }
  static bool left(MessageKind kind) {
    return kind == MessageKind::kTearDown || kind == MessageKind::kBye;
  }

  Status start_threads() {
    const uint32_t count = threads_of(node(), job_.setup.point);
    reports_.resize(count);
    for (uint32_t i = 0; i < count; ++i) {
      const char* role = "request";
      uint32_t thread = i;
      void (*run)(NodeJob&, uint32_t, ThreadReport&) =
          job_.has_dispatcher() ? run_worker_thread : run_requesting_thread;
      uint32_t number = node().first_requesting + thread;
      if (i >= node().requesting + node().responding) {
        role = "dispatch";
        thread = 0;
        run = run_dispatcher_thread;
        number = job_.connections.nodes[job_.setup.node].first_requesting;
      } else if (i >= node().requesting) {
        role = "respond";
        thread = i - node().requesting;
        run = run_responding_thread;
        number = node().first_responding + thread;
      }
      const int cpu = i < job_.setup.cpus.size() ? job_.setup.cpus[i] : -1;
      threads_.push_back(
          start_thread(fmt::format("{}-{}", role, thread), [this, i, run, number, cpu] {
            if (cpu >= 0 && !pin_this_thread(cpu)) {
              log_warning("the system does not let a thread stay on CPU {}; results will vary more",
                          cpu);
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

  // Does what the coordinator asks for and answers. Returns its next message.
  Result<Message> carry_out(const Message& message) {
    switch (message.kind) {
      case MessageKind::kConnect:
        if (message.addresses.size() != job_.wiring.responding.size()) {
          return Status(StatusCode::kProtocolViolation,
                        "the coordinator's list of responding threads does not fit the point");
        }
        job_.addresses = message.addresses;
        return take_step({.kind = StepKind::kConnect}, all_threads());
      case MessageKind::kPhase:
        return take_step({.kind = StepKind::kPrepare, .phase = message.phase}, all_threads());
      case MessageKind::kGo: {
        const bool same_clock = message.go.host == host_identity();
        return take_step(
            {.kind = StepKind::kRun, .begin_ns = same_clock ? message.go.now_ns : now_ns()},
            node().requesting);
      }
      case MessageKind::kEndOfPhase:
        return take_step({.kind = StepKind::kEnd}, all_threads() - node().requesting);
      default:
        return Status(StatusCode::kProtocolViolation,
                      "the coordinator's messages are out of order");
    }
  }

  Result<Message> take_step(const Step& step, uint32_t participants) {
    job_.team.begin(step, participants);
    bool answered = false;
    for (;;) {
      job_.team.clear_event();
      if (const Status failure = job_.team.failure(); !failure.ok()) return failure;
      if (!answered && job_.team.settled()) {
        VERBENA_RETURN_IF_ERROR(send_message(control_, answer_to(step.kind)));
        answered = true;
      }
      std::array<pollfd, 2> sources = {pollfd{control_.descriptor(), POLLIN, 0},
                                       pollfd{job_.team.descriptor(), POLLIN, 0}};
      if (poll(sources.data(), sources.size(), kInterruptLookMs) < 0 && errno != EINTR) {
        return Status(StatusCode::kInternal, "cannot wait for the threads");
      }
      if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
      if (sources[0].revents != 0) return receive_message(control_, kForeverNs);
    }
  }

  Message answer_to(StepKind step) {
    Message message;
    switch (step) {
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
        break;
    }
    return message;
  }

  Report merged(uint32_t first, uint32_t count) const {
    Report sum;
    if (count > 0) sum.first_ns = UINT64_MAX;
    for (uint32_t i = first; i < first + count; ++i) {
      const Report& one = reports_[i].report;
      sum.requests += one.requests;
      sum.unanswered += one.unanswered;
      sum.mismatches += one.mismatches;
      sum.first_ns = std::min(sum.first_ns, one.first_ns);
      sum.last_ns = std::max(sum.last_ns, one.last_ns);
      sum.looks += one.looks;
      sum.empty_looks += one.empty_looks;
      sum.layout = one.layout;
      sum.costs.insert(sum.costs.end(), one.costs.begin(), one.costs.end());
      sum.latencies.insert(sum.latencies.end(), one.latencies.begin(), one.latencies.end());
    }
    return sum;
  }

  ControlConnection& control_;
  NodeJob job_;
  std::vector<ThreadReport> reports_;  // requesting threads first
  std::vector<Thread> threads_;        // end before what they use
};

}  // namespace

Status serve_coordinator(const Device& device, const ProtectionDomain& domain,
                         const JobSecret& secret, ControlConnection& control, uint64_t token) {
  VERBENA_RETURN_IF_ERROR(send_message(
      control, {.kind = MessageKind::kHello,
                .hello = {.host = host_identity(), .cpus = usable_cpus(), .token = token}}));
  for (;;) {
    Result<Message> message = receive_message(control, kForeverNs);
    if (message.ok() && message->kind == MessageKind::kSetup) {
      Setup setup = std::move(message->setup);
      Result<rpc::Wiring> wiring = rpc::wire(shape_of(setup.point));
      if (!wiring.ok()) {
        message = wiring.status();
      } else if (setup.node >= wiring->nodes.size()) {
        message = Status(StatusCode::kProtocolViolation, "the point has no node of that number");
      } else {
        message = PointServer(device, domain, secret, control, std::move(setup), std::move(*wiring))
                      .serve();
      }
    }
    if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
    if (message.ok() && message->kind == MessageKind::kBye) return Status::ok_status();
    if (message.ok() && message->kind == MessageKind::kTearDown) {
      // Perhaps of a point that was never there.
      VERBENA_RETURN_IF_ERROR(send_message(control, {.kind = MessageKind::kDone}));
    } else if (control.peer_closed()) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("the coordinator {} is gone: it ended without a good-bye",
                                control.peer_name()));
    } else {
      const Status why =
          message.ok() ? Status(StatusCode::kProtocolViolation,
                                fmt::format("the coordinator {} sent message {} where a point to "
                                            "measure was due; run the same release on both sides",
                                            control.peer_name(), static_cast<int>(message->kind)))
                       : message.status();
      VERBENA_RETURN_IF_ERROR(send_failure(control, why));
    }
  }
}

}  // namespace verbena::bench
