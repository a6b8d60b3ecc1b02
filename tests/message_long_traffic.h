// Long messages of three processes to each other: what message_long_test and its peers send.
//
// All of a rank's messages lie in one block of memory, one behind the other, in an order that is
// drawn: so what is sent and what is received share pages, and the same memory is both in turn.
// Each side knows from the seed what the others send.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/device/soft_library.h"
#include "tests/message_support.h"

namespace verbena::message_test {

inline constexpr uint32_t kLongRanks = 3;
inline constexpr uint32_t kLongAddressesTag = 0x4d534c01;
inline constexpr uint32_t kLongPlanTag = 0x4d534c02;
inline constexpr uint32_t kLongResultTag = 0x4d534c03;

// What all ranks do; plain data, for the control connections.
struct LongPlan {
  LongMessages way = LongMessages::kRead;
  bool keeps_registrations = true;
  bool repeats = false;  // all rounds from the same memory of rank 0
  uint32_t rank = 0;
  uint32_t rounds = 0;
  uint64_t seed = 0;
};
struct LongAddresses {
  std::array<MessengerAddress, kLongRanks> of;
};
struct LongResult {
  uint64_t messages = 0;       // received
  uint64_t wrong = 0;          // bytes, or outcomes
  uint64_t registrations = 0;  // made
  // Of the first message of those that repeat, and of all.
  uint64_t in_place_at_first = 0;
  uint64_t in_place = 0;
  uint64_t shared_later = 0;
  bool moved_at_first = false;  // pages of its memory
  bool moved = false;
};

inline MessengerOptions long_options(const LongPlan& plan) {
  MessengerOptions options;
  options.long_messages = plan.way;
  if (!plan.keeps_registrations) options.registered_bytes = 0;
  options.max_peers = kLongRanks;
  options.polling_set = kLongRanks - 1;
  return options;
}

class LongTraffic {
 public:
  LongTraffic(Messenger& messenger, std::array<PeerNumber, kLongRanks> peers, const LongPlan& plan)
      : messenger_(messenger), peers_(peers), plan_(plan), memory_(kMemoryBytes) {}

  // All rounds. False: something failed, or took too long.
  bool run() {
    for (uint32_t round = 0; round < plan_.rounds; ++round) {
      if (plan_.repeats) {
        if (!repeat(round)) return false;
        continue;
      }
      if (!(round % 4 == 3 ? sum_up(round) : exchange(round))) return false;
    }
    // Others may still wait for what only this rank's progress brings.
    for (uint32_t rank = 0; rank < kLongRanks; ++rank) {
      if (rank == plan_.rank) continue;
      if (!receive(rank, kEndTag, &nothing_, 0) || !send(rank, kEndTag, &nothing_, 0)) return false;
    }
    return wait();
  }
  const LongResult& result() const { return result_; }

 private:
  static constexpr uint64_t kMostBytes = 40'000;
  static constexpr uint32_t kMostPerPair = 3;
  static constexpr uint64_t kMemoryBytes = 1 << 20;
  static constexpr uint64_t kEndTag = ~uint64_t{0};

  struct Message {
    uint32_t from = 0;
    uint32_t to = 0;
    uint64_t tag = 0;
    uint64_t bytes = 0;
    char* at = nullptr;  // on this rank
  };

  static uint64_t tag(uint32_t round, uint32_t number) { return uint64_t{round} << 32 | number; }
  // Of byte i of a message: depends on all of what it is.
  char content(const Message& message, uint64_t i) const {
    const uint64_t word =
        (plan_.seed + message.tag * kLongRanks + message.from) * 0x9e3779b97f4a7c15u;
    return static_cast<char>((word >> (i % 7 * 8)) + i * 31 + (i >> 8));
  }

  // Some messages between each two, of which some are short, and each in a place of its own.
  bool exchange(uint32_t round) {
    Random drawn(plan_.seed * 1000 + round);
    std::vector<Message> mine;
    for (uint32_t from = 0; from < kLongRanks; ++from) {
      for (uint32_t to = 0; to < kLongRanks; ++to) {
        if (from == to) continue;
        const auto count = static_cast<uint32_t>(drawn.below(kMostPerPair + 1));
        for (uint32_t number = 0; number < count; ++number) {
          const uint64_t most = drawn.below(4) == 0 ? 4000 : kMostBytes;
          const Message message{from, to, tag(round, number), 1 + drawn.below(most)};
          if (from == plan_.rank || to == plan_.rank) mine.push_back(message);
        }
      }
    }
    Random own(plan_.seed * 1000 + round * kLongRanks + plan_.rank + 500'000);
    for (size_t left = mine.size(); left > 1; --left) {
      std::swap(mine[left - 1], mine[own.below(left)]);
    }
    char* at = memory_.data() + own.below(5000);
    for (Message& message : mine) {
      message.at = at;
      at += message.bytes + own.below(100);
    }
    VERBENA_ASSERT(at < memory_.data() + kMemoryBytes);
    for (const Message& message : mine) {
      const bool sends = message.from == plan_.rank;
      for (uint64_t i = 0; i < message.bytes; ++i) {
        message.at[i] = sends ? content(message, i) : '\xee';
      }
    }
    // In some rounds messages come before their receives.
    const bool receives_first = own.below(4) != 0;
    for (const bool receives : {receives_first, !receives_first}) {
      for (const Message& message : mine) {
        if (receives != (message.to == plan_.rank)) continue;
        if (!(receives ? receive(message.from, message.tag, message.at, message.bytes)
                       : send(message.to, message.tag, message.at, message.bytes))) {
          return false;
        }
      }
    }
    if (!wait()) return false;
    for (const Message& message : mine) check(message);
    return true;
  }

  // As an allreduce along a chain: what has come is added to, sent on from where it was added, and
  // the sums come back into the same memory.
  bool sum_up(uint32_t round) {
    Random drawn(plan_.seed * 1000 + round);
    const uint64_t count = 400 + drawn.below(3000);
    const uint64_t bytes = count * sizeof(uint64_t);
    auto* const sums = reinterpret_cast<uint64_t*>(memory_.data() + 1000 * sizeof(uint64_t));
    auto* const arrived = sums + count + 3;
    const uint32_t rank = plan_.rank;
    const auto addend = [&](uint32_t of, uint64_t i) { return (round + 1) * (of + 1) + i; };
    for (uint64_t i = 0; i < count; ++i) sums[i] = addend(rank, i);
    if (rank + 1 < kLongRanks) {
      if (!receive(rank + 1, tag(round, 100), arrived, bytes) || !wait()) return false;
      for (uint64_t i = 0; i < count; ++i) sums[i] += arrived[i];
    }
    if (rank > 0) {
      if (!send(rank - 1, tag(round, 100), sums, bytes) || !wait()) return false;
      if (!receive(rank - 1, tag(round, 101), sums, bytes) || !wait()) return false;
    }
    if (rank + 1 < kLongRanks) {
      if (!send(rank + 1, tag(round, 101), sums, bytes) || !wait()) return false;
    }
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t expected = 0;
      for (uint32_t of = 0; of < kLongRanks; ++of) expected += addend(of, i);
      if (sums[i] != expected) ++result_.wrong;
    }
    return true;
  }

