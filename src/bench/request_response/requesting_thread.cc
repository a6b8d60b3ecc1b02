#include "src/bench/request_response/requesting_thread.h"

#include <type_traits>
#include <utility>

#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_work.h"
#include "src/bench/request_response/requesting_connections.h"
#include "src/bench/run/request_phases.h"
#include "src/rpc/designs.h"

namespace verbena::bench {

namespace {

// The work of a thread with queue pairs of its own, which knows what these sent again.
template <bool kReads>
class CountedWorks : public RequestWorks<kReads> {
 public:
  CountedWorks(const RequestingConnections& connections, RequestWorks<kReads> works)
      : RequestWorks<kReads>(std::move(works)), connections_(connections) {}

  Status prepare(const Phase& /*phase*/) {
    resent_before_ = connections_.resent();
    return Status::ok_status();
  }
  Status ended(Report& report) const {
    report.counters[kResent] = connections_.resent() - resent_before_;
    return Status::ok_status();
  }

 private:
  const RequestingConnections& connections_;
  uint64_t resent_before_ = 0;
};

Status connect_and_serve(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  RequestingConnections connections;
  VERBENA_RETURN_IF_ERROR(connections.connect(job, number));
  const rpc::DesignAgreement& agreed = connections.agreed();
  rpc::with_transport(agreed.transport, agreed.protocol, agreed.layout, [&]<typename Design>() {
    using Requester = typename Design::Requester;
    constexpr bool kReads = std::is_same_v<Requester, rpc::ReadRequester>;
    RequestPhases<Requester, CountedWorks<kReads>> phases(
        job, number, connections.targets<Requester>(),
        CountedWorks<kReads>(
            connections,
            RequestWorks<kReads>(job, number, 0, job.wiring().requesting[number].peers)),
        report.report);
    job.team.finished();
    phases.serve(step);
  });
  return Status::ok_status();
}

}  // namespace

void run_requesting_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(connect_and_serve(job, number, report, step), step);
}

}  // namespace verbena::bench
