// One front-end at a time: what a map does, limits, a full table, and what is no hashtable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "hashtable/layout.h"
#include "hashtable/table_for_test.h"
#include "src/base/runtime.h"
#include "verbena/remote_lock.h"

namespace verbena::hashtable {
namespace {

using testing::HasSubstr;
using Outcome = HashtableOutcome;

// Without and with a hot area, which then has room for a fifth of the keys.
class HashtableMapTest : public testing::TestWithParam<uint32_t> {};

TEST_P(HashtableMapTest, DoesWhatAMapDoes) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  // Few buckets, so that they have several entries.
  TableForTest back_end({.entries = 64,
                         .max_key_bytes = 24,
                         .max_value_bytes = 100,
                         .hot_blocks = GetParam(),
                         .hot_block_entries = 4});
  auto table = back_end.open();
  std::unordered_map<std::string, std::string> expected;
  for (uint64_t i = 0; i < 100'000; ++i) {
    const std::string key = text_of(random.below(200), 1 + random.below(2) * 20);
    const std::string value = text_of(i, random.below(101)).substr(0, 100);
    const auto found = expected.find(key);
    HashtableReply reply;
    switch (random.below(4)) {
      case 0:
        reply = table->search(key);
        ASSERT_EQ(reply.outcome, found != expected.end() ? Outcome::kDone : Outcome::kNotFound);
        ASSERT_EQ(reply.value, found != expected.end() ? found->second : "");
        break;
      case 1:
        reply = table->insert(key, value);
        ASSERT_EQ(reply.outcome, found == expected.end() ? Outcome::kDone : Outcome::kExists);
        expected.emplace(key, value);
        break;
      case 2:
        ASSERT_EQ(table->update(key, value).outcome, Outcome::kDone) << table->error().message();
        expected[key] = value;
        break;
      default:
        reply = table->remove(key);
        ASSERT_EQ(reply.outcome, found != expected.end() ? Outcome::kDone : Outcome::kNotFound);
        expected.erase(key);
    }
  }
  EXPECT_EQ(table->statistics().rereads, 0u);
  // A demotion may come before an operation.
  if (GetParam() == 0) {
    EXPECT_EQ(table->statistics().lost_races, 0u);
  }
  EXPECT_GT(table->statistics().copied_entries, 0u);
  EXPECT_EQ(table->statistics().hot_promotions > 100, GetParam() > 0);
  EXPECT_EQ(table->statistics().hot_demotions > 100, GetParam() > 0);
  EXPECT_EQ(table->statistics().hot_hits > 1000, GetParam() > 0);
  // Another front-end finds it all.
  auto other = back_end.open();
  for (const auto& [key, value] : expected) EXPECT_EQ(other->search(key).value, value);
}

// Many at once: each key is used by one operation at a time, so the outcome is known.
TEST_P(HashtableMapTest, PostedOperationsDoWhatAMapDoes) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  constexpr uint32_t kPending = 32;
  TableForTest back_end({.entries = 256,
                         .max_key_bytes = 16,
                         .max_value_bytes = 40,
                         .hot_blocks = 2 * GetParam(),
                         .hot_block_entries = 4});
  auto table = back_end.open(kPending);
  ASSERT_EQ(table->pending_limit(), kPending);
  struct Expected {
    bool busy = false;
    bool is_search = false;
    std::string value;  // empty: none
    Outcome outcome = Outcome::kDone;
  };
  std::vector<Expected> keys(300);
  uint64_t would_block = 0;
  const auto take = [&](const HashtableReply& reply) {
    Expected& key = keys[reply.token];
    EXPECT_EQ(reply.outcome, key.outcome);
    EXPECT_EQ(reply.value, key.is_search ? key.value : "");
    key.busy = false;
  };
  for (uint64_t i = 1; i <= 100'000 && !HasFailure(); ++i) {
    const uint64_t number = random.below(keys.size());
    Expected& key = keys[number];
    while (key.busy) table->poll(take);
    const std::string name = text_of(number);
    const std::string value = text_of(i, random.below(40));
    const bool exists = !key.value.empty();
    PostResult posted = PostResult::kWouldBlock;
    const uint64_t kind = random.below(4);
    while (posted == PostResult::kWouldBlock) {
      switch (kind) {
        case 0:
          posted = table->post_search(name, number);
          break;
        case 1:
          posted = table->post_insert(name, value, number);
          break;
        case 2:
          posted = table->post_update(name, value, number);
          break;
        default:
          posted = table->post_remove(name, number);
      }
      if (posted != PostResult::kWouldBlock) break;
      ++would_block;
      ASSERT_EQ(table->pending(), kPending);
      table->poll(take);
    }
    ASSERT_EQ(posted, PostResult::kPosted) << table->error().message();
    key.busy = true;
    key.is_search = kind == 0;
    key.outcome = kind == 2 || (kind == 1) != exists ? Outcome::kDone
                  : kind == 1                        ? Outcome::kExists
                                                     : Outcome::kNotFound;
    if (kind == 2 || (kind == 1 && !exists)) key.value = value;
    if (kind == 3) key.value.clear();
  }
  while (table->pending() > 0) table->poll(take);
  EXPECT_GT(would_block, 0u);
  EXPECT_TRUE(table->status().ok()) << table->status().message();
  EXPECT_EQ(table->statistics().hot_promotions > 100, GetParam() > 0);
  EXPECT_EQ(table->statistics().hot_demotions > 100, GetParam() > 0);
  EXPECT_EQ(table->statistics().hot_modifications > table->statistics().hot_flushes,
            GetParam() > 0);
}

