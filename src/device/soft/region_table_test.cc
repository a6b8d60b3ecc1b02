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

constexpr uint32_t kBindable = IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE;

class WindowTableTest : public RegionTableTest {
 protected:
  void SetUp() override {
    RegionTableTest::SetUp();
    region_ = *table_.enter(
        {.address = 4096, .length_bytes = 64, .iova = 1 << 20, .access = kBindable, .domain = 7});
    window_ = *table_.reserve_window();
  }
  // Bytes 16 to 48 of the region.
  NewWindow inner() const {
    return {.key = window_,
            .region_key = region_,
            .address = (1 << 20) + 16,
            .length_bytes = 32,
            .access = IBV_ACCESS_REMOTE_WRITE,
            .region_domain = 7,
            .domain = 9};
  }
  uint32_t region_ = 0;
  uint32_t window_ = 0;
};

TEST_F(WindowTableTest, AWindowIsAPartOfItsRegion) {
  EXPECT_EQ(published(window_).stamp.load(), 0u);
  ASSERT_TRUE(table_.bind_window(inner()));
  for (const RegionEntry* entry :
       {&own(window_), &static_cast<const RegionEntry&>(published(window_))}) {
    EXPECT_EQ(static_cast<uint32_t>(entry->stamp.load()), window_);
    EXPECT_EQ(entry->address.load(), 4096u + 16);
    EXPECT_EQ(entry->iova.load(), (1u << 20) + 16);
    EXPECT_EQ(entry->length_bytes.load(), 32u);
    EXPECT_EQ(entry->access.load(), IBV_ACCESS_REMOTE_WRITE | kWindowAccess);
    EXPECT_EQ(entry->domain.load(), 9u);
  }
}

TEST_F(WindowTableTest, AZeroBasedWindowBeginsAtZero) {
  NewWindow window = inner();
  window.zero_based = true;
  ASSERT_TRUE(table_.bind_window(window));
  EXPECT_EQ(own(window_).iova.load(), 0u);
  EXPECT_EQ(own(window_).address.load(), 4096u + 16);
}

TEST_F(WindowTableTest, ItMustFitItsRegion) {
  NewWindow window = inner();
  window.length_bytes = 49;
  EXPECT_FALSE(table_.bind_window(window)) << "too long";
  window = inner();
  window.address = (1 << 20) - 1;
  EXPECT_FALSE(table_.bind_window(window)) << "begins before it";
  window = inner();
  window.length_bytes = ~uint64_t{0};
  EXPECT_FALSE(table_.bind_window(window)) << "the end wraps";
  window = inner();
  window.region_domain = 8;
  EXPECT_FALSE(table_.bind_window(window)) << "another domain";
  window = inner();
  window.region_key = region_ ^ 1;
  EXPECT_FALSE(table_.bind_window(window)) << "another generation of the key";
  window = inner();
  window.region_key = ~0u;
  EXPECT_FALSE(table_.bind_window(window)) << "no place in the table";
  EXPECT_TRUE(table_.bind_window(inner()));
  const uint32_t second = *table_.reserve_window();
  window = inner();
  window.key = second;
  window.region_key = window_;
  EXPECT_FALSE(table_.bind_window(window)) << "a window of a window";
}

// ibv_inc_rkey() comes to it after 0xff. Place 0 is nobody's, so the key is not 0.
TEST_F(WindowTableTest, TheLowByteOfAKeyMayBeZero) {
  NewWindow window = inner();
  window.key &= ~0xffu;
  ASSERT_NE(window.key, 0u);
  ASSERT_TRUE(table_.bind_window(window));
  EXPECT_EQ(static_cast<uint32_t>(own(window.key).stamp.load()), window.key);
  EXPECT_TRUE(table_.unbind_window(window.key, 9));
}

