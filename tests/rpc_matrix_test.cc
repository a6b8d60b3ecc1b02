// Every protocol with every mark layout, in every topology, between threads of one process and
// between processes, with connections of their own or through a dispatcher, with sizes, depths and
// faults at random: every byte is right, whatever is delayed; a connection whose queue pair breaks
// says so and ends; all others finish; none hangs.
//
// VERBENA_SEED=N replays a run. VERBENA_SOAK=1 goes on for about fifty times as long.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc_member.h"
#include "tests/rpc_peer.h"
#include "tests/support/parameter_names.h"

namespace verbena::rpc_test {
namespace {

struct Topology {
  const char* name;
  uint32_t requesters;  // members that only request; 0: every member does both
  uint32_t responders;
};
constexpr Topology kTopologies[] = {
    {"one-to-one", 1, 1}, {"N-to-1", 3, 1}, {"1:M", 1, 3}, {"M:M", 0, 3}, {"N-to-M", 3, 2}};

void wire(const Topology& topology, Job& job) {
  job.members = topology.requesters + topology.responders;
  for (uint32_t from = 0; from < job.members; ++from) {
    for (uint32_t to = topology.requesters; to < job.members; ++to) {
      const bool requests = topology.requesters == 0 ? from != to : from < topology.requesters;
      job.requests[from][to] = requests;
    }
  }
}

enum class Members { kThreads, kProcesses };
enum class ConnectionModel { kPrivate, kDispatcher };

struct DesignPoint {
  Protocol protocol;
  MarkLayout layout;
  Members members;
  ConnectionModel model;
};

// Whether wait() is possible on either side: somewhere a message raises a completion.
bool can_sleep(const DesignPoint& point) {
  return point.protocol == Protocol::kRead || point.protocol == Protocol::kSendSend ||
         point.protocol == Protocol::kSendWrite || point.protocol == Protocol::kWriteSend ||
         point.layout == MarkLayout::kImmediate;
}

// One test each. Further axes of the design belong here.
std::vector<DesignPoint> design_points() {
  std::vector<DesignPoint> points;
  for (const Members members : {Members::kThreads, Members::kProcesses}) {
    for (const Protocol protocol : all_protocols()) {
      for (const MarkLayout layout : all_mark_layouts()) {
        if (!uses_mark_layout(protocol) && layout != MarkLayout::kLastBit) continue;
        for (const ConnectionModel model :
             {ConnectionModel::kPrivate, ConnectionModel::kDispatcher}) {
          points.push_back({protocol, layout, members, model});
        }
      }
    }
  }
  return points;
}

std::ostream& operator<<(std::ostream& out, const DesignPoint& point) {
  out << (point.members == Members::kThreads ? "Threads" : "Processes");
  if (point.model == ConnectionModel::kDispatcher) out << " Dispatcher";
  out << ' ' << point.protocol;
  if (uses_mark_layout(point.protocol)) out << ' ' << point.layout;
  return out;
}

// What the members of one job report together.
struct Sum {
  uint32_t connections = 0;
  uint32_t complete = 0;
  uint32_t ended = 0;
  uint64_t waits = 0;
  FaultCounts faults;
};

class RpcMatrixTest : public testing::TestWithParam<DesignPoint> {
 protected:
  void SetUp() override {
    const auto device = Device::open(test_device());
    if (!device.ok())
      GTEST_SKIP() << "no " << test_device() << " here: " << device.status().message();
    auto listener = ControlListener::listen("127.0.0.1", 0, secret_);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_.emplace(std::move(*listener));
  }

