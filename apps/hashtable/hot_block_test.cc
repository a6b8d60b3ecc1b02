#include "hashtable/hot_block.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::hashtable {
namespace {

constexpr HotBlock::Shape kShape = {
    .most_entries = 4, .entry_bytes = 56, .max_key_bytes = 8, .max_value_bytes = 16};

class HotBlockTest : public testing::Test {
 protected:
  HotBlockTest() : bytes_(sizeof(HotBlockHeader) + kShape.most_entries * kShape.entry_bytes) {}

  std::string text(uint32_t i) {
    const HotEntry entry = block_.entry(i);
    const std::string key(block_.key(i, entry));
    const std::string place = "@" + std::to_string(entry.place);
    if (!entry.is_active()) return key + place + " promised";
    if (entry.is_absent()) return key + place + " absent";
    return key + place + "=" + std::string(block_.value(i, entry));
  }

  std::vector<char> bytes_;
  HotBlock block_{bytes_.data(), kShape};
};

TEST_F(HotBlockTest, EntriesBeginAsPromises) {
  block_.add_promise("one", 11, 100);
  block_.add_promise("twotwotw", 12, 101);
  EXPECT_EQ(text(0), "one@100 promised");
  EXPECT_EQ(text(1), "twotwotw@101 promised");
  EXPECT_EQ(block_.entry(1).tag, 12u);
  block_.set(1, "sixteen bytes it");
  block_.set_absent(0);
  EXPECT_EQ(text(0), "one@100 absent");
  EXPECT_EQ(text(1), "twotwotw@101=sixteen bytes it");
  block_.set(0, "");
  EXPECT_EQ(text(0), "one@100=");
  EXPECT_EQ(block_.entry(0).version, 2u);
  EXPECT_EQ(block_.entry(1).version, 1u);
}

TEST_F(HotBlockTest, TheLastEntryTakesTheNumberOfADroppedOne) {
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(block_.is_full());
    block_.add_promise(std::to_string(i), 0, i);
    block_.set(static_cast<uint32_t>(i), "value " + std::to_string(i));
  }
  EXPECT_TRUE(block_.is_full());
  block_.drop(1);
  EXPECT_EQ(block_.count(), 3u);
  EXPECT_EQ(text(1), "3@3=value 3");
  block_.drop(2);
  EXPECT_EQ(text(0), "0@0=value 0");
  EXPECT_EQ(text(1), "3@3=value 3");
  EXPECT_EQ(block_.size_bytes(), sizeof(HotBlockHeader) + 2 * kShape.entry_bytes);
}

TEST_F(HotBlockTest, HeatFollowsWhatIsModifiedNow) {
  for (uint64_t i = 0; i < 3; ++i) block_.add_promise(std::to_string(i), 0, i);
  for (uint32_t i = 0; i < 60; ++i) block_.set(0, "then");
  for (uint32_t i = 0; i < 2; ++i) block_.set(1, "rarely");
  block_.set(2, "once");
  EXPECT_EQ(block_.coldest(), 2u);
  for (uint32_t i = 0; i < 1'000; ++i) {
    block_.set(2, "now");
    block_.set(1, "now");
  }
  EXPECT_EQ(block_.coldest(), 0u);
  // What was removed goes first.
  block_.set_absent(2);
  block_.set(0, "again");
  EXPECT_EQ(block_.coldest(), 2u);
}

TEST_F(HotBlockTest, KnowsWhatIsNoBlock) {
  EXPECT_TRUE(block_.is_sound(sizeof(HotBlockHeader)));
  EXPECT_FALSE(block_.is_sound(sizeof(HotBlockHeader) - 1));
  EXPECT_FALSE(block_.is_sound(sizeof(HotBlockHeader) + kShape.entry_bytes));
  block_.add_promise("key", 0, 1);
  EXPECT_TRUE(block_.is_sound(sizeof(HotBlockHeader) + kShape.entry_bytes));
  HotEntry entry = block_.entry(0);
  entry.key_bytes = 9;
  copy_bytes(bytes_.data() + sizeof(HotBlockHeader), &entry, sizeof(entry));
  EXPECT_FALSE(block_.is_sound(sizeof(HotBlockHeader) + kShape.entry_bytes));
  entry.key_bytes = 3;
  entry.value_bytes = 17;
  copy_bytes(bytes_.data() + sizeof(HotBlockHeader), &entry, sizeof(entry));
  EXPECT_FALSE(block_.is_sound(sizeof(HotBlockHeader) + kShape.entry_bytes));
  const HotBlockHeader wrong = {.entries = 5, .recent = 0};
  copy_bytes(bytes_.data(), &wrong, sizeof(wrong));
  EXPECT_FALSE(block_.is_sound(sizeof(HotBlockHeader) + 5 * kShape.entry_bytes));
}

}  // namespace
}  // namespace verbena::hashtable