TEST_F(WindowTableTest, AWindowsLatestKeyIsNotTheNextRegions) {
  NewWindow window = inner();
  ++window.key;
  ASSERT_TRUE(table_.bind_window(window));
  table_.unbind_place(region_index(window_));
  table_.free_place(window_);
  // Once around all places.
  uint32_t key = 0;
  do {
    key = enter(4096);
    ASSERT_NE(key, window.key);
    table_.invalidate(key);
    table_.free_place(key);
  } while (region_index(key) != region_index(window_));
}

TEST_F(WindowTableTest, RightsToWriteNeedARegionToWrite) {
  const uint32_t readable = *table_.enter({.address = 8192,
                                           .length_bytes = 64,
                                           .iova = 1 << 20,
                                           .access = IBV_ACCESS_MW_BIND,
                                           .domain = 7});
  NewWindow window = inner();
  window.region_key = readable;
  EXPECT_FALSE(table_.bind_window(window));
  window.access = IBV_ACCESS_REMOTE_ATOMIC;
  EXPECT_FALSE(table_.bind_window(window));
  window.access = IBV_ACCESS_REMOTE_READ;
  EXPECT_TRUE(table_.bind_window(window));
}

TEST_F(WindowTableTest, ARegionStaysWhileWindowsAreBoundToIt) {
  const uint32_t second = *table_.reserve_window();
  NewWindow other = inner();
  other.key = second;
  ASSERT_TRUE(table_.bind_window(inner()));
  ASSERT_TRUE(table_.bind_window(other));
  EXPECT_FALSE(table_.invalidate(region_));
  EXPECT_NE(own(region_).stamp.load(), 0u);
  EXPECT_TRUE(table_.unbind_window(window_, 9));
  EXPECT_FALSE(table_.invalidate(region_));
  table_.unbind_place(region_index(second));
  EXPECT_TRUE(table_.invalidate(region_));
}

TEST_F(WindowTableTest, OnlyTheKeyInItsDomainEndsABinding) {
  ASSERT_TRUE(table_.bind_window(inner()));
  EXPECT_FALSE(table_.bind_window(inner())) << "bound already";
  EXPECT_FALSE(table_.unbind_window(window_, 8));
  EXPECT_FALSE(table_.unbind_window(window_ ^ 1, 9));
  EXPECT_FALSE(table_.unbind_window(region_, 7)) << "a region";
  EXPECT_FALSE(table_.unbind_window(0, 0));
  EXPECT_FALSE(table_.unbind_window(~0u, 9));
  EXPECT_TRUE(table_.unbind_window(window_, 9));
  EXPECT_EQ(own(window_).stamp.load(), 0u);
  EXPECT_EQ(published(window_).stamp.load(), 0u);
  EXPECT_FALSE(table_.unbind_window(window_, 9));
}

// As SEND_WITH_INV of a peer does it, in the published table alone.
TEST_F(WindowTableTest, APeerMayHaveEndedTheBinding) {
  ASSERT_TRUE(table_.bind_window(inner()));
  const uint64_t first = published(window_).stamp.exchange(0);
  EXPECT_FALSE(table_.invalidate(region_)) << "here it is still bound";
  EXPECT_TRUE(table_.unbind_window(window_, 9));
  ASSERT_TRUE(table_.bind_window(inner()));
  EXPECT_NE(published(window_).stamp.load(), first) << "a late end would hit the next binding";
}

TEST_F(RegionTableTest, AKeyMayNameAnotherRegion) {
  const uint32_t key = enter(4096);
  const uint64_t stamp = own(key).stamp.load();
  EXPECT_DEATH(table_.enter_again(key, {}), "region_table");
  ASSERT_TRUE(table_.invalidate(key));
  table_.enter_again(key, {.address = 8192, .length_bytes = 8, .iova = 8192, .access = 1});
  EXPECT_EQ(static_cast<uint32_t>(own(key).stamp.load()), key);
  EXPECT_NE(own(key).stamp.load(), stamp);
  EXPECT_EQ(published(key).address.load(), 8192u);
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
