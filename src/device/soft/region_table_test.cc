#include "src/device/soft/region_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "src/device/soft/layout.h"

namespace verbena::soft {
namespace {

class RegionTableTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(table_.open(published_.get()).ok()); }
  uint32_t enter(uint64_t address) {
    const Result<uint32_t> key =
        table_.enter({.address = address, .length_bytes = 64, .iova = address, .access = 3});
    EXPECT_TRUE(key.ok());
    return *key;
  }
  const RegionEntry& own(uint32_t key) const { return table_.own()[region_index(key)]; }
  RegionEntry& published(uint32_t key) { return published_[region_index(key)]; }

  std::unique_ptr<RegionEntry[]> published_ = std::make_unique<RegionEntry[]>(kMaxMemoryRegions);
  RegionTable table_;
};

TEST_F(RegionTableTest, BothTablesSayTheSame) {
  const uint32_t key = enter(4096);
  EXPECT_NE(region_index(key), 0u);
  for (const RegionEntry* entry : {&own(key), &static_cast<const RegionEntry&>(published(key))}) {
    EXPECT_EQ(static_cast<uint32_t>(entry->stamp.load()), key);
    EXPECT_EQ(entry->address.load(), 4096u);
    EXPECT_EQ(entry->length_bytes.load(), 64u);
    EXPECT_EQ(entry->access.load(), 3u);
  }
  EXPECT_EQ(own(key).stamp.load(), published(key).stamp.load());
}

TEST_F(RegionTableTest, AnInvalidKeyKeepsItsPlace) {
  const uint32_t key = enter(4096);
  for (int again = 0; again < 2; ++again) {
    table_.invalidate(key);
    EXPECT_EQ(own(key).stamp.load(), 0u);
    EXPECT_EQ(published(key).stamp.load(), 0u);
    // Whoever takes the memory from peers still has to know where it is.
    EXPECT_EQ(own(key).address.load(), 4096u);
  }
  std::set<uint32_t> places;
  for (uint32_t i = 0; i < kMaxMemoryRegions - 2; ++i) places.insert(region_index(enter(i)));
  EXPECT_EQ(places.size(), kMaxMemoryRegions - 2);
  EXPECT_FALSE(places.contains(region_index(key)));
  EXPECT_EQ(table_.enter({}).status().code(), StatusCode::kLimitExceeded);

  table_.free_place(key);
  const uint32_t next = enter(8192);
  EXPECT_EQ(region_index(next), region_index(key));
  EXPECT_NE(next, key) << "a key of the former generation would work";
}

// What peers write into the published table decides nothing here.
TEST_F(RegionTableTest, PublishedEntriesAreNotBelieved) {
  const uint32_t key = enter(4096);
  published(key).stamp.store(~uint64_t{0});
  published(key).address.store(1);
  EXPECT_EQ(own(key).address.load(), 4096u);
  table_.invalidate(key);
  EXPECT_EQ(published(key).stamp.load(), 0u);
  published(key).stamp.store(key);
  table_.free_place(key);
  EXPECT_NE(enter(0), key);
}

TEST_F(RegionTableTest, APlaceIsFreedOnceAndNotInUse) {
  const uint32_t key = enter(4096);
  EXPECT_DEATH(table_.free_place(key), "region_table");
  table_.invalidate(key);
  table_.free_place(key);
  EXPECT_DEATH(table_.free_place(key), "region_table");
  EXPECT_DEATH(table_.invalidate(key), "region_table");
}

}  // namespace
}  // namespace verbena::soft