  // Several messages to all others under way from the same memory of rank 0, into the same memory
  // of each.
  bool repeat(uint32_t round) {
    constexpr uint64_t kBytes = 100'000;
    constexpr uint32_t kAtOnce = 3;
    std::vector<Message> mine;
    for (uint32_t number = 0; number < kAtOnce; ++number) {
      for (uint32_t to = 1; to < kLongRanks; ++to) {
        if (plan_.rank != 0 && plan_.rank != to) continue;
        // One and the same content for all of them.
        const uint64_t place = plan_.rank == 0 ? 0 : (number + 1) * (kBytes + 500);
        mine.push_back({0, to, tag(round, 0), kBytes, memory_.data() + 3000 + place});
      }
    }
    for (const Message& message : mine) {
      for (uint64_t i = 0; i < message.bytes; ++i) {
        message.at[i] = plan_.rank == 0 ? content(message, i) : '\xee';
      }
    }
    const auto one = [&](const Message& message) {
      return plan_.rank == 0 ? send(message.to, message.tag, message.at, message.bytes)
                             : receive(0, message.tag, message.at, message.bytes);
    };
    for (const Message& message : mine) {
      if (!one(message)) return false;
    }
    if (!wait()) return false;
    for (const Message& message : mine) check(message);
    // Only then is the memory that all were sent from filled anew.
    result_.moved = moved_pages();
    result_.in_place = messenger_.statistics().registered_in_place;
    result_.shared_later = messenger_.statistics().shared_later;
    if (round == 0) {
      result_.moved_at_first = result_.moved;
      result_.in_place_at_first = result_.in_place;
    }
    return true;
  }
  bool moved_pages() const {
    const auto soft = load_soft_rnic();
    return soft.ok() && (*soft)->shares_any(memory_.data(), memory_.size());
  }

  // Of what was sent, that it is as it was.
  void check(const Message& message) {
    for (uint64_t i = 0; i < message.bytes; ++i) {
      if (message.at[i] != content(message, i)) ++result_.wrong;
    }
  }

  bool send(uint32_t to, uint64_t tag, const void* at, uint64_t bytes) {
    const iovec piece{const_cast<void*>(at), bytes};
    return post([&] {
      return messenger_.send({.peer = peers_[to], .tag = tag, .pieces = {&piece, 1}});
    });
  }
  bool receive(uint32_t from, uint64_t tag, void* at, uint64_t bytes) {
    const iovec piece{at, bytes};
    return post([&] {
      return messenger_.receive({.source = peers_[from], .tag = tag, .pieces = {&piece, 1}});
    });
  }
  template <typename Post>
  bool post(const Post& try_once) {
    const uint64_t end_ns = now_ns() + static_cast<uint64_t>(kTimeoutNs);
    for (;;) {
      const PostResult result = try_once();
      if (result == PostResult::kPosted) break;
      if (result == PostResult::kFailed || now_ns() > end_ns) return false;
      look();
    }
    ++outstanding_;
    return true;
  }
  bool wait() {
    const uint64_t end_ns = now_ns() + static_cast<uint64_t>(kTimeoutNs);
    while (outstanding_ > 0 && now_ns() < end_ns) look();
    return outstanding_ == 0;
  }
  void look() {
    MessageCompletion done[16];
    const uint32_t count = messenger_.poll(done);
    for (uint32_t i = 0; i < count; ++i) {
      --outstanding_;
      if (done[i].outcome != MessageOutcome::kOk) ++result_.wrong;
      if (done[i].event == MessageEvent::kReceived) ++result_.messages;
    }
    result_.registrations = messenger_.statistics().registrations;
    count > 0 ? waiter_.progress() : waiter_.idle();
  }

  Messenger& messenger_;
  const std::array<PeerNumber, kLongRanks> peers_;
  const LongPlan plan_;
  std::vector<char> memory_;
  char nothing_ = 0;
  uint64_t outstanding_ = 0;
  LongResult result_;
  Waiter waiter_;
};

}  // namespace verbena::message_test
