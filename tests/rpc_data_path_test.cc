// After connect: no allocation, no lock and no system call for a message, on either side, under
// every protocol. Counted, not inspected (data_path_counts.h).
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/data_path_counts.h"
#include "tests/rpc_support.h"
#include "tests/support/parameter_names.h"

namespace verbena::rpc_test {
namespace {

using test::Counted;
using test::Counts;

constexpr uint64_t kWarmUpMessages = 1000;
constexpr uint64_t kCountedMessages = 5000;

// --- the two sides, each in a process of its own ---

void request(Requester& requester, const Case& c, uint64_t messages, Counted& counted) {
  uint64_t posted = 0;
  uint64_t done = 0;
  uint32_t slot = 0;
  while (done < messages && requester.status().ok()) {
    while (posted < messages && posted - done < c.pending) {
      char* bytes = requester.request_buffer(slot);
      const ReadRequest read = {8, 64};
      std::memcpy(bytes, &read, sizeof(read));
      if (requester.try_post(slot, c.request_max_bytes) != PostResult::kPosted) break;
      ++posted;
      slot = slot + 1 == c.pending ? 0 : slot + 1;
    }
    const uint32_t found = requester.poll([](uint32_t, std::span<const char>) {});
    done += found;
    counted.polled(found);
  }
}

Status run_requester(const Case& c, uint16_t port, const JobSecret& secret, Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto requester, make_requester(c.protocol, c.layout, device, domain,
                                                          control, requester_options(c)));
  Counted counted;
  request(*requester, c, kWarmUpMessages, counted);
  counted.begin();
  request(*requester, c, kCountedMessages, counted);
  counts = counted.end(kCountedMessages);
  return requester->status();
}

Status run_responder(const Case& c, ControlListener& listener, Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control, listener.accept(kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  std::vector<char> readable = readable_memory();
  VERBENA_ASSIGN_OR_RETURN(auto responder, make_responder(c.protocol, c.layout, device, domain,
                                                          responder_options(c, readable)));
  VERBENA_RETURN_IF_ERROR(responder->connect(control));
  uint64_t answered = 0;
  const auto handler = [](const Request& request, std::span<char> response) {
    std::memcpy(response.data(), request.bytes.data(), request.bytes.size());
    return static_cast<uint32_t>(response.size());
  };
  Counted counted;
  const auto answer_until = [&](uint64_t messages) {
    while (answered < messages && responder->status().ok()) {
      const uint32_t found = responder->poll(handler);
      answered += found;
      counted.polled(found);
    }
  };
  answer_until(kWarmUpMessages);
  // Some before the requester's last message: then it waits for nothing any more.
  constexpr uint64_t kLast = kWarmUpMessages + kCountedMessages - 100;
  const uint64_t before = answered;
  counted.begin();
  answer_until(kLast);
  counts = counted.end(answered - before);
  answer_until(~uint64_t{0});
  return answered >= kLast || c.protocol == Protocol::kRead ? Status::ok_status()
                                                            : responder->status();
}

void run(const Case& c) {
  SCOPED_TRACE(name_of(c));
  const JobSecret secret = JobSecret::random();
  auto listener = ControlListener::listen("127.0.0.1", 0, secret);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  const bool traced = test::run_counted(
      {{"responder", c.protocol != Protocol::kRead,
        [&](Counts& counts) { return run_responder(c, *listener, counts); }},
       {"requester", true,
        [&](Counts& counts) { return run_requester(c, listener->port(), secret, counts); }}},
      kCountedMessages - 100);
  if (!traced) GTEST_SKIP() << "this system does not let a process trace its children";
}

class RpcDataPathTest : public testing::TestWithParam<Protocol> {};

TEST_P(RpcDataPathTest, NoAllocationNoLockNoSystemCall) {
  if (VERBENA_COUNTS == 0) GTEST_SKIP() << "the sanitizers count differently";
  for (MarkLayout layout : all_mark_layouts()) {
    if (!uses_mark_layout(GetParam()) && layout != MarkLayout::kLastBit) continue;
    for (uint32_t pending : {1u, 16u}) {
      Case c;
      c.protocol = GetParam();
      c.layout = layout;
      c.pending = pending;
      run(c);
      if (testing::Test::IsSkipped()) return;
    }
  }
}

// Nor over what loses messages.
TEST(RpcDataPathLossyTest, NoAllocationNoLockNoSystemCall) {
  if (VERBENA_COUNTS == 0) GTEST_SKIP() << "the sanitizers count differently";
  constexpr std::pair<Transport, Protocol> kWays[] = {{Transport::kUc, Protocol::kSendSend},
                                                      {Transport::kUc, Protocol::kWriteWrite},
                                                      {Transport::kUd, Protocol::kSendSend}};
  for (const auto& [transport, protocol] : kWays) {
    for (uint32_t pending : {1u, 16u}) {
      Case c;
      c.protocol = protocol;
      c.transport = transport;
      c.pending = pending;
      run(c);
      if (testing::Test::IsSkipped()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, RpcDataPathTest,
                         testing::ValuesIn(all_protocols().begin(), all_protocols().end()),
                         test::printed_name<Protocol>);

}  // namespace
}  // namespace verbena::rpc_test
