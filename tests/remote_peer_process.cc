// The other side of remote_kill_test: a back-end or a front-end in a process of its own, so that it
// can be killed. Usage: remote_peer_process PORT, with the job's secret in VERBENA_TEST_SECRET.
#include "tests/remote_support.h"
#include "tests/support/peer_process.h"

namespace verbena::remote_test {
namespace {

Status run(uint16_t port, const JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const Task task, control.receive_value<Task>(kTaskTag, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  if (task.role == Role::kFrontEnd) {
    VERBENA_ASSIGN_OR_RETURN(auto region,
                             open_region(device, domain, control, {.pending = task.pending}));
    take_numbers(*region, ~uint64_t{0}, [](uint64_t) {});
    return region->status();
  }
  VERBENA_ASSIGN_OR_RETURN(auto region,
                           expose_region(device, domain, {.size_bytes = kRegionBytes}));
  VERBENA_RETURN_IF_ERROR(region->accept(control));
  Waiter waiter;
  while (region->remove_ended() > 0) waiter.idle();
  return Status::ok_status();
}

}  // namespace
}  // namespace verbena::remote_test

int main(int argc, char** argv) {
  return verbena::test::run_peer(argc, argv, verbena::remote_test::run);
}
