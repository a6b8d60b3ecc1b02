// A workload is a plug-in: this one is in no list, and is planned, measured and reported by the
// same code as the others.
#include "src/bench/experiment/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/experiment/plan.h"
#include "src/bench/result/result_file.h"
#include "src/bench/run/point_node.h"
#include "src/bench/run/request_phases.h"
#include "src/bench/run/session.h"
#include "src/bench/workloads.h"
#include "verbena/connection.h"
#include "verbena/device.h"

namespace verbena::bench {
namespace {

using testing::HasSubstr;

struct PauseSettings {
  uint64_t pause_ns = 1000;
};

constexpr ListLimits kPauseLimits{.what = "pause", .min = 1, .max = 1'000'000};
constexpr std::array kAxes = {kThreadsAxis, kPendingAxis,
                              count_axis<kPauseLimits, &PauseSettings::pause_ns>(
                                  "pause", "pause_ns", "1000", "How long an operation takes")};
constexpr std::array kMetrics = {ShareMetric{.json = "quarter_share", .part = 2, .whole = 3}};

// Each operation is over when its time has passed.
class Pauser {
 public:
  explicit Pauser(uint64_t pause_ns) : pause_ns_(pause_ns) {}
  PostResult try_post(uint32_t slot, uint32_t /*bytes*/) {
    waiting_.push_back(slot);
    return PostResult::kPosted;
  }
  template <typename Take>
  uint32_t poll(Take&& take) {
    const std::vector<uint32_t> due = std::exchange(waiting_, {});
    if (!due.empty()) sleep_ns(pause_ns_);
    for (const uint32_t slot : due) take(slot, std::span<const char>());
    return static_cast<uint32_t>(due.size());
  }
  char* request_buffer(uint32_t /*slot*/) { return nullptr; }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return status_; }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }

 private:
  uint64_t pause_ns_;
  std::vector<uint32_t> waiting_;
  Status status_;
};

void run_pausing_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  Pauser pauser(settings_of<PauseSettings>(job.setup.point).pause_ns);
  RequestPhases<Pauser, NoPayloads> phases(job, number, {&pauser}, {}, report.report);
  job.team.finished();
  phases.serve(step);
}

// Has nothing to do, and says a quarter of it.
void run_idle_thread(NodeJob& job, uint32_t /*number*/, ThreadReport& report) {
  for (Step step; step.kind != StepKind::kLeave; step = job.team.next(step.number)) {
    report.report = {.counters = {0, 0, 1, 4}};
    if (step.kind != StepKind::kStart && step.kind != StepKind::kRun) job.team.finished();
  }
}

class PauseWorkload : public Workload {
 public:
  PauseWorkload()
      : Workload({.name = "pause",
                  .subject = "pauses",
                  .has_topology = false,
                  .verifies = false,
                  .soft_huge_pages = false,
                  .axes = kAxes,
                  .line_axes = {},
                  .metrics = kMetrics,
                  .command = {.name = "pause"}}) {}

  Point point() const override {
    return {.workload = this, .topology = Topology::kManyToOne, .settings = PauseSettings()};
  }
  Result<Point> fit(Point point) const override { return point; }
  Status check(const Point& point, const DeviceInfo& /*device*/,
               uint64_t /*available_bytes*/) const override {
    if (point.pending < 64) return Status::ok_status();
    return {StatusCode::kLimitExceeded, "too many pauses"};
  }
  uint64_t memory_bytes(const Point& /*point*/) const override { return 0; }
  ThreadBody body(ThreadRole role, const Point& /*point*/) const override {
    return role == ThreadRole::kRequesting ? run_pausing_thread : run_idle_thread;
  }
  OperationBytes operation_bytes(const Point& /*point*/) const override {
    return {.value = 10, .total = 30};
  }
  std::string text(const Point& /*point*/) const override { return "a pause"; }
  std::string line_text(const Point& /*point*/) const override { return "pause"; }
  std::string table(const std::vector<PointResult>& results) const override {
    return fmt::format("{} pauses", results.size());
  }
};

