// A requester in a process of its own that breaks the protocol as it is told. Usage:
// rpc_hostile_process PORT, with the job's secret in VERBENA_TEST_SECRET.
#include "tests/rpc_hostile_end.h"
#include "tests/support/peer_process.h"

namespace verbena::rpc_test {
namespace {

Status attack(uint16_t port, const JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const HostileTask task,
                           control.receive_value<HostileTask>(kHostileTaskType, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Side side, open_side());
  return rpc::with_design_point(task.c.protocol, task.c.layout, [&]<typename Design>() -> Status {
    if constexpr (rpc::ChannelPair<Design>) {
      VERBENA_ASSIGN_OR_RETURN(auto requester,
                               join_hostile_requester<Design>(side, control, task.c));
      carry_out(task, *requester);
      Waiter waiter;
      while (!control.peer_closed()) waiter.idle();
      return {};
    } else {
      return Status(StatusCode::kUnsupported, "a READ has no slots to attack");
    }
  });
}

}  // namespace
}  // namespace verbena::rpc_test

int main(int argc, char** argv) {
  return verbena::test::run_peer(argc, argv, verbena::rpc_test::attack,
                                 verbena::rpc_test::kExitFailed);
}
