#include "src/bench/hashtable/hashtable_threads.h"

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "src/bench/hashtable/hashtable_requests.h"
#include "src/bench/hashtable/hashtable_settings.h"
#include "src/bench/hashtable/keys.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/run/application_phases.h"
#include "src/bench/run/responding_steps.h"
#include "verbena/apps/hashtable.h"
#include "verbena/remote.h"

namespace verbena::bench {

namespace {

Status open_and_serve(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  HashtableRequests requests(job, number);
  VERBENA_RETURN_IF_ERROR(requests.connect());
  serve_application(job, number, requests, report.report, step);
  return Status::ok_status();
}

class HashtableBackEnd final : public RespondingTarget {
 public:
  HashtableBackEnd(NodeJob& job, uint32_t number, ThreadReport& report)
      : job_(job), number_(number), report_(report) {}

  Status prepare() override {
    const Point& point = job_.setup.point;
    const HashtableFormat format = format_of(point);
    VERBENA_ASSIGN_OR_RETURN(const uint64_t size_bytes, hashtable_bytes(format));
    VERBENA_ASSIGN_OR_RETURN(region_, expose_region(job_.device, job_.domain,
                                                    {.size_bytes = size_bytes,
                                                     .max_connections = front_ends(point),
                                                     .handshake_timeout_ns = kSetupTimeoutNs}));
    const std::span<char> memory(region_->data(), region_->size_bytes());
    VERBENA_RETURN_IF_ERROR(format_hashtable(memory, format));
    return fill(memory);
  }

  Status connect(std::unique_ptr<ControlConnection> control, uint32_t /*requesting*/) override {
    controls_.push_back(std::move(control));
    return region_->accept(*controls_.back());
  }

  Status answer(const Step& /*step*/) override {
    // No code of the back-end runs, so it costs nothing, in any unit.
    report_.report.costs = {{CpuCost{}, 0}};
    job_.team.finished();
    return Status::ok_status();
  }

 private:
  Status fill(std::span<char> memory) const {
    const HashtableSettings& settings = hashtable_settings(job_.setup.point);
    const uint64_t back_ends = job_.setup.point.responder_nodes;
    const uint64_t count =
        settings.keys > number_ ? (settings.keys - number_ - 1) / back_ends + 1 : 0;
    KeyText text(settings.key_bytes);
    std::vector<char> value(settings.value_bytes);
    return fill_hashtable(memory, count, [&](uint64_t i) -> HashtableEntry {
      const uint64_t key = i * back_ends + number_;
      DescribedValue::fill(value, key, 0);
      return {.key = text.of(key), .value = {value.data(), value.size()}};
    });
  }

  NodeJob& job_;
  const uint32_t number_;
  ThreadReport& report_;
  // What connections use goes after them.
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<ExposedRegion> region_;
};

}  // namespace

void run_hashtable_front_end(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(open_and_serve(job, number, report, step), step);
}

void run_hashtable_back_end(NodeJob& job, uint32_t number, ThreadReport& report) {
  run_responding_steps(job, number, std::make_unique<HashtableBackEnd>(job, number, report),
                       report);
}

}  // namespace verbena::bench