INSTANTIATE_TEST_SUITE_P(HotBlocks, HashtableMapTest, testing::Values(0u, 8u));

TEST(HashtableTest, RefusesWhatIsTooLongAndChangesNothing) {
  TableForTest back_end({.entries = 8, .max_key_bytes = 8, .max_value_bytes = 16});
  auto table = back_end.open(4);
  const std::string key(8, 'k');
  const std::string value(16, 'v');
  ASSERT_EQ(table->insert(key, value).outcome, Outcome::kDone);
  EXPECT_EQ(table->search(key).value, value);
  ASSERT_EQ(table->update(key, "").outcome, Outcome::kDone);
  EXPECT_EQ(table->search(key).outcome, Outcome::kDone);
  EXPECT_EQ(table->search(key).value, "");

  EXPECT_EQ(table->update(key, value + "v").outcome, Outcome::kFailed);
  EXPECT_THAT(table->error().message(),
              HasSubstr("a value of this hashtable has up to 16 bytes, not 17"));
  EXPECT_EQ(table->search("").outcome, Outcome::kFailed);
  EXPECT_THAT(table->error().message(),
              HasSubstr("a key of this hashtable has 1 to 8 bytes, not 0"));
  EXPECT_EQ(table->post_insert(key + "k", value, 1), PostResult::kFailed);
  EXPECT_EQ(table->error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(table->error().message(), HasSubstr("not 9"));
  // One at a time means that none is pending.
  ASSERT_EQ(table->post_search(key, 1), PostResult::kPosted);
  EXPECT_EQ(table->search(key).outcome, Outcome::kFailed);
  EXPECT_THAT(table->error().message(), HasSubstr("1 operations are pending"));
  while (table->pending() > 0) table->poll([](const HashtableReply&) {});

  EXPECT_TRUE(table->status().ok());
  EXPECT_EQ(table->search(key).outcome, Outcome::kDone);
}

// What a back-end fills in is there for all, as if a front-end had inserted it.
TEST(HashtableTest, BeginsWithWhatItsBackEndFillsIn) {
  TableForTest back_end({.entries = 1000, .max_key_bytes = 24, .max_value_bytes = 100});
  std::string key;
  std::string value;
  const auto numbered = [&](uint64_t number) {
    key = text_of(number, number % 20);
    value = text_of(number * 7, number % 101).substr(0, number % 101);
    return HashtableEntry{key, value};
  };
  const auto later = [&](uint64_t number) { return numbered(number + 600); };
  test::must(fill_hashtable(back_end.memory(), 600, numbered));
  test::must(fill_hashtable(back_end.memory(), 400, later));
  auto table = back_end.open();
  for (uint64_t i = 0; i < 1000; ++i) {
    const HashtableEntry entry = numbered(i);
    ASSERT_EQ(table->search(entry.key).value, entry.value) << i;
    ASSERT_EQ(table->insert(entry.key, "").outcome, Outcome::kExists);
  }
  for (uint64_t i = 0; i < 1000; i += 2) {
    ASSERT_EQ(table->update(numbered(i).key, "new").outcome, Outcome::kDone);
    ASSERT_EQ(table->remove(numbered(i + 1).key).outcome, Outcome::kDone);
  }
  for (uint64_t i = 0; i < 1000; i += 2) {
    EXPECT_EQ(table->search(numbered(i).key).value, "new");
    EXPECT_EQ(table->search(numbered(i + 1).key).outcome, Outcome::kNotFound);
  }
  EXPECT_TRUE(table->close().ok());
  table.table.reset();
  table.region->close();
  back_end.region().wait_for_connections(0);
  EXPECT_EQ(*reclaim_hashtable(back_end.memory()), 0u);
}

// Of hot keys some find no room in their blocks: these are as all others.
TEST(HashtableTest, BeginsWithHotKeysInTheHotArea) {
  constexpr uint64_t kEntries = 100;
  TableForTest back_end({.entries = kEntries, .hot_blocks = 4, .hot_block_entries = 8});
  std::string key;
  std::string value;
  const auto half_hot = [&](uint64_t number) {
    key = text_of(number);
    value = text_of(number * 7);
    return HashtableEntry{key, value, number % 2 == 0};
  };
  test::must(fill_hashtable(back_end.memory(), kEntries / 2, half_hot));
  test::must(fill_hashtable(back_end.memory(), kEntries / 2,
                            [&](uint64_t i) { return half_hot(i + kEntries / 2); }));
  auto table = back_end.open();
  for (uint64_t i = 0; i < kEntries; ++i) {
    ASSERT_EQ(table->search(text_of(i)).value, text_of(i * 7)) << i;
    ASSERT_EQ(table->insert(text_of(i), "").outcome, Outcome::kExists);
  }
  // Half of the keys are hot, more than have room: all places are taken.
  EXPECT_EQ(table->statistics().hot_hits, 2 * 32u);
  EXPECT_EQ(table->statistics().hot_promotions, 0u);
  auto other = back_end.open();
  for (uint64_t i = 0; i < kEntries; i += 2) {
    ASSERT_EQ(table->update(text_of(i), "new").outcome, Outcome::kDone);
    ASSERT_EQ(other->search(text_of(i)).value, "new");
    ASSERT_EQ(other->remove(text_of(i + 1)).outcome, Outcome::kDone);
  }
  EXPECT_GE(table->statistics().hot_modifications, 32u);
  for (TableForTest::FrontEnd* const end : {&table, &other}) {
    EXPECT_TRUE(end->table->close().ok());
    end->table.reset();
    end->region->close();
  }
  back_end.region().wait_for_connections(0);
  EXPECT_EQ(*reclaim_hashtable(back_end.memory()), 0u);
}

TEST(HashtableTest, RefusesToFillInWhatCannotBe) {
  TableForTest back_end({.entries = 100, .max_key_bytes = 8, .max_value_bytes = 8});
  std::string key;
  const auto numbered = [&](uint64_t number) {
    key = text_of(number);
    return HashtableEntry{key, "value"};
  };
  const auto same = [](uint64_t) { return HashtableEntry{"key", "value"}; };
  const auto fill = [&](uint64_t count, const std::function<HashtableEntry(uint64_t)>& entry) {
    return fill_hashtable(back_end.memory(), count, entry);
  };
  Status status = fill(101, numbered);
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), HasSubstr("formatted for 100 entries"));
  status = fill(2, same);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("give each key once"));
  for (const HashtableEntry entry :
       {HashtableEntry{"", "value"}, {"too long a key", "value"}, {"key2", "too long a value"}}) {
    status = fill(1, [entry](uint64_t) { return entry; });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("1 to 8 bytes and a value up to 8"));
  }
  EXPECT_EQ(fill_hashtable({}, 1, numbered).code(), StatusCode::kProtocolViolation);
  // The first of the two that were the same is there.
  EXPECT_EQ(fill(100, numbered).code(), StatusCode::kLimitExceeded);
  test::must(fill(99, numbered));
  auto table = back_end.open();
  EXPECT_EQ(table->search("key").value, "value");
  EXPECT_EQ(table->search("98").value, "value");
}

