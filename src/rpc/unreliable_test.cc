#include "src/rpc/unreliable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/rpc/raw_end_for_test.h"
#include "verbena/device.h"

namespace verbena::rpc {
namespace {

using testing::HasSubstr;

TEST(SlotGenerationsTest, SlotAndGenerationComeBack) {
  for (const uint32_t slots : {1u, 2u, 3u, 16u, 17u, kMaxPending}) {
    const SlotGenerations generations(slots);
    for (const uint32_t slot : {0u, slots / 2, slots - 1}) {
      for (const uint32_t generation : {0u, 1u, (1u << 20) - 1}) {
        const uint32_t immediate = generations.immediate(slot, generation);
        EXPECT_EQ(generations.slot(immediate), slot);
        EXPECT_EQ(generations.generation(immediate), generation);
      }
    }
  }
}

TEST(SlotGenerationsTest, APartOfTheSlotsIsCountedFromItsFirst) {
  const SlotGenerations all(kMaxQueuePairSlots);
  const SlotGenerations part(kMaxQueuePairSlots, 48);
  EXPECT_EQ(part.immediate(3, 77), all.immediate(51, 77));
  EXPECT_EQ(part.slot(all.immediate(51, 77)), 3u);
  EXPECT_EQ(part.generation(all.immediate(51, 77)), 77u);
  EXPECT_GT(part.slot(all.immediate(47, 77)), kMaxPending) << "a slot of somebody else";
  EXPECT_EQ(part.next((1u << 16) - 1), 0u);
  EXPECT_EQ(part.bounded(0x12345678), 0x5678u);
}

TEST(SlotGenerationsTest, TheFirstFollowsTheLast) {
  const SlotGenerations most_slots(kMaxPending);
  EXPECT_EQ(most_slots.next(0), 1u);
  EXPECT_EQ(most_slots.next((1u << 20) - 1), 0u);
  EXPECT_EQ(SlotGenerations(16).next((1u << 28) - 1), 0u);
  EXPECT_EQ(SlotGenerations(1).next(~0u), 0u);
}

TEST(UnreliableOptionsTest, SensibleTimesAreTaken) {
  EXPECT_TRUE(check_resending({}).ok());
  RequesterOptions options;
  options.resend_after_ns = 999;
  EXPECT_THAT(check_resending(options).message(), HasSubstr("resend_after_ns is 999; choose 1000"));
  options = {};
  options.resend_limit = 1'000'001;
  EXPECT_THAT(check_resending(options).message(), HasSubstr("resend_limit"));
}

// A requester or responder in this thread, and a raw end as its peer.
template <typename Used>
class UnreliableTest : public testing::Test {
 protected:
  static constexpr Transport kTransport = Used::kTransport;
  static constexpr Protocol kProtocol = Used::kProtocol;
  static constexpr uint32_t kPending = 4;

  void SetUp() override {
    device_.emplace(Device::open("soft0"));
    if (!device_->ok()) GTEST_SKIP() << device_->status().message();
    domain_.emplace(ProtectionDomain::create(**device_));
    listener_.emplace(ControlListener::listen("127.0.0.1", 0, secret_));
    ASSERT_TRUE(domain_->ok() && listener_->ok());
  }

  static RequesterOptions requester_options() {
    RequesterOptions options;
    options.pending = kPending;
    options.transport = kTransport;
    options.handshake_timeout_ns = kLongNs;
    return options;
  }
  static ResponderOptions responder_options() {
    ResponderOptions options;
    options.pending = kPending;
    options.transport = kTransport;
    options.handshake_timeout_ns = kLongNs;
    return options;
  }

  // Runs `here` in this thread and `there` in another one, with the two ends of a connection.
  void in_two_threads(const std::function<void(ControlConnection)>& here,
                      const std::function<void(ControlConnection)>& there) {
    Thread thread = start_thread("peer", [&] {
      auto control =
          ControlConnection::connect("127.0.0.1", (*listener_)->port(), secret_, kLongNs);
      ASSERT_TRUE(control.ok()) << control.status().message();
      there(std::move(*control));
    });
    auto control = (*listener_)->accept(kLongNs);
    ASSERT_TRUE(control.ok()) << control.status().message();
    here(std::move(*control));
    thread.join();
  }

