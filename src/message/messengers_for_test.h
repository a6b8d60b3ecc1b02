// Messengers of one process that know each other, for tests. What cannot fail in a test ends the
// process with its message.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_for_test.h"
#include "verbena/message.h"

namespace verbena::message {

class MessengersForTest {
 public:
  static constexpr uint64_t kPatienceNs = 120'000'000'000;

  explicit MessengersForTest(uint32_t count, const MessengerOptions& options = {})
      : node_{test::must(Device::open("soft0"))} {
    for (uint32_t i = 0; i < count; ++i) {
      messengers_.push_back(
          test::must(open_messenger(node_.device, node_.domain, secret_, options)));
    }
    done_.resize(count);
    for (uint32_t i = 0; i < count; ++i) {
      numbers_.emplace_back();
      for (uint32_t j = 0; j < count; ++j) {
        numbers_[i].push_back(test::must(messengers_[i]->add_peer(messengers_[j]->address())));
      }
    }
  }

  Messenger& operator[](uint32_t i) { return *messengers_[i]; }
  // What messenger `i` calls messenger `j`.
  PeerNumber peer(uint32_t i, uint32_t j) const { return numbers_[i][j]; }
  const test::Node& node() const { return node_; }
  const JobSecret& secret() const { return secret_; }
  void close(uint32_t i) { messengers_[i].reset(); }
  // To close it elsewhere.
  std::unique_ptr<Messenger> take(uint32_t i) { return std::move(messengers_[i]); }

  // Lets all of them poll until `ready`.
  template <typename Ready>
  testing::AssertionResult until(Ready&& ready) {
    const uint64_t end_ns = now_ns() + kPatienceNs;
    Waiter waiter;
    while (!ready()) {
      if (now_ns() > end_ns) return testing::AssertionFailure() << "nothing happens any more";
      poll_all() > 0 ? waiter.progress() : waiter.idle();
    }
    return testing::AssertionSuccess();
  }
  uint32_t poll_all() {
    uint32_t found = 0;
    for (uint32_t i = 0; i < messengers_.size(); ++i) {
      if (messengers_[i] == nullptr) continue;
      MessageCompletion some[4];
      const uint32_t taken = messengers_[i]->poll(some);
      for (const MessageCompletion& completion : std::span(some).first(taken)) {
        done_[i].push_back(completion);
      }
      found += taken;
    }
    return found;
  }
  // Completions so far.
  std::vector<MessageCompletion>& done(uint32_t i) { return done_[i]; }

  testing::AssertionResult send(uint32_t from, SendRequest request) {
    PostResult result = PostResult::kWouldBlock;
    const auto sent = [&] {
      result = messengers_[from]->send(request);
      return result != PostResult::kWouldBlock;
    };
    if (testing::AssertionResult waited = until(sent); !waited) return waited;
    if (result == PostResult::kPosted) return testing::AssertionSuccess();
    return testing::AssertionFailure() << messengers_[from]->error().message() << " "
                                       << messengers_[from]->peer_status(request.peer).message();
  }
  testing::AssertionResult send(uint32_t from, uint32_t to, uint64_t tag, const std::string& text,
                                uint32_t flags = 0, uint64_t data = 0) {
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    return send(from, {.peer = peer(from, to),
                       .tag = tag,
                       .pieces = {&piece, 1},
                       .context = nullptr,
                       .data = data,
                       .flags = flags});
  }

 private:
  JobSecret secret_ = JobSecret::random();
  test::Node node_;
  std::vector<std::unique_ptr<Messenger>> messengers_;
  std::vector<std::vector<PeerNumber>> numbers_;
  std::vector<std::vector<MessageCompletion>> done_;
};

}  // namespace verbena::message
