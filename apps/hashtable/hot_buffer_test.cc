#include "hashtable/hot_buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "src/base/runtime.h"

namespace verbena::hashtable {
namespace {

constexpr HotBlock::Shape kBufferShape = {
    .most_entries = 4, .entry_bytes = 56, .max_key_bytes = 8, .max_value_bytes = 16};

// Keeps updates as a front-end does, and publishes them as a round of a block does.
class BufferForTest {
 public:
  explicit BufferForTest(uint32_t blocks) : buffer_(blocks, kBufferShape) {}

  HotBuffer& operator*() { return buffer_; }
  HotBuffer* operator->() { return &buffer_; }
  bool keep(uint32_t b, const std::string& key, const std::string& value) {
    const uint32_t i = buffer_.find(b, tag_of(key), key);
    if (i == HotBuffer::kNone && buffer_.is_full(b)) return false;
    buffer_.keep(b, i, tag_of(key), key, value, [this] { return ++now_ns_; });
    return true;
  }
  std::string kept(uint32_t b, const std::string& key) const {
    const uint32_t i = buffer_.find(b, tag_of(key), key);
    return i == HotBuffer::kNone ? "" : std::string(buffer_.value(b, i));
  }
  // Those with a key in `strays` are strays. What is written is in writing().
  uint32_t write(uint32_t b, const std::string& strays = "") {
    writing_.clear();
    return buffer_.write(b,
                         [&](uint32_t tag, std::string_view key, std::string_view value, uint32_t) {
                           EXPECT_EQ(tag, tag_of(std::string(key)));
                           if (strays.find(key) != std::string::npos) return false;
                           writing_[std::string(key)] = value;
                           return true;
                         });
  }
  const std::map<std::string, std::string>& writing() const { return writing_; }
  uint64_t now_ns() const { return now_ns_; }

  static uint32_t tag_of(const std::string& key) { return 7 * static_cast<uint32_t>(key[0]); }

