#include "src/bench/hashtable/hashtable_threads.h"

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "src/bench/hashtable/hashtable_requests.h"
#include "src/bench/hashtable/hashtable_settings.h"
#include "src/bench/hashtable/key_numbers.h"
#include "src/bench/hashtable/keys.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/run/application_phases.h"
#include "src/bench/run/responding_steps.h"
#include "src/bench/run/socket_parts.h"
#include "verbena/apps/hashtable.h"

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
    const HashtableSettings& settings = hashtable_settings(point);
    const HashtableFormat format = format_of(point);
    VERBENA_ASSIGN_OR_RETURN(const uint64_t size_bytes, hashtable_bytes(format));
    VERBENA_ASSIGN_OR_RETURN(parts_, ExposedParts::expose(job_, socket_use(settings), size_bytes));
    const std::vector<bool> hot =
        most_used_keys(settings.distribution, settings.keys, hot_keys(settings));
    for (uint32_t part = 0; part < parts_->parts(); ++part) {
      VERBENA_RETURN_IF_ERROR(format_hashtable(parts_->memory(part), format));
      VERBENA_RETURN_IF_ERROR(fill(part, hot));
    }
    return Status::ok_status();
  }

  uint32_t expected_connections(uint32_t /*requesters*/) const override {
    const Point& point = job_.setup.point;
    return socket_connections(point, socket_use(hashtable_settings(point)));
  }
  Status connect(std::unique_ptr<ControlConnection> control, uint32_t requesting) override {
    return parts_->accept(std::move(control), requesting);
  }

  Status answer(const Step& /*step*/) override {
    // No code of the back-end runs, so it costs nothing, in any unit.
    report_.report.costs = {{CpuCost{}, 0}};
    job_.team.finished();
    return Status::ok_status();
  }

 private:
  Status fill(uint32_t part, const std::vector<bool>& hot) const {
    const Point& point = job_.setup.point;
    const HashtableSettings& settings = hashtable_settings(point);
    const uint64_t first = uint64_t{number_} * settings.sockets + part;
    const uint64_t step = tables(point);
    const uint64_t count = settings.keys > first ? (settings.keys - first - 1) / step + 1 : 0;
    KeyText text(settings.key_bytes);
    std::vector<char> value(settings.value_bytes);
    return fill_hashtable(parts_->memory(part), count, [&](uint64_t i) -> HashtableEntry {
      const uint64_t key = i * step + first;
      DescribedValue::fill(value, key, 0);
      return {.key = text.of(key), .value = {value.data(), value.size()}, .is_hot = bool{hot[key]}};
    });
  }

  NodeJob& job_;
  const uint32_t number_;
  ThreadReport& report_;
  std::unique_ptr<ExposedParts> parts_;
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
