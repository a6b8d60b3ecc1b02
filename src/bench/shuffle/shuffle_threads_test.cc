// A shuffle whose senders do not do all that they must.
#include "src/bench/shuffle/shuffle_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/bench/experiment/topology.h"
#include "src/bench/run/run.h"
#include "src/bench/run/shuffle_connections.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/bench/shuffle/shuffle_workload.h"
#include "verbena/apps/shuffle.h"

namespace verbena::bench {
namespace {

using testing::HasSubstr;

// Connects in each phase, and forgets to send its last record and to end its stream.
Status serve_forgetful(NodeJob& job, uint32_t number, Report& report, Step& step) {
  std::unique_ptr<ShuffleSender> sender;
  job.team.finished();
  for (;;) {
    step = job.team.next(step.number);
    if (step.kind == StepKind::kLeave) return Status::ok_status();
    if (step.kind == StepKind::kPrepare) {
      VERBENA_ASSIGN_OR_RETURN(std::vector<ControlConnection> controls, reach_receivers(job));
      VERBENA_ASSIGN_OR_RETURN(
          sender, open_shuffle_sender(job.device, job.domain, std::move(controls),
                                      {.sender = number, .handshake_timeout_ns = kSetupTimeoutNs}));
      job.team.finished();
    } else if (step.kind == StepKind::kRun) {
      report = Report{};
      report.requests = 1;
      job.team.finished();
    }
  }
}

void run_forgetful_sender(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(serve_forgetful(job, number, report.report, step), step);
}

class ForgetfulShuffle final : public Workload {
 public:
  ForgetfulShuffle() : Workload(shuffle_workload().traits()) {}

  Point point() const override {
    Point point = shuffle_workload().point();
    point.workload = this;
    return point;
  }
  Result<Point> fit(Point point) const override { return point; }
  Status check(const Point& /*point*/, const DeviceInfo& /*device*/,
               uint64_t /*available_bytes*/) const override {
    return Status::ok_status();
  }
  uint64_t memory_bytes(const Point& point) const override {
    return shuffle_workload().memory_bytes(point);
  }
  ThreadBody body(ThreadRole role, const Point& /*point*/) const override {
    return role == ThreadRole::kRequesting ? run_forgetful_sender : run_shuffle_receiver;
  }
  OperationBytes operation_bytes(const Point& point) const override {
    return shuffle_workload().operation_bytes(point);
  }
  std::string text(const Point& point) const override { return shuffle_workload().text(point); }
  std::string line_text(const Point& point) const override {
    return shuffle_workload().line_text(point);
  }
  std::string table(const std::vector<PointResult>& /*results*/) const override { return {}; }
};

// The warm-up checks every byte.
TEST(ShuffleThreads, AStreamThatDoesNotEndIsNoRightOne) {
  const ForgetfulShuffle workload;
  const Point point = workload.point();
  const Result<Wiring> wiring = wire(shape_of(point));
  ASSERT_TRUE(wiring.ok()) << wiring.status().message();
  SimulatedNodes nodes(/*seed=*/1, /*copy_all=*/true);
  const Status added = nodes.add("sim:connectx3-40g", static_cast<uint32_t>(wiring->nodes.size()));
  ASSERT_TRUE(added.ok()) << added.message();
  RunOptions options;
  options.length = {.requests = 1, .duration_ns = 1'000'000};
  RunFailure failure;
  const auto result = run_on_nodes(nodes, *wiring, point, options, /*seed=*/1, &failure);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(result.status().message(), HasSubstr("1 requests and 0 responses arrived corrupted"));
}

}  // namespace
}  // namespace verbena::bench
