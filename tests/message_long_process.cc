// The other ranks of message_long_test. Usage: message_long_process PORT, with the job's secret in
// VERBENA_TEST_SECRET.
#include <array>

#include "tests/message_long_traffic.h"
#include "tests/support/peer_process.h"

namespace verbena::message_test {
namespace {

Status take_part(uint16_t port, const JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(const LongPlan plan,
                           control.receive_value<LongPlan>(kLongPlanTag, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(auto messenger,
                           open_messenger(device, domain, secret, long_options(plan)));
  VERBENA_RETURN_IF_ERROR(control.send_value(kAddressTag, messenger->address()));
  VERBENA_ASSIGN_OR_RETURN(const LongAddresses addresses,
                           control.receive_value<LongAddresses>(kLongAddressesTag, kTimeoutNs));
  std::array<PeerNumber, kLongRanks> peers{};
  for (uint32_t rank = 0; rank < kLongRanks; ++rank) {
    VERBENA_ASSIGN_OR_RETURN(peers[rank], messenger->add_peer(addresses.of[rank]));
  }
  LongTraffic traffic(*messenger, peers, plan);
  if (!traffic.run()) return {StatusCode::kTimeout, "a message did not come"};
  return control.send_value(kLongResultTag, traffic.result());
}

}  // namespace
}  // namespace verbena::message_test

int main(int argc, char** argv) {
  return verbena::test::run_peer(argc, argv, verbena::message_test::take_part);
}
