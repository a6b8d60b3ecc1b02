// Peers that finish the handshake and then break the protocol: the other side says so, ends that
// connection only, and never touches memory it should not (run it with the sanitizers).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/channel/work_request.h"
#include "src/rpc/connection_end.h"
#include "src/rpc/designs.h"
#include "src/rpc/handshake.h"
#include "src/rpc/requester_control.h"
#include "tests/rpc_support.h"

namespace verbena::rpc_test {
namespace {

using channel::MessageTag;
using testing::HasSubstr;

struct Side {
  Device device;
  ProtectionDomain domain;
};

Result<Side> open_side() {
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(kDevice));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  return Side{std::move(device), std::move(domain)};
}

// A requester by its handshake, and after that whatever a test wants to send.
template <typename Design>
class HostileRequester {
 public:
  static Result<std::unique_ptr<HostileRequester>> create(Side& side, ControlConnection& control,
                                                          const RequesterOptions& options) {
    VERBENA_ASSIGN_OR_RETURN(
        const rpc::Terms agreed,
        rpc::propose_design(Design::kProtocol, Design::kLayout, side.device, control, options));
    static_cast<void>(agreed);
    auto hostile = std::make_unique<HostileRequester>();
    auto mine = hostile->end_.prepare(side.device, side.domain, rpc::end_options(options));
    VERBENA_ASSIGN_OR_RETURN(hostile->peer_,
                             rpc::join(control, hostile->end_.endpoint(), std::move(mine),
                                       hostile->end_.needs(), options.handshake_timeout_ns));
    hostile->end_.start(hostile->peer_);
    return hostile;
  }

  const rpc::EndpointTerms& peer() const { return peer_; }

  // Overwrites the responder's slots with `bytes` from their start.
  void write(const std::vector<char>& bytes) {
    post(bytes, [this](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
      channel::set_write(request, address, lkey, peer_.slots_address, peer_.slots_rkey);
    });
  }
  void send(const std::vector<char>& bytes, uint32_t immediate) {
    post(bytes, [immediate](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
      channel::set_send(request, address, lkey, immediate);
    });
  }
  void send_without_immediate(const std::vector<char>& bytes) {
    post(bytes, [](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
      channel::set_send(request, address, lkey, 0);
      request.request.opcode = IBV_WR_SEND;
    });
  }

 private:
  template <typename Prepare>
  void post(const std::vector<char>& bytes, Prepare&& prepare) {
    rpc::Endpoint& endpoint = *end_.endpoint();
    ASSERT_LE(bytes.size(), endpoint.arena.size_bytes());
    std::memcpy(endpoint.arena.data(), bytes.data(), bytes.size());
    channel::SlotRequest request;
    prepare(request, reinterpret_cast<uint64_t>(endpoint.arena.data()), endpoint.arena.lkey());
    channel::set_size_or_empty(request, static_cast<uint32_t>(bytes.size()), 0);
    ibv_send_wr* rejected = nullptr;
    ASSERT_EQ(ibv_post_send(endpoint.queue_pair.get(), &request.request, &rejected), 0);
  }

  rpc::ConnectionEnd<typename Design::RequestChannel, typename Design::ResponseChannel, false> end_;
  rpc::EndpointTerms peer_;
};

class RpcHostileTest : public testing::Test {
 protected:
  void SetUp() override {
    auto side = open_side();
    if (!side.ok()) GTEST_SKIP() << "no soft0 here: " << side.status().message();
    side_.emplace(std::move(*side));
    auto listener = ControlListener::listen("127.0.0.1", 0, secret_);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_.emplace(std::move(*listener));
  }

  ControlConnection connect() {
    auto control = ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kTimeoutNs);
    EXPECT_TRUE(control.ok()) << control.status().message();
    return std::move(*control);
  }
  ControlConnection accept() {
    auto control = listener_->accept(kTimeoutNs);
    EXPECT_TRUE(control.ok()) << control.status().message();
    return std::move(*control);
  }

  // A responder with two requesters: a good one, that works all the time, and a hostile one that
  // does `attack`. The responder ends the hostile one's connection for `reason`, and only that.
  template <typename Design, typename Attack>
  void expect_ended(const char* reason, Attack&& attack) {
    SCOPED_TRACE(std::string(protocol_name(Design::kProtocol)) + " " +
                 mark_layout_name(Design::kLayout));
    Case c;
    c.protocol = Design::kProtocol;
    c.layout = Design::kLayout;
    c.pending = 2;
    c.request_max_bytes = 256;
    c.max_connections = 2;
    auto responder = make_responder(c.protocol, c.layout, side_->device, side_->domain,
                                    responder_options(c, {}));
    ASSERT_TRUE(responder.ok()) << responder.status().message();

    std::atomic<bool> attack_seen{false};
    Thread good = start_thread("good", [&] {
      auto side = open_side();
      ASSERT_TRUE(side.ok()) << side.status().message();
      ControlConnection control = connect();
      auto requester = make_requester(c.protocol, c.layout, side->device, side->domain, control,
                                      requester_options(c));
      ASSERT_TRUE(requester.ok()) << requester.status().message();
      Case endless = c;
      endless.messages = 200;
      do {
        const Outcome outcome = Client(endless).run(**requester, [](uint64_t) {});
        ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
        ASSERT_EQ(outcome.wrong, 0u);
      } while (!attack_seen);
    });
    ControlConnection good_control = accept();
    ASSERT_TRUE((*responder)->connect(good_control).ok());

    Thread hostile = start_thread("hostile", [&] {
      auto side = open_side();
      ASSERT_TRUE(side.ok()) << side.status().message();
      ControlConnection control = connect();
      RequesterOptions options = requester_options(c);
      options.request_max_bytes = 64;
      auto requester = HostileRequester<Design>::create(*side, control, options);
      ASSERT_TRUE(requester.ok()) << requester.status().message();
      attack(**requester);
      Waiter waiter;
      while (!attack_seen) waiter.idle();
    });
    ControlConnection hostile_control = accept();
    ASSERT_TRUE((*responder)->connect(hostile_control).ok());

    Server server;
    Waiter waiter;
    const uint64_t start_ns = now_ns();
    while ((*responder)->connections() == 2 && now_ns() - start_ns < kTimeoutNs) {
      (*responder)->poll(server) > 0 ? waiter.progress() : waiter.idle();
    }
    EXPECT_EQ((*responder)->connections(), 1u);
    EXPECT_TRUE((*responder)->status().ok()) << "the good one works on";
    EXPECT_TRUE((*responder)->status(0).ok()) << (*responder)->status(0).message();
    EXPECT_EQ((*responder)->status(1).code(), StatusCode::kProtocolViolation);
    EXPECT_THAT((*responder)->status(1).message(), HasSubstr("the requester 127.0.0.1:"));
    EXPECT_THAT((*responder)->status(1).message(), HasSubstr(reason));
    attack_seen = true;
    serve(**responder, server);
    good.join();
    hostile.join();
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<Side> side_;
  std::optional<ControlListener> listener_;
};

TEST_F(RpcHostileTest, GarbageInPolledSlots) {
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
