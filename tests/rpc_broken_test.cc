// A queue pair that breaks at one side, while both processes live on and keep their control
// connections: both sides learn of it.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <utility>

#include "tests/rpc_support.h"
#include "tests/support/parameter_names.h"
#include "verbena/fault.h"

namespace verbena::rpc_test {
namespace {

// Everything that is sent waits, and then its queue pair breaks before it was posted.
FaultPlan broken() {
  FaultPlan plan;
  plan.delay = {.probability = 1, .duration_ns = 3'600'000'000'000};
  plan.queue_pair_error = 1;
  return plan;
}

class RpcBrokenTest : public testing::TestWithParam<Protocol> {
 protected:
  void SetUp() override {
    auto listener = ControlListener::listen("127.0.0.1", 0, secret_);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_.emplace(std::move(*listener));
  }

  // One request is made; both sides must say that its connection broke.
  void run(const FaultPlan& requester_faults, const FaultPlan& responder_faults) {
    Thread thread = start_thread("requester", [&] { request(requester_faults); });
    auto device = Device::open(test_device(), responder_faults);
    ASSERT_TRUE(device.ok()) << device.status().message();
    auto domain = ProtectionDomain::create(*device);
    ASSERT_TRUE(domain.ok());
    std::vector<char> readable = readable_memory();
    auto responder = make_responder(case_.protocol, case_.layout, *device, *domain,
                                    responder_options(case_, readable));
    ASSERT_TRUE(responder.ok()) << responder.status().message();
    auto control = listener_->accept(kTimeoutNs);
    ASSERT_TRUE(control.ok()) << control.status().message();
    ASSERT_TRUE((*responder)->connect(*control).ok());
    Server server;
    Waiter waiter;
    const uint64_t start_ns = now_ns();
    while ((*responder)->status().ok() && now_ns() - start_ns < kTimeoutNs) {
      (*responder)->poll(server);
      waiter.idle();
    }
    EXPECT_EQ((*responder)->status().code(), StatusCode::kUnavailable);
    responder_knows_ = true;
    thread.join();
    EXPECT_EQ(requester_status_.code(), StatusCode::kUnavailable) << "the requester waits for ever";
  }

  Case case_;

 private:
  void request(const FaultPlan& faults) {
    auto device = Device::open(test_device(), faults);
    ASSERT_TRUE(device.ok()) << device.status().message();
    auto domain = ProtectionDomain::create(*device);
    ASSERT_TRUE(domain.ok());
    auto control = ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kTimeoutNs);
    ASSERT_TRUE(control.ok()) << control.status().message();
    auto requester = make_requester(case_.protocol, case_.layout, *device, *domain, *control,
                                    requester_options(case_));
    ASSERT_TRUE(requester.ok()) << requester.status().message();
    const ReadRequest read = {8, 64};
    std::memcpy((*requester)->request_buffer(0), &read, sizeof(read));
    EXPECT_EQ((*requester)->try_post(0, sizeof(read)), PostResult::kPosted);
    Waiter waiter;
    const uint64_t start_ns = now_ns();
    while ((*requester)->status().ok() && now_ns() - start_ns < kTimeoutNs / 2) {
      EXPECT_EQ((*requester)->poll([](uint32_t, std::span<const char>) {}), 0u);
      waiter.idle();
    }
    requester_status_ = (*requester)->status();
    // Leaving would tell the responder.
    while (!responder_knows_) waiter.idle();
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<ControlListener> listener_;
  Status requester_status_;
  std::atomic<bool> responder_knows_{false};
};

// Of protocols whose responders post; with READ they do not.
class RpcBrokenResponderTest : public RpcBrokenTest {};

TEST_P(RpcBrokenResponderTest, BothLearnThatTheRespondersQueuePairBroke) {
  case_.protocol = GetParam();
  run(FaultPlan(), broken());
}

TEST_P(RpcBrokenTest, BothLearnThatTheRequestersQueuePairBroke) {
  case_.protocol = GetParam();
  run(broken(), FaultPlan());
}

INSTANTIATE_TEST_SUITE_P(Of, RpcBrokenTest, testing::ValuesIn(all_protocols()),
                         test::printed_name<Protocol>);
INSTANTIATE_TEST_SUITE_P(Of, RpcBrokenResponderTest,
                         testing::Values(Protocol::kSendSend, Protocol::kSendWrite,
                                         Protocol::kWriteSend, Protocol::kWriteWrite),
                         test::printed_name<Protocol>);

}  // namespace
}  // namespace verbena::rpc_test
