// Users' memory that long messages leave registered: it is used again, and never once the program
// has other memory there.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>

#include "src/memory/changed_memory_for_test.h"
#include "src/message/messengers_for_test.h"

namespace verbena {

// How the parameter prints.
static std::ostream& operator<<(std::ostream& out, LongMessages way) {
  return out << (way == LongMessages::kWrite ? "WRITE" : "READ");
}

}  // namespace verbena

namespace verbena::message {
namespace {

using test::kPageBytes;
using test::map_pages;

constexpr uint64_t kLongPages = 8;
constexpr uint64_t kLongBytes = kLongPages * kPageBytes;

class MessengerMemoryTest : public testing::TestWithParam<LongMessages> {
 protected:
  void make(MessengerOptions options = {}) {
    options.long_messages = GetParam();
    all_ = std::make_unique<MessengersForTest>(2, options);
  }
  MessengersForTest& all() { return *all_; }
  uint64_t registrations(uint32_t of) { return all()[of].statistics().registrations; }

  // A message of other bytes each time: whether they came.
  testing::AssertionResult moves(char* from, char* to, uint64_t bytes = kLongBytes) {
    ++rounds_;
    for (uint64_t i = 0; i < bytes; ++i) from[i] = byte(i);
    std::memset(to, 0, bytes);
    all().done(0).clear();
    all().done(1).clear();
    const iovec target{to, bytes};
    if (all()[1].receive({.tag = 1, .pieces = {&target, 1}}) != PostResult::kPosted) {
      return testing::AssertionFailure() << "no receive is posted";
    }
    const iovec source{from, bytes};
    if (auto sent = all().send(0, {.peer = all().peer(0, 1), .tag = 1, .pieces = {&source, 1}});
        !sent) {
      return sent;
    }
    if (auto came =
            all().until([this] { return !all().done(0).empty() && !all().done(1).empty(); });
        !came) {
      return came;
    }
    if (all().done(1)[0].outcome != MessageOutcome::kOk) {
      return testing::AssertionFailure() << "it failed: " << all()[1].error().message();
    }
    for (uint64_t i = 0; i < bytes; ++i) {
      if (to[i] != byte(i)) return testing::AssertionFailure() << "byte " << i << " is another one";
    }
    return testing::AssertionSuccess();
  }

 private:
  char byte(uint64_t i) const { return static_cast<char>(1 + (i * 13 + rounds_ * 7) % 127); }

