// Updates that a front-end answers before they are published: what it finds itself, what others do,
// and when they are safe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "hashtable/layout.h"
#include "hashtable/table_for_test.h"
#include "src/base/runtime.h"
#include "verbena/apps/hashtable.h"
#include "verbena/clock.h"
#include "verbena/remote_lock.h"

namespace verbena::hashtable {
namespace {

using Outcome = HashtableOutcome;
using testing::HasSubstr;

constexpr HashtableFormat kOneBlock = {
    .entries = 64, .max_front_ends = 2, .hot_blocks = 1, .hot_block_entries = 4};
// Only theta and flush() write a block.
constexpr HashtableOptions kBuffering = {.hot_modifications = 4,
                                         .hot_after = 1,
                                         .hot_patience = 1,
                                         .acknowledgement = HashtableAcknowledgement::kBuffered,
                                         .loss_window_ns = 10'000'000'000};

class HashtableBufferedTest : public testing::Test {
 protected:
  TableForTest::FrontEnd open(uint32_t pending = 1, const HashtableOptions& options = kBuffering) {
    TableForTest::FrontEnd end = back_end_.open(pending, options);
    EXPECT_EQ(end->pending_limit(), pending);
    return end;
  }
  // Promotes the key, and publishes it.
  static void heat(Hashtable& table, const std::string& key, const std::string& value) {
    table.expect_hot(key);
    for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(table.update(key, value).outcome, Outcome::kDone);
    test::must(table.flush());
  }

  // Makes other keys hotter than "key", so that it has to leave the only block.
  static void push_out(Hashtable& other) {
    for (uint64_t i = 0; i < 60 || other.statistics().hot_demotions == 0; ++i) {
      const std::string name = "other " + text_of(i < 60 ? i % 3 : 3);
      other.expect_hot(name);
      ASSERT_EQ(other.update(name, "value").outcome, Outcome::kDone);
    }
  }

  // Both take what there is.
  static void fill(Hashtable& table, Hashtable& other) {
    for (uint64_t i = 0; table.insert("full " + text_of(i), "value").outcome == Outcome::kDone;
         ++i) {
    }
    for (uint64_t i = 0; other.insert("more " + text_of(i), "value").outcome == Outcome::kDone;
         ++i) {
    }
    for (uint64_t i = 0; table.update("rest " + text_of(i), "value").outcome == Outcome::kDone;
         ++i) {
    }
  }

  TableForTest back_end_{kOneBlock};
};

TEST_F(HashtableBufferedTest, OthersSeeAnUpdateOnceItIsPublished) {
  auto table = open();
  auto other = open();
  heat(*table, "key", "old");
  EXPECT_EQ(table->unpublished_since_ns(), UINT64_MAX);
  const HashtableStatistics before = table->statistics();
  const uint64_t atomics = table.region->statistics().atomics;
  const uint64_t begin_ns = now_ns();
  EXPECT_EQ(table->update("key", "new").outcome, Outcome::kDone);
  EXPECT_EQ(table->search("key").value, "new");
  EXPECT_EQ(table.region->statistics().atomics, atomics);
  EXPECT_GE(table->unpublished_since_ns(), begin_ns);
  EXPECT_LE(table->unpublished_since_ns(), now_ns());
  EXPECT_EQ(other->search("key").value, "old");
  test::must(table->flush());
  EXPECT_EQ(table->unpublished_since_ns(), UINT64_MAX);
  EXPECT_EQ(other->search("key").value, "new");
  const HashtableStatistics& after = table->statistics();
  EXPECT_EQ(after.hot_kept, before.hot_kept + 1);
  EXPECT_EQ(after.updates, before.updates + 1);
  EXPECT_EQ(after.searches, before.searches + 1);
  EXPECT_EQ(after.hot_flushes, before.hot_flushes + 1);
}

TEST_F(HashtableBufferedTest, ThetaUpdatesOfABlockAreOneWrite) {
  auto table = open(8);
  auto other = open();
  heat(*table, "a", "old");
  heat(*table, "b", "old");
  const HashtableStatistics before = table->statistics();
  uint32_t replies = 0;
  const auto count = [&](const HashtableReply& reply) {
    EXPECT_EQ(reply.outcome, Outcome::kDone);
    ++replies;
  };
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(table->post_update(i % 2 == 0 ? "a" : "b", text_of(i), i), PostResult::kPosted);
  }
  EXPECT_EQ(table->pending(), 3u);
  table->poll(count);
  EXPECT_EQ(replies, 3u);
  for (uint32_t i = 0; i < 100; ++i) table->poll(count);
  EXPECT_EQ(table->statistics().hot_flushes, before.hot_flushes);
  ASSERT_EQ(table->post_update("b", "last", 3), PostResult::kPosted);
  Waiter waiter;
  while (table->unpublished_since_ns() != UINT64_MAX) {
    table->poll(count) > 0 ? waiter.progress() : waiter.idle();
  }
  EXPECT_EQ(replies, 4u);
  EXPECT_EQ(table->statistics().hot_flushes, before.hot_flushes + 1);
  EXPECT_EQ(table->statistics().hot_modifications, before.hot_modifications + 4);
  EXPECT_EQ(other->search("a").value, "2");
  EXPECT_EQ(other->search("b").value, "last");
}

// What is on its way may be published, and replaced by another front-end, before this one knows.
TEST_F(HashtableBufferedTest, ASearchDoesNotFindWhatOthersHaveReplaced) {
  auto table = open(8);
  auto other = open();
  heat(*other, "key", "old");
  heat(*table, "key", "old");
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(table->post_update("key", "own", i), PostResult::kPosted);
  }
  // The block is written, but its completion is not taken.
  table.region->flush();
  ASSERT_EQ(other->search("key").value, "own");
  EXPECT_EQ(other->update("key", "newer").outcome, Outcome::kDone);
  test::must(other->flush());
  ASSERT_EQ(table->post_search("key", 4), PostResult::kPosted);
  std::string found;
  while (table->pending() > 0) {
    table->poll([&](const HashtableReply& reply) {
      if (reply.token == 4) found = reply.value;
    });
  }
  EXPECT_EQ(found, "newer");
}

TEST_F(HashtableBufferedTest, ABlockIsWrittenBeforeTheLossWindowEnds) {
  HashtableOptions options = kBuffering;
  options.loss_window_ns = 2 * kOneBlock.hot_lock_lease_ns;
  auto table = open(4, options);
  auto other = open();
  heat(*table, "key", "old");
  ASSERT_EQ(table->post_update("key", "new", 1), PostResult::kPosted);
  uint32_t replies = 0;
  while (table->pending() > 0) table->poll([&](const HashtableReply&) { ++replies; });
  EXPECT_EQ(replies, 1u);
  const uint64_t due_ns = table->due_ns();
  EXPECT_LE(due_ns, now_ns() + options.loss_window_ns / 2);
  Waiter waiter;
  while (table->unpublished_since_ns() != UINT64_MAX) {
    table->poll([](const HashtableReply&) {});
    waiter.idle();
  }
  EXPECT_GE(now_ns(), due_ns);
  EXPECT_EQ(other->search("key").value, "new");
}

TEST_F(HashtableBufferedTest, CloseAndTheDestructorPublish) {
  auto other = open();
  for (const bool closes : {true, false}) {
    auto table = open();
    heat(*table, "key", "old");
    EXPECT_EQ(table->update("key", closes ? "closed" : "destroyed").outcome, Outcome::kDone);
    EXPECT_EQ(other->search("key").value, "old");
    if (closes) test::must(table->close());
    table.table.reset();
    EXPECT_EQ(other->search("key").value, closes ? "closed" : "destroyed");
  }
}

TEST_F(HashtableBufferedTest, OnesOwnInsertionsAndRemovalsComeBehind) {
  auto table = open();
  auto other = open();
  heat(*table, "key", "old");
  EXPECT_EQ(table->update("key", "new").outcome, Outcome::kDone);
  EXPECT_EQ(table->insert("key", "never").outcome, Outcome::kExists);
  EXPECT_EQ(other->search("key").value, "new");
  EXPECT_EQ(table->update("key", "newer").outcome, Outcome::kDone);
  EXPECT_EQ(table->remove("key").outcome, Outcome::kDone);
  EXPECT_EQ(table->search("key").outcome, Outcome::kNotFound);
  EXPECT_EQ(other->search("key").outcome, Outcome::kNotFound);
  EXPECT_EQ(table->update("key", "again").outcome, Outcome::kDone);
  EXPECT_EQ(table->search("key").value, "again");
  test::must(table->flush());
  EXPECT_EQ(other->search("key").value, "again");
}

// A front-end that was stopped for long: what others have published meanwhile stays, but for the
// keys that it has updated, and a lock that was taken over does not help it.
TEST_F(HashtableBufferedTest, WhoWasStoppedOverwritesNothingElse) {
  auto table = open();
  auto other = open();
  for (const char* const key : {"a", "b", "c"}) heat(*table, key, "old");
  EXPECT_EQ(table->update("a", "late").outcome, Outcome::kDone);
  for (const char* const key : {"a", "b"}) {
    for (uint32_t i = 0; i < 3; ++i) {
      ASSERT_EQ(other->update(key, "others'").outcome, Outcome::kDone);
    }
  }
  test::must(other->flush());
  EXPECT_EQ(other->remove("c").outcome, Outcome::kDone);
  // It holds the lock as it is stopped, and another one has taken it over since.
  const Layout layout = test::must(Layout::of(kOneBlock));
  const uint64_t word = LockWord{1000, false}.word();
  std::memcpy(back_end_.memory().data() + layout.block_lock(0).offset_bytes, &word, sizeof(word));
  test::must(table->flush());
  EXPECT_GT(table->statistics().hot_lost_races, 0u);
  EXPECT_EQ(other->search("a").value, "late");
  EXPECT_EQ(other->search("b").value, "others'");
  EXPECT_EQ(other->search("c").outcome, Outcome::kNotFound);
}

// Another front-end has demoted the key, or removed it as well: the update finds its way.
TEST_F(HashtableBufferedTest, AnUpdateOfAKeyThatLeftItsBlockIsPublished) {
  for (const bool removes : {false, true}) {
    test::must(format_hashtable(back_end_.memory(), kOneBlock));
    auto table = open();
    auto other = open(1, kSoonHot);
    heat(*table, "key", "old");
    EXPECT_EQ(table->update("key", "kept").outcome, Outcome::kDone);
    push_out(*other);
    if (removes) {
      EXPECT_EQ(other->remove("key").outcome, Outcome::kDone);
    } else {
      EXPECT_EQ(other->search("key").value, "old");
    }
    EXPECT_EQ(table->search("key").value, "kept");
    test::must(table->flush());
    EXPECT_EQ(table->statistics().hot_strays, 1u);
    EXPECT_EQ(other->search("key").value, "kept");
    EXPECT_EQ(table->search("key").value, "kept");
  }
}

TEST_F(HashtableBufferedTest, SaysSoWhereAnUpdateFindsNoRoom) {
  HashtableOptions options = kBuffering;
  options.hot_after = 255;  // nothing else writes the block
  auto table = open(1, options);
  auto other = open(1, kSoonHot);
  heat(*table, "key", "old");
  EXPECT_EQ(table->update("key", "kept").outcome, Outcome::kDone);
  push_out(*other);
  EXPECT_EQ(other->remove("key").outcome, Outcome::kDone);
  fill(*table, *other);
  const Status flushed = table->flush();
  EXPECT_EQ(flushed.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(flushed.message(), HasSubstr("remove entries, then flush again"));
  EXPECT_NE(table->unpublished_since_ns(), UINT64_MAX);
  EXPECT_EQ(table->search("key").value, "kept");
  for (uint64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(table->remove("full " + text_of(i)).outcome, Outcome::kDone);
  }
  test::must(table->flush());
  EXPECT_EQ(other->search("key").value, "kept");
}

// That an update found no room once, and room later, says nothing of the next flush().
TEST_F(HashtableBufferedTest, ForgetsThatAnUpdateFoundNoRoom) {
  HashtableOptions options = kBuffering;
  options.hot_after = 255;
  auto table = open(1, options);
  auto other = open(1, kSoonHot);
  heat(*table, "key", "old");
  EXPECT_EQ(table->update("key", "kept").outcome, Outcome::kDone);
  push_out(*other);
  EXPECT_EQ(other->remove("key").outcome, Outcome::kDone);
  fill(*table, *other);
  // It waits for the update, which is tried again and again.
  ASSERT_EQ(table->post_insert("key", "never", 1), PostResult::kPosted);
  const uint64_t strays = table->statistics().hot_strays;
  Waiter waiter;
  const auto poll_until = [&](auto&& done) {
    while (!done() && table->status().ok()) {
      table->poll([](const HashtableReply& reply) { EXPECT_EQ(reply.outcome, Outcome::kExists); });
      waiter.idle();
    }
  };
  poll_until([&] { return table->statistics().hot_strays > strays + 2; });
  // Nothing is removed by the table itself, which would take a single call.
  for (uint64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(other->remove("more " + text_of(i)).outcome, Outcome::kDone);
  }
  test::must(other->close());
  poll_until([&] { return table->pending() == 0; });
  EXPECT_EQ(table->search("key").value, "kept");
  heat(*table, "key", "hot");
  EXPECT_EQ(table->update("key", "newest").outcome, Outcome::kDone);
  test::must(table->flush());
  EXPECT_EQ(table->unpublished_since_ns(), UINT64_MAX);
}

// Insertions and removals of a key wait for its update: not for room that nobody may ever make.
TEST_F(HashtableBufferedTest, NothingWaitsForEverForAnUpdateWithoutRoom) {
  HashtableOptions options = kBuffering;
  options.hot_after = 255;
  auto table = open(4, options);
  auto other = open(1, kSoonHot);
  heat(*table, "key", "old");
  EXPECT_EQ(table->update("key", "kept").outcome, Outcome::kDone);
  push_out(*other);
  EXPECT_EQ(other->remove("key").outcome, Outcome::kDone);
  fill(*table, *other);
  EXPECT_EQ(table->insert("key", "never").outcome, Outcome::kFull);
  EXPECT_THAT(table->error().message(), HasSubstr("is full"));
  EXPECT_EQ(table->remove("key").outcome, Outcome::kFull);
  EXPECT_EQ(table->search("key").value, "kept");
  ASSERT_EQ(table->post_remove("key", 1), PostResult::kPosted);
  ASSERT_EQ(table->post_search("key", 2), PostResult::kPosted);
  ASSERT_EQ(table->post_insert("key", "never", 3), PostResult::kPosted);
  EXPECT_EQ(table->close().code(), StatusCode::kLimitExceeded);
}

// More blocks than are written at once: one update that finds no room keeps none of the others.
TEST(HashtableBufferedBlocksTest, WhatFindsNoRoomHoldsUpNothingElse) {
  constexpr HashtableFormat kBlocks = {
      .entries = 800, .max_front_ends = 2, .hot_blocks = 512, .hot_block_entries = 4};
  TableForTest back_end(kBlocks);
  HashtableOptions options = kBuffering;
  options.hot_after = 255;  // nothing else writes the blocks
  auto table = back_end.open(1, options);
  auto other = back_end.open(1, kSoonHot);
  const Layout layout = test::must(Layout::of(kBlocks));
  const auto block_of = [&](const std::string& key) { return layout.block_of(layout.hash(key)); };
  std::vector<std::string> keys;
  for (uint64_t i = 0; keys.size() < 300; ++i) {
    const std::string key = "hot " + text_of(i);
    if (block_of(key) != block_of("key")) keys.push_back(key);
  }
  for (const std::string& key : keys) {
    table->expect_hot(key);
    for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(table->update(key, "old").outcome, Outcome::kDone);
  }
  table->expect_hot("key");
  for (uint32_t i = 0; i < 3; ++i) ASSERT_EQ(table->update("key", "old").outcome, Outcome::kDone);
  test::must(table->flush());
  ASSERT_EQ(table->update("key", "stuck").outcome, Outcome::kDone);
  // Other keys of its block push it out.
  std::vector<std::string> rivals;
  for (uint64_t i = 0; rivals.size() < 4; ++i) {
    const std::string rival = "rival " + text_of(i);
    if (block_of(rival) == block_of("key")) rivals.push_back(rival);
  }
  for (uint64_t i = 0; i < 60 || other->statistics().hot_demotions == 0; ++i) {
    const std::string& rival = rivals[i < 60 ? i % 3 : 3];
    other->expect_hot(rival);
    ASSERT_EQ(other->update(rival, "value").outcome, Outcome::kDone);
  }
  ASSERT_EQ(other->remove("key").outcome, Outcome::kDone);
  for (const std::string& key : keys) {
    ASSERT_EQ(table->update(key, "new").outcome, Outcome::kDone);
  }
  EXPECT_GE(table->statistics().hot_kept, 250u);
  // A bucket may be full before the table is.
  for (uint64_t i = 0; i < 2 * kBlocks.entries; ++i) {
    table->insert("full " + text_of(i), "value");
    other->insert("more " + text_of(i), "value");
  }
  for (uint64_t i = 0; i < kBlocks.entries; ++i) table->update("rest " + text_of(i), "value");
  EXPECT_EQ(table->close().code(), StatusCode::kLimitExceeded);
  for (const std::string& key : keys) ASSERT_EQ(other->search(key).value, "new") << key;
}

// Blocks that are promoted to take spare ones: the last one stays for what was answered.
TEST(HashtableBufferedCopiesTest, WhatWasAnsweredFindsASpareBlock) {
  constexpr HashtableFormat kManyBlocks = {
      .entries = 2'000, .max_front_ends = 1, .hot_blocks = 512, .hot_block_entries = 2};
  HashtableOptions options = kBuffering;
  options.hot_modifications = 1'000;
  TableForTest back_end(kManyBlocks);
  auto region = back_end.region().open(hashtable_region_options(kManyBlocks, 1, options));
  auto table = test::must(Hashtable::open(*region, options));
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(table->update("key", "kept").outcome, Outcome::kDone);
  }
  EXPECT_EQ(table->statistics().hot_kept, 1u);
  // No more are to be had.
  const Layout layout = test::must(Layout::of(kManyBlocks));
  const uint64_t all = layout.copies().nodes;
  std::memcpy(back_end.memory().data() + kNextFreshCopy.offset_bytes, &all, sizeof(all));
  const auto block_of = [&](const std::string& key) { return layout.block_of(layout.hash(key)); };
  for (uint64_t i = 0; i < 500; ++i) {
    const std::string other = "other " + text_of(i);
    if (block_of(other) == block_of("key")) continue;
    ASSERT_EQ(table->update(other, "value").outcome, Outcome::kDone);
  }
  ASSERT_NE(table->unpublished_since_ns(), UINT64_MAX);
  // Its own insertion waits for it.
  ASSERT_EQ(table->post_insert("key", "never", 1), PostResult::kPosted);
  for (uint32_t i = 0; i < 1'000'000 && table->pending() > 0; ++i) {
    table->poll([](const HashtableReply& reply) { EXPECT_EQ(reply.outcome, Outcome::kExists); });
  }
  EXPECT_EQ(table->pending(), 0u);
  EXPECT_EQ(table->unpublished_since_ns(), UINT64_MAX);
  if (HasFailure()) region->close();  // else it would wait for ever
}

TEST_F(HashtableBufferedTest, RefusesWhatCannotBe) {
  auto region = back_end_.region().open(hashtable_region_options(kOneBlock, 1, kBuffering));
  const auto message = [&](uint64_t loss_window_ns) {
    HashtableOptions options = kBuffering;
    options.loss_window_ns = loss_window_ns;
    const auto table = Hashtable::open(*region, options);
    return table.ok() ? std::string("it is possible") : table.status().message();
  };
  EXPECT_EQ(message(1'999'999),
            "loss_window_ns is 1999999; choose 2000000 (twice the table's hot_lock_lease_ns) to "
            "10000000000");
  EXPECT_THAT(message(10'000'000'001), HasSubstr("loss_window_ns is 10000000001; choose"));
  EXPECT_EQ(message(2'000'000), "it is possible");

  HashtableFormat format = kOneBlock;
  format.hot_lock_lease_ns = 5'000'000'001;
  TableForTest long_leases(format);
  auto long_region = long_leases.region().open(hashtable_region_options(format, 1, kBuffering));
  const Status too_long = Hashtable::open(*long_region, kBuffering).status();
  EXPECT_EQ(too_long.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(too_long.message(),
              HasSubstr("hot_lock_lease_ns is 5000000001, and the most for that is 5000000000"));

  TableForTest cold({.entries = 16});
  auto cold_region = cold.region().open(hashtable_region_options({.entries = 16}));
  const auto without = Hashtable::open(*cold_region, kBuffering);
  EXPECT_EQ(without.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(without.status().message(), HasSubstr("this hashtable has no hot area"));

  // A region with room for what is pending alone.
  auto small = back_end_.region().open(hashtable_region_options(kOneBlock, 1));
  EXPECT_THAT(Hashtable::open(*small, kBuffering).status().message(), HasSubstr("and pending of"));

  auto table = open(2);
  ASSERT_EQ(table->post_search("key", 1), PostResult::kPosted);
  const Status flushed = table->flush();
  EXPECT_EQ(flushed.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(flushed.message(), HasSubstr("poll until there are none before flush()"));
  while (table->pending() > 0) table->poll([](const HashtableReply&) {});
  test::must(table->flush());
}

TEST_F(HashtableBufferedTest, WhatABrokenConnectionLosesIsSaid) {
  auto table = open();
  auto other = open();
  heat(*table, "key", "old");
  EXPECT_EQ(table->update("key", "lost").outcome, Outcome::kDone);
  table.region->close();
  EXPECT_EQ(table->flush().code(), StatusCode::kUnavailable);
  EXPECT_EQ(table->close().code(), StatusCode::kUnavailable);
  EXPECT_EQ(other->search("key").value, "old");
}

}  // namespace
}  // namespace verbena::hashtable
