// Peers that finish the handshake and then break the protocol: what the tests of both kinds share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
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
struct Side {
  Device device;
  ProtectionDomain domain;
};

inline Result<Side> open_side() {
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  return Side{std::move(device), std::move(domain)};
}

// A side of a connection by its handshake, and after that whatever a test wants to send.
template <typename Outgoing, typename Incoming>
class HostileEnd {
 public:
  // Joins the peer at the other end of `control`, with which the design is agreed.
  static Result<std::unique_ptr<HostileEnd>> join(Side& side, ControlConnection& control,
                                                  const rpc::EndOptions& options) {
    auto hostile = std::make_unique<HostileEnd>();
    auto mine = hostile->end_.prepare(side.device, side.domain, options);
    VERBENA_ASSIGN_OR_RETURN(hostile->peer_,
                             rpc::join(control, hostile->end_.endpoint(), std::move(mine),
                                       hostile->end_.needs(), kTimeoutNs));
    hostile->end_.start(hostile->peer_);
    return hostile;
  }

  const rpc::EndpointTerms& peer() const { return peer_; }

  // Overwrites the peer's slots with `bytes`, from their start on.
  void write(const std::vector<char>& bytes) {
    post(bytes, [this](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
      channel::set_write(request, address, lkey, peer_.slots_address, peer_.slots_rkey);
    });
  }
  void write_with_immediate(const std::vector<char>& bytes, uint32_t immediate) {
    post(bytes, [&](channel::SlotRequest& request, uint64_t address, uint32_t lkey) {
      channel::set_write_with_immediate(request, address, lkey, peer_.slots_address,
                                        peer_.slots_rkey, immediate);
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
    request.request.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* rejected = nullptr;
    int error = ENOMEM;
    // Where many are sent, they have to wait for room, unless the peer has ended it.
    const uint64_t start_ns = now_ns();
    while ((error = ibv_post_send(endpoint.queue_pair.get(), &request.request, &rejected)) ==
               ENOMEM &&
           now_ns() - start_ns < uint64_t{kTimeoutNs}) {
      ibv_wc completion;
      if (ibv_poll_cq(endpoint.send_completions->get(), 1, &completion) == 1 &&
          completion.status != IBV_WC_SUCCESS) {
        return;
      }
    }
    ASSERT_EQ(error, 0);
  }

  rpc::ConnectionEnd<Outgoing, Incoming, false> end_;
  rpc::EndpointTerms peer_;
};

template <typename Design>
using HostileRequester =
    HostileEnd<typename Design::RequestChannel, typename Design::ResponseChannel>;
template <typename Design>
using HostileResponder =
    HostileEnd<typename Design::ResponseChannel, typename Design::RequestChannel>;

class RpcHostileTest : public testing::Test {
 protected:
  void SetUp() override {
    auto side = open_side();
    if (!side.ok()) GTEST_SKIP() << "no " << test_device() << " here: " << side.status().message();
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
      endless.messages = thinned(200);
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
      const auto agreed =
          rpc::propose_design(Design::kProtocol, Design::kLayout, side->device, control, options);
      ASSERT_TRUE(agreed.ok()) << agreed.status().message();
      auto requester = HostileRequester<Design>::join(*side, control, rpc::end_options(options));
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
    EXPECT_THAT((*responder)->status(1).message(), testing::HasSubstr("the requester 127.0.0.1:"));
    EXPECT_THAT((*responder)->status(1).message(), testing::HasSubstr(reason));
    attack_seen = true;
    serve(**responder, server);
    good.join();
    hostile.join();
  }

  // A requester whose responder, once a request is out in slot 0, does `attack`. The requester ends
  // the connection for `reason`, and delivers nothing.
  template <typename Design, typename Attack>
  void expect_reported(const char* reason, Attack&& attack) {
    SCOPED_TRACE(std::string(protocol_name(Design::kProtocol)) + " " +
                 mark_layout_name(Design::kLayout));
    Case c;
    c.protocol = Design::kProtocol;
    c.layout = Design::kLayout;
    c.pending = 2;
    std::atomic<bool> posted{false};
    std::atomic<bool> seen{false};
    Thread hostile = start_thread("hostile", [&] {
      auto side = open_side();
      ASSERT_TRUE(side.ok()) << side.status().message();
      ControlConnection control = connect();
      rpc::Terms offered;
      offered.protocol = c.protocol;
      offered.layout = c.layout;
      offered.writes_in_order = true;
      offered.request_max_bytes = offered.response_max_bytes = 4096;
      offered.pending = c.pending;
      const auto agreed = rpc::consider(control, offered, kTimeoutNs);
      ASSERT_TRUE(agreed.ok()) << agreed.status().message();
      rpc::EndOptions options;
      options.outgoing_max_bytes = c.response_max_bytes;
      options.incoming_max_bytes = c.request_max_bytes;
      options.pending = c.pending;
      auto responder = HostileResponder<Design>::join(*side, control, options);
      ASSERT_TRUE(responder.ok()) << responder.status().message();
      Waiter waiter;
      while (!posted) waiter.idle();
      attack(**responder);
      while (!seen) waiter.idle();
    });
    ControlConnection control = accept();
    auto requester = make_requester(c.protocol, c.layout, side_->device, side_->domain, control,
                                    requester_options(c));
    ASSERT_TRUE(requester.ok()) << requester.status().message();
    ASSERT_EQ((*requester)->try_post(0, 1), PostResult::kPosted);
    posted = true;
    Waiter waiter;
    const uint64_t start_ns = now_ns();
    while ((*requester)->status().ok() && now_ns() - start_ns < kTimeoutNs) {
      EXPECT_EQ((*requester)->poll([](uint32_t, std::span<const char>) {}), 0u);
      waiter.idle();
    }
    EXPECT_EQ((*requester)->status().code(), StatusCode::kProtocolViolation);
    EXPECT_THAT((*requester)->status().message(), testing::HasSubstr("the responder 127.0.0.1:"));
    EXPECT_THAT((*requester)->status().message(), testing::HasSubstr(reason));
    seen = true;
    hostile.join();
  }

  // Calls `function` for each design whose requests (responses) travel by such a channel.
  template <typename Wanted, typename Function>
  static void for_each_design(Wanted&& wanted, Function&& function) {
    for (const Protocol protocol : all_protocols()) {
      for (const MarkLayout layout : all_mark_layouts()) {
        if (!uses_mark_layout(protocol) && layout != MarkLayout::kImmediate) continue;
        rpc::with_design_point(protocol, layout, [&]<typename Design>() {
          if constexpr (rpc::ChannelPair<Design>) {
            if (wanted.template operator()<Design>()) function.template operator()<Design>();
          }
        });
      }
    }
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<Side> side_;
  std::optional<ControlListener> listener_;
};

}  // namespace verbena::rpc_test
