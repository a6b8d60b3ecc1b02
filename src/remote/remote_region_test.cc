#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/remote/region_for_test.h"
#include "verbena/fault.h"

namespace verbena::remote {
namespace {

using testing::HasSubstr;
using Word = RemotePointer<uint64_t>;

struct Account {
  uint64_t balance = 0;
  char name[24] = {};
};

uint64_t word_at(ExposedRegion& region, uint64_t offset_bytes) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(region.data() + offset_bytes)).load();
}

TEST(RemoteRegionTest, ValuesAreWrittenAndRead) {
  RegionForTest region;
  auto front_end = region.open();
  ASSERT_TRUE(front_end.region.ok()) << front_end.region.status().message();
  EXPECT_EQ(front_end->size_bytes(), 4096u);
  EXPECT_TRUE(front_end->writable());
  const RemotePointer<Account> accounts{.offset_bytes = 128};
  ASSERT_TRUE(front_end->write(accounts + 1, {100, "Ada"}).ok());
  EXPECT_EQ(word_at(*region, 128 + sizeof(Account)), 100u);
  const Result<Account> copy = front_end->read(accounts + 1);
  ASSERT_TRUE(copy.ok()) << copy.status().message();
  EXPECT_EQ(copy->balance, 100u);
  EXPECT_STREQ(copy->name, "Ada");
  const Result<uint64_t> before = front_end->fetch_and_add((accounts + 1).at<uint64_t>(0), 5);
  ASSERT_TRUE(before.ok()) << before.status().message();
  EXPECT_EQ(*before, 100u);
  EXPECT_EQ(*front_end->compare_and_swap((accounts + 1).at<uint64_t>(0), 100, 1), 105u);
  EXPECT_EQ(*front_end->compare_and_swap((accounts + 1).at<uint64_t>(0), 105, 1), 105u);
  EXPECT_EQ(word_at(*region, 128 + sizeof(Account)), 1u);
  const RemoteStatistics& statistics = front_end->statistics();
  EXPECT_EQ(statistics.reads, 1u);
  EXPECT_EQ(statistics.writes, 1u);
  EXPECT_EQ(statistics.atomics, 3u);
  EXPECT_EQ(statistics.read_bytes, sizeof(Account));
  EXPECT_EQ(statistics.doorbells, 5u);
}

TEST(RemoteRegionTest, LongTransfersGoInPartsOrFromRegisteredMemory) {
  constexpr uint64_t kBytes = 100'001;
  RegionForTest region({.size_bytes = 2 * kBytes});
  auto front_end = region.open({.copy_bytes = 4096});
  ASSERT_TRUE(front_end.region.ok());
  std::vector<char> bytes(kBytes);
  std::iota(bytes.begin(), bytes.end(), '\0');
  ASSERT_TRUE(front_end->write(3, std::span<const char>(bytes)).ok());
  EXPECT_EQ(std::memcmp((*region).data() + 3, bytes.data(), kBytes), 0);
  EXPECT_EQ(front_end->statistics().writes, 25u);
  std::vector<char> copy(kBytes);
  ASSERT_TRUE(front_end->read(3, std::span<char>(copy)).ok());
  EXPECT_EQ(copy, bytes);

  std::vector<char> registered(kBytes + 10);
  const MemoryRegion memory = must(MemoryRegion::create(region.node().domain, registered.data(),
                                                        registered.size(), IBV_ACCESS_LOCAL_WRITE));
  const LocalSlice slice{.memory = &memory, .offset_bytes = 10, .size_bytes = kBytes};
  ASSERT_TRUE(front_end->read(3, slice).ok());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), registered.begin() + 10));
  ASSERT_TRUE(front_end->write(kBytes, slice).ok());
  EXPECT_EQ(std::memcmp((*region).data() + kBytes, bytes.data(), kBytes), 0);
  EXPECT_EQ(front_end->statistics().writes, 26u);
  EXPECT_TRUE(front_end->read(0, LocalSlice{&memory, 0, 0}).ok()) << "nothing is a transfer, too";
}

TEST(RemoteRegionTest, TheUsersOwnMemoryCanBeExposed) {
  std::vector<char> memory(1000, 'u');
  RegionForTest region({.memory = memory});
  auto front_end = region.open();
  ASSERT_TRUE(front_end.region.ok());
  EXPECT_EQ(front_end->size_bytes(), 1000u);
  EXPECT_EQ((*region).data(), memory.data());
  EXPECT_EQ(*front_end->read(RemotePointer<char>{999}), 'u');
  ASSERT_TRUE(front_end->write(RemotePointer<char>{999}, 'v').ok());
  EXPECT_EQ(memory[999], 'v');
}

