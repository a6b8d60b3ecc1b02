// One member of a job of requesters and responders: a thread or a process that is told by the test
// which others it connects to, and what goes wrong with its device meanwhile. It polls what it has,
// or sleeps; or workers of its own request, and it is their dispatcher.
//
//   member                         test
//     <- Job
//     port of its listener ->
//     <- ports of all
//     (connects, works)
//     Report ->
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/rpc_member_workers.h"
#include "tests/rpc_support.h"
#include "verbena/fault.h"

namespace verbena::rpc_test {

inline constexpr uint32_t kMaxMembers = 8;

struct Job {
  Case c;  // the largest sizes; each connection draws its own below them
  FaultPlan faults;
  uint64_t seed = 1;
  uint32_t members = 0;
  uint32_t self = 0;
  uint32_t workers = 0;  // of each member that requests, behind a dispatcher; 0: it has none
  std::array<std::array<bool, kMaxMembers>, kMaxMembers> requests{};  // [from][to]

  bool serves(uint32_t member) const {
    for (uint32_t from = 0; from < members; ++from) {
      if (requests[from][member]) return true;
    }
    return false;
  }
};

using Ports = std::array<uint16_t, kMaxMembers>;

// What a member saw of its connections.
struct Report {
  uint32_t complete = 0;  // as requester: every response came and was right
  uint32_t ended = 0;     // as requester: the connection said that it broke
  uint32_t other = 0;     // as requester or responder: ended for any other reason; see message
  uint64_t wrong = 0;     // responses, and requests
  bool stuck = false;
  uint64_t waits = 0;  // times that it slept, or would have if nothing had come meanwhile
  FaultCounts faults;
  char message[400] = {};
};

inline constexpr uint32_t kJobType = 0x10b0;
inline constexpr uint32_t kPortType = 0x10b1;
inline constexpr uint32_t kPortsType = 0x10b2;
inline constexpr uint32_t kReportType = 0x10b3;

class Member {
 public:
  static Report run(const Job& job, ControlConnection& test, const JobSecret& secret) {
    Member member(job);
    Status status = member.connect_all(test, secret);
    if (status.ok()) {
      member.work();
    } else {
      ++member.report_.other;
      member.note(status);
    }
    return member.finish();
  }

 private:
  static constexpr int64_t kShortSleepNs = 1'000'000;

  struct Connection {
    ControlConnection control;
    Case c;
    std::unique_ptr<Requester> requester;
    Client client;
  };

  explicit Member(const Job& job)
      : job_(job),
        random_(Random(job.seed * kMaxMembers + job.self).next()),
        readable_(readable_memory()) {}

