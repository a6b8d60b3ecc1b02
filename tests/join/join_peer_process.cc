// An executor of join_kill_test in a process of its own, so that it can be killed. Usage:
// join_peer_process PORT, with the job's secret in VERBENA_TEST_SECRET.
#include <sys/time.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/join/join_peer.h"
#include "tests/support/peer_process.h"

namespace verbena::join_test {
namespace {

void die_after(uint32_t delay_us) {
  const itimerval once = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = delay_us}};
  setitimer(ITIMER_REAL, &once, nullptr);
}

Status join(const Task& task, const Device& device, const ProtectionDomain& domain,
            const JobSecret& secret, ControlConnection& test, RowSum* joined) {
  VERBENA_ASSIGN_OR_RETURN(const auto receiver,
                           ShuffleReceiver::expose(device, domain,
                                                   {.receiver = task.number,
                                                    .receivers = kExecutors,
                                                    .senders = kExecutors,
                                                    .buffer_bytes = 16 << 10,
                                                    .max_record_bytes = 1 << 20,
                                                    .checksum = true}));
  VERBENA_ASSIGN_OR_RETURN(auto listener, ControlListener::listen("127.0.0.1", 0, secret));
  VERBENA_RETURN_IF_ERROR(test.send_value(kPortTag, listener.port()));
  VERBENA_ASSIGN_OR_RETURN(const Ports ports, test.receive_value<Ports>(kPortsTag, kTimeoutNs));
  Status accepted;
  Thread accepting = start_thread(
      "accept", [&] { accepted = receiver->accept_all(listener, task.setup_timeout_ns); });
  const auto open = [&]() -> Result<std::unique_ptr<ShuffleSender>> {
    std::vector<ControlConnection> controls;
    for (const uint16_t port : ports.of) {
      VERBENA_ASSIGN_OR_RETURN(auto control, ControlConnection::connect("127.0.0.1", port, secret,
                                                                        task.setup_timeout_ns));
      controls.push_back(std::move(control));
    }
    return open_shuffle_sender(
        device, domain, std::move(controls),
        {.sender = task.number, .handshake_timeout_ns = task.setup_timeout_ns});
  };
  const Result<std::unique_ptr<ShuffleSender>> sender = open();
  accepting.join();
  VERBENA_RETURN_IF_ERROR(sender.status());
  VERBENA_RETURN_IF_ERROR(accepted);
  const Tables tables(task.seed);
  Random random(task.seed + task.number);
  ArrowArrayStream left = join_app::to_stream(tables.left_parts[task.number], random);
  ArrowArrayStream right = join_app::to_stream(tables.right_parts[task.number], random);
  ArrowArrayStream result = {};
  if (task.moment == Moment::kFromTheJoin) die_after(task.dies_after_us);
  VERBENA_RETURN_IF_ERROR(
      join_shuffled(&left, &right, tables.options, {**sender, *receiver, &domain}, &result)
          .status());
  *joined = sum_of(join_app::sorted_rows(join_app::from_stream(&result)));
  return Status::ok_status();
}

Status run(uint16_t port, const JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection test,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const Task task, test.receive_value<Task>(kTaskTag, kTimeoutNs));
  if (task.moment == Moment::kFromItsStart) die_after(task.dies_after_us);
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(rpc_test::test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  Outcome outcome;
  const Status status = join(task, device, domain, secret, test, &outcome.joined);
  die_after(0);  // it has ended before
  outcome.code = status.code();
  status.message().copy(outcome.message, sizeof(outcome.message) - 1);
  return test.send_value(kOutcomeTag, outcome);
}

}  // namespace
}  // namespace verbena::join_test

int main(int argc, char** argv) {
  return verbena::test::run_peer(argc, argv, verbena::join_test::run);
}
