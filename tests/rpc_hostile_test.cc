// Peers that finish the handshake and then break the protocol: the other side says so, ends that
// connection only, and never touches memory it should not (run it with the sanitizers).
#include "tests/rpc_hostile.h"

namespace verbena::rpc_test {
namespace {

using channel::MessageImmediate;

TEST_F(RpcHostileTest, GarbageInPolledSlots) {
  if (!side_->device.info().writes_in_order) {
    GTEST_SKIP() << "on " << test_device() << " nobody polls slots: it does not WRITE in order";
  }
  const auto attack = [](auto& requester) { requester.write(std::vector<char>(128, '\xee')); };
  for (MarkLayout layout :
       {MarkLayout::kLastBit, MarkLayout::kLengthMarkers, MarkLayout::kHeadTail}) {
    const auto ended = [&]<typename Design>() { expect_ended<Design>("completion mark", attack); };
    rpc::with_mark_layout<Protocol::kWriteWrite, ReceiveQueues::kShared>(layout, ended);
    rpc::with_mark_layout<Protocol::kWriteSend, ReceiveQueues::kShared>(layout, ended);
  }
}

TEST_F(RpcHostileTest, SendsThatNameNothing) {
  const std::vector<char> text(10, 'x');
  expect_ended<rpc::SendSend<>>("another verb than agreed",
                                [&](auto& requester) { requester.send_without_immediate(text); });
  expect_ended<rpc::SendSend<>>("a slot that it does not have", [&](auto& requester) {
    requester.send(text, MessageImmediate{requester.peer().connection, 2}.immediate());
  });
  expect_ended<rpc::SendSend<>>("a slot that it does not have", [&](auto& requester) {
    requester.send(text, MessageImmediate{0, 0}.immediate());  // the good one's connection
  });
  expect_ended<rpc::SendSend<>>("a slot that it does not have",
                                [&](auto& requester) { requester.send(text, ~0u); });
}

// Its responses cannot leave: that is its problem alone.
TEST_F(RpcHostileTest, RequestsWithoutEndWhoseResponsesNobodyTakes) {
  expect_ended<rpc::SendSend<>>("without taking responses", [&](auto& requester) {
    for (int i = 0; i < 200; ++i) {
      requester.send(std::vector<char>(10, 'x'),
                     MessageImmediate{requester.peer().connection, 0}.immediate());
    }
  });
}

TEST_F(RpcHostileTest, SendsThatAreLargerThanAgreed) {
  // They fit the shared buffers, which are made for larger requesters, but not this one's terms.
  expect_ended<rpc::SendWrite<channel::LastBitMark>>("larger than agreed", [](auto& requester) {
    requester.send(std::vector<char>(100, 'x'),
                   MessageImmediate{requester.peer().connection, 0}.immediate());
  });
}

// A responder that answers what nobody asked: slot 0 waits for an answer, slot 1 does not.
TEST_F(RpcHostileTest, ResponsesWithoutARequest) {
  expect_reported<rpc::SendSend<>>("a slot without a pending request", [](auto& responder) {
    responder.send(std::vector<char>(5, 'x'), MessageImmediate{0, 1}.immediate());
  });
}

}  // namespace
}  // namespace verbena::rpc_test