 private:
  HotBuffer buffer_;
  std::map<std::string, std::string> writing_;
  uint64_t now_ns_ = 0;
};

TEST(HotBufferTest, KeepsTheNewestValueUntilItIsPublished) {
  BufferForTest buffer(2);
  EXPECT_TRUE(buffer->is_empty());
  EXPECT_TRUE(buffer.keep(0, "a", "1"));
  EXPECT_TRUE(buffer.keep(0, "a", "2"));
  EXPECT_TRUE(buffer.keep(0, "b", "3"));
  EXPECT_TRUE(buffer.keep(1, "a", "other block"));
  EXPECT_EQ(buffer->modifications(0), 3u);
  EXPECT_EQ(buffer.kept(0, "a"), "2");
  EXPECT_EQ(buffer.write(0), 2u);
  EXPECT_EQ(buffer.writing(), (std::map<std::string, std::string>{{"a", "2"}, {"b", "3"}}));
  // It is still this front-end's alone.
  EXPECT_EQ(buffer.kept(0, "b"), "3");
  EXPECT_TRUE(buffer.keep(0, "a", "4"));
  EXPECT_EQ(buffer->written(0), 3u);
  EXPECT_EQ(buffer.kept(0, "b"), "");
  EXPECT_EQ(buffer.kept(0, "a"), "4");
  EXPECT_EQ(buffer->modifications(0), 1u);
  EXPECT_EQ(buffer.write(0), 1u);
  EXPECT_EQ(buffer->written(0), 1u);
  EXPECT_FALSE(buffer->is_empty());
  EXPECT_EQ(buffer.write(1), 1u);
  EXPECT_EQ(buffer->written(1), 1u);
  EXPECT_TRUE(buffer->is_empty());
}

TEST(HotBufferTest, SaysWhenTheOldestWasKept) {
  BufferForTest buffer(3);
  EXPECT_EQ(buffer->oldest_ns(), UINT64_MAX);
  buffer.keep(0, "a", "1");  // at 1
  buffer.keep(1, "b", "1");  // at 2
  buffer.keep(1, "b", "2");
  EXPECT_EQ(buffer->oldest_ns(), 1u);
  EXPECT_EQ(buffer->oldest(), 0u);
  // A round that was begun has published nothing, nor has one that lost.
  buffer->begin_write(0);
  EXPECT_EQ(buffer->oldest_ns(), 1u);
  EXPECT_EQ(buffer->oldest(), 1u);
  buffer.write(0);
  buffer->take_back(0);
  buffer.keep(0, "c", "1");  // at 3
  EXPECT_EQ(buffer->oldest_ns(), 1u);
  EXPECT_EQ(buffer.write(0), 2u);
  buffer.keep(0, "a", "5");  // at 4
  buffer->written(0);
  EXPECT_EQ(buffer->oldest_ns(), 2u);
  buffer->want(1);
  EXPECT_EQ(buffer->oldest_ns(), 2u);
  EXPECT_EQ(buffer->first_wanted(), 1u);
  buffer.write(1);
  buffer->written(1);
  EXPECT_EQ(buffer->oldest_ns(), buffer.now_ns());
  EXPECT_EQ(buffer->oldest(), 0u);
}

TEST(HotBufferTest, AStrayIsKeptUntilItsOperationHasEnded) {
  BufferForTest buffer(1);
  buffer.keep(0, "a", "1");
  buffer.keep(0, "b", "1");
  EXPECT_EQ(buffer.write(0, "a"), 1u);
  buffer->written(0);
  ASSERT_TRUE(buffer->has_strays(0));
  const uint32_t stray = buffer->carry_stray(0);
  EXPECT_EQ(buffer->key(0, stray), "a");
  EXPECT_FALSE(buffer->has_strays(0));
  // A newer value waits for it.
  buffer.keep(0, "a", "2");
  EXPECT_FALSE(buffer->has_dirty(0));
  EXPECT_EQ(buffer->oldest(), HotBuffer::kNone);
  EXPECT_EQ(buffer->oldest_ns(), 1u);
  const auto now = [] { return uint64_t{9}; };
  buffer->end_stray(0, buffer->find(0, BufferForTest::tag_of("a"), "a"), true, now);
  EXPECT_TRUE(buffer->is_wanted(0));
  EXPECT_EQ(buffer.kept(0, "a"), "2");
  // One without room is tried again, and is not forgotten.
  EXPECT_EQ(buffer.write(0, "a"), 0u);
  buffer->end_write(0);
  buffer->end_stray(0, buffer->carry_stray(0), false, now);
  EXPECT_EQ(buffer.kept(0, "a"), "2");
  EXPECT_LE(buffer->oldest_ns(), 3u);
  EXPECT_EQ(buffer.write(0), 1u);
  buffer->written(0);
  EXPECT_TRUE(buffer->is_empty());
  EXPECT_EQ(buffer->oldest_ns(), UINT64_MAX);
}

// Another front-end may remove the key once the operation has published it.
TEST(HotBufferTest, WhatIsKeptBeforeAStrayIsCarriedIsPublishedOnce) {
  BufferForTest buffer(1);
  buffer.keep(0, "a", "1");
  EXPECT_EQ(buffer.write(0, "a"), 0u);
  buffer->end_write(0);
  buffer.keep(0, "a", "2");
  EXPECT_EQ(buffer.kept(0, "a"), "2");
  const uint32_t stray = buffer->carry_stray(0);
  EXPECT_EQ(buffer->value(0, stray), "2");
  EXPECT_TRUE(buffer->may_be_published(0, stray));
  EXPECT_EQ(buffer->oldest_ns(), 1u);
  buffer->end_stray(0, stray, true, [] { return uint64_t{9}; });
  EXPECT_FALSE(buffer->has_dirty(0));
  EXPECT_EQ(buffer.kept(0, "a"), "");
  EXPECT_TRUE(buffer->is_empty());
}

// Else flush() would return, and unpublished_since_ns() say that it is safe, before it is.
class HotBufferRoundTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(MoreIsKept, HotBufferRoundTest, testing::Bool());

TEST_P(HotBufferRoundTest, AStrayThatEndsDoesNotEndIt) {
  BufferForTest buffer(1);
  buffer.keep(0, "a", "1");  // at 1
  EXPECT_EQ(buffer.write(0, "a"), 0u);
  buffer->end_write(0);
  const uint32_t stray = buffer->carry_stray(0);
  buffer.keep(0, "b", "2");  // at 2
  buffer->begin_write(0);
  if (GetParam()) buffer.keep(0, "c", "3");  // at 3, and for this round, too
  buffer->end_stray(0, stray, true, [] { return uint64_t{9}; });
  EXPECT_FALSE(buffer->is_empty());
  EXPECT_LE(buffer->oldest_ns(), 2u);
  EXPECT_EQ(buffer.write(0), GetParam() ? 2u : 1u);
  buffer->written(0);
  EXPECT_TRUE(buffer->is_empty());
  EXPECT_EQ(buffer->oldest_ns(), UINT64_MAX);
}

// Whatever happens to rounds and strays: what is kept is found, nothing is published twice, and in
// the end the last value of each key is the one that was published last.
TEST(HotBufferTest, PublishesWhatWasKeptLast) {
  constexpr uint32_t kBlocks = 3;
  Random random(run_seed());
  BufferForTest buffer(kBlocks);
  const auto now = [&] { return buffer.now_ns(); };
  using Place = std::pair<uint32_t, std::string>;
  std::map<Place, std::string> kept;
  std::map<Place, std::string> published;
  std::set<std::string> ever_published;  // all values are different
  uint64_t values = 0;
  struct Carried {
    std::string value;
    uint64_t since_ns;
  };
  std::map<Place, Carried> carried;
  std::map<Place, std::vector<uint64_t>> unpublished;  // when, of each that was kept
  uint64_t written_ns = 0;
  const auto keep = [&](uint32_t b, const std::string& key, const std::string& value) {
    if (!buffer.keep(b, key, value)) return;
    kept[{b, key}] = value;
    unpublished[{b, key}].push_back(buffer.now_ns());
  };
  const auto settle = [&](const Place& place, const std::string& value, uint64_t until_ns) {
    published[place] = value;
    EXPECT_TRUE(ever_published.insert(value).second) << value;
    std::erase_if(unpublished[place], [&](uint64_t at_ns) { return at_ns <= until_ns; });
  };
  const auto write = [&](uint32_t b, const std::string& strays) {
    buffer.write(b, strays);
    written_ns = buffer.now_ns();
  };
  const auto publish = [&](uint32_t b) {
    for (const auto& [key, value] : buffer.writing()) settle({b, key}, value, written_ns);
    buffer->written(b);
    buffer->end_write(b);
  };
  const auto carry = [&](uint32_t b) {
    while (buffer->has_strays(b)) {
      const uint32_t i = buffer->carry_stray(b);
      carried[{b, std::string(buffer->key(b, i))}] = {std::string(buffer->value(b, i)),
                                                      buffer.now_ns()};
    }
  };
  const auto end_one = [&](bool placed) {
    const auto [place, stray] = *carried.begin();
    carried.erase(carried.begin());
    if (placed) settle(place, stray.value, stray.since_ns);
    buffer->end_stray(place.first,
                      buffer->find(place.first, BufferForTest::tag_of(place.second), place.second),
                      placed, now);
  };
  const auto check = [&](uint32_t i) {
    for (const auto& [place, value] : kept) {
      const std::string found = buffer.kept(place.first, place.second);
      ASSERT_EQ(found.empty() ? published[place] : found, value) << i;
    }
    for (const auto& [place, times] : unpublished) {
      for (const uint64_t at_ns : times) ASSERT_LE(buffer->oldest_ns(), at_ns) << i;
    }
  };
  for (uint32_t i = 0; i < 20'000 && !HasFailure(); ++i) {
    const auto b = static_cast<uint32_t>(random.below(kBlocks));
    const std::string key(1, static_cast<char>('a' + random.below(6)));
    // Anything may happen between the steps of a round.
    const auto meanwhile = [&](const char* what) {
      if (random.below(2) == 0) keep(b, key, what + std::to_string(++values));
      if (random.below(4) == 0 && !carried.empty()) end_one(random.below(4) != 0);
      check(i);
    };
    if (random.below(4) != 0) {
      keep(b, key, std::to_string(++values));
    } else if (random.below(3) == 0 && !carried.empty()) {
      end_one(random.below(4) != 0);
    } else {
      const std::string strays =
          random.below(2) == 0 ? "" : std::string("abc").substr(random.below(3));
      buffer->begin_write(b);
      meanwhile("begun ");
      write(b, strays);
      while (random.below(3) == 0) {
        meanwhile("new ");
        buffer->take_back(b);
        meanwhile("lost ");
        write(b, strays);
      }
      meanwhile("late ");
      publish(b);
      carry(b);
    }
    check(i);
  }
  while (!buffer->is_empty()) {
    while (!carried.empty()) end_one(true);
    for (uint32_t b = 0; b < kBlocks; ++b) {
      if (!buffer->has_dirty(b)) continue;
      write(b, "");
      publish(b);
    }
  }
  EXPECT_EQ(published, kept);
  EXPECT_GT(ever_published.size(), 1'000u);
  EXPECT_EQ(buffer->oldest_ns(), UINT64_MAX);
}

}  // namespace
}  // namespace verbena::hashtable
