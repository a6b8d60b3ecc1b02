// The other side of message_kill_test: a messenger in a process of its own, so that it can be
// killed. Usage: message_peer_process PORT, with the job's secret in VERBENA_TEST_SECRET.
#include <memory>

#include "tests/message_support.h"
#include "tests/support/peer_process.h"

namespace verbena::message_test {
namespace {

Status run(uint16_t port, const JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto messenger, open_messenger(device, domain, secret));
  VERBENA_ASSIGN_OR_RETURN(const MessengerAddress address,
                           control.exchange(kAddressTag, messenger->address(), kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const PeerNumber peer, messenger->add_peer(address));
  const auto traffic = std::make_unique<NumberTraffic>(*messenger, peer);
  Waiter waiter;
  while (traffic->peer_works() && !control.peer_closed()) {
    traffic->step() > 0 ? waiter.progress() : waiter.idle();
  }
  return Status::ok_status();
}

}  // namespace
}  // namespace verbena::message_test

int main(int argc, char** argv) {
  return verbena::test::run_peer(argc, argv, verbena::message_test::run);
}
