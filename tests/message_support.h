// What the message tests share between their processes.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "src/base/runtime.h"
#include "tests/rpc_support.h"
#include "verbena/connection.h"
#include "verbena/data_path.h"
#include "verbena/device.h"
#include "verbena/message.h"

namespace verbena::message_test {

using rpc_test::kTimeoutNs;
using rpc_test::test_device;

inline constexpr uint32_t kAddressTag = 0x4d534701;
inline constexpr uint64_t kNumbersTag = 5;
inline constexpr uint64_t kLongTag = 6;
inline constexpr uint64_t kNeverTag = 7;

inline constexpr uint64_t kMemoryKey = 9;

// Sends numbers that rise, and every 16th time a long message, to one peer, and receives its own.
// Between them, it puts and gets numbers in the peer's memory, some of them long, and adds to them.
class NumberTraffic {
 public:
  NumberTraffic(Messenger& messenger, PeerNumber peer) : messenger_(messenger), peer_(peer) {
    for (uint64_t i = 0; i < kAhead; ++i) post_receive(i);
    const iovec piece{exposed_.data(), exposed_.size()};
    // A peer at a time.
    if (!messenger_.exposed()
             .expose({.pieces = {&piece, 1},
                      .access = kMemoryReadWrite,
                      .has_key = true,
                      .key = kMemoryKey})
             .ok()) {
      ++wrong_;
    }
  }
  // Nobody may reach memory that goes, least of all a peer that was lost.
  ~NumberTraffic() { static_cast<void>(messenger_.exposed().revoke(kMemoryKey)); }
  NumberTraffic(const NumberTraffic&) = delete;
  NumberTraffic& operator=(const NumberTraffic&) = delete;

  // One round. How much happened.
  uint32_t step() {
    uint32_t happened = (send() ? 1 : 0) + (access() ? 1 : 0);
    MessageCompletion done[16];
    const uint32_t found = messenger_.poll(done);
    for (uint32_t i = 0; i < found; ++i) take(done[i]);
    return happened + found;
  }
  bool peer_works() const { return messenger_.peer_status(peer_).ok(); }
  uint64_t received() const { return received_; }
  uint64_t lost() const { return lost_; }  // operations that ended because the peer did
  uint64_t wrong() const { return wrong_; }
  uint64_t outstanding() const { return outstanding_; }

 private:
  static constexpr uint64_t kAhead = 16;
  static constexpr uint64_t kLongBytes = 50'000;
  struct Receive {
    std::array<char, kLongBytes> memory;
    uint64_t number = 0;
  };

