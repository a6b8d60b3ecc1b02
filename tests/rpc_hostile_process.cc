// A requester in a process of its own that breaks the protocol as it is told. Usage:
// rpc_hostile_process PORT, with the job's secret in VERBENA_TEST_SECRET.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "tests/rpc_hostile_end.h"

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

int run_main(int argc, char** argv) {
  const char* text = std::getenv(kSecretVariable);
  if (argc != 2 || text == nullptr) return 2;
  const auto secret = JobSecret::from_string(text);
  if (!secret.ok()) return 2;
  const Status status = attack(static_cast<uint16_t>(std::atoi(argv[1])), *secret);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return kExitFailed;
}

}  // namespace
}  // namespace verbena::rpc_test

int main(int argc, char** argv) { return verbena::rpc_test::run_main(argc, argv); }