  std::unique_ptr<MessengersForTest> all_;
  uint64_t rounds_ = 0;
};

TEST_P(MessengerMemoryTest, TheSameMemoryIsRegisteredOnce) {
  make();
  char* const memory = map_pages(3 * kLongPages);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(moves(memory, memory + kLongBytes));
  EXPECT_EQ(registrations(0), 1u);
  EXPECT_EQ(registrations(1), 1u);
  // Parts of it are found, too, and the rest is not.
  ASSERT_TRUE(moves(memory + 100, memory + kLongBytes + 1000, kLongBytes - 1000));
  EXPECT_EQ(registrations(0) + registrations(1), 2u);
  ASSERT_TRUE(moves(memory, memory + 2 * kLongBytes));
  EXPECT_EQ(registrations(0) + registrations(1), 3u);
  munmap(memory, 3 * kLongBytes);
}

// As buffers of collectives: one region for each use, whatever comes in between.
TEST_P(MessengerMemoryTest, MemoryOfBothUsesIsRegisteredOnceForEach) {
  make();
  char* const memory = map_pages(2 * kLongPages);
  char* const of[2] = {memory, memory + kLongBytes};
  for (uint32_t from = 0, i = 0; i < 10; ++i, from = 1 - from) {
    if (from == 0) {
      ASSERT_TRUE(moves(of[0], of[1]));
      continue;
    }
    // Back from where it came to.
    all().done(0).clear();
    const iovec target{of[0], kLongBytes};
    const iovec source{of[1], kLongBytes};
    ASSERT_EQ(all()[0].receive({.tag = 1, .pieces = {&target, 1}}), PostResult::kPosted);
    ASSERT_TRUE(all().send(1, {.peer = all().peer(1, 0), .tag = 1, .pieces = {&source, 1}}));
    ASSERT_TRUE(all().until([this] { return !all().done(0).empty() && all().done(1).size() > 1; }));
    EXPECT_EQ(std::memcmp(of[0], of[1], kLongBytes), 0);
  }
  EXPECT_EQ(registrations(0), 2u);
  EXPECT_EQ(registrations(1), 2u);
  munmap(memory, 2 * kLongBytes);
}

TEST_P(MessengerMemoryTest, NothingIsKeptThatTheOptionsDoNotAllow) {
  struct Bounds {
    uint64_t bytes;
    uint32_t regions;
  };
  for (const auto& [bytes, regions] : {Bounds{0, 8192}, Bounds{kLongBytes - 1, 8192},
                                       Bounds{kLongBytes, 8192}, Bounds{1 << 30, 1}}) {
    make({.registered_bytes = bytes, .registered_regions = regions});
    char* const memory = map_pages(4 * kLongPages);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(moves(memory, memory + 2 * kLongBytes));
    const bool keeps = bytes >= kLongBytes;
    EXPECT_EQ(registrations(0), keeps ? 1u : 3u);
    EXPECT_EQ(registrations(1), keeps ? 1u : 3u);
    // There is room for one.
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(moves(memory, memory + 2 * kLongBytes));
      ASSERT_TRUE(moves(memory + kLongBytes, memory + 3 * kLongBytes));
    }
    EXPECT_GE(registrations(0), 6u);
    munmap(memory, 4 * kLongBytes);
  }
}

TEST_P(MessengerMemoryTest, MemoryThatWasMappedAnewIsRegisteredAnew) {
  make();
  char* const source = map_pages(kLongPages);
  char* const target = map_pages(kLongPages);
  ASSERT_TRUE(moves(source, target));
  for (char* const changed : {source, target}) {
    const uint64_t before = registrations(0) + registrations(1);
    ASSERT_EQ(munmap(changed, kLongBytes), 0);
    map_pages(kLongPages, changed);
    ASSERT_TRUE(moves(source, target));
    // soft0 takes sources from where the program has them, and its READs go there, too.
    const bool follows = GetParam() == LongMessages::kRead || changed == source;
    EXPECT_EQ(registrations(0) + registrations(1), before + (follows ? 0 : 1));
    // A part, in one call.
    map_pages(1, changed + 3 * kPageBytes);
    ASSERT_TRUE(moves(source, target));
    // Other memory moves there.
    char* const other = map_pages(kLongPages);
    ASSERT_EQ(mremap(other, kLongBytes, kLongBytes, MREMAP_MAYMOVE | MREMAP_FIXED, changed),
              changed);
    ASSERT_TRUE(moves(source, target));
    // Whether or not the device lets it go.
    static_cast<void>(madvise(changed + kPageBytes, kPageBytes, MADV_DONTNEED));
    ASSERT_TRUE(moves(source, target));
  }
  munmap(source, kLongBytes);
  munmap(target, kLongBytes);
}

TEST_P(MessengerMemoryTest, AChildOfForkChangesNothing) {
  make();
  char* const source = map_pages(kLongPages);
  char* const target = map_pages(kLongPages);
  ASSERT_TRUE(moves(source, target));
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(go[1]);
    std::memset(source, 1, kLongBytes);
    std::memset(target, 2, kLongBytes);
    char byte;
    const bool waited = read(go[0], &byte, 1) == 0;
    _exit(waited && target[kLongBytes - 1] == 2 ? 0 : 1);
  }
  close(go[0]);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(moves(source, target));
  close(go[1]);
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0) << "the child's memory is its own";
  munmap(source, kLongBytes);
  munmap(target, kLongBytes);
}

