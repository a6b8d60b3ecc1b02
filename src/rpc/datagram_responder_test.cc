#include "src/rpc/datagram_responder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/rpc/raw_end_for_test.h"
#include "verbena/device.h"

namespace verbena::rpc {
namespace {

using testing::HasSubstr;

constexpr uint32_t kOddPending = 3;  // so that a fourth slot of each connection is nobody's

// A responder in this thread, and ends that send to it what the test says.
class DatagramResponderTest : public testing::Test {
 protected:
  void SetUp() override {
    device_.emplace(Device::open("soft0"));
    if (!device_->ok()) GTEST_SKIP() << device_->status().message();
    domain_.emplace(ProtectionDomain::create(**device_));
    listener_.emplace(ControlListener::listen("127.0.0.1", 0, secret_));
    ASSERT_TRUE(domain_->ok() && listener_->ok());
    make_responder(options());
  }

  static ResponderOptions options() {
    ResponderOptions options;
    options.pending = kOddPending;
    options.max_connections = 2;
    options.transport = Transport::kUd;
    options.handshake_timeout_ns = kLongNs;
    return options;
  }

  void make_responder(const ResponderOptions& options) {
    auto responder = DatagramResponder::create(**device_, **domain_, options);
    ASSERT_TRUE(responder.ok()) << responder.status().message();
    responder_ = std::move(*responder);
  }

  // One more requester; what it expects to be asked next is `generation`.
  struct Requester : RawEnd {
    using RawEnd::RawEnd;
    uint32_t generation = 0;

    // Sends the next request of slot 0.
    void ask(const std::string& text) {
      generation = end.generations().next(generation);
      send(0, generation, text);
    }
  };
  Requester& connect(Status* status = nullptr) {
    auto& raw = *requesters_.emplace_back(std::make_unique<std::optional<Requester>>());
    Thread thread = start_thread("peer", [&] {
      auto control =
          ControlConnection::connect("127.0.0.1", (*listener_)->port(), secret_, kLongNs);
      ASSERT_TRUE(control.ok()) << control.status().message();
      raw.emplace(std::move(*control));
      RequesterOptions options;
      options.pending = kOddPending;
      options.transport = Transport::kUd;
      options.handshake_timeout_ns = kLongNs;
      ASSERT_TRUE(request_design(Protocol::kSendSend, MarkLayout::kImmediate, **device_,
                                 raw->control, options)
                      .ok());
      const auto mine = raw->end.prepare(Transport::kUd, Protocol::kSendSend, **device_, **domain_,
                                         end_options(options));
      const auto theirs = join(raw->control, raw->end.endpoint(), mine, raw->end.needs(), kLongNs);
      if (!theirs.ok()) return;
      raw->end.start(*theirs);
      raw->generation = raw->end.generations().bounded(theirs->generation);
    });
    auto control = (*listener_)->accept(kLongNs);
    EXPECT_TRUE(control.ok()) << control.status().message();
    controls_.push_back(std::make_unique<ControlConnection>(std::move(*control)));
    const Status connected = responder_->connect(*controls_.back());
    thread.join();
    if (status != nullptr) {
      *status = connected;
    } else {
      EXPECT_TRUE(connected.ok()) << connected.message();
    }
    return *raw;
  }

