#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "verbena/device.h"

namespace verbena {
namespace {

class MemoryRegionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(device_.ok()) << device_.status().message();
    ASSERT_TRUE(domain_.ok()) << domain_.status().message();
  }
  Result<Device> device_ = Device::open("soft0");
  Result<ProtectionDomain> domain_ = device_.ok() ? ProtectionDomain::create(*device_)
                                                  : Result<ProtectionDomain>(device_.status());
};

TEST_F(MemoryRegionTest, DescribesTheMemory) {
  std::vector<char> buffer(10000, 'x');
  const Result<MemoryRegion> region =
      MemoryRegion::create(*domain_, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
  ASSERT_TRUE(region.ok()) << region.status().message();
  EXPECT_EQ(region->address(), buffer.data());
  EXPECT_EQ(region->length_bytes(), buffer.size());
  EXPECT_EQ(buffer, std::vector<char>(10000, 'x'));
}

TEST_F(MemoryRegionTest, RemoteWriteNeedsLocalWrite) {
  std::vector<char> buffer(4096);
  for (const unsigned access : {IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC}) {
    const Result<MemoryRegion> region =
        MemoryRegion::create(*domain_, buffer.data(), buffer.size(), access);
    ASSERT_FALSE(region.ok());
    EXPECT_EQ(region.status().code(), StatusCode::kInvalidArgument) << region.status().message();
  }
}

TEST_F(MemoryRegionTest, UnmappedMemoryIsRefused) {
  const long page_bytes = sysconf(_SC_PAGESIZE);
  void* hole = mmap(nullptr, page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  ASSERT_EQ(munmap(hole, page_bytes), 0);
  const Result<MemoryRegion> region =
      MemoryRegion::create(*domain_, hole, page_bytes, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_FALSE(region.ok());
  EXPECT_EQ(region.status().code(), StatusCode::kInvalidArgument) << region.status().message();
}

}  // namespace
}  // namespace verbena