  // A responder here, which a raw requester's end is connected to.
  void make_responder_here(const ResponderOptions& options = responder_options()) {
    auto responder =
        UnreliableResponder<kTransport, kProtocol>::create(**device_, **domain_, options);
    ASSERT_TRUE(responder.ok()) << responder.status().message();
    responder_ = std::move(*responder);
    in_two_threads(
        [&](ControlConnection control) {
          control_.emplace(std::move(control));
          const Status status = responder_->connect(*control_);
          ASSERT_TRUE(status.ok()) << status.message();
        },
        [&](ControlConnection control) {
          raw_ = std::make_unique<RawEnd>(std::move(control));
          const RequesterOptions options = requester_options();
          ASSERT_TRUE(
              request_design(kProtocol, MarkLayout::kImmediate, **device_, raw_->control, options)
                  .ok());
          join_raw(end_options(options));
        });
  }

  // A requester here, which a raw responder's end is connected to.
  void make_requester_here(const RequesterOptions& options) {
    in_two_threads(
        [&](ControlConnection control) {
          control_.emplace(std::move(control));
          auto requester = UnreliableRequester<kTransport, kProtocol>::create(**device_, **domain_,
                                                                              *control_, options);
          ASSERT_TRUE(requester.ok()) << requester.status().message();
          requester_ = std::move(*requester);
        },
        [&](ControlConnection control) {
          raw_ = std::make_unique<RawEnd>(std::move(control));
          const ResponderOptions offered = responder_options();
          const auto agreed = accept_design(
              raw_->control, offered_design(kProtocol, MarkLayout::kImmediate, **device_, offered),
              kLongNs);
          ASSERT_TRUE(agreed.ok()) << agreed.status().message();
          join_raw(end_options(offered, *agreed));
        });
  }

  void join_raw(const EndOptions& options) {
    const auto mine = raw_->end.prepare(kTransport, kProtocol, **device_, **domain_, options);
    const auto theirs = join(raw_->control, raw_->end.endpoint(), mine, raw_->end.needs(), kLongNs);
    ASSERT_TRUE(theirs.ok()) << theirs.status().message();
    raw_->end.start(*theirs);
  }

  // Takes what has come to the responder: each answer is the number of the handler's call.
  void answer() {
    for (int look = 0; look < 10; ++look) {
      responder_->poll([this](const Request& request, std::span<char> response) {
        requests_.emplace_back(request.bytes.data(), request.bytes.size());
        const std::string text = "answer " + std::to_string(requests_.size());
        std::memcpy(response.data(), text.data(), text.size());
        return static_cast<uint32_t>(text.size());
      });
    }
  }

  // Takes what has come to the requester.
  void take() {
    requester_->poll([this](uint32_t slot, std::span<const char> bytes) {
      responses_.emplace_back(slot, std::string(bytes.data(), bytes.size()));
    });
  }

  // Polls the requester until its next message arrives at the raw end.
  uint32_t next_request() {
    const uint64_t start_ns = now_ns();
    for (;;) {
      take();
      if (const auto arrival = raw_->arrival()) return *arrival;
      if (now_ns() - start_ns > uint64_t{kLongNs} || !requester_->status().ok()) break;
    }
    ADD_FAILURE() << "no request came: " << requester_->status().message();
    return 0;
  }