  Status connect_all(ControlConnection& test, const JobSecret& secret) {
    FaultPlan faults = job_.faults;
    faults.seed = random_.next();
    VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device(), faults));
    device_.emplace(std::move(device));
    VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(*device_));
    domain_.emplace(std::move(domain));
    VERBENA_ASSIGN_OR_RETURN(ControlListener listener,
                             ControlListener::listen("127.0.0.1", 0, secret));
    VERBENA_RETURN_IF_ERROR(test.send_value(kPortType, listener.port()));
    VERBENA_ASSIGN_OR_RETURN(const Ports ports, test.receive_value<Ports>(kPortsType, kTimeoutNs));
    if (job_.serves(job_.self)) {
      Case c = job_.c;
      c.max_connections = job_.members;
      VERBENA_ASSIGN_OR_RETURN(responder_, make_responder(c.protocol, c.layout, *device_, *domain_,
                                                          responder_options(c, readable_)));
    }
    // All in the same order: the first pair that is not connected can always go on.
    for (uint32_t from = 0; from < job_.members; ++from) {
      for (uint32_t to = 0; to < job_.members; ++to) {
        if (!job_.requests[from][to]) continue;
        if (from == job_.self) VERBENA_RETURN_IF_ERROR(request_from(ports[to], secret));
        if (to == job_.self) VERBENA_RETURN_IF_ERROR(serve_next(listener));
      }
    }
    return {};
  }

  Status request_from(uint16_t port, const JobSecret& secret) {
    VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                             ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
    Case c = job_.c;
    c.seed = random_.next();
    if (job_.workers == 0) {
      c.pending = static_cast<uint32_t>(1 + random_.below(c.pending));
    } else {
      if (worker_pending_ == 0) {
        worker_pending_ = static_cast<uint32_t>(1 + random_.below(c.pending / job_.workers));
      }
      c.pending = job_.workers * worker_pending_;
    }
    c.request_max_bytes = static_cast<uint32_t>(
        sizeof(ReadRequest) + random_.below(c.request_max_bytes - sizeof(ReadRequest) + 1));
    c.response_max_bytes = static_cast<uint32_t>(
        c.request_max_bytes + random_.below(c.response_max_bytes - c.request_max_bytes + 1));
    c.in_turn = random_.below(2) == 0;
    c.post_batch = random_.below(2) == 0 ? 1 : 4;
    auto connection =
        std::make_unique<Connection>(Connection{std::move(control), c, nullptr, Client(c)});
    VERBENA_ASSIGN_OR_RETURN(connection->requester,
                             make_requester(c.protocol, c.layout, *device_, *domain_,
                                            connection->control, requester_options(c)));
    connections_.push_back(std::move(connection));
    return {};
  }

  Status serve_next(ControlListener& listener) {
    VERBENA_ASSIGN_OR_RETURN(ControlConnection control, listener.accept(kTimeoutNs));
    served_.push_back(std::make_unique<ControlConnection>(std::move(control)));
    return responder_->connect(*served_.back());
  }

  void work() {
    std::optional<MemberWorkers> workers;
    if (job_.workers > 0 && !connections_.empty()) start_workers(workers);
    // Once before anything is asked for: later there may always be something to do already.
    if (job_.c.blocking) sleep(kShortSleepNs);
    Waiter waiter;
    uint64_t last_progress_ns = now_ns();
    while (!connections_.empty() || serving()) {
      uint32_t found = serving() ? responder_->poll(server_) : 0;
      found += workers ? carry(workers) : request();
      if (found > 0) {
        waiter.progress();
        last_progress_ns = now_ns();
        continue;
      }
      if (!job_.c.blocking || !sleep(patience_ns())) waiter.idle();
      if (now_ns() - last_progress_ns > kTimeoutNs / 2) {
        report_.stuck = true;
        return;
      }
    }
  }

  // Without workers: posts and takes what there is, and returns how much that was.
  uint32_t request() {
    uint32_t found = 0;
    for (size_t i = connections_.size(); i-- > 0;) {
      Connection& connection = *connections_[i];
      found += connection.client.step(*connection.requester, [](uint64_t) {});
      if (!connection.client.finished(*connection.requester)) continue;
      const Outcome& outcome = connection.client.outcome();
      report_.wrong += outcome.wrong;
      judge(outcome.responses == connection.c.messages, *connection.requester);
      connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i));
      ++found;
    }
    return found;
  }

  void start_workers(std::optional<MemberWorkers>& workers) {
    std::vector<Requester*> requesters;
    std::vector<Case> cases;
    for (const auto& connection : connections_) {
      requesters.push_back(connection->requester.get());
      cases.push_back(connection->c);
    }
    workers.emplace(requesters, cases, job_.workers, worker_pending_);
  }

  // With workers: carries what they and the responders have. All connections end when the last
  // worker needs none any more.
  uint32_t carry(std::optional<MemberWorkers>& workers) {
    const bool finished = workers->finished();
    const uint32_t found = workers->poll();
    if (!finished) return found;
    report_.stuck = report_.stuck || workers->stuck();
    report_.wrong += workers->wrong();
    for (uint32_t responder = 0; responder < connections_.size(); ++responder) {
      judge(workers->complete(responder), *connections_[responder]->requester);
    }
    workers.reset();
    connections_.clear();
    return 1;
  }

  // Whoever has one thing to wait for sleeps until it comes. Of several, only the one that is
  // waited for wakes the sleeper; nor does a worker wake its dispatcher.
  int64_t patience_ns() const {
    const bool alone = connections_.size() + (serving() ? 1 : 0) == 1 && job_.workers == 0;
    return alone ? -1 : kShortSleepNs;
  }
  // Sleeps where something can wake it; false if nothing can.
  bool sleep(int64_t timeout_ns) {
    uint64_t waits = serving() && responder_->wait(timeout_ns) ? 1 : 0;
    for (const auto& connection : connections_) {
      if (connection->requester->wait(timeout_ns)) ++waits;
    }
    report_.waits += waits;
    return waits > 0;
  }

  bool serving() const { return responder_ != nullptr && responder_->connections() > 0; }

  void judge(bool complete, const Requester& requester) {
    const Status& status = requester.status();
    if (complete) {
      ++report_.complete;
    } else if (status.code() == StatusCode::kUnavailable) {
      ++report_.ended;
      note(status);
    } else {
      ++report_.other;
      note(status);
    }
  }

  Report finish() {
    for (uint32_t number = 0; responder_ != nullptr && number < served_.size(); ++number) {
      const Status& status = responder_->status(number);
      if (status.ok() || status.code() == StatusCode::kUnavailable) continue;
      ++report_.other;
      note(status);
    }
    report_.wrong += server_.bad_requests;
    if (device_) report_.faults = injected_faults(*device_);
    return report_;
  }

  void note(const Status& status) {
    std::strncpy(report_.message, status.message().c_str(), sizeof(report_.message) - 1);
  }

  Job job_;
  Random random_;
  std::vector<char> readable_;
  Server server_;
  Report report_;
  uint32_t worker_pending_ = 0;  // slots of one worker at each responder
  std::optional<Device> device_;
  std::optional<ProtectionDomain> domain_;
  std::vector<std::unique_ptr<ControlConnection>> served_;
  std::unique_ptr<Responder> responder_;
  std::vector<std::unique_ptr<Connection>> connections_;
};

// The whole of a member's life, from its connection to the test on.
inline Status live(uint16_t port, const JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection test,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const Job job, test.receive_value<Job>(kJobType, kTimeoutNs));
  return test.send_value(kReportType, Member::run(job, test, secret));
}

}  // namespace verbena::rpc_test