// More are on their way than are kept: each is registered until its message has come.
TEST_P(MessengerMemoryTest, WhatIsOnItsWayStaysRegistered) {
  make({.registered_bytes = kLongBytes, .registered_regions = 1});
  constexpr uint32_t kMessages = 4;
  char* const sources = map_pages(kMessages * kLongPages);
  char* const targets = map_pages(kMessages * kLongPages);
  for (uint32_t i = 0; i < kMessages; ++i) {
    std::memset(sources + i * kLongBytes, static_cast<int>('a' + i), kLongBytes);
    const iovec source{sources + i * kLongBytes, kLongBytes};
    ASSERT_TRUE(all().send(0, {.peer = all().peer(0, 1), .tag = i, .pieces = {&source, 1}}));
  }
  ASSERT_TRUE(all().until([&] { return all()[1].statistics().unexpected == kMessages; }));
  EXPECT_TRUE(all().done(0).empty());
  for (uint32_t i = kMessages; i-- > 0;) {
    const iovec target{targets + i * kLongBytes, kLongBytes};
    ASSERT_EQ(all()[1].receive({.tag = i, .pieces = {&target, 1}}), PostResult::kPosted);
  }
  ASSERT_TRUE(all().until(
      [&] { return all().done(0).size() == kMessages && all().done(1).size() == kMessages; }));
  EXPECT_EQ(std::memcmp(sources, targets, kMessages * kLongBytes), 0);
  // One that never completes is given back at the end.
  const iovec source{sources, kLongBytes};
  ASSERT_TRUE(all().send(0, {.peer = all().peer(0, 1), .tag = 9, .pieces = {&source, 1}}));
  all().close(0);
  munmap(sources, kMessages * kLongBytes);
  munmap(targets, kMessages * kLongBytes);
}

TEST_P(MessengerMemoryTest, MemoryThatIsNotThereFailsItsMessage) {
  make();
  char* const memory = map_pages(2 * kLongPages);
  char* const hole = memory + kLongBytes;
  ASSERT_TRUE(moves(memory, hole));
  ASSERT_EQ(munmap(hole, kLongBytes), 0);
  // Of two pieces the first one is registered.
  const iovec pieces[] = {{memory, kLongBytes}, {hole, kLongBytes}};
  PostResult result = PostResult::kWouldBlock;
  ASSERT_TRUE(all().until([&] {
    result = all()[0].send({.peer = all().peer(0, 1), .tag = 1, .pieces = pieces});
    return result != PostResult::kWouldBlock;
  }));
  EXPECT_EQ(result, PostResult::kFailed);
  EXPECT_NE(all()[0].error().message().find("mapped"), std::string::npos)
      << all()[0].error().message();
  EXPECT_TRUE(all()[0].peer_status(all().peer(0, 1)).ok());
  // At the receiver, both sides are told.
  all().done(0).clear();
  all().done(1).clear();
  ASSERT_EQ(all()[1].receive({.tag = 2, .pieces = {&pieces[1], 1}}), PostResult::kPosted);
  ASSERT_TRUE(all().send(0, {.peer = all().peer(0, 1), .tag = 2, .pieces = {&pieces[0], 1}}));
  ASSERT_TRUE(all().until([&] { return !all().done(0).empty() && !all().done(1).empty(); }));
  EXPECT_EQ(all().done(0)[0].outcome, MessageOutcome::kFailed);
  EXPECT_EQ(all().done(1)[0].outcome, MessageOutcome::kFailed);
  map_pages(kLongPages, hole);
  EXPECT_TRUE(moves(memory, hole));
  munmap(memory, 2 * kLongBytes);
}

INSTANTIATE_TEST_SUITE_P(Methods, MessengerMemoryTest,
                         testing::Values(LongMessages::kRead, LongMessages::kWrite),
                         [](const auto& info) {
                           return info.param == LongMessages::kRead ? "READ" : "WRITE";
                         });

}  // namespace
}  // namespace verbena::message