// Every mixture of sizes: each operation is done once, in order, with its own result.
TEST(RemoteRegionTest, PostedOperationsComeBackInOrder) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  RegionForTest region;
  for (int round = 0; round < 30; ++round) {
    RemoteRegionOptions options;
    options.pending = 1 + static_cast<uint32_t>(random.below(40));
    options.signal_interval = 1 + static_cast<uint32_t>(random.below(options.pending));
    options.post_batch = 1 + static_cast<uint32_t>(random.below(options.pending));
    if (random.below(2) == 0) options.inline_bytes = 0;
    auto front_end = region.open(options);
    ASSERT_TRUE(front_end.region.ok()) << front_end.region.status().message();
    const Word counter{.offset_bytes = 64};
    const Word cell{.offset_bytes = 72};
    ASSERT_TRUE(front_end->write(counter, 0).ok());
    ASSERT_TRUE(front_end->write(cell, 0).ok());
    constexpr uint64_t kOperations = 300;
    uint64_t posted = 0;
    uint64_t taken = 0;
    uint64_t blocked = 0;
    const auto post = [&](uint64_t token) {
      switch (token % 3) {
        case 0:
          return front_end->post_write(cell, token, token);
        case 1:
          return front_end->post_fetch_and_add(counter, 1, token);
        default:
          return front_end->post_read(cell, token,
                                      token % 2 == 0 ? Order::kPosted : Order::kAfterReads);
      }
    };
    while (taken < kOperations) {
      while (posted < kOperations && random.below(8) != 0) {
        const PostResult result = post(posted);
        if (result == PostResult::kWouldBlock) {
          ++blocked;
          EXPECT_EQ(front_end->outstanding(), options.pending);
          break;
        }
        ASSERT_EQ(result, PostResult::kPosted) << front_end->error().message();
        ++posted;
      }
      if (random.below(16) == 0) {
        // A call of its own in the middle of the others takes none of their completions.
        ASSERT_TRUE(front_end->read(cell).ok());
      }
      front_end->poll([&](const RemoteCompletion& done) {
        ASSERT_EQ(done.token, taken);
        if (taken % 3 == 1) {
          EXPECT_EQ(done.value<uint64_t>(), taken / 3);
        } else if (taken % 3 == 2) {
          // At least what was written before it: READs find earlier WRITEs.
          EXPECT_GE(done.value<uint64_t>(), taken - 2);
        } else {
          EXPECT_TRUE(done.bytes.empty());
        }
        ++taken;
      });
      ASSERT_TRUE(front_end->status().ok()) << front_end->status().message();
    }
    EXPECT_EQ(front_end->outstanding(), 0u);
    EXPECT_EQ(front_end->statistics().would_block, blocked);
  }
}

TEST(RemoteRegionTest, AFullQueueIsAValue) {
  RegionForTest region;
  auto front_end = region.open({.pending = 3});
  ASSERT_TRUE(front_end.region.ok());
  for (uint64_t token = 0; token < 3; ++token) {
    EXPECT_EQ(front_end->post_read(Word{0}, token), PostResult::kPosted);
  }
  EXPECT_EQ(front_end->post_read(Word{0}, 3), PostResult::kWouldBlock);
  EXPECT_TRUE(front_end->status().ok());
  EXPECT_EQ(front_end->statistics().would_block, 1u);
  EXPECT_TRUE(front_end->write(Word{0}, 7).ok()) << "what is waited for has a place of its own";
  uint32_t taken = 0;
  Waiter waiter;
  while (taken < 3) {
    const uint32_t found = front_end->poll([](const RemoteCompletion&) {});
    taken += found;
    if (found == 0) waiter.idle();
  }
  EXPECT_EQ(front_end->post_read(Word{0}, 3), PostResult::kPosted);
}

