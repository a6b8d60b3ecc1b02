// What the tests of PageShare share: memory with known contents, what a peer sees of it, and the
// fixture for each way of moving pages.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/base/shared_memory.h"
#include "src/base/vma_query.h"
#include "src/device/soft/pages/page_share.h"

namespace verbena::soft {

inline const auto kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

// Compilers must not know what is in memory that changes hands.
template <typename T>
T look_at(const T* address) {
  return load_acquire(address);
}

template <typename Condition>
void wait_until(Condition&& condition) {
  for (Waiter waiter; !condition();) waiter.idle();
}

inline char* map_private(size_t bytes, int protection = PROT_READ | PROT_WRITE, int flags = 0) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  EXPECT_NE(memory, MAP_FAILED) << strerror(errno);
  return static_cast<char*>(memory);
}

// Every page differs from every other, in all its words.
inline void fill(char* memory, size_t bytes, uint64_t salt) {
  for (size_t at = 0; at + 8 <= bytes; at += 8) {
    const uint64_t word = (at + 1) * 0x9e3779b97f4a7c15u + salt;
    memcpy(memory + at, &word, 8);
  }
}
inline bool holds(const char* memory, size_t bytes, uint64_t salt) {
  for (size_t at = 0; at + 8 <= bytes; at += 8) {
    const uint64_t word = (at + 1) * 0x9e3779b97f4a7c15u + salt;
    if (memcmp(memory + at, &word, 8) != 0) return false;
  }
  return true;
}

// What a peer sees: the file at offset = address.
class View {
 public:
  View(const PageShare& share, const void* address, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(address) & ~(kPage - 1);
    skip_ = reinterpret_cast<uintptr_t>(address) - begin;
    bytes_ = (skip_ + bytes + kPage - 1) & ~(kPage - 1);
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, share.fd(),
                      static_cast<off_t>(begin));
    EXPECT_NE(base, MAP_FAILED) << strerror(errno);
    base_ = static_cast<char*>(base);
  }
  ~View() { munmap(base_, bytes_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  char* get() const { return base_ + skip_; }

 private:
  char* base_;
  size_t skip_;
  size_t bytes_;
};

inline void expect_shared(PageShare& share, void* memory, size_t bytes) {
  Result<PageShare::Outcome> outcome = share.share(memory, bytes);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->sharing, PageShare::Sharing::kShared) << outcome->reason;
  EXPECT_EQ(outcome->reason, "");
}

// A range that stays as it is, with a reason that contains `reason`.
inline void expect_private(PageShare& share, void* memory, size_t bytes,
                           const std::string& reason) {
  Result<PageShare::Outcome> outcome = share.share(memory, bytes);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->sharing, PageShare::Sharing::kPrivate);
  EXPECT_NE(outcome->reason.find(reason), std::string::npos) << outcome->reason;
  EXPECT_EQ(outcome->reason.find('\n'), std::string::npos);
}

inline void expect_same_both_ways(PageShare& share, char* memory, size_t bytes) {
  View view(share, memory, bytes);
  EXPECT_EQ(memcmp(view.get(), memory, bytes), 0);
  for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
    store_release(view.get() + at, 'v');
    EXPECT_EQ(look_at(memory + at), 'v');
    store_release(memory + at, 'm');
    EXPECT_EQ(look_at(view.get() + at), 'm');
  }
}

inline size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

// The mappings that [memory, memory + bytes) consists of.
inline size_t count_mappings(const char* memory, size_t bytes) {
  Result<VmaQuery> query = VmaQuery::open();
  EXPECT_TRUE(query.ok());
  const auto begin = reinterpret_cast<uint64_t>(memory);
  VmaQuery::Scan scan(*query, begin, begin + bytes);
  size_t count = 0;
  for (Vma vma; scan.next(&vma);) ++count;
  return count;
}

inline uint64_t file_bytes(const PageShare& share) {
  struct stat status {};
  EXPECT_EQ(fstat(share.fd(), &status), 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

// Each test runs in a process of its own: a process has one PageShare.
inline void run_alone(const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

struct Setting {
  const char* name;
  PageShare::Options options;
};

inline std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.name;
}

class PageShareTest : public testing::TestWithParam<Setting> {
 protected:
  static std::unique_ptr<PageShare> make() {
    Result<std::unique_ptr<PageShare>> share = PageShare::create(GetParam().options);
    EXPECT_TRUE(share.ok()) << share.status().message();
    return std::move(share).value();
  }
  // Whether pages can move while other threads run. (ThreadSanitizer runs one of its own.)
  static bool holds_threads(const PageShare& share) {
    return share.writers() != PageShare::Writers::kNone;
  }
};

// Threads of the sanitizer count as the application's.
#define SKIP_IF_ALWAYS_THREADED()                                                         \
  if (VERBENA_THREAD_SANITIZER && GetParam().options.best == PageShare::Writers::kNone) { \
    GTEST_SKIP() << "ThreadSanitizer's thread runs, and nothing would hold it";           \
  }                                                                                       \
  static_assert(true)

// Runs `body` in a child of the test's process; true if it returns true.
inline bool in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

}  // namespace verbena::soft
