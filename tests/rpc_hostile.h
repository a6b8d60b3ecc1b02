// Peers that finish the handshake and then break the protocol: what the tests of both kinds share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc_hostile_end.h"
#include "tests/rpc_peer.h"

namespace verbena::rpc_test {

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

  template <typename Design>
  static Case case_of() {
    Case c;
    c.protocol = Design::kProtocol;
    c.layout = Design::kLayout;
    c.pending = 2;
    return c;
  }
  // What the hostile requester asks for.
  template <typename Design>
  static Case hostile_case_of() {
    Case c = case_of<Design>();
    c.request_max_bytes = 64;
    return c;
  }

  // A responder with two requesters: a good one, that works all the time, and a hostile one, a
  // thread of this process that does `attack`. The responder ends the hostile one's connection for
  // `reason`, and only that.
  template <typename Design, typename Attack>
  void expect_ended(const char* reason, Attack&& attack) {
    std::atomic<bool> attack_seen{false};
    Thread hostile;
    expect_one_ended(case_of<Design>(), reason, attack_seen, [&] {
      hostile = start_thread("hostile", [&] {
        auto side = open_side();
        ASSERT_TRUE(side.ok()) << side.status().message();
        ControlConnection control = connect();
        auto requester = join_hostile_requester<Design>(*side, control, hostile_case_of<Design>());
        ASSERT_TRUE(requester.ok()) << requester.status().message();
        attack(**requester);
        Waiter waiter;
        while (!attack_seen) waiter.idle();
      });
      return accept();
    });
    hostile.join();
  }

  // The same with a hostile one in another process.
  template <typename Design>
  void expect_other_process_ended(const char* reason, const HostileTask& task) {
    std::atomic<bool> attack_seen{false};
    std::optional<PeerProcess> hostile;
    expect_one_ended(case_of<Design>(), reason, attack_seen, [&] {
      hostile.emplace("rpc_hostile_process", listener_->port(), secret_);
      ControlConnection control = accept();
      EXPECT_TRUE(control.send_value(kHostileTaskType, task).ok());
      return control;
    });
    EXPECT_EQ(hostile->wait(), 0);
  }

  // What both rest on. `start_hostile()` returns the responder's control connection to the hostile
  // one.
  template <typename StartHostile>
  void expect_one_ended(Case c, const char* reason, std::atomic<bool>& attack_seen,
                        StartHostile&& start_hostile) {
    SCOPED_TRACE(name_of(c));
    c.request_max_bytes = 256;
    c.max_connections = 2;
    auto responder = make_responder(c.protocol, c.layout, side_->device, side_->domain,
                                    responder_options(c, {}));
    ASSERT_TRUE(responder.ok()) << responder.status().message();

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
    ControlConnection hostile_control = start_hostile();
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
  }

  // A requester whose responder, once a request is out in slot 0, does `attack`. The requester ends
  // the connection for `reason`, and delivers nothing.
  template <typename Design, typename Attack>
  void expect_reported(const char* reason, Attack&& attack) {
    const Case c = case_of<Design>();
    SCOPED_TRACE(name_of(c));
    std::atomic<bool> posted{false};
    std::atomic<bool> seen{false};
    Thread hostile = start_thread("hostile", [&] {
      auto side = open_side();
      ASSERT_TRUE(side.ok()) << side.status().message();
      ControlConnection control = connect();
      rpc::DesignRequest offered;
      offered.protocol = c.protocol;
      offered.layout = c.layout;
      offered.writes_in_order = true;
      offered.request_max_bytes = offered.response_max_bytes = 4096;
      offered.pending = c.pending;
      const auto agreed = rpc::accept_design(control, offered, kTimeoutNs);
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
