// After connect: no allocation, no lock and no system call on a record's way, at the sender and at
// the receiver. Counted, not inspected (data_path_counts.h).
#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "src/memory/arena.h"
#include "tests/data_path_counts.h"
#include "tests/rpc_support.h"
#include "verbena/apps/shuffle.h"

namespace verbena::shuffle_test {
namespace {

using rpc_test::kTimeoutNs;
using rpc_test::test_device;
using test::Counted;
using test::Counts;

constexpr uint64_t kWarmUp = 2000;
constexpr uint64_t kCountedRecords = 20'000;
constexpr uint32_t kMostBytes = 200;

struct Way {
  ShuffleMethod method;
  uint32_t record_bytes;  // 0: of any size
  bool registered;
};

// Buffers come around many times, and senders wait for space.
ShuffleReceiverOptions receiver_options(const Way& way) {
  return {.record_bytes = way.record_bytes, .buffer_bytes = 16 * 1024, .checksum = true};
}

Status send_records(ShuffleSender& sender, const RegisteredArena& memory, const Way& way,
                    uint64_t records, Random& random, Counted& counted) {
  for (uint64_t i = 0; i < records;) {
    const auto size_bytes = way.record_bytes != 0
                                ? way.record_bytes
                                : static_cast<uint32_t>(random.below(kMostBytes + 1));
    const PostResult result = way.registered
                                  ? sender.send(0, LocalSlice{&memory.region(), 0, size_bytes})
                                  : sender.send(0, std::string_view(memory.data(), size_bytes));
    if (result == PostResult::kFailed) return sender.error();
    if (result == PostResult::kPosted) {
      ++i;
    } else {
      sender.flush();
      counted.polled(sender.poll());
    }
  }
  return sender.flush() ? Status::ok_status() : sender.status();
}

Status run_sender(const Way& way, uint16_t port, const JobSecret& secret, Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(const ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(const RegisteredArena memory,
                           RegisteredArena::create(domain, kMostBytes, IBV_ACCESS_LOCAL_WRITE));
  std::vector<ControlConnection> controls;
  controls.push_back(std::move(control));
  VERBENA_ASSIGN_OR_RETURN(
      const auto sender,
      open_shuffle_sender(device, domain, std::move(controls), {.method = way.method}));
  Random random(run_seed());
  Counted counted;
  VERBENA_RETURN_IF_ERROR(send_records(*sender, memory, way, kWarmUp, random, counted));
  counted.begin();
  const Status sent = send_records(*sender, memory, way, kCountedRecords, random, counted);
  counts = counted.end(kCountedRecords);
  VERBENA_RETURN_IF_ERROR(sent);
  if (sender->statistics().credit_reads == 0) {
    return {StatusCode::kInternal, "the test needs no space twice"};
  }
  return sender->finish();
}

Status receive_records(ShuffleReceiver& receiver, uint64_t records, Counted& counted) {
  while (receiver.received().records < records) {
    VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver.next());
    receiver.release(span);
    counted.polled(span.count());
  }
  return Status::ok_status();
}

Status run_receiver(const Way& way, ControlListener& listener, Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(const ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(const auto receiver,
                           ShuffleReceiver::expose(device, domain, receiver_options(way)));
  VERBENA_RETURN_IF_ERROR(receiver->accept_all(listener, kTimeoutNs));
  Counted counted;
  VERBENA_RETURN_IF_ERROR(receive_records(*receiver, kWarmUp, counted));
  counted.begin();
  const Status received = receive_records(*receiver, kWarmUp + kCountedRecords, counted);
  counts = counted.end(kCountedRecords);
  VERBENA_RETURN_IF_ERROR(received);
  for (;;) {
    VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver->wait_next());
    if (span.empty()) return Status::ok_status();
    receiver->release(span);
  }
}

TEST(ShuffleDataPathTest, NoAllocationNoLockNoSystemCall) {
  if (VERBENA_COUNTS == 0) GTEST_SKIP() << "the sanitizers count differently";
  for (const ShuffleMethod method :
       {ShuffleMethod::kBasic, ShuffleMethod::kSp, ShuffleMethod::kSgl}) {
    for (const uint32_t record_bytes : {0u, 100u}) {
      for (const bool registered : {false, true}) {
        const Way way = {method, record_bytes, registered};
        SCOPED_TRACE(testing::Message() << shuffle_method_name(method) << ", " << record_bytes
                                        << " bytes, " << (registered ? "registered" : "copied"));
        const JobSecret secret = JobSecret::random();
        auto listener = ControlListener::listen("127.0.0.1", 0, secret);
        ASSERT_TRUE(listener.ok()) << listener.status().message();
        const auto receiver = [&](Counts& counts) { return run_receiver(way, *listener, counts); };
        const auto sender = [&](Counts& counts) {
          return run_sender(way, listener->port(), secret, counts);
        };
        const bool traced = test::run_counted(
            {{"receiver", true, receiver}, {"sender", true, sender}}, kCountedRecords);
        if (!traced) GTEST_SKIP() << "this system does not let a process trace its children";
      }
    }
  }
}

}  // namespace
}  // namespace verbena::shuffle_test
