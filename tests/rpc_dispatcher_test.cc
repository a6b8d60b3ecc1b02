// Workers that hand their requests to a dispatcher, which has one connection to each of several
// responders: every protocol and layout, sizes at random, every byte checked; and what workers
// learn when a responder goes away.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "tests/rpc_support.h"
#include "verbena/dispatcher.h"

namespace verbena::rpc_test {
namespace {

constexpr uint32_t kWorkers = 3;
constexpr uint32_t kResponders = 2;
constexpr uint32_t kPending = 2;

class RpcDispatcherTest : public testing::Test {
 protected:
  struct Side {
    Device device;
    ProtectionDomain domain;
  };

  Result<Side> open_side() {
    VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
    VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
    return Side{std::move(device), std::move(domain)};
  }

  // A responder in a thread of its own, which serves until its requester is gone or `stop_`.
  struct ResponderThread {
    ResponderThread(RpcDispatcherTest& test, const Case& c)
        : listener(ControlListener::listen("127.0.0.1", 0, test.secret_)) {
      thread = start_thread("responder", [this, &test, c] {
        Result<Side> side = test.open_side();
        ASSERT_TRUE(side.ok()) << side.status().message();
        Result<ControlConnection> control = listener->accept(kTimeoutNs);
        ASSERT_TRUE(control.ok()) << control.status().message();
        std::vector<char> memory = readable_memory();
        auto responder = make_responder(c.protocol, c.layout, side->device, side->domain,
                                        responder_options(c, memory));
        ASSERT_TRUE(responder.ok()) << responder.status().message();
        ASSERT_TRUE((*responder)->connect(*control).ok());
        Waiter waiter;
        while ((*responder)->status().ok() && !stop.load(std::memory_order_relaxed)) {
          (*responder)->poll(server) > 0 ? waiter.progress() : waiter.idle();
        }
      });
    }
    Result<ControlListener> listener;
    Server server;
    std::atomic<bool> stop{false};
    Thread thread;
  };

  void start(const Case& c) {
    Result<Side> side = open_side();
    ASSERT_TRUE(side.ok()) << side.status().message();
    side_.emplace(std::move(*side));
    for (uint32_t j = 0; j < kResponders; ++j) {
      responders_.push_back(std::make_unique<ResponderThread>(*this, c));
      Result<ControlConnection> control = ControlConnection::connect(
          "127.0.0.1", responders_[j]->listener->port(), secret_, kTimeoutNs);
      ASSERT_TRUE(control.ok()) << control.status().message();
      controls_.push_back(std::make_unique<ControlConnection>(std::move(*control)));
      Result<std::unique_ptr<Requester>> requester = make_requester(
          c.protocol, c.layout, side_->device, side_->domain, *controls_[j], requester_options(c));
      ASSERT_TRUE(requester.ok()) << requester.status().message();
      requesters_.push_back(std::move(*requester));
    }
    std::vector<Requester*> requesters;
    for (const auto& requester : requesters_) requesters.push_back(requester.get());
    dispatcher_ = std::make_unique<Dispatcher<>>(
        requesters, DispatcherOptions{.workers = kWorkers, .pending = kPending});
    carrier_ = start_thread("dispatcher", [this] {
      Waiter waiter;
      while (!stop_.load(std::memory_order_relaxed)) {
        dispatcher_->poll() > 0 ? waiter.progress() : waiter.idle();
      }
    });
  }