TEST(HashtableTest, AFullTableRefusesInsertionsAndDoesAllElse) {
  constexpr uint64_t kEntries = 1000;
  TableForTest back_end({.entries = kEntries, .max_front_ends = 2});
  auto table = back_end.open(8);
  uint64_t inserted = 0;
  while (table->insert(text_of(inserted), "one").outcome == Outcome::kDone) ++inserted;
  EXPECT_GE(inserted, kEntries);
  EXPECT_EQ(table->insert(text_of(inserted), "one").outcome, Outcome::kFull);
  EXPECT_EQ(table->error().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(table->error().message(), HasSubstr("the hashtable is full: the 1000 entries"));
  EXPECT_EQ(table->update(text_of(inserted), "one").outcome, Outcome::kFull);
  EXPECT_EQ(table->search(text_of(inserted)).outcome, Outcome::kNotFound);
  // Updates and posted insertions.
  for (uint64_t i = 0; i < inserted; ++i) {
    ASSERT_EQ(table->update(text_of(i), "two").outcome, Outcome::kDone);
  }
  uint32_t refused = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(table->post_insert(text_of(inserted + i), "one", i), PostResult::kPosted);
  }
  while (table->pending() > 0) {
    table->poll([&](const HashtableReply& reply) { refused += reply.outcome == Outcome::kFull; });
  }
  EXPECT_EQ(refused, 4u);
  // What one front-end removes, another one can insert.
  auto other = back_end.open();
  EXPECT_EQ(other->insert(text_of(inserted), "one").outcome, Outcome::kFull);
  for (uint64_t i = 0; i < 500; ++i) {
    ASSERT_EQ(table->remove(text_of(i)).outcome, Outcome::kDone);
  }
  EXPECT_GT(table->statistics().spills, 0u);
  uint64_t again = 0;
  while (again < 500 && other->insert(text_of(again), "three").outcome == Outcome::kDone) ++again;
  EXPECT_GE(again, 400u);
  for (uint64_t i = 0; i < again; ++i) ASSERT_EQ(table->search(text_of(i)).value, "three");
  for (uint64_t i = 500; i < inserted; ++i) ASSERT_EQ(table->search(text_of(i)).value, "two");
}

