// Peers that finish the handshake and then break the protocol: the other side says so, ends that
// connection only, and never touches memory it should not (run it with the sanitizers).
#include "tests/rpc_hostile.h"

namespace verbena::rpc_test {
namespace {

using channel::MessageTag;
using testing::HasSubstr;

TEST_F(RpcHostileTest, GarbageInPolledSlots) {
  if (!side_->device.info().writes_in_order) {
    GTEST_SKIP() << "on " << test_device() << " nobody polls slots: it does not WRITE in order";
  }
  const auto attack = [](auto& requester) { requester.write(std::vector<char>(128, '\xee')); };
  for (MarkLayout layout :
       {MarkLayout::kLastBit, MarkLayout::kLengthMarkers, MarkLayout::kHeadTail}) {
    rpc::with_mark_layout<rpc::WriteWrite>(
        layout, [&]<typename Design>() { expect_ended<Design>("completion mark", attack); });
    rpc::with_mark_layout<rpc::WriteSend>(
        layout, [&]<typename Design>() { expect_ended<Design>("completion mark", attack); });
  }
}

TEST_F(RpcHostileTest, SendsThatNameNothing) {
  const std::vector<char> text(10, 'x');
  expect_ended<rpc::SendSend<>>("another verb than agreed",
                                [&](auto& requester) { requester.send_without_immediate(text); });
  expect_ended<rpc::SendSend<>>("a slot that it does not have", [&](auto& requester) {
    requester.send(text, MessageTag{requester.peer().connection, 2}.immediate());
  });
  expect_ended<rpc::SendSend<>>("a slot that it does not have", [&](auto& requester) {
    requester.send(text, MessageTag{0, 0}.immediate());  // the good one's connection
  });
  expect_ended<rpc::SendSend<>>("a slot that it does not have",
                                [&](auto& requester) { requester.send(text, ~0u); });
}

// Its responses cannot leave: that is its problem alone.
TEST_F(RpcHostileTest, RequestsWithoutEndWhoseResponsesNobodyTakes) {
  expect_ended<rpc::SendSend<>>("without taking responses", [&](auto& requester) {
    for (int i = 0; i < 200; ++i) {
      requester.send(std::vector<char>(10, 'x'),
                     MessageTag{requester.peer().connection, 0}.immediate());
    }
  });
}

TEST_F(RpcHostileTest, SendsThatAreLargerThanAgreed) {
  // They fit the shared buffers, which are made for larger requesters, but not this one's terms.
  expect_ended<rpc::SendWrite<channel::LastBitMark>>("larger than agreed", [](auto& requester) {
    requester.send(std::vector<char>(100, 'x'),
                   MessageTag{requester.peer().connection, 0}.immediate());
  });
}

// A responder that answers what nobody asked.
TEST_F(RpcHostileTest, ResponsesWithoutARequest) {
  Case c;
  c.protocol = Protocol::kSendSend;
  c.pending = 2;
  std::atomic<bool> seen{false};
  Thread hostile = start_thread("hostile", [&] {
    auto side = open_side();
    ASSERT_TRUE(side.ok()) << side.status().message();
    ControlConnection control = connect();
    rpc::Terms offered;
    offered.protocol = c.protocol;
    offered.writes_in_order = true;
    offered.request_max_bytes = offered.response_max_bytes = 4096;
    offered.pending = c.pending;
    const auto agreed = rpc::consider(control, offered, kTimeoutNs);
    ASSERT_TRUE(agreed.ok()) << agreed.status().message();
    rpc::ConnectionEnd<channel::SendChannel, channel::SendChannel, false> end;
    rpc::EndOptions options;
    options.outgoing_max_bytes = options.incoming_max_bytes = 256;
    options.pending = c.pending;
    auto mine = end.prepare(side->device, side->domain, options);
    const auto peer = rpc::join(control, end.endpoint(), std::move(mine), end.needs(), kTimeoutNs);
    ASSERT_TRUE(peer.ok()) << peer.status().message();
    end.start(*peer);
    ASSERT_TRUE(end.sender().post(1, 5));
    Waiter waiter;
    while (!seen) waiter.idle();
  });
  ControlConnection control = accept();
  auto requester = make_requester(c.protocol, c.layout, side_->device, side_->domain, control,
                                  requester_options(c));
  ASSERT_TRUE(requester.ok()) << requester.status().message();
  ASSERT_EQ((*requester)->try_post(0, 1), PostResult::kPosted);  // slot 0, not 1
  Waiter waiter;
  const uint64_t start_ns = now_ns();
  while ((*requester)->status().ok() && now_ns() - start_ns < kTimeoutNs) {
    (*requester)->poll([](uint32_t slot, std::span<const char>) {
      EXPECT_EQ(slot, 1u) << "never";
    });
    waiter.idle();
  }
  EXPECT_EQ((*requester)->status().code(), StatusCode::kProtocolViolation);
  EXPECT_THAT((*requester)->status().message(), HasSubstr("a slot that waits for none"));
  seen = true;
  hostile.join();
}

}  // namespace
}  // namespace verbena::rpc_test