  void finish() {
    stop_ = true;
    carrier_.join();
    requesters_.clear();
    controls_.clear();
    for (const auto& responder : responders_) responder->thread.join();
    for (const auto& responder : responders_) EXPECT_EQ(responder->server.bad_requests, 0u);
    dispatcher_.reset();
    responders_.clear();
    side_.reset();
    stop_ = false;
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<Side> side_;
  std::vector<std::unique_ptr<ResponderThread>> responders_;
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::vector<std::unique_ptr<Requester>> requesters_;
  std::unique_ptr<Dispatcher<>> dispatcher_;
  Thread carrier_;
  std::atomic<bool> stop_{false};
};

// Posts `messages` requests to responders at random; returns how many responses were wrong.
uint64_t work(Dispatcher<>::Worker& worker, const Case& c, uint64_t messages, uint64_t seed) {
  struct Slot {
    uint64_t nonce;
    uint32_t response_bytes;
  };
  Random random(seed);
  Slot slots[kResponders][kPending];
  uint64_t posted = 0;
  uint64_t answered = 0;
  uint64_t wrong = 0;
  Waiter waiter;
  while (answered < messages) {
    const auto responder = static_cast<uint32_t>(random.below(kResponders));
    const auto slot = static_cast<uint32_t>(random.below(kPending));
    const auto request_bytes =
        static_cast<uint32_t>(sizeof(Ask) + random.below(c.request_max_bytes - sizeof(Ask) + 1));
    const Ask ask = {random.next(), static_cast<uint32_t>(random.below(c.response_max_bytes + 1)),
                     request_bytes};
    if (posted < messages && worker.waiting() < kResponders * kPending) {
      // Not into a slot that waits: its buffer is being sent.
      char* buffer = worker.request_buffer(responder, slot);
      std::vector<char> request(request_bytes);
      std::memcpy(request.data(), &ask, sizeof(ask));
      fill_pattern({request.data() + sizeof(ask), request_bytes - sizeof(ask)}, ask.nonce);
      if (!worker.waits(responder, slot)) {
        std::memcpy(buffer, request.data(), request_bytes);
        slots[responder][slot] = {ask.nonce, ask.response_bytes};
        EXPECT_TRUE(worker.hand_over(responder, slot, request_bytes));
        ++posted;
      }
    }
    const uint32_t found = worker.poll([&](uint32_t from, uint32_t in,
                                           std::span<const char> response) {
      const Slot& expected = slots[from][in];
      if (response.size() != expected.response_bytes || !has_pattern(response, ~expected.nonce)) {
        ++wrong;
      }
      ++answered;
    });
    found > 0 ? waiter.progress() : waiter.idle();
    if (worker.failed() > 0) return ~uint64_t{0};
  }
  return wrong;
}

TEST_F(RpcDispatcherTest, CarriesEveryWorkersRequests) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  for (Protocol protocol : all_protocols()) {
    for (MarkLayout layout : all_mark_layouts()) {
      if (protocol == Protocol::kRead) continue;  // has no responder that checks
      if (!uses_mark_layout(protocol) && layout != MarkLayout::kLastBit) continue;
      Case c;
      c.protocol = protocol;
      c.layout = layout;
      c.pending = kWorkers * kPending;
      c.request_max_bytes = 200;
      c.response_max_bytes = 1000;
      SCOPED_TRACE(name_of(c));
      start(c);
      if (HasFatalFailure()) return;
      std::atomic<uint64_t> wrong{0};
      std::vector<Thread> threads;
      for (uint32_t w = 0; w < kWorkers; ++w) {
        threads.push_back(start_thread(
            "worker", [&, w] { wrong += work(dispatcher_->worker(w), c, 300, seed + w); }));
      }
      for (Thread& thread : threads) thread.join();
      EXPECT_EQ(wrong.load(), 0u);
      finish();
    }
  }
}

TEST_F(RpcDispatcherTest, WorkersLearnThatAResponderIsGone) {
  for (Protocol protocol : {Protocol::kWriteWrite, Protocol::kSendSend}) {
    Case c;
    c.protocol = protocol;
    c.pending = kWorkers * kPending;
    SCOPED_TRACE(name_of(c));
    start(c);
    if (HasFatalFailure()) return;
    responders_[1]->stop = true;
    responders_[1]->thread.join();
    Dispatcher<>::Worker& worker = dispatcher_->worker(0);
    ASSERT_TRUE(worker.hand_over(1, 0, 10));
    ASSERT_TRUE(worker.hand_over(1, 1, 10));
    EXPECT_FALSE(worker.hand_over(1, 1, 10));
    ASSERT_TRUE(worker.hand_over(0, 0, 10));
    Waiter waiter;
    uint32_t answered = 0;
    while (worker.waiting() > 0) {
      const uint32_t found =
          worker.poll([](uint32_t from, uint32_t, std::span<const char>) { EXPECT_EQ(from, 0u); });
      answered += found;
      found > 0 ? waiter.progress() : waiter.idle();
    }
    EXPECT_EQ(worker.failed(), 2u);
    EXPECT_EQ(answered, 1u);
    // The other workers were waiting for nothing.
    EXPECT_EQ(dispatcher_->worker(1).poll([](uint32_t, uint32_t, std::span<const char>) {}), 0u);
    EXPECT_EQ(dispatcher_->worker(1).failed(), 0u);
    finish();
  }
}

// Answers as many requests as it is told, with nothing.
struct FakeRequester {
  char* request_buffer(uint32_t /*slot*/) { return buffer; }
  PostResult try_post(uint32_t slot, uint32_t /*bytes*/) {
    posted.push_back(slot);
    return PostResult::kPosted;
  }
  template <typename OnResponse>
  uint32_t poll(OnResponse&& on_response) {
    uint32_t answered = 0;
    for (; answers > 0 && !posted.empty(); --answers, ++answered) {
      on_response(posted.front(), std::span<const char>());
      posted.pop_front();
    }
    return answered;
  }
  const Status& status() const { return fine; }

  uint32_t answers = 0;
  char buffer[8] = {};
  std::deque<uint32_t> posted;
  Status fine;
};

TEST(DispatchWorkerTest, ACallbackPollsAndHandsOver) {
  constexpr uint32_t kSlots = 4;
  FakeRequester requester;
  Dispatcher<FakeRequester> dispatcher({&requester}, {.workers = 1, .pending = kSlots});
  Dispatcher<FakeRequester>::Worker& worker = dispatcher.worker(0);
  for (uint32_t slot = 0; slot < kSlots; ++slot) ASSERT_TRUE(worker.hand_over(0, slot, 0));
  requester.answers = kSlots;
  dispatcher.poll();
  const auto ignore = [](uint32_t, uint32_t, std::span<const char>) {};
  bool first = true;
  worker.poll([&](uint32_t, uint32_t, std::span<const char>) {
    if (!std::exchange(first, false)) return;
    EXPECT_EQ(worker.poll(ignore), kSlots - 1);
    // Of two further requests, one is answered at once.
    ASSERT_TRUE(worker.hand_over(0, 2, 0));
    ASSERT_TRUE(worker.hand_over(0, 3, 0));
    requester.answers = 1;
    dispatcher.poll();
  });
  requester.answers = 1;
  dispatcher.poll();
  worker.poll(ignore);
  EXPECT_EQ(worker.waiting(), 0u);
  EXPECT_FALSE(worker.waits(0, 2));
  EXPECT_FALSE(worker.waits(0, 3));
}

}  // namespace
}  // namespace verbena::rpc_test
