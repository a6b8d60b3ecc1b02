// The other side of shuffle_kill_test: an executor in a process of its own, so that it can be
// killed. Usage: shuffle_peer_process PORT, with the job's secret in VERBENA_TEST_SECRET.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/shuffle/shuffle_peer.h"
#include "tests/support/peer_process.h"

namespace verbena::shuffle_test {
namespace {

Status receive_records(const Device& device, const ProtectionDomain& domain,
                       const JobSecret& secret, ControlConnection& test, const Task& task) {
  VERBENA_ASSIGN_OR_RETURN(auto receiver,
                           ShuffleReceiver::expose(device, domain, receiver_options(task.number)));
  VERBENA_ASSIGN_OR_RETURN(auto listener, ControlListener::listen("127.0.0.1", 0, secret));
  VERBENA_RETURN_IF_ERROR(test.send_value(kPortTag, listener.port()));
  VERBENA_RETURN_IF_ERROR(receiver->accept_all(listener, kTimeoutNs));
  VERBENA_RETURN_IF_ERROR(test.send_value(kOpenedTag, task.number));
  return receive(*receiver, nullptr);
}

Status send_records(const Device& device, const ProtectionDomain& domain, const JobSecret& secret,
                    ControlConnection& test, const Task& task) {
  std::vector<ControlConnection> controls;
  for (const uint16_t port : task.ports) {
    VERBENA_ASSIGN_OR_RETURN(auto control,
                             ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
    controls.push_back(std::move(control));
  }
  VERBENA_ASSIGN_OR_RETURN(auto sender, open_shuffle_sender(device, domain, std::move(controls),
                                                            {.sender = task.number}));
  VERBENA_RETURN_IF_ERROR(test.send_value(kOpenedTag, task.number));
  for (uint64_t i = 0; i < task.records; ++i) {
    VERBENA_RETURN_IF_ERROR(
        sender->put(static_cast<uint32_t>(i % kReceivers), record_text(task.number, i)));
  }
  return sender->finish();
}

Status run(uint16_t port, const JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection test,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const Task task, test.receive_value<Task>(kTaskTag, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(rpc_test::test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  const Status status = task.sends ? send_records(device, domain, secret, test, task)
                                   : receive_records(device, domain, secret, test, task);
  Outcome outcome;
  outcome.code = status.code();
  status.message().copy(outcome.message, sizeof(outcome.message) - 1);
  return test.send_value(kOutcomeTag, outcome);
}

}  // namespace
}  // namespace verbena::shuffle_test

int main(int argc, char** argv) {
  return verbena::test::run_peer(argc, argv, verbena::shuffle_test::run);
}
