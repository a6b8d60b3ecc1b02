// One-sided operations between messengers of one process, over soft0.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/message/messengers_for_test.h"

namespace verbena::message {
namespace {

std::string drawn_bytes(size_t size, uint64_t seed) {
  Random random(seed);
  std::string text(size, '\0');
  for (char& byte : text) byte = static_cast<char>(random.next());
  return text;
}

class OneSidedTest : public testing::Test {
 protected:
  void make(uint32_t count, const MessengerOptions& options = {}) {
    messengers_ = std::make_unique<MessengersForTest>(count, options);
  }
  MessengersForTest& all() { return *messengers_; }

  uint64_t expose(uint32_t at, std::string& memory, uint32_t access = kMemoryReadWrite,
                  uint64_t address = 0) {
    const iovec piece{memory.data(), memory.size()};
    return test::must(
        all()[at].exposed().expose({.pieces = {&piece, 1}, .access = access, .address = address}));
  }

  // Posts until it does not block.
  template <typename Post>
  PostResult post(Post&& call) {
    PostResult result = PostResult::kWouldBlock;
    EXPECT_TRUE(all().until([&] { return (result = call()) != PostResult::kWouldBlock; }));
    return result;
  }
  // The next completion at `at`, which is removed.
  MessageCompletion next(uint32_t at) {
    EXPECT_TRUE(all().until([&] { return !all().done(at).empty(); }));
    if (all().done(at).empty()) return {};
    const MessageCompletion first = all().done(at).front();
    all().done(at).erase(all().done(at).begin());
    return first;
  }
  MessageCompletion put(uint32_t from, uint32_t to, const std::string& bytes, uint64_t address,
                        uint64_t key, uint32_t flags = 0, uint64_t data = 0) {
    const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    const RemoteRange range{.address = address, .bytes = bytes.size(), .key = key};
    EXPECT_EQ(post([&] {
                return all()[from].put({.peer = all().peer(from, to),
                                        .pieces = {&piece, 1},
                                        .remote = {&range, 1},
                                        .context = &context_,
                                        .data = data,
                                        .flags = flags});
              }),
              PostResult::kPosted);
    return next(from);
  }
  MessageCompletion get(uint32_t from, uint32_t to, std::string& bytes, uint64_t address,
                        uint64_t key) {
    const iovec piece{bytes.data(), bytes.size()};
    const RemoteRange range{.address = address, .bytes = bytes.size(), .key = key};
    EXPECT_EQ(post([&] {
                return all()[from].get({.peer = all().peer(from, to),
                                        .pieces = {&piece, 1},
                                        .remote = {&range, 1},
                                        .context = &context_});
              }),
              PostResult::kPosted);
    return next(from);
  }

  std::unique_ptr<MessengersForTest> messengers_;
  int context_ = 0;
};

TEST_F(OneSidedTest, BytesOfAnySizeArePutAndGot) {
  make(2);
  const uint64_t limit = all()[0].one_sided_limit_bytes();
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{8}, uint64_t{1000}, limit,
                              limit + 1, uint64_t{5000}, uint64_t{2'000'000}}) {
    for (const uint32_t target : {1u, 0u}) {
      SCOPED_TRACE(std::to_string(size) + " bytes to " + std::to_string(target));
      std::string memory(size + 20, 'm');
      const uint64_t key = expose(target, memory);
      const std::string bytes = drawn_bytes(size, size + target);
      MessageCompletion done = put(0, target, bytes, 10, key);
      EXPECT_EQ(done.outcome, MessageOutcome::kOk);
      EXPECT_EQ(done.event, MessageEvent::kPut);
      EXPECT_EQ(done.context, &context_);
      EXPECT_EQ(done.peer, all().peer(0, target));
      EXPECT_EQ(memory, std::string(10, 'm') + bytes + std::string(10, 'm'));
      std::string got(size, 'x');
      done = get(0, target, got, 10, key);
      EXPECT_EQ(done.outcome, MessageOutcome::kOk);
      EXPECT_EQ(done.event, MessageEvent::kGot);
      EXPECT_EQ(done.bytes, size);
      EXPECT_EQ(got, bytes);
      EXPECT_TRUE(all()[target].exposed().revoke(key));
    }
  }
}

