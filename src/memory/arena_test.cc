#include "src/memory/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "verbena/device.h"

namespace verbena {
namespace {

class ArenaTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = Device::open("soft0");
    if (!device.ok()) GTEST_SKIP() << "no soft0 here: " << device.status().message();
    device_.emplace(std::move(*device));
    auto domain = ProtectionDomain::create(*device_);
    ASSERT_TRUE(domain.ok()) << domain.status().message();
    domain_.emplace(std::move(*domain));
  }

  std::optional<Device> device_;
  std::optional<ProtectionDomain> domain_;
};

TEST_F(ArenaTest, HoldsZerosOnWholePages) {
  auto arena = RegisteredArena::create(*domain_, 5000, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_TRUE(arena.ok()) << arena.status().message();
  EXPECT_EQ(arena->size_bytes(), 8192u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(arena->data(), arena->data() + arena->size_bytes(),
                          [](char byte) { return byte == 0; }));
}

TEST_F(ArenaTest, PiecesAreCacheLinesApartAndInside) {
  auto arena = RegisteredArena::create(*domain_, 4096, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_TRUE(arena.ok());
  char* first = arena->carve(1);
  char* second = arena->carve(100);
  char* third = arena->carve(4096 - 192);
  EXPECT_EQ(first, arena->data());
  EXPECT_EQ(second, first + 64);
  EXPECT_EQ(third, second + 128);
  EXPECT_DEATH(arena->carve(1), "size_bytes");
}

TEST_F(ArenaTest, MemoryStaysWhereItIsWhenTheOwnerMoves) {
  auto arena = RegisteredArena::create(*domain_, 4096, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_TRUE(arena.ok());
  char* data = arena->data();
  data[7] = 'x';
  const uint32_t lkey = arena->lkey();
  RegisteredArena moved = std::move(*arena);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved.data()[7], 'x');
  EXPECT_EQ(moved.lkey(), lkey);
}

TEST_F(ArenaTest, MoreThanTheMachineHasIsALimit) {
  for (uint64_t size_bytes : {uint64_t{1} << 60, ~uint64_t{0}}) {
    auto arena = RegisteredArena::create(*domain_, size_bytes, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_FALSE(arena.ok());
    EXPECT_EQ(arena.status().code(), StatusCode::kLimitExceeded);
    EXPECT_THAT(arena.status().message(), testing::HasSubstr(std::to_string(size_bytes)));
  }
}

}  // namespace
}  // namespace verbena
