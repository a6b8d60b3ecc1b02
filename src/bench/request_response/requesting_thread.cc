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
template <typename Connections, bool kReads>
class CountedWorks : public RequestWorks<kReads> {
 public:
  CountedWorks(const Connections& connections, RequestWorks<kReads> works)
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
  const Connections& connections_;
  uint64_t resent_before_ = 0;
};

Status connect_and_serve(NodeJob& job, uint32_t number, ThreadReport& report, const Step& step) {
  VERBENA_ASSIGN_OR_RETURN(FirstConnection first, reach_first(job, number));
  const rpc::DesignAgreement& agreed = first.agreed;
  return rpc::with_transport(
      agreed.transport, agreed.protocol, agreed.layout, [&]<typename Design>() -> Status {
        using Requester = typename Design::Requester;
        RequestingConnections<Design> connections;
        VERBENA_RETURN_IF_ERROR(connections.connect(job, number, std::move(first)));
        constexpr bool kReads = std::is_same_v<Requester, rpc::ReadRequester>;
        using Works = CountedWorks<RequestingConnections<Design>, kReads>;
        RequestPhases<Requester, Works> phases(
            job, number, connections.targets(),
            Works(connections,
                  RequestWorks<kReads>(job, number, 0, job.wiring().requesting[number].peers)),
            report.report);
        job.team.finished();
        phases.serve(step);
        return Status::ok_status();
      });
}

}  // namespace

void run_requesting_thread(NodeJob& job, uint32_t number, ThreadReport& report) {
  Step step;
  if (!job.team.await(StepKind::kConnect, step)) return;
  job.team.end_with(connect_and_serve(job, number, report, step), step);
}

}  // namespace verbena::bench