Plan plan_of(const Workload& workload,
             const std::vector<std::pair<std::string_view, std::string_view>>& axes) {
  Sweep sweep = Sweep::of(workload);
  for (const auto& [name, text] : axes) {
    const Status status = sweep.set(name, text);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  Plan plan;
  plan.sweeps.push_back(std::move(sweep));
  plan.runs = 1;
  return plan;
}

TEST(AThirdWorkload, IsPlanned) {
  const PauseWorkload workload;
  const Plan plan = plan_of(workload, {{"pause", "1000,4000"}, {"pending", "1,2"}});
  const std::vector<PointGroup> groups = point_groups(plan).value();
  EXPECT_EQ(groups.size(), 4u);  // nothing is compared
  EXPECT_EQ(plan_json(plan)["sweeps"][0]["kind"], "pause");
  EXPECT_FALSE(plan_json(plan)["sweeps"][0].contains("topology"));
  EXPECT_TRUE(check_points(groups, {}).ok());
  EXPECT_EQ(
      check_points(point_groups(plan_of(workload, {{"pending", "64"}})).value(), {}).message(),
      "too many pauses");
  EXPECT_THAT(Sweep::of(workload).set("protocol", "read").message(),
              testing::AllOf(HasSubstr("pauses have no axis 'protocol'"), HasSubstr("pause")));
}

TEST(AThirdWorkload, IsMeasuredAndReported) {
  const PauseWorkload workload;
  Plan plan = plan_of(workload, {{"pause", "1000,4000"}, {"threads", "2"}});
  plan.run.length = {.duration_ns = 200'000};
  const std::vector<PointGroup> groups = point_groups(plan).value();
  const std::unique_ptr<NodePool> pool = NodePool::simulated("sim:connectx3-fdr");
  const std::vector<PointResult> results =
      measure_points(groups, plan.runs, plan.run, *pool, SessionHooks{});
  ASSERT_EQ(results.size(), 2u);
  for (const PointResult& result : results) {
    ASSERT_EQ(result.errors, 0u) << result.error;
    const auto pause_ns = static_cast<double>(settings_of<PauseSettings>(result.point).pause_ns);
    EXPECT_NEAR(result.p50_ns().median, pause_ns, pause_ns / 10);
    EXPECT_NEAR(result.rate_per_s().median, 2e9 / pause_ns, 2e8 / pause_ns);
    const nlohmann::json row = to_json(result);
    EXPECT_EQ(row["pause_ns"], pause_ns);
    EXPECT_EQ(row["threads"], 2);
    EXPECT_FALSE(row.contains("protocol"));
    EXPECT_EQ(row["quarter_share"], 0.25);
    EXPECT_EQ(row["value_bandwidth_bytes_per_s"], 10 * row["rate_per_s"].get<double>());
    EXPECT_EQ(row["total_bandwidth_bytes_per_s"], 30 * row["rate_per_s"].get<double>());
  }
  EXPECT_EQ(results[0].point.workload->table(results), "2 pauses");
}

// A device whose poll does not return as long as `stuck` is set.
std::atomic<bool> stuck;
class StuckPauser : public Pauser {
 public:
  StuckPauser() : Pauser(1) {}
  template <typename Take>
  uint32_t poll(Take&& take) {
    while (stuck.load()) sleep_ns(1'000'000);
    return Pauser::poll(take);
  }
};

void run_sticking_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  StuckPauser pauser;
  RequestPhases<StuckPauser, NoPayloads> phases(job, number, {&pauser}, {}, report.report);
  job.team.finished();
  phases.serve(step);
}

class StickingWorkload : public PauseWorkload {
 public:
  ThreadBody body(ThreadRole /*role*/, const Point& /*point*/) const override {
    return run_sticking_thread;
  }
};

TEST(APointNode, NamesTheThreadThatIsStuckInACall) {
  constexpr uint64_t kPatienceNs = 120'000'000'000;
  const StickingWorkload workload;
  const Result<Device> device = Device::open("soft0");
  ASSERT_TRUE(device.ok()) << device.status().message();
  const Result<ProtectionDomain> domain = ProtectionDomain::create(*device);
  ASSERT_TRUE(domain.ok());
  bench::Setup setup;
  setup.point = workload.point();
  Result<Wiring> wiring = wire(shape_of(setup.point));
  ASSERT_TRUE(wiring.ok()) << wiring.status().message();
  Message connect{.kind = MessageKind::kConnect};
  connect.addresses.resize(wiring->responding.size());
  const JobSecret secret = JobSecret::random();
  PointNode node(*device, *domain, secret, "127.0.0.1", setup,
                 std::make_shared<JobWiring>(std::move(*wiring), setup.point.model));
  const auto settle = [&node] {
    const uint64_t end_ns = now_ns() + kPatienceNs;
    while (!node.settled() && now_ns() < end_ns) sleep_ns(1'000'000);
    ASSERT_TRUE(node.settled());
  };
  stuck = true;
  ASSERT_TRUE(node.start().ok());
  settle();
  ASSERT_TRUE(node.begin(connect).ok());
  settle();
  ASSERT_TRUE(node.begin({.kind = MessageKind::kPhase,
                          .phase = {.kind = PhaseKind::kTimed,
                                    .length = {.requests = 1},
                                    .stall_ns = 50'000'000}})
                  .ok());
  settle();
  EXPECT_TRUE(node.stalled().ok()) << "nothing runs yet";
  ASSERT_TRUE(node.begin({.kind = MessageKind::kGo}).ok());
  Status stalled;
  for (const uint64_t end_ns = now_ns() + kPatienceNs; stalled.ok() && now_ns() < end_ns;) {
    sleep_ns(1'000'000);
    stalled = node.stalled();
  }
  EXPECT_FALSE(node.settled());
  stuck = false;
  EXPECT_EQ(stalled.code(), StatusCode::kTimeout);
  EXPECT_THAT(stalled.message(), HasSubstr("thread request-0 has not returned from a call"));
  settle();
  // A thread that has finished is not missed, however long the others take.
  for (int check = 0; check < 10; ++check) {
    sleep_ns(10'000'000);
    EXPECT_TRUE(node.stalled().ok());
  }
}

TEST(Workloads, HaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  std::set<std::string_view> commands;
  for (const Workload* workload : workloads()) {
    const WorkloadTraits& traits = workload->traits();
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
    EXPECT_TRUE(commands.insert(traits.command.name).second) << traits.command.name;
    EXPECT_EQ(find_workload(traits.name), workload);
    EXPECT_EQ(workload->point().workload, workload);
  }
  EXPECT_EQ(find_workload("pause"), nullptr);
}

// Runs of what is compared take turns, so nothing else may change between them.
TEST(Workloads, HaveTheComparedAxesLast) {
  for (const Workload* workload : workloads()) {
    bool compared = false;
    for (const Axis& axis : workload->traits().axes) {
      EXPECT_FALSE(compared && !axis.compared) << axis.name;
      compared = compared || axis.compared;
    }
  }
}

}  // namespace
}  // namespace verbena::bench