  Job draw_job(const Topology& topology, Random& random) const {
    Job job;
    job.c.protocol = GetParam().protocol;
    job.c.layout = GetParam().layout;
    job.c.request_max_bytes = 600;
    job.c.response_max_bytes = 3000;
    job.c.pending = 1u << random.below(6);
    if (GetParam().model == ConnectionModel::kDispatcher) {
      job.workers = static_cast<uint32_t>(1 + random.below(3));
      job.c.pending *= job.workers;
    }
    job.c.messages = thinned(100 + random.below(100));
    // Too few shared receives now and then: senders must wait.
    job.c.receive_depth = random.below(3) == 0 ? 2 : 0;
    const auto queues = all_receive_queues();
    job.c.receive_queues = queues[random.below(queues.size())];
    job.seed = random.next();
    const auto draw = [&random](uint64_t max_ns) {
      return Fault{.probability = 0.001 * static_cast<double>(random.below(50)),
                   .duration_ns = random.below(max_ns)};
    };
    job.faults.delay = draw(50'000);
    job.faults.rnr = draw(200'000);
    job.faults.completion_delay = draw(50'000);
    if (random.below(2) == 0) {
      job.faults.queue_pair_error = 0.5 / static_cast<double>(job.c.messages);
    }
    wire(topology, job);
    return job;
  }

  // Runs the job and returns what it came to.
  Sum run(const Job& job) {
    std::vector<Thread> threads;
    std::vector<std::unique_ptr<PeerProcess>> processes;
    std::vector<ControlConnection> members;
    Ports ports{};
    for (uint32_t i = 0; i < job.members; ++i) {
      if (GetParam().members == Members::kProcesses) {
        processes.push_back(
            std::make_unique<PeerProcess>("rpc_member_process", listener_->port(), secret_));
      } else {
        threads.push_back(start_thread("member", [this] {
          const Status status = live(listener_->port(), secret_);
          EXPECT_TRUE(status.ok()) << status.message();
        }));
      }
      auto member = listener_->accept(kTimeoutNs);
      EXPECT_TRUE(member.ok()) << member.status().message();
      if (!member.ok()) return {};
      Job told = job;
      told.self = i;
      EXPECT_TRUE(member->send_value(kJobType, told).ok());
      members.push_back(std::move(*member));
    }
    for (uint32_t i = 0; i < job.members; ++i) {
      const auto port = members[i].receive_value<uint16_t>(kPortType, kTimeoutNs);
      EXPECT_TRUE(port.ok()) << port.status().message();
      if (port.ok()) ports[i] = *port;
    }
    for (ControlConnection& member : members) {
      EXPECT_TRUE(member.send_value(kPortsType, ports).ok());
    }
    Sum sum;
    for (uint32_t i = 0; i < job.members; ++i) {
      const auto report = members[i].receive_value<Report>(kReportType, 2 * kTimeoutNs);
      EXPECT_TRUE(report.ok()) << "member " << i << ": " << report.status().message();
      if (report.ok()) add(i, *report, sum);
    }
    for (Thread& thread : threads) thread.join();
    for (auto& process : processes) EXPECT_EQ(process->wait(), 0);
    for (const auto& row : job.requests) {
      for (const bool requests : row) sum.connections += requests ? 1 : 0;
    }
    return sum;
  }

  static void add(uint32_t member, const Report& report, Sum& sum) {
    SCOPED_TRACE("member " + std::to_string(member) + ": " + report.message);
    EXPECT_FALSE(report.stuck);
    EXPECT_EQ(report.wrong, 0u);
    EXPECT_EQ(report.other, 0u);
    sum.complete += report.complete;
    sum.ended += report.ended;
    sum.waits += report.waits;
    sum.faults.delays += report.faults.delays;
    sum.faults.deferred_receives += report.faults.deferred_receives;
    sum.faults.delayed_completions += report.faults.delayed_completions;
    sum.faults.queue_pair_errors += report.faults.queue_pair_errors;
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<ControlListener> listener_;
};

TEST_P(RpcMatrixTest, EveryTopologyTakesRandomFaults) {
  const int rounds = std::getenv("VERBENA_SOAK") != nullptr ? 50 : 1;
  const DesignPoint& point = GetParam();
  Random random(run_seed() + static_cast<uint64_t>(point.protocol) * 100 +
                static_cast<uint64_t>(point.layout) * 10 + static_cast<uint64_t>(point.model) * 2 +
                static_cast<uint64_t>(point.members));
  Sum all;
  for (int round = 0; round < rounds; ++round) {
    // In each round at least one topology's members sleep.
    const Topology& sleeping = kTopologies[random.below(std::size(kTopologies))];
    for (const Topology& topology : kTopologies) {
      Job job = draw_job(topology, random);
      job.c.blocking = &topology == &sleeping || random.below(4) == 0;
      SCOPED_TRACE(std::string(topology.name) + (job.c.blocking ? ", sleeping," : "") + " with " +
                   job.faults.text() + ", round " + std::to_string(round) +
                   " of VERBENA_SEED=" + std::to_string(run_seed()));
      const Sum sum = run(job);
      EXPECT_EQ(sum.complete + sum.ended, sum.connections) << "each finished or said why not";
      // An error ends the connection of the queue pair that it hit, and no other.
      EXPECT_LE(sum.ended, sum.faults.queue_pair_errors);
      all.faults.delays += sum.faults.delays + sum.faults.deferred_receives;
      all.waits += sum.waits;
      EXPECT_TRUE(job.c.blocking || sum.waits == 0);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(all.faults.delays, 0u) << "or nothing was tested";
  EXPECT_EQ(all.waits > 0, can_sleep(point)) << all.waits << " waits";
}

INSTANTIATE_TEST_SUITE_P(Of, RpcMatrixTest, testing::ValuesIn(design_points()),
                         test::printed_name<DesignPoint>);

}  // namespace
}  // namespace verbena::rpc_test