// Memory of the user begins anywhere: an atomic has to be aligned where it happens.
TEST(RemoteRegionTest, AtomicsAreAlignedInTheMemoryThatIsExposed) {
  alignas(8) std::array<char, 104> memory{};
  RegionForTest region({.memory = std::span(memory).subspan(3, 96)});
  auto front_end = region.open();
  ASSERT_TRUE(front_end.region.ok());
  const Status refused = front_end->fetch_and_add(Word{8}, 1).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("offset 8 is not aligned: choose 5 more than"));
  EXPECT_EQ(front_end->post_compare_and_swap(Word{0}, 0, 1, 1), PostResult::kFailed);
  EXPECT_TRUE(front_end->status().ok()) << front_end->status().message();
  EXPECT_EQ(*front_end->fetch_and_add(Word{13}, 7), 0u);
  EXPECT_EQ(word_at(*region, 13), 7u);
}

// What is refused happened not at all, and the connection goes on.
TEST(RemoteRegionTest, WhatCannotBeIsRefusedWithItsReason) {
  RegionForTest region;
  auto front_end = region.open();
  ASSERT_TRUE(front_end.region.ok());
  std::vector<char> bytes(5000, 'x');
  const MemoryRegion memory = must(MemoryRegion::create(region.node().domain, bytes.data(),
                                                        bytes.size(), IBV_ACCESS_LOCAL_WRITE));
  const auto slice = [&](uint64_t offset_bytes, uint32_t size_bytes) {
    return LocalSlice{&memory, offset_bytes, size_bytes};
  };
  const std::vector<std::pair<Status, const char*>> refused = {
      {front_end->read(4089, std::span<char>(bytes).first(8)),
       "8 bytes at offset 4089 are not all inside of the region of 4096 bytes"},
      {front_end->write(0, std::span<const char>(bytes)), "5000 bytes at offset 0"},
      {front_end->write(Word{~uint64_t{0} - 3}, 1), "not all inside"},
      {front_end->read(0, slice(4999, 2)),
       "2 bytes at offset 4999 is not all inside of its registered memory of 5000"},
      {front_end->write(0, slice(~uint64_t{0}, 2)), "not all inside of its registered memory"},
      {front_end->read(0, LocalSlice{}), "names no memory"},
      {front_end->fetch_and_add(Word{4}, 1).status(), "offset 4 is not aligned"},
      {front_end->compare_and_swap(Word{4096}, 0, 1).status(), "8 bytes at offset 4096"},
  };
  for (const auto& [status, reason] : refused) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(reason));
  }
  const auto expect_refused = [&](PostResult result, const char* reason) {
    EXPECT_EQ(result, PostResult::kFailed);
    EXPECT_THAT(front_end->error().message(), HasSubstr(reason));
  };
  expect_refused(front_end->post_write(0, std::span<const char>(bytes).first(65), 1),
                 "a value of 65 bytes was posted, value_bytes is 64");
  expect_refused(front_end->post_read(0, 65, 1), "a value of 65 bytes");
  expect_refused(front_end->post_read(4090, 8, 1), "8 bytes at offset 4090");
  expect_refused(front_end->post_write(Word{4092}, 1, 1), "8 bytes at offset 4092");
  expect_refused(front_end->post_fetch_and_add(Word{7}, 1, 1), "offset 7 is not aligned");
  expect_refused(front_end->post_read(0, slice(0, 5001), 1), "5001 bytes at offset 0");
  EXPECT_TRUE(front_end->status().ok());
  EXPECT_EQ(front_end->outstanding(), 0u);
  EXPECT_EQ(*front_end->read(Word{0}), 0u);
}

