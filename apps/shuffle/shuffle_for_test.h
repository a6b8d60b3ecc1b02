// Senders and receivers in this process, connected each with each, for tests.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shuffle/sender.h"
#include "src/base/runtime.h"
#include "src/device/verbs_for_test.h"
#include "verbena/apps/shuffle.h"
#include "verbena/connection.h"

namespace verbena::shuffle_app {

using test::must;

inline constexpr int64_t kTestTimeoutNs = 120'000'000'000;

// Memory that is registered, for records that are written from where they lie.
struct Registered {
  OwnPages pages;
  MemoryRegion memory;

  Registered(const test::Node& node, uint64_t size_bytes)
      : pages(must(OwnPages::allocate(size_bytes))),
        memory(must(
            MemoryRegion::create(node.domain, pages.data(), size_bytes, IBV_ACCESS_LOCAL_WRITE))) {}
};

class ShuffleForTest {
 public:
  ShuffleForTest(uint32_t senders, uint32_t receivers, ShuffleReceiverOptions options = {}) {
    options.senders = senders;
    options.receivers = receivers;
    senders_.resize(senders);
    for (uint32_t i = 0; i < receivers; ++i) {
      options.receiver = i;
      receivers_.push_back(must(ShuffleReceiver::expose(node_.device, node_.domain, options)));
      listeners_.push_back(must(ControlListener::listen("127.0.0.1", 0, secret_)));
    }
  }

  // Connects all of them.
  void open(ShuffleSenderOptions options = {}) {
    std::vector<Thread> accepting;
    for (uint32_t i = 0; i < receivers_.size(); ++i) {
      accepting.push_back(start_thread(
          "accept", [this, i] { must(receivers_[i]->accept_all(listeners_[i], kTestTimeoutNs)); }));
    }
    for (uint32_t i = 0; i < senders_.size(); ++i) {
      options.sender = i;
      senders_[i] = must(open_sender(options));
    }
  }
  Result<std::unique_ptr<ShuffleSender>> open_sender(const ShuffleSenderOptions& options) {
    return open_shuffle_sender(node_.device, node_.domain, connect(), options);
  }
  // To each receiver; they have to accept.
  std::vector<ControlConnection> connect() {
    std::vector<ControlConnection> controls;
    for (const ControlListener& listener : listeners_) controls.push_back(connect(listener));
    return controls;
  }
  ControlConnection connect(const ControlListener& listener) {
    return must(ControlConnection::connect("127.0.0.1", listener.port(), secret_, kTestTimeoutNs));
  }
  // A connection that the receiver accepts meanwhile; how that went.
  template <typename Body>
  Status while_accepting(uint32_t number, Body&& body) {
    Status accepted;
    Thread accepting = start_thread("accept", [&] {
      auto control = listeners_[number].accept(kTestTimeoutNs);
      accepted = control.ok() ? receivers_[number]->accept(std::move(*control)) : control.status();
    });
    body();
    accepting.join();
    return accepted;
  }

  const test::Node& node() const { return node_; }
  const JobSecret& secret() const { return secret_; }
  ControlListener& listener(uint32_t number) { return listeners_[number]; }
  ShuffleSender& sender(uint32_t number = 0) { return *senders_[number]; }
  ShuffleReceiver& receiver(uint32_t number = 0) { return *receivers_[number]; }
  void close_sender(uint32_t number) { senders_[number].reset(); }
  void close_receiver(uint32_t number) { receivers_[number].reset(); }

 private:
  test::Node node_;
  JobSecret secret_ = JobSecret::random();
  std::vector<ControlListener> listeners_;
  std::vector<std::unique_ptr<ShuffleReceiver>> receivers_;
  std::vector<std::unique_ptr<ShuffleSender>> senders_;
};

// What a receiver got from each sender, in order, with the parts of records put together.
class Received {
 public:
  explicit Received(uint32_t senders) : records_(senders), unfinished_(senders) {}

  void take(const ShuffleSpan& span) {
    size_t bytes = 0;
    uint32_t count = 0;
    span.for_each([&](std::string_view record, bool more) {
      ++count;
      bytes += record.size();
      std::string& whole = unfinished_[span.sender()];
      whole += record;
      if (more) return;
      records_[span.sender()].push_back(std::move(whole));
      whole.clear();
    });
    if (bytes != span.bytes().size() || count != span.count()) broken_ = true;
  }
  // Takes what is there; how many spans.
  Result<uint32_t> take_all(ShuffleReceiver& receiver) {
    for (uint32_t spans = 0;; ++spans) {
      VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver.next());
      if (span.empty()) return spans;
      take(span);
      receiver.release(span);
    }
  }
  // Takes all until the end.
  Status take_until_end(ShuffleReceiver& receiver) {
    for (;;) {
      VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver.wait_next());
      if (span.empty()) return Status::ok_status();
      take(span);
      receiver.release(span);
    }
  }
  const std::vector<std::string>& from(uint32_t sender) const { return records_[sender]; }
  bool broken() const { return broken_; }

 private:
  std::vector<std::vector<std::string>> records_;
  std::vector<std::string> unfinished_;
  bool broken_ = false;
};

// A record whose contents follow from who sent it and its number.
inline std::string record_of(uint64_t seed, uint64_t number, uint64_t size_bytes) {
  std::string record(size_bytes, '\0');
  Random random(seed * 1'000'003 + number);
  for (char& byte : record) byte = static_cast<char>(random.next());
  return record;
}

}  // namespace verbena::shuffle_app