// From one buffer and into another one, again and again: without a copy once that is due, which
// changes nothing else.
TEST_F(OneSidedTest, UsedBuffersAreReachedWithoutACopy) {
  constexpr uint64_t kSize = 1500;
  for (const uint32_t polling_set : {8u, 0u}) {
    SCOPED_TRACE(std::to_string(polling_set) + " rings");
    MessengerOptions options;
    options.polling_set = polling_set;
    options.reused_buffers = ReusedBuffers::kPaper;
    options.reuse_speculation = 0.001;
    make(2, options);
    std::string memory(kSize, 'm');
    const uint64_t key = expose(1, memory);
    std::string from(kSize, '\0');
    std::string into(kSize, '\0');
    for (uint32_t i = 0; i < 40; ++i) {
      const std::string bytes = drawn_bytes(kSize, i);
      std::copy(bytes.begin(), bytes.end(), from.begin());
      // Now and then one that may change at once.
      const uint32_t flags = i % 5 == 4 ? unsigned{kMessageCopied} : 0u;
      EXPECT_EQ(put(0, 1, from, 0, key, flags).outcome, MessageOutcome::kOk);
      EXPECT_EQ(memory, bytes);
      const MessageCompletion done = get(0, 1, into, 0, key);
      EXPECT_EQ(done.outcome, MessageOutcome::kOk);
      EXPECT_EQ(done.bytes, kSize);
      EXPECT_EQ(into, bytes);
    }
    EXPECT_GT(all()[0].statistics().gathered, 20u);
    EXPECT_GT(all()[0].statistics().stored, 20u);
    EXPECT_LE(all()[0].statistics().gathered, 32u);
    EXPECT_EQ(all()[1].statistics().remote_reads, 40u);
    EXPECT_EQ(all()[1].statistics().remote_writes, 40u);
    // What is not allowed stays so.
    const iovec piece{from.data(), kSize};
    const RemoteRange beyond{.address = 1, .bytes = kSize, .key = key};
    for (const bool puts : {true, false}) {
      ASSERT_EQ(post([&] {
                  const OneSidedRequest request{
                      .peer = all().peer(0, 1), .pieces = {&piece, 1}, .remote = {&beyond, 1}};
                  return puts ? all()[0].put(request) : all()[0].get(request);
                }),
                PostResult::kPosted);
      EXPECT_EQ(next(0).outcome, MessageOutcome::kOutOfRange);
    }
    EXPECT_TRUE(all().until([&] { return all()[1].exposed().revoke(key); }));
    EXPECT_EQ(get(0, 1, into, 0, key).outcome, MessageOutcome::kUnknownKey);
  }
}