  const SlotGenerations generations_{kPending};
  JobSecret secret_ = JobSecret::random();
  std::optional<Result<Device>> device_;
  std::optional<Result<ProtectionDomain>> domain_;
  std::optional<Result<ControlListener>> listener_;
  std::optional<ControlConnection> control_;
  std::unique_ptr<RawEnd> raw_;
  std::unique_ptr<UnreliableResponder<kTransport, kProtocol>> responder_;
  std::unique_ptr<UnreliableRequester<kTransport, kProtocol>> requester_;
  std::vector<std::string> requests_;                        // that the handler saw
  std::vector<std::pair<uint32_t, std::string>> responses_;  // that the requester delivered
};

template <Transport kUsed, Protocol kUsedProtocol>
struct Over {
  static constexpr Transport kTransport = kUsed;
  static constexpr Protocol kProtocol = kUsedProtocol;
};
struct DesignNamesForTest {
  template <typename Used>
  static std::string GetName(int /*number*/) {  // NOLINT: GoogleTest's name
    const bool writes = Used::kProtocol == Protocol::kWriteWrite;
    return std::string(transport_name(Used::kTransport)) + (writes ? "_writes" : "_sends");
  }
};
using LossyDesigns = testing::Types<Over<Transport::kUc, Protocol::kSendSend>,
                                    Over<Transport::kUc, Protocol::kWriteWrite>,
                                    Over<Transport::kUd, Protocol::kSendSend>>;
TYPED_TEST_SUITE(UnreliableTest, LossyDesigns, DesignNamesForTest);

// --- the responder ---

TYPED_TEST(UnreliableTest, ACopyOfARequestGetsTheKeptResponse) {
  this->make_responder_here();
  ASSERT_FALSE(testing::Test::HasFailure());
  this->raw_->send(1, 1, "once");
  this->answer();
  ASSERT_EQ(this->raw_->arrival(), this->generations_.immediate(1, 1));
  EXPECT_EQ(this->raw_->text(), "answer 1");
  for (int copy = 0; copy < 3; ++copy) {
    // Its bytes may be any: its slot may have been filled anew.
    this->raw_->send(1, 1, copy == 0 ? "once" : "something else");
    this->answer();
    ASSERT_EQ(this->raw_->arrival(), this->generations_.immediate(1, 1));
    EXPECT_EQ(this->raw_->text(), "answer 1");
  }
  EXPECT_EQ(this->requests_, std::vector<std::string>{"once"});
  const ConnectionStatistics& statistics = this->responder_->statistics(0);
  EXPECT_EQ(statistics.requests, 1u);
  EXPECT_EQ(statistics.duplicates, 3u);
  EXPECT_EQ(statistics.resent, 3u);
}

TYPED_TEST(UnreliableTest, CopiesThatComeTogetherAreOneRequest) {
  this->make_responder_here();
  ASSERT_FALSE(testing::Test::HasFailure());
  for (int copy = 0; copy < 3; ++copy) this->raw_->send(2, 1, "twin");
  this->answer();
  EXPECT_EQ(this->requests_.size(), 1u);
  for (int copy = 0; copy < 3; ++copy) {
    ASSERT_EQ(this->raw_->arrival(), this->generations_.immediate(2, 1));
  }
}

TYPED_TEST(UnreliableTest, OldAndImpossibleGenerationsGetNothing) {
  this->make_responder_here();
  ASSERT_FALSE(testing::Test::HasFailure());
  // Before the first request there is no response that could be kept.
  this->raw_->send(0, 0, "zeroth");
  this->answer();
  EXPECT_EQ(this->raw_->arrival(), std::nullopt);
  for (uint32_t generation = 1; generation <= 2; ++generation) {
    this->raw_->send(0, generation, "new");
    this->answer();
    ASSERT_EQ(this->raw_->arrival(), this->generations_.immediate(0, generation));
  }
  for (const uint32_t generation : {1u, 0u, 4u, (1u << 30) - 1}) {
    this->raw_->send(0, generation, "wrong");
    this->answer();
    EXPECT_EQ(this->raw_->arrival(), std::nullopt) << generation;
  }
  EXPECT_EQ(this->requests_, (std::vector<std::string>{"new", "new"}));
  // Of another slot it is right.
  this->raw_->send(3, 1, "other");
  this->answer();
  EXPECT_EQ(this->raw_->arrival(), this->generations_.immediate(3, 1));
}

TYPED_TEST(UnreliableTest, AnotherVerbThanAgreedEndsTheConnection) {
  this->make_responder_here();
  ASSERT_FALSE(testing::Test::HasFailure());
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND;  // without an immediate
  if (TestFixture::kTransport == Transport::kUd) {
    this->raw_->end.queue_pair().set_destination(request);
  }
  ibv_send_wr* rejected = nullptr;
  ASSERT_EQ(ibv_post_send(this->raw_->end.queue_pair().get(), &request, &rejected), 0);
  this->answer();
  EXPECT_EQ(this->responder_->status(0).code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(this->responder_->status(0).message(), HasSubstr("another verb than agreed"));
  EXPECT_TRUE(this->requests_.empty());
}

// In one poll, and with responses that are posted as a list: a copy of a request and the one behind
// it, and two requests of a requester that does not wait.
TYPED_TEST(UnreliableTest, ASlotIsAnsweredTwiceInOnePoll) {
  ResponderOptions options = this->responder_options();
  options.post_batch = 4;
  this->make_responder_here(options);
  ASSERT_FALSE(testing::Test::HasFailure());
  this->raw_->send(1, 1, "one");
  this->answer();
  ASSERT_EQ(this->raw_->arrival(), this->generations_.immediate(1, 1));
  this->raw_->send(1, 1, "one");
  this->raw_->send(1, 2, "two");
  this->raw_->send(1, 3, "three");
  this->answer();
  for (const uint32_t generation : {1u, 2u, 3u}) {
    ASSERT_EQ(this->raw_->arrival(), this->generations_.immediate(1, generation));
  }
  EXPECT_EQ(this->raw_->arrival(), std::nullopt);
  // What such a requester wrote over its own request before it was answered is its loss.
  const bool writes = TestFixture::kProtocol == Protocol::kWriteWrite;
  EXPECT_EQ(this->requests_, (std::vector<std::string>{"one", writes ? "thr" : "two", "three"}));
  EXPECT_TRUE(this->responder_->status(0).ok()) << this->responder_->status(0).message();
}

// --- the requester ---

TYPED_TEST(UnreliableTest, ACallbackThatPollsTakesTheOtherResponses) {
  this->make_requester_here(this->requester_options());
  ASSERT_FALSE(testing::Test::HasFailure());
  for (const uint32_t slot : {0u, 1u}) {
    ASSERT_EQ(this->requester_->try_post(slot, 0), PostResult::kPosted);
    this->raw_->send(slot, 1, "response " + std::to_string(slot));
  }
  uint32_t within = 0;
  const uint32_t outside = this->requester_->poll([&](uint32_t slot, std::span<const char> bytes) {
    EXPECT_EQ(std::string(bytes.data(), bytes.size()), "response " + std::to_string(slot));
    within += this->requester_->poll([](uint32_t other, std::span<const char> others_bytes) {
      EXPECT_EQ(std::string(others_bytes.data(), others_bytes.size()),
                "response " + std::to_string(other));
    });
  });
  EXPECT_EQ(outside, 1u);
  EXPECT_EQ(within, 1u);
  EXPECT_EQ(this->requester_->statistics().duplicates, 0u);
}

TYPED_TEST(UnreliableTest, ARequestIsSentAgainUntilItIsAnswered) {
  RequesterOptions options = this->requester_options();
  options.resend_after_ns = 1000;
  this->make_requester_here(options);
  ASSERT_FALSE(testing::Test::HasFailure());
  std::memcpy(this->requester_->request_buffer(2), "patient", 7);
  ASSERT_EQ(this->requester_->try_post(2, 7), PostResult::kPosted);
  const uint32_t expected = this->generations_.immediate(2, 1);
  for (int copy = 0; copy < 4; ++copy) {
    ASSERT_EQ(this->next_request(), expected);
    EXPECT_EQ(this->raw_->text(), "patient");
    EXPECT_EQ(this->requester_->try_post(2, 7), PostResult::kWouldBlock);
  }
  EXPECT_GE(this->requester_->statistics().resent, 3u);
  this->raw_->send(2, 1, "here");
  while (this->responses_.empty()) this->take();
  EXPECT_EQ(this->responses_.front(), std::make_pair(2u, std::string("here")));
  EXPECT_EQ(this->requester_->statistics().requests, 1u);
}

TYPED_TEST(UnreliableTest, OnlyTheResponseOfTheWaitingRequestIsDelivered) {
  RequesterOptions options = this->requester_options();
  options.resend_after_ns = 10'000'000'000;
  this->make_requester_here(options);
  ASSERT_FALSE(testing::Test::HasFailure());
  this->raw_->send(0, 1, "unasked");
  this->take();
  EXPECT_TRUE(this->responses_.empty());
  for (uint32_t generation = 1; generation <= 3; ++generation) {
    ASSERT_EQ(this->requester_->try_post(0, 0), PostResult::kPosted);
    ASSERT_EQ(this->next_request(), this->generations_.immediate(0, generation));
    // One that was on its way for long, one that nobody can have sent, the right one, its copy.
    this->raw_->send(0, generation - 1, "old");
    this->raw_->send(0, generation + 1, "early");
    this->raw_->send(1, generation, "other slot");
    this->raw_->send(0, generation, "right");
    this->raw_->send(0, generation, "right");
    while (this->responses_.size() < generation) this->take();
    this->take();
    EXPECT_EQ(this->responses_.size(), generation);
    EXPECT_EQ(this->responses_.back(), std::make_pair(0u, std::string("right")));
  }
  EXPECT_EQ(this->requester_->statistics().duplicates, 1u + 3 * 4);
  EXPECT_TRUE(this->requester_->status().ok()) << this->requester_->status().message();
}

TYPED_TEST(UnreliableTest, ARequestThatNobodyAnswersEndsTheConnection) {
  RequesterOptions options = this->requester_options();
  options.resend_after_ns = 1000;
  options.resend_limit = 3;
  this->make_requester_here(options);
  ASSERT_FALSE(testing::Test::HasFailure());
  ASSERT_EQ(this->requester_->try_post(3, 1), PostResult::kPosted);
  const uint64_t start_ns = now_ns();
  while (this->requester_->status().ok() && now_ns() - start_ns < uint64_t{kLongNs}) this->take();
  EXPECT_EQ(this->requester_->status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(
      this->requester_->status().message(),
      testing::AllOf(HasSubstr("slot 3"), HasSubstr("sent 4 times"), HasSubstr("resend_limit")));
  EXPECT_EQ(this->requester_->statistics().resent, 3u);
  EXPECT_EQ(this->requester_->try_post(0, 1), PostResult::kFailed);
}

// --- strangers ---

TYPED_TEST(UnreliableTest, DatagramsOfStrangersAreNoMessages) {
  if (TestFixture::kTransport != Transport::kUd) GTEST_SKIP() << "UC queue pairs have one peer";
  this->make_requester_here(this->requester_options());
  ASSERT_FALSE(testing::Test::HasFailure());
  const auto address = this->raw_->end.queue_pair().address();
  auto completions = CompletionQueue::create(**this->device_, {.depth_cqes = 4});
  auto stranger = QueuePair::create(
      **this->domain_,
      {.transport = Transport::kUd, .send_cq = &*completions, .recv_cq = &*completions});
  ASSERT_TRUE(address.ok() && stranger.ok());
  ASSERT_TRUE(stranger->init(0).ok() && stranger->connect(*address).ok());
  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.imm_data = htonl(this->generations_.immediate(0, 1));
  stranger->set_destination(request);
  ibv_send_wr* rejected = nullptr;
  ASSERT_EQ(ibv_post_send(stranger->get(), &request, &rejected), 0);
  ASSERT_TRUE(this->raw_->arrival().has_value());
  EXPECT_FALSE(this->raw_->end.template is_of_peer<Transport::kUd>(this->raw_->last));
  ASSERT_EQ(this->requester_->try_post(0, 1), PostResult::kPosted);
  ASSERT_TRUE(this->raw_->arrival().has_value());
  EXPECT_TRUE(this->raw_->end.template is_of_peer<Transport::kUd>(this->raw_->last));
}

}  // namespace
}  // namespace verbena::rpc
