#include "src/base/vma_query.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "src/base/file_descriptor.h"

namespace verbena {
namespace {

void some_code() {}

TEST(VmaQueryTest, BothWaysSeeTheSame) {
  Result<VmaQuery> best = VmaQuery::open();
  Result<VmaQuery> file = VmaQuery::open(VmaQuery::Source::kMapsFile);
  ASSERT_TRUE(best.ok() && file.ok());
  constexpr uint64_t kPage = 4096;
  void* const mapped =
      mmap(nullptr, 8 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  char* const memory = static_cast<char*>(mapped);
  ASSERT_EQ(mprotect(memory + 2 * kPage, kPage, PROT_READ), 0);
  ASSERT_EQ(munmap(memory + 5 * kPage, kPage), 0);
  const auto begin = reinterpret_cast<uint64_t>(memory);
  const auto code = reinterpret_cast<uint64_t>(&some_code);
  const auto stack = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  for (const auto& [from, to] : {std::pair<uint64_t, uint64_t>{begin, begin + 8 * kPage},
                                 {begin + kPage, begin + kPage + 1},
                                 {code, code + 1},
                                 {stack, stack + 1},
                                 {begin + 5 * kPage, begin + 6 * kPage},
                                 {0, 4096}}) {
    for (const auto which : {VmaQuery::Which::kAll, VmaQuery::Which::kFileBacked}) {
      VmaQuery::Scan one(*best, from, to, VmaQuery::Detail::kNamed, which);
      VmaQuery::Scan other(*file, from, to, VmaQuery::Detail::kNamed, which);
      for (;;) {
        Vma a;
        Vma b;
        const bool more = one.next(&a);
        ASSERT_EQ(other.next(&b), more);
        if (!more) break;
        EXPECT_EQ(a.start, b.start);
        EXPECT_EQ(a.end, b.end);
        EXPECT_EQ(a.offset_bytes, b.offset_bytes);
        EXPECT_EQ(a.inode, b.inode);
        EXPECT_EQ(a.device_major, b.device_major);
        EXPECT_EQ(a.device_minor, b.device_minor);
        EXPECT_EQ(a.protection(), b.protection());
        EXPECT_EQ(a.shared, b.shared);
        EXPECT_STREQ(a.name, b.name);
      }
    }
  }
  munmap(memory, 8 * kPage);
}

// What closes descriptors up to some number does not meet it.
TEST(VmaQueryTest, IsOutOfTheWayAndClosesNothingThatIsNotItsOwn) {
  const FileDescriptor first(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int next = fcntl(first.get(), F_DUPFD_CLOEXEC, 0);
  close(next);
  std::optional<VmaQuery> query(*VmaQuery::open());
  EXPECT_EQ(fcntl(next, F_GETFD), -1);
  // That of the file: all others are the program's.
  int number = 0;
  for (std::string file; file.find("/maps") == std::string::npos;) {
    file.resize(256);
    ASSERT_LT(++number, 4096);
    const std::string link = "/proc/self/fd/" + std::to_string(number);
    file.resize(static_cast<size_t>(
        std::max<ssize_t>(readlink(link.c_str(), file.data(), file.size()), 0)));
  }
  ASSERT_EQ(dup2(first.get(), number), number);
  EXPECT_TRUE(query->reopen().ok());
  EXPECT_GE(fcntl(number, F_GETFD), 0) << "it is the program's";
  query.reset();
  EXPECT_EQ(close(number), 0);
}

}  // namespace
}  // namespace verbena
