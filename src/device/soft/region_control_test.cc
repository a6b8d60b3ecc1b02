// Which registrations and deregistrations are refused, with which error and line.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "src/device/soft/soft.h"
#include "src/device/soft/soft_rnic.h"
#include "verbena/device.h"

namespace verbena::soft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kPage = 4096;
constexpr unsigned kSource = 0;
constexpr unsigned kTarget = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr unsigned kReadable = IBV_ACCESS_REMOTE_READ;

class RegionControlTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<Device> device = Device::open(kDeviceName);
    ASSERT_TRUE(device.ok()) << device.status().message();
    device_.emplace(std::move(*device));
    Result<ProtectionDomain> domain = ProtectionDomain::create(*device_);
    ASSERT_TRUE(domain.ok()) << domain.status().message();
    domain_.emplace(std::move(*domain));
  }

  ibv_mr* make(void* address, size_t length_bytes, unsigned access) {
    errno = 0;
    return control().reg_mr(domain_->get(), address, length_bytes,
                            reinterpret_cast<uint64_t>(address), access);
  }
  // What a refusal says; empty if there is none.
  std::string refusal(void* address, size_t length_bytes, unsigned access, int error) {
    ibv_mr* region = make(address, length_bytes, access);
    if (region != nullptr) {
      EXPECT_EQ(control().dereg_mr(region), 0);
      return {};
    }
    EXPECT_EQ(errno, error);
    return control().last_error();
  }
  void expect_accepted(void* address, size_t length_bytes, unsigned access) {
    ibv_mr* region = make(address, length_bytes, access);
    ASSERT_NE(region, nullptr) << control().last_error();
    EXPECT_EQ(control().dereg_mr(region), 0);
  }

  std::optional<Device> device_;
  std::optional<ProtectionDomain> domain_;
};