TEST(RemoteRegionTest, AReadOnlyRegionIsNotWritten) {
  std::vector<char> memory(64, 'r');
  RegionForTest region({.memory = memory, .writable = false});
  auto front_end = region.open({.pending = 4, .signal_interval = 4});
  ASSERT_TRUE(front_end.region.ok());
  EXPECT_FALSE(front_end->writable());
  const Status written = front_end->write(Word{0}, 1);
  EXPECT_EQ(written.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(written.message(), HasSubstr("lets its region be read only"));
  EXPECT_EQ(front_end->fetch_and_add(Word{0}, 1).status().code(), StatusCode::kPermissionDenied);
  // Also with nothing that asks for a completion by itself.
  ASSERT_EQ(front_end->post_read(RemotePointer<char>{5}, 1), PostResult::kPosted);
  Waiter waiter;
  char read = 0;
  while (front_end->poll([&](const RemoteCompletion& done) { read = done.value<char>(); }) == 0) {
    ASSERT_TRUE(front_end->status().ok()) << front_end->status().message();
    waiter.idle();
  }
  EXPECT_EQ(read, 'r');
}

TEST(RemoteRegionTest, OptionsOutOfRangeAreNamed) {
  RegionForTest region;
  const std::vector<std::pair<RemoteRegionOptions, const char*>> wrong = {
      {{.pending = 0}, "pending is 0; choose 1 to 4096"},
      {{.pending = 5000}, "pending is 5000"},
      {{.value_bytes = 7}, "value_bytes is 7; choose 8 to 1048576"},
      {{.copy_bytes = 0}, "copy_bytes is 0"},
      {{.pending = 4, .signal_interval = 5}, "signal_interval is 5; choose 1 to 4"},
      {{.pending = 4, .post_batch = 0}, "post_batch is 0; choose 1 to 4"},
  };
  // They are refused before anything is asked of the peer.
  JobSecret secret = JobSecret::random();
  auto listener = must(ControlListener::listen("127.0.0.1", 0, secret));
  std::optional<ControlConnection> accepted;
  Thread accepting =
      start_thread("accept", [&] { accepted.emplace(must(listener.accept(kTestTimeoutNs))); });
  ControlConnection control =
      must(ControlConnection::connect("127.0.0.1", listener.port(), secret, kTestTimeoutNs));
  accepting.join();
  for (const auto& [options, reason] : wrong) {
    const auto opened = open_region(region.node().device, region.node().domain, control, options);
    EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(opened.status().message(), HasSubstr(reason));
  }
}

TEST(RemoteRegionTest, RegionsThatCannotBeAreNamed) {
  RegionForTest some;
  const test::Node& node = some.node();
  std::vector<char> memory(8);
  const std::vector<std::pair<ExposedRegionOptions, const char*>> wrong = {
      {{}, "either size_bytes or memory"},
      {{.size_bytes = 8, .memory = memory}, "either size_bytes or memory"},
      {{.size_bytes = 8, .max_connections = 0}, "max_connections is 0; choose 1 to 16384"},
      {{.size_bytes = uint64_t{1} << 60}, "larger than the memory of this machine"},
  };
  for (const auto& [options, reason] : wrong) {
    const auto region = expose_region(node.device, node.domain, options);
    ASSERT_FALSE(region.ok());
    EXPECT_THAT(region.status().message(), HasSubstr(reason));
  }
}

TEST(RemoteRegionTest, FrontEndsComeAndGo) {
  RegionForTest region({.size_bytes = 4096, .max_connections = 2});
  auto first = region.open();
  std::optional<RegionForTest::Opened> second(region.open());
  ASSERT_TRUE(first.region.ok() && second->region.ok());
  auto third = region.open();
  EXPECT_EQ(third.accepted.code(), StatusCode::kLimitExceeded);
  EXPECT_EQ(third.region.status().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(third.region.status().message(),
              HasSubstr("2 front-ends are connected, and max_connections is as high"));
  EXPECT_TRUE(region->last_end().ok());
  second.reset();
  region.wait_for_connections(1);
  EXPECT_THAT(region->last_end().message(), HasSubstr("the front-end 127.0.0.1:"));
  auto fourth = region.open();
  ASSERT_TRUE(fourth.region.ok()) << fourth.region.status().message();
  EXPECT_EQ(*fourth->fetch_and_add(Word{0}, 1), 0u);
  EXPECT_EQ(*first->fetch_and_add(Word{0}, 1), 1u);
  EXPECT_EQ(region->connections(), 2u);
}

TEST(RemoteRegionTest, AClosedConnectionSaysSo) {
  RegionForTest region;
  auto front_end = region.open();
  ASSERT_TRUE(front_end.region.ok());
  ASSERT_EQ(front_end->post_read(Word{0}, 1), PostResult::kPosted);
  front_end->close();
  EXPECT_EQ(front_end->status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(front_end->status().message(), HasSubstr("closed on this side"));
  EXPECT_EQ(front_end->poll([](const RemoteCompletion&) {}), 0u);
  EXPECT_EQ(front_end->post_read(Word{0}, 1), PostResult::kFailed);
  EXPECT_EQ(front_end->read(Word{0}).status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(front_end->flush());
  region.wait_for_connections(0);
}

TEST(RemoteRegionTest, ABackEndThatIsGoneIsNamed) {
  RegionForTest region;
  auto busy = region.open();
  auto idle = region.open();
  ASSERT_TRUE(busy.region.ok() && idle.region.ok());
  region.drop();
  Status status;
  while (status.ok()) status = busy->write(Word{0}, 1);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the back-end 127.0.0.1:"));
  // Without anything on its way, polling tells.
  Waiter waiter;
  while (idle->status().ok()) {
    idle->poll([](const RemoteCompletion&) {});
    waiter.idle();
  }
  EXPECT_THAT(idle->status().message(), HasSubstr("is gone"));
}

TEST(RemoteRegionTest, AQueuePairThatBreaksIsReported) {
  RegionForTest region;
  FaultPlan plan;
  plan.delay = {.probability = 1, .duration_ns = 3'600'000'000'000};
  plan.queue_pair_error = 1;
  const test::Node broken{must(Device::open("soft0", plan))};
  auto waits = region.open_on(broken, {});
  auto polls = region.open_on(broken, {});
  ASSERT_TRUE(waits.region.ok() && polls.region.ok());
  const Status status = waits->write(Word{0}, 1);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the back-end 127.0.0.1:"));
  ASSERT_EQ(polls->post_read(Word{0}, 1), PostResult::kPosted);
  Waiter waiter;
  while (polls->status().ok()) {
    EXPECT_EQ(polls->poll([](const RemoteCompletion&) {}), 0u);
    waiter.idle();
  }
  EXPECT_EQ(polls->status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(polls->error().message(), polls->status().message());
}

TEST(RemoteRegionTest, TwoSidesWithTheSameRoleAreTold) {
  RegionForTest region;
  const test::Node& node = region.node();
  JobSecret secret = JobSecret::random();
  auto listener = must(ControlListener::listen("127.0.0.1", 0, secret));
  for (const bool expose : {true, false}) {
    std::array<Status, 2> ends;
    const auto meet = [&](ControlConnection control, Status* end) {
      if (expose) {
        *end = must(expose_region(node.device, node.domain, {.size_bytes = 64}))->accept(control);
      } else {
        *end = open_region(node.device, node.domain, control).status();
      }
    };
    Thread other = start_thread("other", [&] {
      meet(must(ControlConnection::connect("127.0.0.1", listener.port(), secret, kTestTimeoutNs)),
           &ends[0]);
    });
    meet(must(listener.accept(kTestTimeoutNs)), &ends[1]);
    other.join();
    for (const Status& end : ends) {
      EXPECT_EQ(end.code(), StatusCode::kInvalidArgument) << end.message();
      EXPECT_THAT(end.message(), HasSubstr("a region, too"));
    }
  }
}

TEST(RemoteRegionTest, ManyFrontEndsCountTogether) {
  constexpr uint32_t kFrontEnds = 3;
  constexpr uint64_t kEach = 2000;
  RegionForTest region;
  std::vector<RegionForTest::Opened> front_ends;
  for (uint32_t i = 0; i < kFrontEnds; ++i) front_ends.push_back(region.open());
  std::vector<Thread> threads;
  std::vector<std::vector<uint64_t>> found(kFrontEnds);
  for (uint32_t i = 0; i < kFrontEnds; ++i) {
    threads.push_back(start_thread("front-end", [&, i] {
      for (uint64_t n = 0; n < kEach; ++n) {
        found[i].push_back(must(front_ends[i]->fetch_and_add(Word{8}, 1)));
      }
    }));
  }
  threads.clear();
  std::vector<uint64_t> all;
  for (const auto& numbers : found) all.insert(all.end(), numbers.begin(), numbers.end());
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), kFrontEnds * kEach);
  for (uint64_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i);
  EXPECT_EQ(word_at(*region, 8), kFrontEnds * kEach);
}

TEST(RemoteRegionTest, WaitReturnsOnceSomethingIsDoneOrNothingCanBe) {
  RegionForTest back_end;
  auto region = back_end.open({.pending = 4, .post_batch = 4});
  EXPECT_EQ(region->wait(), 0u);
  for (uint64_t token = 0; token < 3; ++token) {
    ASSERT_EQ(region->post_fetch_and_add({}, 1, token), PostResult::kPosted);
  }
  for (uint64_t token = 0; token < 3;) {
    for (uint32_t done = region->wait(); done > 0; --done) EXPECT_EQ(region->take().token, token++);
  }
  EXPECT_EQ(region->wait(), 0u);
  ASSERT_EQ(region->post_fetch_and_add({}, 1, 4), PostResult::kPosted);
  region->close();
  EXPECT_EQ(region->wait(), 0u);
}

}  // namespace
}  // namespace verbena::remote
