// The rule by which keys belong to partitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "verbena/apps/shuffle.h"

namespace verbena::shuffle_app {
namespace {

uint64_t hash_of(uint64_t key) {
  return shuffle_hash({reinterpret_cast<const char*>(&key), sizeof(key)});
}

TEST(ShuffleHashTest, IsTheSameInAllReleases) {
  EXPECT_EQ(shuffle_hash(""), 2996914800392280717u);
  EXPECT_EQ(shuffle_hash("a"), 3488457439634493077u);
  EXPECT_EQ(shuffle_hash("a record of some 40 bytes, and a few more"), 7494839716170139139u);
}

TEST(ShuffleHashTest, NoKeysOfAnyLengthMeet) {
  // All lengths, one bit each: what a bad mixture loses first.
  std::set<uint64_t> hashes;
  size_t keys = 0;
  for (size_t length = 0; length <= 64; ++length) {
    std::string key(length, '\0');
    hashes.insert(shuffle_hash(key));
    ++keys;
    for (size_t bit = 0; bit < length * 8; ++bit) {
      key[bit / 8] = static_cast<char>(1u << bit % 8);
      hashes.insert(shuffle_hash(key));
      key[bit / 8] = 0;
      ++keys;
    }
  }
  EXPECT_EQ(hashes.size(), keys);
}

TEST(ShuffleHashTest, EachBitOfTheKeyChangesHalfOfTheBits) {
  Random random(run_seed());
  for (int bit = 0; bit < 64; ++bit) {
    uint64_t changed = 0;
    constexpr uint64_t kKeys = 1000;
    for (uint64_t i = 0; i < kKeys; ++i) {
      const uint64_t key = random.next();
      changed +=
          static_cast<uint64_t>(__builtin_popcountll(hash_of(key) ^ hash_of(key ^ 1ull << bit)));
    }
    EXPECT_NEAR(static_cast<double>(changed) / kKeys, 32.0, 2.0) << bit;
  }
}

TEST(ShuffleHashTest, KeysInARowAreSpreadEvenly) {
  for (const uint32_t partitions : {1u, 2u, 3u, 7u, 16u, 100u}) {
    constexpr uint64_t kKeysOfPartition = 10'000;
    std::vector<uint64_t> keys(partitions);
    for (uint64_t key = 0; key < kKeysOfPartition * partitions; ++key) {
      const uint32_t partition = partition_of(hash_of(key), partitions);
      ASSERT_LT(partition, partitions);
      ++keys[partition];
    }
    // Eight standard deviations.
    for (const uint64_t of_one : keys) {
      EXPECT_NEAR(static_cast<double>(of_one), kKeysOfPartition, 800.0) << partitions;
    }
  }
  EXPECT_EQ(partition_of(0, 5), 0u);
  EXPECT_EQ(partition_of(UINT64_MAX, 5), 4u);
  EXPECT_EQ(partition_of(UINT64_MAX, 1), 0u);
}

}  // namespace
}  // namespace verbena::shuffle_app
