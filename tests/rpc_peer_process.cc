// The other side of rpc_*_test: a responder or a requester in a process of its own, so that it can
// be killed. Usage: rpc_peer_process PORT, with the job's secret in VERBENA_TEST_SECRET.

#include <optional>

#include "tests/rpc_support.h"
#include "tests/support/peer_process.h"

namespace verbena::rpc_test {
namespace {

Result<int> run(uint16_t port, const JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const Task task, control.receive_value<Task>(kTaskType, kTimeoutNs));
  const Case& c = task.c;
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  if (task.role == Role::kRequester) {
    VERBENA_ASSIGN_OR_RETURN(auto requester, make_requester(c.protocol, c.layout, device, domain,
                                                            control, requester_options(c)));
    const Outcome outcome = Client(c).run(*requester, [](uint64_t) {});
    VERBENA_RETURN_IF_ERROR(outcome.status);
    return outcome.wrong > 0 || outcome.stuck ? kExitBadResponses : 0;
  }
  std::vector<char> readable = readable_memory();
  VERBENA_ASSIGN_OR_RETURN(auto responder, make_responder(c.protocol, c.layout, device, domain,
                                                          responder_options(c, readable)));
  VERBENA_RETURN_IF_ERROR(responder->connect(control));
  Server server;
  serve(*responder, server);
  if (server.bad_requests > 0) return kExitBadRequests;
  return c.transport != Transport::kRc && server.requests != c.messages ? kExitNotOnce : 0;
}

int run_main(int argc, char** argv) {
  int code = 0;
  const auto carry_out = [&](uint16_t port, const JobSecret& secret) -> Status {
    VERBENA_ASSIGN_OR_RETURN(code, run(port, secret));
    return {};
  };
  const int failure = test::run_peer(argc, argv, carry_out, kExitFailed);
  return failure != 0 ? failure : code;
}

}  // namespace
}  // namespace verbena::rpc_test

int main(int argc, char** argv) { return verbena::rpc_test::run_main(argc, argv); }