  bool send() {
    const bool is_long = sent_ % 16 == 15;
    // A long message stays as it is until it has completed: the next one comes after that.
    if (is_long && long_on_its_way_) return false;
    char* const memory = is_long ? long_memory_.data() : short_memory_;
    copy_bytes(memory, &sent_, sizeof(sent_));
    const iovec piece{memory, is_long ? kLongBytes : sizeof(sent_)};
    const PostResult result = messenger_.send({.peer = peer_,
                                               .tag = kNumbersTag,
                                               .pieces = {&piece, 1},
                                               .context = is_long ? long_memory_.data() : nullptr,
                                               .flags = is_long ? 0u : unsigned{kMessageSilent}});
    if (result != PostResult::kPosted) return false;
    if (is_long) {
      long_on_its_way_ = true;
      ++outstanding_;
    }
    ++sent_;
    return true;
  }
  // One at a time. What is put is got next.
  bool access() {
    if (accessing_) return false;
    const bool is_long = accesses_ / 3 % 4 == 3;
    const uint64_t bytes = is_long ? kLongBytes : sizeof(accesses_);
    const iovec piece{accessed_.data(), bytes};
    const RemoteRange range{.address = 8, .bytes = bytes, .key = kMemoryKey};
    const RemoteRange word{.address = 0, .bytes = 8, .key = kMemoryKey};
    const iovec operand{&one_, sizeof(one_)};
    const iovec result{&fetched_, sizeof(fetched_)};
    PostResult posted = PostResult::kFailed;
    if (accesses_ % 3 == 0) {
      copy_bytes(accessed_.data(), &accesses_, sizeof(accesses_));
      copy_bytes(accessed_.data() + bytes - sizeof(accesses_), &accesses_, sizeof(accesses_));
      posted = messenger_.put({.peer = peer_, .pieces = {&piece, 1}, .remote = {&range, 1}});
    } else if (accesses_ % 3 == 1) {
      clear_bytes(accessed_.data(), bytes);
      posted = messenger_.get({.peer = peer_, .pieces = {&piece, 1}, .remote = {&range, 1}});
    } else {
      posted = messenger_.atomic({.peer = peer_,
                                  .operands = {&operand, 1},
                                  .results = {&result, 1},
                                  .remote = {&word, 1}});
    }
    accessing_ = posted == PostResult::kPosted;
    if (accessing_) ++outstanding_;
    return accessing_;
  }
  void take_access(const MessageCompletion& done) {
    accessing_ = false;
    // The other side may not have exposed its memory yet.
    if (done.outcome == MessageOutcome::kUnknownKey && accesses_ == 0) return;
    if (done.outcome == MessageOutcome::kOk && done.event == MessageEvent::kGot) {
      uint64_t numbers[2] = {};
      copy_bytes(&numbers[0], accessed_.data(), sizeof(uint64_t));
      copy_bytes(&numbers[1], accessed_.data() + done.bytes - sizeof(uint64_t), sizeof(uint64_t));
      if (numbers[0] != accesses_ - 1 || numbers[1] != accesses_ - 1) ++wrong_;
    } else if (done.outcome == MessageOutcome::kOk && done.event == MessageEvent::kFetched) {
      if (fetched_ != accesses_ / 3) ++wrong_;
    } else if (done.outcome != MessageOutcome::kOk && done.outcome != MessageOutcome::kPeerLost) {
      ++wrong_;
    }
    ++accesses_;
  }
  void post_receive(uint64_t place) {
    Receive& receive = receives_[place];
    receive.number = posted_;
    const iovec piece{receive.memory.data(), receive.memory.size()};
    const PostResult result = messenger_.receive(
        {.source = peer_, .tag = kNumbersTag, .pieces = {&piece, 1}, .context = &receive});
    if (result != PostResult::kPosted) return;
    ++posted_;
    ++outstanding_;
  }
  void take(const MessageCompletion& done) {
    if (done.peer != peer_) return;
    --outstanding_;
    if (done.outcome == MessageOutcome::kPeerLost) ++lost_;
    if (done.event != MessageEvent::kSent && done.event != MessageEvent::kReceived) {
      return take_access(done);
    }
    if (done.event == MessageEvent::kSent) {
      long_on_its_way_ = false;
      return;
    }
    if (done.outcome != MessageOutcome::kOk) return;
    auto* const receive = static_cast<Receive*>(done.context);
    uint64_t number = 0;
    copy_bytes(&number, receive->memory.data(), sizeof(number));
    if (number != receive->number) ++wrong_;
    ++received_;
    post_receive(static_cast<uint64_t>(receive - receives_.data()));
  }

  Messenger& messenger_;
  const PeerNumber peer_;
  uint64_t sent_ = 0;
  uint64_t posted_ = 0;
  uint64_t received_ = 0;
  uint64_t lost_ = 0;
  uint64_t wrong_ = 0;
  uint64_t outstanding_ = 0;
  bool long_on_its_way_ = false;
  bool accessing_ = false;
  uint64_t accesses_ = 0;
  uint64_t one_ = 1;
  uint64_t fetched_ = 0;
  std::array<char, kLongBytes + 8> exposed_ = {};
  std::array<char, kLongBytes> accessed_ = {};
  char short_memory_[8] = {};
  std::array<char, kLongBytes> long_memory_ = {};
  std::array<Receive, kAhead> receives_ = {};
};

}  // namespace verbena::message_test
