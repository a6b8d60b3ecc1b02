// The other side of log_kill_test: a store or a writer in a process of its own, so that it can be
// killed. Usage: log_peer_process PORT, with the job's secret in VERBENA_TEST_SECRET.
#include <memory>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "tests/log/log_peer.h"
#include "tests/support/peer_process.h"

namespace verbena::log_test {
namespace {

// Until the test is gone, or does not want it any more.
Status serve(const Device& device, const ProtectionDomain& domain, const JobSecret& secret,
             ControlConnection& test) {
  std::vector<std::unique_ptr<ControlConnection>> controls;
  VERBENA_ASSIGN_OR_RETURN(
      auto store,
      LogStore::expose(device, domain, {.capacity_bytes = 4 << 20, .replicated = true}));
  VERBENA_ASSIGN_OR_RETURN(auto listener, ControlListener::listen("127.0.0.1", 0, secret));
  VERBENA_RETURN_IF_ERROR(test.send_value(kPortTag, listener.port()));
  while (!test.peer_closed()) {
    auto control = listener.accept(1'000'000);
    if (control.ok()) {
      controls.push_back(std::make_unique<ControlConnection>(std::move(*control)));
      static_cast<void>(store->accept(*controls.back()));
    }
    store->maintain();
  }
  return Status::ok_status();
}

// Appends without end, and tells what was acknowledged.
Status write(const Device& device, const ProtectionDomain& domain, const JobSecret& secret,
             ControlConnection& test, const Task& task) {
  std::vector<ControlConnection> controls;
  for (uint32_t i = 0; i < task.stores; ++i) {
    VERBENA_ASSIGN_OR_RETURN(
        auto control, ControlConnection::connect("127.0.0.1", task.ports[i], secret, kTimeoutNs));
    controls.push_back(std::move(control));
  }
  std::vector<ControlConnection*> pointers;
  for (ControlConnection& control : controls) pointers.push_back(&control);
  VERBENA_ASSIGN_OR_RETURN(auto writer,
                           open_log_writer(device, domain, pointers, {.pending = task.pending}));
  Waiter waiter;
  for (uint64_t number = 0; writer->status().ok() && !test.peer_closed();) {
    const std::string first = record_text(task.writer, number);
    const std::string second = record_text(task.writer, number + 1);
    const std::string_view records[] = {first, second};
    const PostResult posted = writer->post_append(records, number);
    if (posted == PostResult::kFailed) return writer->error();
    if (posted == PostResult::kPosted) number += 2;
    const uint32_t done = writer->poll([&](const LogCompletion& batch) {
      if (batch.outcome != LogOutcome::kAppended) return;
      for (uint32_t i = 0; i < batch.records; ++i) {
        static_cast<void>(
            test.send_value(kAcknowledgedTag, Acknowledged{batch.token + i, batch.first + i}));
      }
    });
    done > 0 ? waiter.progress() : waiter.idle();
  }
  return writer->status();
}

Status run(uint16_t port, const JobSecret& secret) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection test,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const Task task, test.receive_value<Task>(kTaskTag, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(rpc_test::test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  return task.stores == 0 ? serve(device, domain, secret, test)
                          : write(device, domain, secret, test, task);
}

}  // namespace
}  // namespace verbena::log_test

int main(int argc, char** argv) {
  return verbena::test::run_peer(argc, argv, verbena::log_test::run);
}