TEST_F(OneSidedTest, PiecesOnBothSidesNeedNotBeAlike) {
  make(2);
  for (const uint64_t size : {1000u, 100'000u}) {
    for (const uint32_t target : {1u, 0u}) {
      std::string memory[3];
      iovec exposed[3];
      for (int i = 0; i < 3; ++i) {
        memory[i].assign(size, 'm');
        exposed[i] = {memory[i].data(), memory[i].size()};
      }
      const uint64_t key = test::must(all()[target].exposed().expose(
          {.pieces = exposed, .access = kMemoryReadWrite, .address = 1'000'000}));
      std::string bytes = drawn_bytes(size, 5);
      const uint64_t cut = size / 3;
      const iovec from[3] = {
          {bytes.data(), cut}, {bytes.data() + cut, 0}, {bytes.data() + cut, size - cut}};
      // The second range lies in two of the exposed pieces.
      const RemoteRange ranges[2] = {{1'000'000 + 7, size / 2, key},
                                     {1'000'000 + 2 * size - size / 4, size - size / 2, key}};
      ASSERT_EQ(
          post([&] {
            return all()[0].put({.peer = all().peer(0, target), .pieces = from, .remote = ranges});
          }),
          PostResult::kPosted);
      EXPECT_EQ(next(0).outcome, MessageOutcome::kOk);
      const std::string seen = memory[0] + memory[1] + memory[2];
      EXPECT_EQ(seen.substr(7, size / 2), bytes.substr(0, size / 2));
      EXPECT_EQ(seen.substr(2 * size - size / 4, size - size / 2), bytes.substr(size / 2));
      EXPECT_EQ(std::count(seen.begin(), seen.begin() + 7, 'm'), 7);
      std::string got(size, 'x');
      const iovec into[2] = {{got.data(), size - 5}, {got.data() + size - 5, 5}};
      ASSERT_EQ(
          post([&] {
            return all()[0].get({.peer = all().peer(0, target), .pieces = into, .remote = ranges});
          }),
          PostResult::kPosted);
      EXPECT_EQ(next(0).outcome, MessageOutcome::kOk);
      EXPECT_EQ(got, bytes);
      EXPECT_TRUE(all()[target].exposed().revoke(key));
    }
  }
}

// Refused, with the reason, whatever the size; nothing is touched, and everything goes on.
TEST_F(OneSidedTest, WhatIsNotAllowedIsRefused) {
  make(3);
  std::string memory(10'000, 'm');
  const uint64_t both = expose(1, memory, kMemoryReadWrite, 5000);
  const uint64_t reading = expose(1, memory, kMemoryRead);
  const uint64_t writing = expose(1, memory, kMemoryWrite);
  const uint64_t revoked = expose(1, memory);
  EXPECT_TRUE(all()[1].exposed().revoke(revoked));
  const std::string before = memory;
  for (const uint64_t size : {8u, 5000u}) {
    SCOPED_TRACE(size);
    const std::string bytes(size, 'b');
    std::string got(size, 'x');
    EXPECT_EQ(put(0, 1, bytes, 5000, both ^ 1).outcome, MessageOutcome::kUnknownKey);
    EXPECT_EQ(put(0, 1, bytes, 0, revoked).outcome, MessageOutcome::kUnknownKey);
    EXPECT_EQ(put(0, 1, bytes, 0, reading).outcome, MessageOutcome::kNotPermitted);
    EXPECT_EQ(get(0, 1, got, 0, writing).outcome, MessageOutcome::kNotPermitted);
    for (const uint64_t address : {uint64_t{4999}, 5000 + memory.size() - size + 1,
                                   5000 + memory.size() + 1, ~uint64_t{0}, uint64_t{0}}) {
      EXPECT_EQ(put(0, 1, bytes, address, both).outcome, MessageOutcome::kOutOfRange) << address;
      EXPECT_EQ(get(0, 1, got, address, both).outcome, MessageOutcome::kOutOfRange) << address;
    }
    EXPECT_EQ(got, std::string(size, 'x'));
    EXPECT_EQ(put(0, 0, bytes, 0, both).outcome, MessageOutcome::kUnknownKey);
  }
  EXPECT_EQ(memory, before);
  EXPECT_EQ(all()[1].statistics().remote_refused, 2 * 14u);
  EXPECT_EQ(all()[1].statistics().remote_writes, 0u);
  EXPECT_TRUE(all()[0].peer_status(all().peer(0, 1)).ok());
  EXPECT_EQ(put(0, 1, "fine", 5000, both).outcome, MessageOutcome::kOk);
  EXPECT_EQ(put(2, 1, "fine, too", 5004, both).outcome, MessageOutcome::kOk);
  EXPECT_EQ(memory.substr(0, 13), "finefine, too");
}

TEST_F(OneSidedTest, RequestsThatAreNoneAreNotPosted) {
  make(2);
  char bytes[64] = {};
  const std::vector<iovec> pieces(5, iovec{bytes, 8});
  const std::vector<RemoteRange> ranges(5, RemoteRange{0, 8, 1});
  const PeerNumber peer = all().peer(0, 1);
  Messenger& one = all()[0];
  EXPECT_EQ(one.put({.peer = 99}), PostResult::kFailed);
  EXPECT_EQ(one.put({.peer = peer, .pieces = pieces, .remote = ranges}), PostResult::kFailed);
  EXPECT_EQ(one.put({.peer = peer, .pieces = {pieces.data(), 2}, .remote = {ranges.data(), 1}}),
            PostResult::kFailed);
  EXPECT_EQ(one.get({.peer = peer,
                     .pieces = {pieces.data(), 1},
                     .remote = {ranges.data(), 1},
                     .flags = kMessageData}),
            PostResult::kFailed);
  EXPECT_EQ(one.flush(99), PostResult::kFailed);
  const auto atomic = [&](AtomicType type, AtomicOperation operation, uint32_t operands,
                          uint32_t compared, uint32_t results, uint32_t there) {
    return one.atomic({.peer = peer,
                       .type = type,
                       .operation = operation,
                       .operands = {pieces.data(), operands},
                       .compared = {pieces.data(), compared},
                       .results = {pieces.data(), results},
                       .remote = {ranges.data(), there}});
  };
  const AtomicType type = AtomicType::kUint64;
  EXPECT_EQ(atomic(AtomicType::kDouble, AtomicOperation::kBitOr, 1, 0, 0, 1), PostResult::kFailed);
  EXPECT_EQ(atomic(type, AtomicOperation::kSum, 1, 0, 0, 2), PostResult::kFailed);
  EXPECT_EQ(atomic(type, AtomicOperation::kSum, 1, 1, 0, 1), PostResult::kFailed);
  EXPECT_EQ(atomic(type, AtomicOperation::kSum, 1, 0, 2, 1), PostResult::kFailed);
  EXPECT_EQ(atomic(type, AtomicOperation::kSwapIfEqual, 1, 0, 1, 1), PostResult::kFailed);
  EXPECT_EQ(atomic(type, AtomicOperation::kRead, 1, 0, 1, 1), PostResult::kFailed);
  EXPECT_EQ(atomic(type, AtomicOperation::kRead, 0, 0, 0, 1), PostResult::kFailed);
  EXPECT_EQ(atomic(AtomicType::kLongDouble, AtomicOperation::kSum, 1, 0, 0, 1),
            PostResult::kFailed);
  EXPECT_EQ(atomic(type, AtomicOperation::kSum, 5, 0, 0, 5), PostResult::kFailed);
  EXPECT_EQ(one.statistics().ring_messages + one.statistics().queue_messages, 0u);
}

TEST_F(OneSidedTest, MemoryThatCannotBeExposed) {
  ExposedMemory memory;
  char bytes[64] = {};
  const std::vector<iovec> pieces(5, iovec{bytes, 8});
  const std::span<const iovec> one(pieces.data(), 1);
  EXPECT_FALSE(memory.expose({.pieces = pieces, .access = kMemoryRead}).ok());
  EXPECT_FALSE(memory.expose({.pieces = one}).ok());
  EXPECT_FALSE(memory.expose({.pieces = one, .access = 4}).ok());
  EXPECT_FALSE(memory.expose({.pieces = one, .access = 1, .address = ~uint64_t{0} - 3}).ok());
  const iovec all[2] = {{nullptr, ~size_t{0}}, {bytes, 1}};
  EXPECT_FALSE(memory.expose({.pieces = all, .access = kMemoryRead}).ok());
  const ExposeRequest named{.pieces = one, .access = kMemoryRead, .has_key = true, .key = 7};
  EXPECT_EQ(test::must(memory.expose(named)), 7u);
  EXPECT_EQ(memory.expose(named).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(memory.revoke(7));
  EXPECT_TRUE(memory.revoke(7));
  EXPECT_TRUE(memory.expose(named).ok());
}

// MPI's dynamic windows: an address of the program is the offset.
TEST_F(OneSidedTest, AllMemoryCanBeExposedAtOnce) {
  make(2);
  const iovec all_memory{nullptr, ~size_t{0}};
  const uint64_t key = test::must(
      all()[1].exposed().expose({.pieces = {&all_memory, 1}, .access = kMemoryReadWrite}));
  std::string memory(100'000, 'm');
  const std::string bytes = drawn_bytes(memory.size(), 3);
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  EXPECT_EQ(put(0, 1, bytes, address, key).outcome, MessageOutcome::kOk);
  EXPECT_EQ(memory, bytes);
  EXPECT_EQ(put(0, 1, "first", address, key).outcome, MessageOutcome::kOk);
  EXPECT_EQ(memory.substr(0, 5), "first");
}

TEST_F(OneSidedTest, APutWithDataIsToldToItsTarget) {
  make(2);
  std::string memory(10'000, 'm');
  for (const uint32_t target : {1u, 0u}) {
    const uint64_t key = expose(target, memory);
    for (const uint64_t size : {8u, 5000u}) {
      EXPECT_EQ(post([&] { return all()[0].flush(kAnyPeer); }), PostResult::kPosted);
      const std::string bytes(size, 'b');
      MessageCompletion done = put(0, target, bytes, 0, key, kMessageData, size + 1);
      MessageCompletion written = target == 0 ? done : next(1);
      if (target == 0) done = next(0);
      EXPECT_EQ(done.event, MessageEvent::kPut);
      EXPECT_EQ(done.outcome, MessageOutcome::kOk);
      EXPECT_EQ(written.event, MessageEvent::kWritten);
      EXPECT_EQ(written.flags, unsigned{kMessageData});
      EXPECT_EQ(written.data, size + 1);
      EXPECT_EQ(written.bytes, size);
      EXPECT_EQ(written.peer, all().peer(target, 0));
    }
    // Refused: nothing is told.
    EXPECT_EQ(put(0, target, "x", 0, key + 1, kMessageData, 1).outcome,
              MessageOutcome::kUnknownKey);
    EXPECT_TRUE(all().done(1).empty());
  }
}

TEST_F(OneSidedTest, SilentOnesCompleteOnlyIfTheyFail) {
  make(2);
  std::string memory(16, 'm');
  const uint64_t key = expose(1, memory);
  const iovec piece{memory.data(), 8};
  std::string bytes = "12345678";
  const iovec from{bytes.data(), bytes.size()};
  const RemoteRange range{8, 8, key};
  const RemoteRange wrong{9, 8, key};
  static_cast<void>(piece);
  for (const RemoteRange* to : {&range, &wrong}) {
    ASSERT_EQ(post([&] {
                return all()[0].put({.peer = all().peer(0, 1),
                                     .pieces = {&from, 1},
                                     .remote = {to, 1},
                                     .flags = kMessageSilent});
              }),
              PostResult::kPosted);
  }
  EXPECT_EQ(post([&] { return all()[0].flush(all().peer(0, 1)); }), PostResult::kPosted);
  EXPECT_EQ(next(0).outcome, MessageOutcome::kOutOfRange);
  EXPECT_TRUE(all().done(0).empty());
  EXPECT_EQ(memory.substr(8), bytes);
}

// Puts, gets and atomics see each other in the order in which they were posted. The random test has
// long ones, too.
TEST_F(OneSidedTest, TheOrderOfPostingIsThatOfTheirEffects) {
  for (const uint32_t rings : {8u, 0u}) {
    MessengerOptions options;
    options.polling_set = rings;
    options.queue_credits = 8;
    make(2, options);
    std::string memory(64, '\0');
    const uint64_t key = expose(1, memory);
    std::string reference(64, '\0');
    Random random(run_seed());
    struct Read {
      std::string got;
      std::string expected;
    };
    std::deque<Read> reads;
    const PeerNumber peer = all().peer(0, 1);
    for (int i = 0; i < 3000; ++i) {
      const uint64_t at = random.below(8) * 8;
      const uint64_t size = 8 * (1 + random.below(8 - at / 8));
      const RemoteRange range{at, size, key};
      switch (random.below(3)) {
        case 0: {
          std::string bytes = drawn_bytes(size, random.next());
          const iovec piece{bytes.data(), size};
          ASSERT_EQ(post([&] {
                      return all()[0].put({.peer = peer,
                                           .pieces = {&piece, 1},
                                           .remote = {&range, 1},
                                           .flags = kMessageSilent});
                    }),
                    PostResult::kPosted);
          reference.replace(at, size, bytes);
          break;
        }
        case 1: {
          reads.push_back({std::string(size, 'x'), reference.substr(at, size)});
          const iovec piece{reads.back().got.data(), size};
          ASSERT_EQ(post([&] {
                      return all()[0].get({.peer = peer,
                                           .pieces = {&piece, 1},
                                           .remote = {&range, 1},
                                           .flags = kMessageSilent});
                    }),
                    PostResult::kPosted);
          break;
        }
        default: {
          std::vector<uint64_t> operands(size / 8);
          for (uint64_t& operand : operands) operand = random.next();
          reads.push_back({std::string(size, 'x'), reference.substr(at, size)});
          const iovec piece{operands.data(), size};
          const iovec result{reads.back().got.data(), size};
          ASSERT_EQ(post([&] {
                      return all()[0].atomic({.peer = peer,
                                              .operands = {&piece, 1},
                                              .results = {&result, 1},
                                              .remote = {&range, 1},
                                              .flags = kMessageSilent});
                    }),
                    PostResult::kPosted);
          for (uint64_t word = 0; word < size / 8; ++word) {
            uint64_t value = 0;
            std::memcpy(&value, reference.data() + at + word * 8, 8);
            value += operands[word];
            std::memcpy(reference.data() + at + word * 8, &value, 8);
          }
        }
      }
    }
    ASSERT_EQ(post([&] { return all()[0].flush(peer); }), PostResult::kPosted);
    EXPECT_EQ(memory, reference);
    for (const Read& read : reads) ASSERT_EQ(read.got, read.expected);
    EXPECT_TRUE(all().done(0).empty());
  }
}

TEST_F(OneSidedTest, AFenceWaitsForWhatWasPostedBefore) {
  make(2);
  std::string memory(4'000'000, 'm');
  const uint64_t key = expose(1, memory);
  std::string bytes(memory.size(), 'b');
  std::string last = "last";
  const PeerNumber peer = all().peer(0, 1);
  for (int i = 0; i < 5; ++i) {
    const iovec pieces[2] = {{bytes.data(), bytes.size()}, {last.data(), last.size()}};
    const RemoteRange ranges[2] = {{0, bytes.size(), key}, {100, last.size(), key}};
    ASSERT_EQ(
        post([&] {
          return all()[0].put(
              {.peer = peer, .pieces = {pieces, 1}, .remote = {ranges, 1}, .context = &bytes});
        }),
        PostResult::kPosted);
    EXPECT_TRUE(all()[0].awaits_peer(peer));
    ASSERT_EQ(post([&] {
                return all()[0].put({.peer = peer,
                                     .pieces = {pieces + 1, 1},
                                     .remote = {ranges + 1, 1},
                                     .context = &last,
                                     .flags = kMessageFence});
              }),
              PostResult::kPosted);
    EXPECT_EQ(next(0).context, &bytes);
    EXPECT_EQ(next(0).context, &last);
    EXPECT_EQ(memory.substr(99, 6), "blastb");
    EXPECT_FALSE(all()[0].awaits_peer(peer));
  }
}

TEST_F(OneSidedTest, AtomicsOfSeveralPeersAreAtomic) {
  constexpr uint32_t kMembers = 3;
  constexpr uint32_t kEach = 500;
  make(kMembers);
  std::string memory(8, '\0');
  const uint64_t key = expose(0, memory);
  std::vector<std::vector<uint64_t>> results(kMembers, std::vector<uint64_t>(kEach));
  const uint64_t one = 1;
  const iovec operand{const_cast<uint64_t*>(&one), 8};
  const RemoteRange range{0, 8, key};
  for (uint32_t i = 0; i < kEach; ++i) {
    for (uint32_t member = 0; member < kMembers; ++member) {
      const iovec result{&results[member][i], 8};
      ASSERT_EQ(post([&] {
                  return all()[member].atomic({.peer = all().peer(member, 0),
                                               .operands = {&operand, 1},
                                               .results = {&result, 1},
                                               .remote = {&range, 1}});
                }),
                PostResult::kPosted);
    }
  }
  std::vector<bool> seen(kMembers * kEach);
  for (uint32_t member = 0; member < kMembers; ++member) {
    ASSERT_EQ(post([&] { return all()[member].flush(kAnyPeer); }), PostResult::kPosted);
    for (const uint64_t result : results[member]) {
      ASSERT_LT(result, seen.size());
      EXPECT_FALSE(seen[result]);
      seen[result] = true;
    }
    EXPECT_TRUE(std::is_sorted(results[member].begin(), results[member].end()));
  }
  uint64_t value = 0;
  std::memcpy(&value, memory.data(), 8);
  EXPECT_EQ(value, uint64_t{kMembers} * kEach);
}

TEST_F(OneSidedTest, AtomicsTakePiecesAndTellTheirErrors) {
  make(2);
  std::string memory(64, '\0');
  const uint64_t key = expose(1, memory);
  const uint64_t own = expose(0, memory);
  const uint64_t reading = expose(1, memory, kMemoryRead);
  for (const uint32_t target : {1u, 0u}) {
    std::fill(memory.begin(), memory.end(), '\0');
    uint32_t operands[4] = {1, 2, 3, 4};
    uint32_t compared[4] = {0, 0, 9, 0};
    uint32_t results[4] = {7, 7, 7, 7};
    const uint64_t used = target == 1 ? key : own;
    const iovec from[2] = {{operands, 4}, {operands + 1, 12}};
    const iovec with[2] = {{compared, 8}, {compared + 2, 8}};
    const iovec into[2] = {{results, 12}, {results + 3, 4}};
    const RemoteRange ranges[2] = {{4, 8, used}, {40, 8, used}};
    const auto swap = [&](std::span<const RemoteRange> remote) {
      EXPECT_EQ(post([&] {
                  return all()[0].atomic({.peer = all().peer(0, target),
                                          .type = AtomicType::kUint32,
                                          .operation = AtomicOperation::kSwapIfEqual,
                                          .operands = from,
                                          .compared = with,
                                          .results = into,
                                          .remote = remote});
                }),
                PostResult::kPosted);
      return next(0);
    };
    MessageCompletion done = swap(ranges);
    EXPECT_EQ(done.outcome, MessageOutcome::kOk);
    EXPECT_EQ(done.event, MessageEvent::kFetched);
    const auto word = [&](size_t at) {
      uint32_t value = 0;
      std::memcpy(&value, memory.data() + at, 4);
      return value;
    };
    EXPECT_EQ(word(4), 1u);
    EXPECT_EQ(word(8), 2u);
    EXPECT_EQ(word(40), 0u);  // not equal
    EXPECT_EQ(word(44), 4u);
    for (const uint32_t result : results) EXPECT_EQ(result, 0u);
    if (target == 0) continue;
    const RemoteRange not_permitted[2] = {{4, 8, key}, {40, 8, reading}};
    EXPECT_EQ(swap(not_permitted).outcome, MessageOutcome::kNotPermitted);
    const RemoteRange outside[2] = {{4, 8, key}, {60, 8, key}};
    EXPECT_EQ(swap(outside).outcome, MessageOutcome::kOutOfRange);
    const RemoteRange cut[2] = {{4, 7, key}, {40, 9, key}};
    EXPECT_EQ(swap(cut).outcome, MessageOutcome::kOutOfRange);
    EXPECT_EQ(word(4), 1u);
  }
}

TEST_F(OneSidedTest, WhatAwaitsAPeerThatGoesIsLost) {
  make(3);
  std::string memory(100'000, 'm');
  const uint64_t key = expose(1, memory);
  ASSERT_EQ(put(0, 1, "x", 0, key).outcome, MessageOutcome::kOk);
  std::string bytes(50'000, 'b');
  uint32_t posted = 0;
  for (const uint64_t size : {8u, 50'000u}) {
    const iovec piece{bytes.data(), size};
    const RemoteRange range{0, size, key};
    const OneSidedRequest request{
        .peer = all().peer(0, 1), .pieces = {&piece, 1}, .remote = {&range, 1}};
    for (int i = 0; i < 3; ++i) {
      // The peer does nothing meanwhile.
      if (all()[0].put(request) == PostResult::kPosted) ++posted;
      if (all()[0].get(request) == PostResult::kPosted) ++posted;
    }
  }
  EXPECT_EQ(posted, 12u);
  all().close(1);
  ASSERT_TRUE(all().until([&] { return all().done(0).size() >= posted; }));
  for (const MessageCompletion& done : all().done(0)) {
    EXPECT_EQ(done.outcome, MessageOutcome::kPeerLost);
  }
  EXPECT_EQ(all()[0].flush(kAnyPeer), PostResult::kPosted);
  const iovec piece{bytes.data(), 8};
  const RemoteRange range{0, 8, key};
  EXPECT_EQ(all()[0].put({.peer = all().peer(0, 1), .pieces = {&piece, 1}, .remote = {&range, 1}}),
            PostResult::kFailed);
}

// Long puts and gets of a peer that goes let go of the memory, and the key can be revoked.
TEST_F(OneSidedTest, MemoryIsFreeOnceAPeerIsLost) {
  make(2);
  std::string memory(1'000'000, 'm');
  const uint64_t key = expose(0, memory);
  std::string bytes(memory.size(), 'b');
  ASSERT_EQ(put(1, 0, "x", 0, key).outcome, MessageOutcome::kOk);
  const iovec piece{bytes.data(), bytes.size()};
  const RemoteRange range{0, bytes.size(), key};
  for (int i = 0; i < 8; ++i) {
    static_cast<void>(
        all()[1].put({.peer = all().peer(1, 0), .pieces = {&piece, 1}, .remote = {&range, 1}}));
  }
  all().close(1);
  ASSERT_TRUE(all().until([&] { return !all()[0].peer_status(all().peer(0, 1)).ok(); }));
  EXPECT_TRUE(all()[0].exposed().revoke(key));
}

TEST_F(OneSidedTest, MessengersCanHaveTheirMemoryInCommon) {
  MessengerOptions options;
  options.exposed = std::make_shared<ExposedMemory>();
  make(2, options);
  std::string memory(16, 'm');
  const iovec piece{memory.data(), memory.size()};
  const uint64_t key =
      test::must(options.exposed->expose({.pieces = {&piece, 1}, .access = kMemoryReadWrite}));
  EXPECT_EQ(put(0, 1, "one", 0, key).outcome, MessageOutcome::kOk);
  EXPECT_EQ(put(1, 0, "two", 3, key).outcome, MessageOutcome::kOk);
  EXPECT_EQ(memory.substr(0, 7), "onetwom");
}

// Everything at once, where everything is short: each member has a part of its own in the memory of
// each other one, which it knows.
TEST_F(OneSidedTest, RandomOperationsBetweenMessagesAreAllRight) {
  constexpr uint32_t kMembers = 3;
  constexpr uint64_t kPart = 20'000;
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  MessengerOptions tight;
  tight.ring_slots = 4;
  tight.queue_credits = 6;
  tight.slot_bytes = 512;
  tight.max_operations = 24;
  tight.max_completions = 26;
  tight.max_unexpected = 40;
  tight.polling_set = 1;
  tight.policy = PollingSetPolicy::kDynamic;
  MessengerOptions smallest = tight;
  smallest.slot_bytes = 256;
  smallest.polling_set = 0;
  for (const MessengerOptions& options : {MessengerOptions{}, tight, smallest}) {
    make(kMembers, options);
    Random random(seed);
    std::vector<std::string> memory(kMembers, std::string(kMembers * kPart, '\0'));
    std::vector<std::string> reference = memory;
    std::vector<uint64_t> keys;
    for (uint32_t i = 0; i < kMembers; ++i) keys.push_back(expose(i, memory[i]));
    struct Pending {
      std::string bytes;
      std::string expected;  // of a get
    };
    std::vector<std::map<Pending*, std::unique_ptr<Pending>>> pending(kMembers);
    const auto check = [&] {
      for (uint32_t i = 0; i < kMembers; ++i) {
        for (const MessageCompletion& done : all().done(i)) {
          if (done.event == MessageEvent::kReceived || done.event == MessageEvent::kSent) continue;
          ASSERT_EQ(done.outcome, MessageOutcome::kOk);
          const auto found = pending[i].find(static_cast<Pending*>(done.context));
          ASSERT_NE(found, pending[i].end());
          if (done.event == MessageEvent::kGot) {
            ASSERT_EQ(found->second->bytes, found->second->expected);
          }
          pending[i].erase(found);
        }
        all().done(i).clear();
      }
    };
    for (int step = 0; step < 1500; ++step) {
      const auto from = static_cast<uint32_t>(random.below(kMembers));
      const auto to = static_cast<uint32_t>(random.below(kMembers));
      if (random.below(4) == 0) {
        if (all()[from].send({.peer = all().peer(from, to)}) == PostResult::kPosted) {
          ASSERT_EQ(post([&] { return all()[to].receive({.source = all().peer(to, from)}); }),
                    PostResult::kPosted);
        }
      }
      const uint64_t most = random.below(4) == 0 ? kPart : 300;
      const uint64_t size = 1 + random.below(most);
      const uint64_t at = from * kPart + random.below(kPart - size + 1);
      auto one = std::make_unique<Pending>();
      const bool puts = random.below(2) == 0;
      one->bytes = puts ? drawn_bytes(size, random.next()) : std::string(size, 'x');
      one->expected = reference[to].substr(at, size);
      const iovec piece{one->bytes.data(), size};
      const RemoteRange range{at, size, keys[to]};
      // In order, however long: no fence.
      const OneSidedRequest request{.peer = all().peer(from, to),
                                    .pieces = {&piece, 1},
                                    .remote = {&range, 1},
                                    .context = one.get()};
      const PostResult result = puts ? all()[from].put(request) : all()[from].get(request);
      ASSERT_NE(result, PostResult::kFailed);
      if (result == PostResult::kPosted) {
        if (puts) reference[to].replace(at, size, one->bytes);
        Pending* const known = one.get();
        pending[from].emplace(known, std::move(one));
      }
      all().poll_all();
      ASSERT_NO_FATAL_FAILURE(check());
    }
    for (uint32_t i = 0; i < kMembers; ++i) {
      ASSERT_EQ(post([&] { return all()[i].flush(kAnyPeer); }), PostResult::kPosted);
    }
    ASSERT_NO_FATAL_FAILURE(check());
    EXPECT_EQ(memory, reference);
  }
}

}  // namespace
}  // namespace verbena::message