  // Takes what has come: each answer is the number of the connection and what it asked.
  void answer() {
    for (int look = 0; look < 10; ++look) {
      responder_->poll([this](const Request& request, std::span<char> response) {
        const std::string text = std::to_string(request.connection) + ":" +
                                 std::string(request.bytes.data(), request.bytes.size());
        requests_.push_back(text);
        if (request.bytes.size() == 5 && std::memcmp(request.bytes.data(), "break", 5) == 0) {
          return kBreakConnection;
        }
        std::memcpy(response.data(), text.data(), text.size());
        return static_cast<uint32_t>(text.size());
      });
    }
  }
  void expect_answer(Requester& requester, const std::string& text) {
    answer();
    ASSERT_TRUE(requester.arrival().has_value()) << text;
    EXPECT_EQ(requester.text(), text);
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<Result<Device>> device_;
  std::optional<Result<ProtectionDomain>> domain_;
  std::optional<Result<ControlListener>> listener_;
  std::vector<std::unique_ptr<ControlConnection>> controls_;  // outlive the responder
  std::vector<std::unique_ptr<std::optional<Requester>>> requesters_;
  std::unique_ptr<DatagramResponder> responder_;
  std::vector<std::string> requests_;  // that the handler saw
};

TEST_F(DatagramResponderTest, OneQueuePairAnswersEachRequester) {
  Requester& first = connect();
  Requester& second = connect();
  ibv_send_wr to_first{};
  ibv_send_wr to_second{};
  first.end.queue_pair().set_destination(to_first);
  second.end.queue_pair().set_destination(to_second);
  EXPECT_EQ(to_first.wr.ud.remote_qpn, to_second.wr.ud.remote_qpn);
  for (int round = 0; round < 100; ++round) {
    first.ask("a");
    second.ask("b");
    expect_answer(first, "0:a");
    expect_answer(second, "1:b");
  }
  EXPECT_EQ(responder_->statistics(0).requests, 100u);
  EXPECT_EQ(responder_->statistics(1).requests, 100u);
}

TEST_F(DatagramResponderTest, ACopyGetsTheKeptResponse) {
  Requester& requester = connect();
  requester.ask("x");
  expect_answer(requester, "0:x");
  requester.send(0, requester.generation, "y");
  expect_answer(requester, "0:x");
  EXPECT_EQ(requests_, std::vector<std::string>{"0:x"});
}

TEST_F(DatagramResponderTest, SlotsOfOthersAreOutOfReach) {
  Requester& first = connect();
  Requester& second = connect();
  // What the second would send next, from the first one's queue pair.
  ibv_send_wr request{};
  first.end.queue_pair().set_destination(request);
  request.opcode = IBV_WR_SEND_WITH_IMM;
  const uint32_t generation = second.end.generations().next(second.generation);
  request.imm_data = htonl(second.end.generations().immediate(0, generation));
  ibv_send_wr* rejected = nullptr;
  ASSERT_EQ(ibv_post_send(first.end.queue_pair().get(), &request, &rejected), 0);
  answer();
  EXPECT_TRUE(requests_.empty());
  second.ask("mine");
  expect_answer(second, "1:mine");
  EXPECT_TRUE(responder_->status(0).ok() && responder_->status(1).ok());
}

TEST_F(DatagramResponderTest, ASlotThatIsNobodysEndsTheConnection) {
  Requester& first = connect();
  Requester& second = connect();
  ibv_send_wr request{};
  first.end.queue_pair().set_destination(request);
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm_data = htonl(first.end.generations().immediate(kOddPending, 1));
  ibv_send_wr* rejected = nullptr;
  ASSERT_EQ(ibv_post_send(first.end.queue_pair().get(), &request, &rejected), 0);
  answer();
  EXPECT_EQ(responder_->status(0).code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(responder_->status(0).message(), HasSubstr("a slot that it does not have"));
  second.ask("still here");
  expect_answer(second, "1:still here");
}

// A device fails a queue pair that gets more than a receive has room for; here all share it.
TEST_F(DatagramResponderTest, ARequestThatIsTooLongEndsItsConnectionAlone) {
  constexpr uint32_t kMostBytes = 4096;  // of a datagram
  auto bytes = RegisteredArena::create(**domain_, kMostBytes, 0);
  ASSERT_TRUE(bytes.ok());
  Requester* longest = &connect();
  Requester& other = connect();
  const uint32_t most = options().request_max_bytes;
  for (const uint32_t length : {most + 1, (*device_)->info().active_mtu_bytes, kMostBytes}) {
    ibv_sge entry = {
        .addr = reinterpret_cast<uint64_t>(bytes->data()), .length = length, .lkey = bytes->lkey()};
    ibv_send_wr request{};
    longest->end.queue_pair().set_destination(request);
    request.opcode = IBV_WR_SEND_WITH_IMM;
    request.sg_list = &entry;
    request.num_sge = 1;
    request.imm_data = htonl(longest->end.generations().immediate(
        0, longest->end.generations().next(longest->generation)));
    ibv_send_wr* rejected = nullptr;
    ASSERT_EQ(ibv_post_send(longest->end.queue_pair().get(), &request, &rejected), 0);
    answer();
    EXPECT_EQ(responder_->status(0).code(), StatusCode::kProtocolViolation) << length;
    EXPECT_THAT(responder_->status(0).message(), HasSubstr("larger than agreed"));
    other.ask("still here");
    expect_answer(other, "1:still here");
    longest = &connect();
    ASSERT_EQ(responder_->latest_connection(), 0u);
  }
}

TEST_F(DatagramResponderTest, AnEndedConnectionsNumberIsTakenAnew) {
  Requester& first = connect();
  Requester& second = connect();
  Status full;
  connect(&full);
  EXPECT_EQ(full.code(), StatusCode::kLimitExceeded);
  first.ask("break");
  answer();
  EXPECT_EQ(responder_->status(0).code(), StatusCode::kProtocolViolation);
  first.ask("no more");
  answer();
  EXPECT_EQ(first.arrival(), std::nullopt);
  Requester& third = connect();
  EXPECT_EQ(responder_->latest_connection(), 0u);
  first.send(0, third.end.generations().next(third.generation), "not the third's");
  third.ask("c");
  expect_answer(third, "0:c");
  second.ask("b");
  expect_answer(second, "1:b");
  EXPECT_EQ(first.arrival(), std::nullopt);
  EXPECT_EQ(requests_, (std::vector<std::string>{"0:break", "0:c", "1:b"}));
}

TEST_F(DatagramResponderTest, AfterAnErrorOfTheQueuePairTheNextConnectionHasANewOne) {
  Requester& first = connect();
  Requester& second = connect();
  first.ask("a");
  expect_answer(first, "0:a");
  ASSERT_TRUE(responder_->queue_pair().to_error().ok());
  answer();
  EXPECT_EQ(responder_->status(0).code(), StatusCode::kUnavailable);
  EXPECT_EQ(responder_->status(1).code(), StatusCode::kUnavailable);
  EXPECT_FALSE(responder_->status().ok());
  Requester& third = connect();
  EXPECT_TRUE(responder_->status().ok());
  second.ask("to nobody");
  third.ask("c");
  expect_answer(third, "0:c");
}

TEST_F(DatagramResponderTest, AFailedQueuePairIsReplacedThoughNobodyPolledIt) {
  Requester& first = connect();
  first.ask("a");
  expect_answer(first, "0:a");
  ASSERT_TRUE(responder_->queue_pair().to_error().ok());
  Requester& second = connect();
  EXPECT_EQ(responder_->connections(), 1u);
  second.ask("b");
  expect_answer(second, "0:b");
}

TEST_F(DatagramResponderTest, MoreSlotsThanAnImmediateNamesAreRefused) {
  ResponderOptions too_many = options();
  too_many.max_connections = 4096;
  too_many.pending = 17;
  const auto refused = DatagramResponder::create(**device_, **domain_, too_many);
  EXPECT_EQ(refused.status().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(refused.status().message(), HasSubstr("more than the 65536 slots"));
  EXPECT_THAT(refused.status().message(), HasSubstr("kPerConnection"));
}

}  // namespace
}  // namespace verbena::rpc