// Updates that are pending take more nodes than there are spare ones: they wait for each other.
TEST(HashtableTest, AFullTableTakesAsManyUpdatesAsArePending) {
  constexpr uint64_t kEntries = 1000;
  TableForTest back_end({.entries = kEntries, .max_front_ends = 1});
  auto table = back_end.open(256);
  uint64_t inserted = 0;
  const auto insert_until = [&](uint64_t most) {
    while (inserted < most && table->insert(text_of(inserted), "one").outcome == Outcome::kDone) {
      ++inserted;
    }
  };
  // With all entries that it was made for, and with some more until nothing is spare.
  for (const uint64_t most : {kEntries, 2 * kEntries}) {
    insert_until(most);
    ASSERT_GE(inserted, kEntries);
    uint64_t done = 0;
    const auto note = [&](const HashtableReply& reply) { done += reply.outcome == Outcome::kDone; };
    for (uint64_t i = 0; i < inserted;) {
      if (table->post_update(text_of(i), "two", i) == PostResult::kPosted) {
        ++i;
      } else {
        table->poll(note);
      }
    }
    while (table->pending() > 0) table->poll(note);
    EXPECT_EQ(done, inserted);
  }
  EXPECT_EQ(table->insert("another", "one").outcome, Outcome::kFull);
}

// What a front-end has removed, others can use, also if it does nothing more.
TEST(HashtableTest, WhatWasRemovedHasRoomForOthers) {
  constexpr uint64_t kEntries = 20'000;
  TableForTest back_end({.entries = kEntries, .max_front_ends = 3});
  auto remover = back_end.open(256);
  auto other = back_end.open();
  uint64_t done = 0;
  const auto note = [&](const HashtableReply& reply) { done += reply.outcome == Outcome::kDone; };
  const auto all = [&](auto&& post) {
    done = 0;
    for (uint64_t i = 0; i < kEntries;) {
      if (post(i) == PostResult::kPosted) {
        ++i;
      } else {
        remover->poll(note);
      }
    }
    while (remover->pending() > 0) remover->poll(note);
    EXPECT_EQ(done, kEntries);
  };
  all([&](uint64_t i) { return remover->post_insert(text_of(i), "one", i); });
  all([&](uint64_t i) { return remover->post_remove(text_of(i), i); });
  uint64_t inserted = 0;
  while (inserted < kEntries && other->insert(text_of(inserted), "two").outcome == Outcome::kDone) {
    ++inserted;
  }
  EXPECT_EQ(inserted, kEntries);
}