std::byte* map(size_t length_bytes, int protection = PROT_READ | PROT_WRITE, int fd = -1,
               int flags = MAP_PRIVATE) {
  void* pages =
      mmap(nullptr, length_bytes, protection, flags | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
  if (pages == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(pages);
}

// Sources, too, which peers never touch.
TEST_F(RegionControlTest, AllOfTheMemoryMustExist) {
  std::byte* pages = map(3 * kPage);
  munmap(pages + kPage, kPage);
  for (const unsigned access : {kSource, kReadable, kTarget}) {
    EXPECT_THAT(refusal(pages, 3 * kPage, access, EFAULT), HasSubstr("nothing is mapped at"));
    EXPECT_THAT(refusal(pages + kPage - 8, 16, access, EFAULT), HasSubstr("nothing is mapped at"));
    expect_accepted(pages, kPage, access);
  }
  munmap(pages, 3 * kPage);
}

TEST_F(RegionControlTest, InaccessibleMemoryIsRefused) {
  std::byte* pages = map(2 * kPage);
  mprotect(pages + kPage, kPage, PROT_NONE);
  for (const unsigned access : {kSource, kReadable, kTarget}) {
    EXPECT_THAT(refusal(pages, 2 * kPage, access, EFAULT),
                AllOf(HasSubstr("PROT_NONE"), HasSubstr("mprotect()")));
  }
  munmap(pages, 2 * kPage);
}

const std::byte kConstant[64] = {std::byte{1}};

TEST_F(RegionControlTest, ReadOnlyMemoryCanBeReadOnly) {
  std::byte* pages = map(2 * kPage);
  mprotect(pages + kPage, kPage, PROT_READ);
  auto* constant = const_cast<std::byte*>(kConstant);
  for (const unsigned access : {kTarget, unsigned{IBV_ACCESS_LOCAL_WRITE}}) {
    EXPECT_THAT(refusal(pages, 2 * kPage, access, EFAULT),
                AllOf(HasSubstr("is read-only"), HasSubstr("IBV_ACCESS_LOCAL_WRITE")));
    EXPECT_THAT(refusal(constant, 64, access, EFAULT), HasSubstr("is read-only"));
  }
  for (const unsigned access : {kSource, kReadable}) {
    expect_accepted(pages, 2 * kPage, access);
    expect_accepted(constant, 64, access);
  }
  munmap(pages, 2 * kPage);
}

TEST_F(RegionControlTest, AFileMustReachSoFar) {
  const int fd = memfd_create("short", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kPage), 0);
  for (const int flags : {MAP_PRIVATE, MAP_SHARED}) {
    std::byte* pages = map(3 * kPage, PROT_READ | PROT_WRITE, fd, flags);
    for (const unsigned access : {kSource, kReadable, kTarget}) {
      EXPECT_THAT(refusal(pages, 3 * kPage, access, EFAULT),
                  AllOf(HasSubstr("beyond the end of"), HasSubstr("short")));
      expect_accepted(pages, kPage, access);
    }
    munmap(pages, 3 * kPage);
  }
  std::byte* read_only = map(kPage, PROT_READ, fd, MAP_SHARED);
  expect_accepted(read_only, kPage, kSource);
  expect_accepted(read_only, kPage, kReadable);
  EXPECT_THAT(refusal(read_only, kPage, kTarget, EFAULT), HasSubstr("is read-only"));
  munmap(read_only, kPage);
  close(fd);
}

TEST_F(RegionControlTest, TheWholeAddressSpaceIsNone) {
  std::byte* pages = map(kPage);
  EXPECT_NE(refusal(pages, ~size_t{0}, kTarget, EINVAL), "");
  EXPECT_NE(refusal(pages, ~size_t{0} - reinterpret_cast<uint64_t>(pages), kTarget, EINVAL), "");
  munmap(pages, kPage);
}

TEST_F(RegionControlTest, FlagsAreKnownIgnoredOrRefused) {
  std::byte* pages = map(kPage);
  expect_accepted(pages, kPage, kTarget | IBV_ACCESS_RELAXED_ORDERING);
  expect_accepted(pages, kPage, kTarget | unsigned{IBV_ACCESS_OPTIONAL_RANGE});
  expect_accepted(pages, kPage, kTarget | IBV_ACCESS_HUGETLB);
  expect_accepted(pages, kPage, kTarget | IBV_ACCESS_ON_DEMAND);
  expect_accepted(pages, kPage, kTarget | IBV_ACCESS_MW_BIND);
  EXPECT_THAT(refusal(pages, kPage, kTarget | 1u << 18, EOPNOTSUPP), HasSubstr("0x40000"));
  EXPECT_THAT(refusal(pages, kPage, IBV_ACCESS_REMOTE_ATOMIC, EINVAL),
              HasSubstr("needs IBV_ACCESS_LOCAL_WRITE"));
  munmap(pages, kPage);
}

TEST_F(RegionControlTest, ARegionMayBeOfNothing) {
  std::byte* pages = map(kPage);
  for (const unsigned access : {kSource, kReadable, kTarget}) {
    expect_accepted(pages + 8, 0, access);
    expect_accepted(nullptr, 0, access);
  }
  // It takes nothing along from those around it.
  ibv_mr* around = make(pages, kPage, kTarget);
  ASSERT_NE(around, nullptr);
  expect_accepted(pages + 8, 0, kTarget);
  EXPECT_EQ(control().region_memory(around), RegionMemory::kSame);
  EXPECT_EQ(control().dereg_mr(around), 0);
  munmap(pages, kPage);
}

TEST_F(RegionControlTest, ARegionEndsOnce) {
  std::byte* pages = map(kPage);
  ibv_mr* region = make(pages, kPage, kTarget);
  ASSERT_NE(region, nullptr);
  const uint32_t key = region->lkey;
  region->lkey ^= 0x100;
  EXPECT_EQ(control().dereg_mr(region), EINVAL);
  region->lkey = key;
  EXPECT_EQ(control().dereg_mr(region), 0);
  EXPECT_EQ(control().dereg_mr(region), EINVAL);
  EXPECT_THAT(control().last_error(), HasSubstr("no memory region"));
  EXPECT_EQ(control().dereg_mr(nullptr), EINVAL);
  munmap(pages, kPage);
}

}  // namespace
}  // namespace verbena::soft
