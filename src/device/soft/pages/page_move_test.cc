#include "src/device/soft/pages/page_move.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/device/soft/pages/page_share_for_test.h"
#include "src/device/soft/pages/raw_syscall.h"

namespace verbena::soft {
namespace {

std::byte* map(size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED) << strerror(errno);
  return static_cast<std::byte*>(memory);
}

class PageMoveTest : public testing::Test {
 protected:
  static constexpr size_t kPages = 6;

  PageMoveTest() {
    move_ = std::make_unique<PageMove>();
    move_->length_bytes = kPages * kPage;
    move_->address = map(move_->length_bytes, PROT_READ | PROT_WRITE);
    memset(move_->address, 'o', 2 * kPage);
    memset(move_->address + 4 * kPage, 'o', kPage);
    move_->page_bytes = kPage;
    move_->protection = PROT_READ;
    mprotect(move_->address, move_->length_bytes, PROT_READ);
    move_->contents = PageMove::Contents::kAnonymous;
    move_->fill = PageMove::Fill::kCopy;
    userfaultfd_ = FileDescriptor(
        static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
    uffdio_api api{};
    api.api = UFFD_API;
    if (userfaultfd_.valid()) {
      EXPECT_EQ(ioctl(userfaultfd_.get(), UFFDIO_API, &api), 0);
    }
    move_->userfaultfd = userfaultfd_.get();
    pagemap_ = FileDescriptor(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    move_->pagemap = pagemap_.get();
    move_->file = -1;
    move_->staging = map(move_->length_bytes, PROT_READ | PROT_WRITE);
    move_->aside = map(move_->length_bytes, PROT_NONE);
    spare_ = {map(kPage, PROT_NONE), kPage, false};
    move_->spare = &spare_;
  }

  // On a stack of its own, as PageShare does it.
  void run() {
    constexpr size_t kStackBytes = 65536;
    std::byte* stack = map(kStackBytes, PROT_READ | PROT_WRITE);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    call_on_stack(move_pages, move_.get(), stack + kStackBytes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    munmap(stack, kStackBytes);
  }

  bool has_old_contents() const {
    for (size_t at = 0; at < move_->length_bytes; ++at) {
      const size_t page = at / kPage;
      const bool touched = page < 2 || page == 4;
      if (move_->address[at] != std::byte(touched ? 'o' : 0)) return false;
    }
    return true;
  }

  FileDescriptor userfaultfd_;
  FileDescriptor pagemap_;
  SpareMappings spare_{};
  std::unique_ptr<PageMove> move_;
};

TEST_F(PageMoveTest, PutsNewPagesInPlace) {
  if (!userfaultfd_.valid()) GTEST_SKIP() << "no userfaultfd: " << strerror(errno);
  run();
  EXPECT_EQ(move_->error, 0) << move_->failed_call;
  EXPECT_TRUE(move_->staging_gone);
  EXPECT_FALSE(move_->aside_gone);
  EXPECT_TRUE(has_old_contents());
  EXPECT_FALSE(move_->touched[2]);
}

TEST_F(PageMoveTest, WithoutPagemapEverythingIsCopied) {
  move_->userfaultfd = -1;
  move_->pagemap = -1;
  run();
  EXPECT_EQ(move_->error, 0) << move_->failed_call;
  EXPECT_TRUE(has_old_contents());
  EXPECT_TRUE(move_->touched[2]);
}

TEST_F(PageMoveTest, FailsHalfWayWithoutLoss) {
  // The last page was never touched, so nothing misses its new page before the very end.
  munmap(move_->staging + 5 * kPage, kPage);
  run();
  EXPECT_EQ(move_->error, ENOMEM);
  EXPECT_STREQ(move_->failed_call, "mprotect");
  EXPECT_FALSE(move_->lost);
  EXPECT_FALSE(move_->staging_gone);
  EXPECT_EQ(move_->aside_gone, userfaultfd_.valid());
  EXPECT_TRUE(has_old_contents());
  // Nothing holds threads at these pages any more.
  mprotect(move_->address, move_->length_bytes, PROT_READ | PROT_WRITE);
  memset(move_->address, 'n', move_->length_bytes);
  EXPECT_EQ(move_->address[3 * kPage], std::byte{'n'});
}

TEST_F(PageMoveTest, MergesOnlyWhatChanged) {
  if (!userfaultfd_.valid()) GTEST_SKIP() << "no userfaultfd: " << strerror(errno);
  mprotect(move_->address, move_->length_bytes, PROT_READ | PROT_WRITE);
  move_->protection = PROT_READ | PROT_WRITE;
  move_->fill = PageMove::Fill::kMerge;
  move_->snapshot = map(move_->length_bytes, PROT_READ | PROT_WRITE);
  memcpy(move_->snapshot, move_->address, move_->length_bytes);
  memset(move_->staging, 'p', move_->length_bytes);  // what peers wrote meanwhile
  move_->address[17] = std::byte{'x'};
  move_->address[3 * kPage] = std::byte{'y'};
  run();
  EXPECT_EQ(move_->error, 0) << move_->failed_call;
  for (size_t at = 0; at < move_->length_bytes; ++at) {
    const char expected = at == 17 ? 'x' : at == 3 * kPage ? 'y' : 'p';
    ASSERT_EQ(move_->address[at], std::byte(expected)) << at;
  }
}

}  // namespace
}  // namespace verbena::soft