TEST(HashtableTest, EntriesAlwaysFitWhateverTheirSize) {
  for (const uint32_t value_bytes : {0u, 1u, 7u, 64u, 1000u, 5000u, 1'000'000u}) {
    const uint32_t key_bytes = value_bytes == 1000 ? 4096 : 9;
    SCOPED_TRACE(value_bytes);
    constexpr uint64_t kEntries = 40;
    TableForTest back_end({.entries = kEntries,
                           .max_key_bytes = key_bytes,
                           .max_value_bytes = value_bytes,
                           .max_front_ends = 1});
    auto table = back_end.open();
    for (uint64_t i = 0; i < kEntries; ++i) {
      ASSERT_EQ(table->insert(text_of(i, key_bytes), text_of(i, value_bytes).substr(0, value_bytes))
                    .outcome,
                Outcome::kDone);
    }
    for (uint64_t i = 0; i < kEntries; ++i) {
      const HashtableReply reply = table->search(text_of(i, key_bytes));
      ASSERT_EQ(reply.value, text_of(i, value_bytes).substr(0, value_bytes));
    }
  }
}

TEST(HashtableTest, RefusesFormatsThatCannotBe) {
  const auto message = [](const HashtableFormat& format) {
    const auto bytes = hashtable_bytes(format);
    return bytes.ok() ? std::string("it is possible") : bytes.status().message();
  };
  EXPECT_THAT(message({.entries = 0}), HasSubstr("a number of entries of 1 to 134217728, not 0"));
  EXPECT_THAT(message({.max_key_bytes = 0}), HasSubstr("a longest key in bytes of 1 to 4096"));
  EXPECT_THAT(message({.max_value_bytes = 1'000'001}), HasSubstr("not 1000001"));
  EXPECT_THAT(message({.max_front_ends = 0}), HasSubstr("a number of front-ends"));
  EXPECT_THAT(message({.hot_blocks = 65'537}), HasSubstr("a number of hot blocks of 0 to 65536"));
  EXPECT_THAT(message({.hot_blocks = 1, .hot_block_entries = 6}),
              HasSubstr("a hot block has 2, 4, 8, 16, 32 or 64 entries, not 6"));
  EXPECT_THAT(message({.max_value_bytes = 100'000, .hot_blocks = 1, .hot_block_entries = 16}),
              HasSubstr("the most is 1048576; lower hot_block_entries"));
  EXPECT_THAT(message({.hot_blocks = 1, .hot_lock_lease_ns = 0}),
              HasSubstr("a hot_lock_lease_ns of 1000 to 10000000000, not 0"));
  std::vector<char> memory(1000);
  const Status small = format_hashtable(memory, {});
  EXPECT_EQ(small.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(small.message(), HasSubstr("but the region has 1000"));
  EXPECT_EQ(format_hashtable(std::span(memory).subspan(1), {}).code(),
            StatusCode::kInvalidArgument);
}

TEST(HashtableTest, OpensOnlyWhatIsAHashtable) {
  constexpr HashtableFormat kFormat = {.entries = 16};
  TableForTest back_end(kFormat);
  const std::vector<char> good(back_end.memory().begin(), back_end.memory().end());
  auto region = back_end.region().open(hashtable_region_options(kFormat));
  const auto message = [&](size_t offset_bytes, char change) {
    back_end.memory()[offset_bytes] ^= change;
    const auto table = Hashtable::open(*region);
    back_end.memory()[offset_bytes] ^= change;
    EXPECT_EQ(table.status().code(), StatusCode::kProtocolViolation);
    return table.status().message();
  };
  EXPECT_THAT(message(0, 1), HasSubstr("it begins with something else"));
  EXPECT_THAT(message(offsetof(Header, version), 1), HasSubstr("its version is 3, not 2"));
  for (size_t i = offsetof(Header, max_key_bytes); i < sizeof(Header); ++i) {
    EXPECT_THAT(message(i, 4), HasSubstr("its header is damaged")) << i;
  }
  EXPECT_TRUE(Hashtable::open(*region).ok());
  // A larger table in a smaller region.
  Header larger = test::must(Layout::of({.entries = 17})).header();
  std::memcpy(back_end.memory().data(), &larger, sizeof(larger));
  EXPECT_THAT(Hashtable::open(*region).status().message(), HasSubstr("the region"));
  EXPECT_EQ(reclaim_hashtable(back_end.memory()).status().code(), StatusCode::kProtocolViolation);

  remote::RegionForTest tiny({.size_bytes = 64});
  auto tiny_region = tiny.open();
  EXPECT_EQ(Hashtable::open(*tiny_region).status().code(), StatusCode::kProtocolViolation);
}

TEST(HashtableTest, SaysWhatARegionMustHave) {
  constexpr HashtableFormat kFormat = {.entries = 16};
  TableForTest back_end(kFormat);
  auto small = back_end.region().open({.pending = 5, .value_bytes = 64});
  EXPECT_THAT(Hashtable::open(*small).status().message(),
              HasSubstr("value_bytes of 128 and pending of 5, not 64 and 5"));
  auto least = back_end.region().open({.pending = 5, .value_bytes = 128});
  EXPECT_EQ((*Hashtable::open(*least))->pending_limit(), 1u);
  remote::RegionForTest read_only({.size_bytes = 4096, .writable = false});
  auto region = read_only.open();
  EXPECT_EQ(Hashtable::open(*region).status().code(), StatusCode::kPermissionDenied);
}

TEST(HashtableTest, ADamagedEntryEndsTheFrontEnd) {
  TableForTest back_end({.entries = 4, .max_front_ends = 1});
  auto table = back_end.open();
  ASSERT_EQ(table->insert("key", "value").outcome, Outcome::kDone);
  const std::string whole(back_end.memory().data(), back_end.memory().size());
  const size_t at = whole.find("value");
  ASSERT_NE(at, std::string::npos);
  back_end.memory()[at] ^= 1;
  EXPECT_EQ(reclaim_hashtable(back_end.memory()).status().code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(table->search("key").outcome, Outcome::kFailed);
  EXPECT_EQ(table->status().code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(table->status().message(), HasSubstr("the hashtable is damaged at offset "));
  EXPECT_EQ(table->post_search("key", 1), PostResult::kFailed);
}

TEST(HashtableTest, WhatABrokenConnectionLeavesIsReclaimed) {
  TableForTest back_end({.entries = 1000, .max_front_ends = 1});
  std::map<std::string, std::string> expected;
  uint64_t number = 0;
  for (uint32_t round = 0; round < 20; ++round) {
    auto table = back_end.open(4);
    for (uint32_t i = 0; i < 100; ++i) {
      const std::string key = text_of(number++ % 300);
      if (round % 4 == 3) {
        EXPECT_EQ(table->remove(key).outcome, Outcome::kDone);
        expected.erase(key);
      } else {
        EXPECT_EQ(table->update(key, text_of(i)).outcome, Outcome::kDone);
        expected[key] = text_of(i);
      }
    }
    table.region->close();  // its table cannot give anything back
    EXPECT_EQ(table->search("0").outcome, Outcome::kFailed);
    EXPECT_EQ(table->status().code(), StatusCode::kUnavailable);
  }
  back_end.region().wait_for_connections(0);
  const auto found = reclaim_hashtable(back_end.memory());
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_GT(*found, 100u);
  EXPECT_EQ(*reclaim_hashtable(back_end.memory()), 0u);
  auto table = back_end.open();
  for (const auto& [key, value] : expected) ASSERT_EQ(table->search(key).value, value);
  // There is room for all of them again.
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(table->update(text_of(i), "new").outcome, Outcome::kDone);
  }
  EXPECT_TRUE(table->close().ok());
  EXPECT_EQ(table->search("1").outcome, Outcome::kFailed);
  EXPECT_THAT(table->status().message(), HasSubstr("has closed the hashtable"));
  table.table.reset();
  // Who closes leaves nothing.
  table.region->close();
  back_end.region().wait_for_connections(0);
  EXPECT_EQ(*reclaim_hashtable(back_end.memory()), 0u);
}

TEST(HashtableTest, RefusesOptionsThatCannotBe) {
  TableForTest back_end({.entries = 16});
  auto region = back_end.region().open(hashtable_region_options({.entries = 16}));
  const auto message = [&](const HashtableOptions& options) {
    const auto table = Hashtable::open(*region, options);
    return table.ok() ? std::string("it is possible") : table.status().message();
  };
  EXPECT_EQ(message({.hot_modifications = 0}), "hot_modifications is 0; choose 1 or more");
  EXPECT_EQ(message({.hot_after = 0}), "hot_after is 0; choose 1 to 255");
  EXPECT_EQ(message({.hot_after = 256}), "hot_after is 256; choose 1 to 255");
  EXPECT_EQ(message({.hot_patience = 0}), "hot_patience is 0; choose 1 or more");
  EXPECT_EQ(message({}), "it is possible");
}

constexpr HashtableFormat kHotFormat = {
    .entries = 64, .max_front_ends = 1, .hot_blocks = 1, .hot_block_entries = 4};

TEST(HashtableHotAreaTest, TheKeyThatIsExpectedToBeHotIsPromotedByItsNextUpdate) {
  TableForTest back_end(kHotFormat);
  auto table = back_end.open(1, {});
  ASSERT_EQ(table->insert("key", "one").outcome, Outcome::kDone);
  ASSERT_EQ(table->update("key", "two").outcome, Outcome::kDone);
  EXPECT_EQ(table->statistics().hot_promotions, 0u);
  table->expect_hot("key");
  ASSERT_EQ(table->update("key", "three").outcome, Outcome::kDone);
  EXPECT_EQ(table->statistics().hot_promotions, 1u);
  // Whoever has not seen it there finds it all the same.
  auto other = back_end.open(1, {});
  EXPECT_EQ(other->search("key").value, "three");
  ASSERT_EQ(table->update("key", "four").outcome, Outcome::kDone);
  EXPECT_EQ(table->statistics().hot_hits, 1u);
  EXPECT_EQ(other->search("key").value, "four");
  ASSERT_EQ(other->remove("key").outcome, Outcome::kDone);
  EXPECT_EQ(table->search("key").outcome, Outcome::kNotFound);
  ASSERT_EQ(table->insert("key", "five").outcome, Outcome::kDone);
  EXPECT_EQ(table->insert("key", "six").outcome, Outcome::kExists);
  EXPECT_EQ(other->search("key").value, "five");
}

TEST(HashtableHotAreaTest, ModificationsOfABlockAreWrittenTogether) {
  TableForTest back_end(kHotFormat);
  // They gather until theta, however long that takes.
  auto table =
      back_end.open(8, {.hot_modifications = 4, .hot_lease_ns = 1'000'000'000'000, .hot_after = 1});
  for (uint64_t i = 0; i < 6; ++i) {
    ASSERT_EQ(table->update(text_of(i % 2), "cold").outcome, Outcome::kDone);
  }
  const uint64_t flushes = table->statistics().hot_flushes;
  const uint64_t atomics = table.region->statistics().atomics;
  uint32_t replies = 0;
  const auto count = [&](const HashtableReply& reply) {
    EXPECT_EQ(reply.outcome, Outcome::kDone);
    ++replies;
  };
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(table->post_update(text_of(i % 2), "hot", i), PostResult::kPosted);
  }
  for (uint32_t i = 0; i < 100; ++i) table->poll(count);
  EXPECT_EQ(replies, 0u);
  ASSERT_EQ(table->post_update(text_of(0), "hot", 3), PostResult::kPosted);
  while (table->pending() > 0) table->poll(count);
  EXPECT_EQ(replies, 4u);
  EXPECT_EQ(table->statistics().hot_flushes, flushes + 1);
  EXPECT_EQ(table.region->statistics().atomics, atomics + 1);
  // A search does not wait for others, and finds what was posted before.
  ASSERT_EQ(table->post_update(text_of(0), "later", 4), PostResult::kPosted);
  ASSERT_EQ(table->post_search(text_of(0), 5), PostResult::kPosted);
  std::string found;
  while (table->pending() > 0) {
    table->poll([&](const HashtableReply& reply) {
      if (reply.token == 5) found = reply.value;
    });
  }
  EXPECT_EQ(found, "later");
}

TEST(HashtableHotAreaTest, WithoutSpareBlocksModificationsThereAreRefused) {
  TableForTest back_end(kHotFormat);
  auto first = back_end.open(1, {.hot_after = 1});
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(first->update("key", "value").outcome, Outcome::kDone);
  }
  EXPECT_GT(first->statistics().hot_hits, 0u);
  // Takes all copies that nobody has.
  const Layout layout = test::must(Layout::of(kHotFormat));
  const uint64_t all = layout.copies().nodes;
  std::memcpy(back_end.memory().data() + kNextFreshCopy.offset_bytes, &all, sizeof(all));
  auto second = back_end.open(1, {.hot_after = 1});
  EXPECT_EQ(second->search("key").value, "value");
  EXPECT_EQ(second->update("key", "other").outcome, Outcome::kFull);
  EXPECT_EQ(second->error().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(second->error().message(), HasSubstr("no spare block"));
  EXPECT_EQ(first->search("key").value, "value");
  // What is not hot works, and all does again once somebody gives copies back.
  EXPECT_EQ(second->update("cold", "value").outcome, Outcome::kDone);
  EXPECT_TRUE(first->close().ok());
  EXPECT_EQ(second->update("key", "other").outcome, Outcome::kDone);
  EXPECT_EQ(second->search("key").value, "other");
}

// A round that waits for a spare block takes updates that come meanwhile, of which the block as it
// was read before says nothing.
TEST(HashtableHotAreaTest, AnUpdateThatComesWhileARoundWaitsFindsTheKeyThatWasPromotedMeanwhile) {
  TableForTest back_end(kHotFormat);
  constexpr HashtableOptions kAtOnce = {.hot_lease_ns = 0, .hot_after = 4};
  auto other = back_end.open(1, kAtOnce);
  const auto promote = [&](const char* key) {
    other->expect_hot(key);
    ASSERT_EQ(other->update(key, "promised").outcome, Outcome::kDone);
    ASSERT_EQ(other->update(key, "active").outcome, Outcome::kDone);
  };
  promote("hot");
  ASSERT_EQ(other->update("key", "cold").outcome, Outcome::kDone);
  // Spare blocks are on the list of free ones alone, which takes the most round trips.
  {
    auto donor = back_end.open(1, kAtOnce);
    ASSERT_EQ(donor->update("hot", "value").outcome, Outcome::kDone);
    ASSERT_TRUE(donor->close().ok());
  }
  const uint64_t all = test::must(Layout::of(kHotFormat)).copies().nodes;
  std::memcpy(back_end.memory().data() + kNextFreshCopy.offset_bytes, &all, sizeof(all));

  auto table = back_end.open(2, kAtOnce);
  Outcome outcomes[2] = {Outcome::kFailed, Outcome::kFailed};
  const auto take = [&](const HashtableReply& reply) { outcomes[reply.token] = reply.outcome; };
  ASSERT_EQ(table->post_insert("hot", "in vain", 0), PostResult::kPosted);
  while (table->statistics().hot_loads == 0) table->poll(take);
  promote("key");
  ASSERT_EQ(table->post_update("key", "last", 1), PostResult::kPosted);
  while (table->pending() > 0) table->poll(take);
  EXPECT_EQ(outcomes[0], Outcome::kExists);
  EXPECT_EQ(outcomes[1], Outcome::kDone);
  EXPECT_EQ(table->search("key").value, "last");
  EXPECT_EQ(other->search("key").value, "last");
}

TEST(HashtableHotAreaTest, ADeadHolderOfALockDelaysOthersByItsLease) {
  HashtableFormat format = kHotFormat;
  format.hot_lock_lease_ns = 1'000'000;
  TableForTest back_end(format);
  auto first = back_end.open(1, {.hot_after = 1});
  auto second = back_end.open(1, {.hot_after = 1});
  const Layout layout = test::must(Layout::of(format));
  const uint64_t held = LockWord{7, true}.word();
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(first->update("key", "value").outcome, Outcome::kDone);
    ASSERT_EQ(second->update("key", "value").outcome, Outcome::kDone);
  }
  std::memcpy(back_end.memory().data() + layout.block_lock(0).offset_bytes, &held, sizeof(held));
  ASSERT_EQ(first->update("key", "one").outcome, Outcome::kDone);
  // It loses the race, and then has to wait for the lock.
  ASSERT_EQ(second->update("key", "two").outcome, Outcome::kDone);
  EXPECT_EQ(first->search("key").value, "two");
  const HashtableStatistics& statistics = second->statistics();
  EXPECT_EQ(first->statistics().hot_lock_takeovers + statistics.hot_lock_takeovers, 1u);
  EXPECT_GT(first->statistics().hot_lock_waits + statistics.hot_lock_waits, 0u);
}

TEST(HashtableHotAreaTest, ADamagedBlockEndsTheFrontEnd) {
  TableForTest back_end(kHotFormat);
  auto table = back_end.open(1, {.hot_after = 1});
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(table->update("key", "value").outcome, Outcome::kDone);
  }
  EXPECT_GT(table->statistics().hot_hits, 0u);
  const Layout layout = test::must(Layout::of(kHotFormat));
  NodePointer copy;
  std::memcpy(&copy, back_end.memory().data() + layout.block(0).offset_bytes, sizeof(copy));
  back_end.memory()[layout.copies().offset_bytes(copy) + 50] ^= 1;
  auto other = back_end.open(1, {});
  EXPECT_EQ(other->search("key").outcome, Outcome::kFailed);
  EXPECT_EQ(other->status().code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(other->status().message(), HasSubstr("the hashtable is damaged at offset "));
  EXPECT_EQ(reclaim_hashtable(back_end.memory()).status().code(), StatusCode::kProtocolViolation);
}

}  // namespace
}  // namespace verbena::hashtable
