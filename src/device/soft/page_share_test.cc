#include "src/device/soft/page_share.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/base/shared_memory.h"

namespace verbena::soft {
namespace {

using Sharing = PageShare::Sharing;
using Writers = PageShare::Writers;

const auto kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

// Compilers must not know what is in memory that changes hands.
template <typename T>
T look_at(const T* address) {
  return load_acquire(address);
}

template <typename Condition>
void wait_until(Condition&& condition) {
  for (Waiter waiter; !condition();) waiter.idle();
}

char* map_private(size_t bytes, int protection = PROT_READ | PROT_WRITE, int flags = 0) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  EXPECT_NE(memory, MAP_FAILED) << strerror(errno);
  return static_cast<char*>(memory);
}

// Every page differs from every other, in all its words.
void fill(char* memory, size_t bytes, uint64_t salt) {
  for (size_t at = 0; at + 8 <= bytes; at += 8) {
    const uint64_t word = (at + 1) * 0x9e3779b97f4a7c15u + salt;
    memcpy(memory + at, &word, 8);
  }
}
bool holds(const char* memory, size_t bytes, uint64_t salt) {
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

void expect_shared(PageShare& share, void* memory, size_t bytes) {
  Result<PageShare::Outcome> outcome = share.share(memory, bytes);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->sharing, Sharing::kShared) << outcome->reason;
  EXPECT_EQ(outcome->reason, "");
}

// A range that stays as it is, with a reason that contains `reason`.
void expect_private(PageShare& share, void* memory, size_t bytes, const std::string& reason) {
  Result<PageShare::Outcome> outcome = share.share(memory, bytes);
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->sharing, Sharing::kPrivate);
  EXPECT_NE(outcome->reason.find(reason), std::string::npos) << outcome->reason;
  EXPECT_EQ(outcome->reason.find('\n'), std::string::npos);
}

void expect_same_both_ways(PageShare& share, char* memory, size_t bytes) {
  View view(share, memory, bytes);
  EXPECT_EQ(memcmp(view.get(), memory, bytes), 0);
  for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) {
    store_release(view.get() + at, 'v');
    EXPECT_EQ(look_at(memory + at), 'v');
    store_release(memory + at, 'm');
    EXPECT_EQ(look_at(view.get() + at), 'm');
  }
}

size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

// The mappings that [memory, memory + bytes) consists of.
size_t count_mappings(const char* memory, size_t bytes) {
  Result<VmaQuery> query = VmaQuery::open();
  EXPECT_TRUE(query.ok());
  const auto begin = reinterpret_cast<uint64_t>(memory);
  VmaQuery::Scan scan(*query, begin, begin + bytes);
  size_t count = 0;
  for (Vma vma; scan.next(&vma);) ++count;
  return count;
}

uint64_t file_bytes(const PageShare& share) {
  struct stat status {};
  EXPECT_EQ(fstat(share.fd(), &status), 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

// Each test runs in a process of its own: a process has one PageShare.
void run_alone(const std::function<void()>& body) {
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

std::ostream& operator<<(std::ostream& out, const Setting& setting) { return out << setting.name; }

class PageShareTest : public testing::TestWithParam<Setting> {
 protected:
  static std::unique_ptr<PageShare> make() {
    Result<std::unique_ptr<PageShare>> share = PageShare::create(GetParam().options);
    EXPECT_TRUE(share.ok()) << share.status().message();
    return std::move(share).value();
  }
  // Whether pages can move while other threads run. (ThreadSanitizer runs one of its own.)
  static bool holds_threads(const PageShare& share) { return share.writers() != Writers::kNone; }
};

INSTANTIATE_TEST_SUITE_P(
    Ways, PageShareTest,
    testing::Values(Setting{"best", {}},
                    Setting{"older_kernel", {Writers::kHeld, VmaQuery::Source::kMapsFile}},
                    Setting{"user_faults", {Writers::kHeldInUser, VmaQuery::Source::kBest}},
                    Setting{"no_userfaultfd", {Writers::kNone, VmaQuery::Source::kBest}}),
    testing::PrintToStringParamName());

// Threads of the sanitizer count as the application's.
#define SKIP_IF_ALWAYS_THREADED()                                               \
  if (VERBENA_THREAD_SANITIZER && GetParam().options.best == Writers::kNone) {  \
    GTEST_SKIP() << "ThreadSanitizer's thread runs, and nothing would hold it"; \
  }                                                                             \
  static_assert(true)

// ---- contents ----

TEST_P(PageShareTest, KeepsTheContentsOfTheHeap) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    std::vector<std::unique_ptr<char[]>> blocks;
    for (size_t i = 0; i < 200; ++i) {
      const size_t bytes = 16 + i * i * 8;
      blocks.push_back(std::make_unique<char[]>(bytes));
      fill(blocks.back().get(), bytes, i);
    }
    for (size_t i = 0; i < blocks.size(); i += 3) {
      expect_shared(*share, blocks[i].get(), 16 + i * i * 8);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_TRUE(holds(blocks[i].get(), 16 + i * i * 8, i)) << i;
    }
    for (size_t i = 0; i < blocks.size(); i += 3) {
      expect_same_both_ways(*share, blocks[i].get(), 16 + i * i * 8);
    }
  });
}

TEST_P(PageShareTest, KeepsTheContentsOfLargeMappings) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    // More than one move, not at the boundaries of moves, and with untouched pages in between.
    const size_t bytes = 11 << 20;
    char* memory = map_private(bytes) + 3 * kPage;
    const size_t length = bytes - 8 * kPage;
    fill(memory, 5 << 20, 7);
    fill(memory + (9 << 20), 1 << 20, 8);
    expect_shared(*share, memory, length);
    EXPECT_TRUE(holds(memory, 5 << 20, 7));
    EXPECT_TRUE(holds(memory + (9 << 20), 1 << 20, 8));
    // Of 11 MiB 6 are touched; where the machine always takes huge pages, it takes some more.
    EXPECT_LE(file_bytes(*share), 10u << 20) << "untouched pages were copied";
    for (size_t at = 5 << 20; at < (9 << 20); at += kPage) EXPECT_EQ(memory[at], 0);
    expect_same_both_ways(*share, memory, length);
  });
}

alignas(65536) char initialized[65536] = {"initialized"};
alignas(65536) char zeroed[65536];
alignas(65536) const char constant[65536] = {"constant"};
char small_global[64] = {"small"};

TEST_P(PageShareTest, KeepsTheContentsOfGlobals) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    fill(initialized + kPage, 2 * kPage, 1);
    fill(zeroed + kPage, kPage, 2);
    expect_shared(*share, initialized, sizeof(initialized));
    expect_shared(*share, zeroed, sizeof(zeroed));
    expect_shared(*share, small_global, sizeof(small_global));
    EXPECT_STREQ(initialized, "initialized");
    EXPECT_STREQ(small_global, "small");
    EXPECT_TRUE(holds(initialized + kPage, 2 * kPage, 1));
    EXPECT_EQ(initialized[3 * kPage], 0);
    EXPECT_EQ(zeroed[0], 0);
    EXPECT_TRUE(holds(zeroed + kPage, kPage, 2));
    expect_same_both_ways(*share, initialized, sizeof(initialized));
    expect_same_both_ways(*share, zeroed, sizeof(zeroed));
    expect_same_both_ways(*share, small_global, sizeof(small_global));
  });
}

alignas(65536) char many_globals[64][65536] = {"initialized"};

TEST_P(PageShareTest, SharesGlobalsWhileThreadsWriteToThem) {
  run_alone([] {
    auto share = make();
    if (!holds_threads(*share)) return;
    std::atomic<size_t> round{0};
    std::atomic<uint64_t> failures{0};
    std::atomic<uint64_t> passes{0};
    uint64_t last[std::size(many_globals)] = {};
    auto word = [](size_t block, size_t page) {
      return reinterpret_cast<uint64_t*>(many_globals[block] + page * kPage + 64);
    };
    const size_t kPages = sizeof(many_globals[0]) / kPage;
    Thread writer = start_thread("writer", [&] {
      for (size_t block; (block = round.load()) < std::size(many_globals);) {
        for (size_t page = 0; page < kPages; ++page) {
          if (load_relaxed(word(block, page)) != last[block]) failures.fetch_add(1);
          store_relaxed(word(block, page), last[block] + 1);
        }
        ++last[block];
        passes.fetch_add(1);
      }
    });
    for (size_t block = 0; block < std::size(many_globals); ++block) {
      const uint64_t now = passes.load();
      wait_until([&] { return passes.load() >= now + 2; });
      expect_shared(*share, many_globals[block], sizeof(many_globals[block]));
      round.store(block + 1);
    }
    writer.join();
    EXPECT_EQ(failures.load(), 0u);
    for (size_t block = 0; block < std::size(many_globals); ++block) {
      for (size_t page = 0; page < kPages; ++page) ASSERT_EQ(*word(block, page), last[block]);
    }
    EXPECT_STREQ(many_globals[0], "initialized");
    expect_same_both_ways(*share, many_globals[0], sizeof(many_globals));
  });
}

TEST_P(PageShareTest, KeepsTheContentsOfReadOnlyPagesAndTheirProtection) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 3);
    ASSERT_EQ(mprotect(memory + kPage, kPage, PROT_READ), 0);
    expect_shared(*share, memory, 4 * kPage);
    EXPECT_TRUE(holds(memory, 4 * kPage, 3));
    expect_shared(*share, const_cast<char*>(constant), sizeof(constant));
    EXPECT_STREQ(constant, "constant");

    Result<VmaQuery> query = VmaQuery::open();
    ASSERT_TRUE(query.ok());
    for (const char* page :
         std::initializer_list<const char*>{memory, memory + kPage, constant + kPage}) {
      const auto address = reinterpret_cast<uint64_t>(page);
      VmaQuery::Scan scan(*query, address, address + 1);
      Vma vma;
      ASSERT_TRUE(scan.next(&vma));
      EXPECT_EQ(vma.writable, page == memory);
      EXPECT_TRUE(vma.readable && vma.shared);
    }
    View view(*share, memory, 4 * kPage);
    store_release(view.get() + kPage, 'v');
    EXPECT_EQ(look_at(memory + kPage), 'v');
    ASSERT_EQ(mprotect(memory + kPage, kPage, PROT_READ | PROT_WRITE), 0);
    memory[kPage] = 'm';
    EXPECT_EQ(look_at(view.get() + kPage), 'm');
  });
}

TEST_P(PageShareTest, KeepsTheContentsOfPrivateFileMappings) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char path[] = "/tmp/verbena-page-share-XXXXXX";
    const int fd = mkstemp(path);
    ASSERT_GE(fd, 0);
    unlink(path);
    std::vector<char> contents(6 * kPage);
    fill(contents.data(), contents.size(), 4);
    ASSERT_EQ(write(fd, contents.data(), contents.size()), static_cast<ssize_t>(contents.size()));
    void* mapped = mmap(nullptr, 8 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    char* memory = static_cast<char*>(mapped);
    memory[2 * kPage] = 'x';
    expect_private(*share, memory, 8 * kPage, "");  // beyond the end of the file
    share->release(memory, 8 * kPage, Sharing::kPrivate);
    expect_shared(*share, memory, 6 * kPage);
    EXPECT_EQ(memory[2 * kPage], 'x');
    EXPECT_TRUE(holds(memory, 2 * kPage, 4));
    expect_same_both_ways(*share, memory, 6 * kPage);
    char unchanged = 0;
    ASSERT_EQ(pread(fd, &unchanged, 1, 0), 1);
    EXPECT_EQ(unchanged, contents[0]) << "the application's file was written to";
  });
}

TEST_P(PageShareTest, SharesTheStackOfTheCaller) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char buffer[5 * 4096];
    fill(buffer, sizeof(buffer), 5);
    expect_shared(*share, buffer, sizeof(buffer));
    EXPECT_TRUE(holds(buffer, sizeof(buffer), 5));
    expect_same_both_ways(*share, buffer, sizeof(buffer));
    // The stack still grows.
    const std::function<int(int)> descend = [&](int depth) -> int {
      char frame[8192];
      memset(frame, depth, sizeof(frame));
      return depth == 0 ? 0 : descend(depth - 1) + frame[depth] - depth + 1;
    };
    EXPECT_EQ(descend(100), 100);
  });
}

TEST_P(PageShareTest, SharesTheStackOfAThreadButNotItsControlBlock) {
  run_alone([] {
    auto share = make();
    if (!holds_threads(*share)) return;
    Thread thread = start_thread("worker", [&] {
      char buffer[16 * 4096];
      fill(buffer, sizeof(buffer), 6);
      // The lower part, below the page that the thread's control block may be on.
      expect_shared(*share, buffer, 8 * 4096);
      EXPECT_TRUE(holds(buffer, sizeof(buffer), 6));
      expect_same_both_ways(*share, buffer, 8 * 4096);
      expect_private(*share, reinterpret_cast<void*>(pthread_self()), 64, "C library keeps");
    });
    thread.join();
  });
}

// ---- repetition and parts ----

TEST_P(PageShareTest, RepeatingChangesNothing) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(8 * kPage);
    fill(memory, 8 * kPage, 9);
    expect_shared(*share, memory, 8 * kPage);
    const uint64_t bytes = file_bytes(*share);
    for (size_t i = 0; i < 8; ++i) expect_shared(*share, memory + i * kPage + 5, kPage - 5);
    expect_shared(*share, memory, 0);
    EXPECT_EQ(count_mappings(memory, 8 * kPage), 1u);
    EXPECT_EQ(file_bytes(*share), bytes);
    EXPECT_TRUE(holds(memory, 8 * kPage, 9));
  });
}

TEST_P(PageShareTest, SharesWhatIsMissing) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(16 * kPage);
    fill(memory, 16 * kPage, 10);
    expect_shared(*share, memory + 3 * kPage + 100, 2 * kPage);
    View view(*share, memory + 4 * kPage, kPage);
    fill(view.get(), kPage, 11);
    expect_shared(*share, memory, 16 * kPage);
    EXPECT_TRUE(holds(memory, 4 * kPage, 10));
    EXPECT_TRUE(holds(memory + 4 * kPage, kPage, 11));
    expect_same_both_ways(*share, memory, 16 * kPage);
  });
}

TEST_P(PageShareTest, NeighboursBecomeOneMapping) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(66 * kPage);
    memset(memory, 1, 66 * kPage);
    for (size_t i = 1; i < 65; i += 2) expect_shared(*share, memory + i * kPage, 1);
    EXPECT_EQ(count_mappings(memory + kPage, 63 * kPage), 63u);
    for (size_t i = 64; i > 1; i -= 2) expect_shared(*share, memory + i * kPage, 1);
    EXPECT_EQ(count_mappings(memory + kPage, 64 * kPage), 1u);
  });
}

// ---- what the application does to its memory ----

TEST_P(PageShareTest, FindsMemoryThatMoved) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 4 * kPage;
    char* memory = map_private(bytes);
    fill(memory, bytes, 12);
    expect_shared(*share, memory, bytes);
    char* elsewhere = map_private(bytes, PROT_NONE);
    ASSERT_EQ(mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere), elsewhere);
    // New memory at the old address: it must not be what moved away.
    void* again =
        mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    ASSERT_EQ(again, memory);
    memory[0] = 'n';
    expect_shared(*share, memory, bytes);
    EXPECT_TRUE(holds(elsewhere, bytes, 12));
    EXPECT_EQ(memory[0], 'n');
    EXPECT_EQ(memory[kPage], 0);
    expect_same_both_ways(*share, memory, bytes);
    EXPECT_TRUE(holds(elsewhere, bytes, 12));
    expect_shared(*share, elsewhere, bytes);
    EXPECT_TRUE(holds(elsewhere, bytes, 12));
    expect_same_both_ways(*share, elsewhere, bytes);
  });
}

TEST_P(PageShareTest, FindsMemoryThatChangedPlaces) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 2 * kPage;
    char* a = map_private(bytes);
    char* b = map_private(bytes);
    char* aside = map_private(bytes, PROT_NONE);
    fill(a, bytes, 13);
    fill(b, bytes, 14);
    expect_shared(*share, a, bytes);
    expect_shared(*share, b, bytes);
    constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED;
    ASSERT_EQ(mremap(a, bytes, bytes, kFlags, aside), aside);
    ASSERT_EQ(mremap(b, bytes, bytes, kFlags, a), a);
    ASSERT_EQ(mremap(aside, bytes, bytes, kFlags, b), b);
    expect_shared(*share, a, bytes);
    expect_shared(*share, b, bytes);
    EXPECT_TRUE(holds(a, bytes, 14));
    EXPECT_TRUE(holds(b, bytes, 13));
    expect_same_both_ways(*share, a, bytes);
    expect_same_both_ways(*share, b, bytes);
  });
}

TEST_P(PageShareTest, FindsNewMemoryAtAnOldAddress) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 8 * kPage;
    char* memory = map_private(bytes);
    fill(memory, bytes, 15);
    expect_shared(*share, memory, bytes);
    ASSERT_EQ(munmap(memory, bytes), 0);
    void* again =
        mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    ASSERT_EQ(again, memory);
    fill(memory + kPage, kPage, 16);
    expect_shared(*share, memory, bytes);
    EXPECT_TRUE(holds(memory + kPage, kPage, 16));
    View view(*share, memory, bytes);
    for (size_t at = 2 * kPage; at < bytes; ++at) {
      ASSERT_EQ(memory[at], 0) << "the old contents came back";
      ASSERT_EQ(view.get()[at], 0);
    }
    expect_same_both_ways(*share, memory, bytes);
  });
}

TEST_P(PageShareTest, ReallocDoesNotReachIntoNeighbours) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 32 * kPage;
    char* pair = map_private(2 * bytes);
    fill(pair, 2 * bytes, 17);
    expect_shared(*share, pair, bytes);
    expect_shared(*share, pair + bytes, bytes);
    // What realloc() tries first. Growing would reach the neighbour's pages in the file.
    EXPECT_EQ(mremap(pair, bytes, 2 * bytes, MREMAP_MAYMOVE), MAP_FAILED);
    EXPECT_TRUE(holds(pair, 2 * bytes, 17));

    char* block = static_cast<char*>(malloc(1 << 20));
    fill(block, 1 << 20, 18);
    expect_shared(*share, block, 1 << 20);
    block = static_cast<char*>(realloc(block, 4 << 20));
    EXPECT_TRUE(holds(block, 1 << 20, 18));
    memset(block, 1, 4 << 20);
    expect_shared(*share, block, 4 << 20);
    expect_same_both_ways(*share, block, 4 << 20);
    block = static_cast<char*>(realloc(block, 1 << 20));
    expect_shared(*share, block, 1 << 20);
    expect_same_both_ways(*share, block, 1 << 20);
    free(block);
    EXPECT_TRUE(share->shares_any(pair + bytes - 1, 2));
    EXPECT_FALSE(share->shares_any(&share, 1));
  });
}

TEST_P(PageShareTest, ForgetsWhatIsDiscarded) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(8 * kPage);
    fill(memory, 8 * kPage, 19);
    char* untouched = map_private(kPage);
    untouched[0] = 'u';
    expect_shared(*share, memory, 8 * kPage);
    const uint64_t before = file_bytes(*share);
    share->forget(memory + 2 * kPage, 3 * kPage);
    share->forget(untouched, kPage);
    EXPECT_EQ(untouched[0], 'u');
    EXPECT_TRUE(holds(memory, 2 * kPage, 19));
    EXPECT_EQ(file_bytes(*share), before - 3 * kPage);
    for (size_t at = 2 * kPage; at < 5 * kPage; ++at) ASSERT_EQ(memory[at], 0);
    EXPECT_NE(memory[5 * kPage + 1], 0);
    expect_same_both_ways(*share, memory, 8 * kPage);
    share->forget(memory, 8 * kPage);
    ASSERT_EQ(munmap(memory, 8 * kPage), 0);
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

TEST_P(PageShareTest, CollectsWhatWasUnmappedInSilence) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 8 << 20;
    char* kept = map_private(bytes);
    fill(kept, bytes, 20);
    expect_shared(*share, kept, bytes);
    for (int i = 0; i < 20; ++i) {
      // Never at the same address: it stays reserved.
      char* memory = map_private(bytes);
      memset(memory, 1, bytes);
      expect_shared(*share, memory, bytes);
      ASSERT_EQ(mmap(memory, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0),
                memory);
    }
    EXPECT_LE(file_bytes(*share), (64u << 20) + 3 * bytes);
    EXPECT_TRUE(holds(kept, bytes, 20));
    expect_same_both_ways(*share, kept, bytes);
  });
}

// ---- concurrent writers ----

// Two threads write to their own words in all pages that move, and to one word both atomically. A
// plain copy loses some of that in most runs.
TEST_P(PageShareTest, LosesNothingThatOtherThreadsWrite) {
  run_alone([] {
    auto share = make();
    if (!holds_threads(*share)) return;
    constexpr size_t kRounds = 300;
    constexpr size_t kBlock = 64;
    char* memory = map_private(kRounds * kBlock * kPage);
    std::atomic<size_t> round{0};
    std::atomic<bool> moving{false};
    std::atomic<uint64_t> failures{0};
    std::atomic<uint64_t> passes[2] = {};
    auto word = [&](size_t block, size_t page, size_t index) {
      return reinterpret_cast<uint64_t*>(memory + (block * kBlock + page) * kPage) + index;
    };
    std::vector<uint64_t> last[2] = {std::vector<uint64_t>(kRounds),
                                     std::vector<uint64_t>(kRounds)};
    auto write = [&](size_t me) {
      for (size_t block; (block = round.load()) < kRounds;) {
        uint64_t& value = last[me][block];
        for (size_t page = 0; page < kBlock; ++page) {
          uint64_t* mine = word(block, page, me);
          if (load_relaxed(mine) != value) failures.fetch_add(1);
          store_relaxed(mine, value + 1);
          __atomic_fetch_add(word(block, page, 2), 1, __ATOMIC_RELAXED);
        }
        ++value;
        passes[me].fetch_add(1);
        // On few cores the others shall get their turn.
        if (!moving.load()) sched_yield();
      }
    };
    Thread a = start_thread("writer", [&] { write(0); });
    Thread b = start_thread("writer", [&] { write(1); });
    for (size_t block = 0; block < kRounds; ++block) {
      // Both are at work on this block before it moves.
      for (auto& count : passes) {
        const uint64_t now = count.load();
        wait_until([&] { return count.load() >= now + 2; });
      }
      moving.store(true);
      expect_shared(*share, memory + block * kBlock * kPage, kBlock * kPage);
      moving.store(false);
      round.store(block + 1);
    }
    a.join();
    b.join();
    EXPECT_EQ(failures.load(), 0u);
    for (size_t block = 0; block < kRounds; ++block) {
      for (size_t page = 0; page < kBlock; ++page) {
        ASSERT_EQ(*word(block, page, 0), last[0][block]);
        ASSERT_EQ(*word(block, page, 1), last[1][block]);
        ASSERT_EQ(*word(block, page, 2), last[0][block] + last[1][block]);
      }
    }
    expect_same_both_ways(*share, memory, kRounds * kBlock * kPage);
  });
}

// Threads share, move and free their own blocks, which share pages with those of other threads.
TEST_P(PageShareTest, ThreadsShareTheHeapAtTheSameTime) {
  const uint64_t seed = run_seed();
  RecordProperty("seed", std::to_string(seed));
  run_alone([seed] {
    auto share = make();
    if (!holds_threads(*share)) return;
    constexpr size_t kThreads = 4;
    std::atomic<uint64_t> wrong{0};
    std::vector<Thread> threads;
    for (size_t me = 0; me < kThreads; ++me) {
      threads.push_back(start_thread("sharer", [&, me] {
        Random random(seed + me);
        struct Block {
          char* memory = nullptr;
          size_t bytes = 0;
          uint64_t salt = 0;
        };
        std::vector<Block> blocks(16);
        for (int step = 0; step < 300; ++step) {
          Block& block = blocks[random.below(blocks.size())];
          if (block.memory == nullptr) {
            block.bytes = 16 + random.below(random.below(8) == 0 ? 300'000 : 3000);
            block.memory = static_cast<char*>(malloc(block.bytes));
            block.salt = random.next();
            fill(block.memory, block.bytes, block.salt);
          }
          if (!holds(block.memory, block.bytes, block.salt)) wrong.fetch_add(1);
          switch (random.below(4)) {
            case 0:
            case 1:
              expect_shared(*share, block.memory, block.bytes);
              break;
            case 2: {
              const size_t bytes = block.bytes + random.below(100'000);
              block.memory = static_cast<char*>(realloc(block.memory, bytes));
              if (!holds(block.memory, block.bytes, block.salt)) wrong.fetch_add(1);
              block.bytes = bytes;
              fill(block.memory, block.bytes, block.salt);
              break;
            }
            default:
              free(block.memory);
              block.memory = nullptr;
              continue;
          }
          if (!holds(block.memory, block.bytes, block.salt)) wrong.fetch_add(1);
        }
      }));
    }
    for (Thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0u) << "VERBENA_SEED=" << seed;
  });
}

TEST_P(PageShareTest, SystemCallsOfOtherThreadsSucceedMeanwhile) {
  run_alone([] {
    auto share = make();
    if (share->writers() != Writers::kHeld) return;
    constexpr size_t kRounds = 300;
    constexpr size_t kBlock = 8;
    char* memory = map_private(kRounds * kBlock * kPage);
    const int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    ASSERT_GE(zero, 0);
    ASSERT_GE(null, 0);
    std::atomic<size_t> round{0};
    std::atomic<uint64_t> calls{0};
    std::atomic<int> failures{0};
    Thread caller = start_thread("caller", [&] {
      for (size_t at; (at = round.load()) < kRounds;) {
        char* block = memory + at * kBlock * kPage;
        if (read(zero, block + 8, kBlock * kPage - 8) != static_cast<ssize_t>(kBlock * kPage - 8) ||
            write(null, block, kBlock * kPage) != static_cast<ssize_t>(kBlock * kPage)) {
          failures.fetch_add(1);
        }
        if (calls.fetch_add(1) % 4 == 0) sched_yield();
      }
    });
    for (size_t at = 0; at < kRounds; ++at) {
      const uint64_t before = calls.load();
      wait_until([&] { return calls.load() != before; });
      expect_shared(*share, memory + at * kBlock * kPage, kBlock * kPage);
      round.store(at + 1);
    }
    caller.join();
    EXPECT_EQ(failures.load(), 0);
  });
}

uint64_t* signal_counter = nullptr;
uint64_t signals_seen = 0;

TEST_P(PageShareTest, SignalHandlersMayUseTheMemory) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    constexpr size_t kRounds = 300;
    char* memory = map_private(kRounds * kPage);
    memset(memory, 0, kRounds * kPage);
    signal_counter = reinterpret_cast<uint64_t*>(memory);
    struct sigaction action {};
    action.sa_handler = [](int) {
      ++*signal_counter;
      ++signals_seen;
    };
    action.sa_flags = SA_RESTART;
    ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
    const itimerval often{{0, 50}, {0, 50}};
    ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
    uint64_t sum = 0;
    for (size_t page = 0; page < kRounds; ++page) {
      expect_shared(*share, memory + page * kPage, kPage);
      sigset_t alarm, before;
      sigemptyset(&alarm);
      sigaddset(&alarm, SIGALRM);
      sigprocmask(SIG_BLOCK, &alarm, &before);
      sum += *signal_counter;
      if (page + 1 < kRounds)
        signal_counter = reinterpret_cast<uint64_t*>(memory + (page + 1) * kPage);
      sigprocmask(SIG_SETMASK, &before, nullptr);
    }
    const itimerval never{};
    ASSERT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
    // Those after the last look went to the last page.
    EXPECT_LE(sum, signals_seen);
    EXPECT_EQ(sum + *signal_counter - sum, *signal_counter);
    uint64_t total = 0;
    for (size_t page = 0; page < kRounds; ++page) {
      total += *reinterpret_cast<uint64_t*>(memory + page * kPage);
    }
    EXPECT_EQ(total, signals_seen);
    EXPECT_GT(total, 0u);
  });
}

TEST(PageShareQuietTest, SharesBesideThreadsThatDoNotWrite) {
  run_alone([] {
    auto share = PageShare::create({.best = PageShare::Writers::kNone, .quiet = true}).value();
    char* memory = map_private(3 * kPage);
    fill(memory, 3 * kPage, 5);
    std::atomic<bool> stop{false};
    std::atomic<bool> runs{false};
    Thread thread = start_thread("other", [&] {
      runs.store(true);
      wait_until([&] { return stop.load(); });
    });
    wait_until([&] { return runs.load(); });
    expect_shared(*share, memory, 3 * kPage);
    EXPECT_TRUE(holds(memory, 3 * kPage, 5));
    expect_same_both_ways(*share, memory, 3 * kPage);
    stop.store(true);
    thread.join();
  });
}

TEST_P(PageShareTest, WithoutUserfaultfdThreadsKeepMemoryPrivate) {
  run_alone([] {
    auto share = make();
    if (holds_threads(*share)) return;
    std::unique_ptr<char[]> block(new char[100]);
    strcpy(block.get(), "contents");
    std::atomic<bool> stop{false};
    std::atomic<bool> runs{false};
    Thread thread = start_thread("other", [&] {
      runs.store(true);
      wait_until([&] { return stop.load(); });
    });
    wait_until([&] { return runs.load(); });
    expect_private(*share, block.get(), 100, "sysctl vm.unprivileged_userfaultfd=1");
    EXPECT_STREQ(block.get(), "contents");
    stop.store(true);
    thread.join();
    if (VERBENA_THREAD_SANITIZER) return;
    // Peers may still write through the kernel, until the registration has ended.
    expect_private(*share, block.get(), 100, "an earlier registration");
    share->release(block.get(), 100, Sharing::kPrivate);
    expect_private(*share, block.get(), 100, "an earlier registration");
    share->release(block.get(), 100, Sharing::kPrivate);
    share->release(block.get(), 100, Sharing::kPrivate);
    expect_shared(*share, block.get(), 100);
    EXPECT_STREQ(block.get(), "contents");
  });
}

TEST_P(PageShareTest, ServiceThreadsDoNotCount) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    std::atomic<bool> stop{false};
    std::atomic<bool> runs{false};
    Thread thread = start_thread("service", [&] {
      share->exempt_this_thread();
      runs.store(true);
      wait_until([&] { return stop.load(); });
    });
    wait_until([&] { return runs.load(); });
    char* memory = map_private(kPage);
    strcpy(memory, "contents");
    expect_shared(*share, memory, kPage);
    expect_shared(*share, initialized, sizeof(initialized));
    EXPECT_STREQ(memory, "contents");
    EXPECT_STREQ(initialized, "initialized");
    stop.store(true);
    thread.join();
  });
}

// ---- the ends of registrations ----

bool discards(char* memory, size_t bytes) { return madvise(memory, bytes, MADV_DONTNEED) == 0; }
bool is_zero(const char* memory, size_t bytes) {
  return std::all_of(memory, memory + bytes, [](char byte) { return byte == 0; });
}

TEST_P(PageShareTest, ReleasedPagesArePrivateMemory) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    // More than one move, not at their boundaries, partly untouched.
    const size_t bytes = 9 << 20;
    char* memory = map_private(bytes + 2 * kPage) + kPage;
    fill(memory, bytes / 2, 80);
    ASSERT_EQ(mprotect(memory + bytes - kPage, kPage, PROT_READ), 0);
    size_t mappings = 0;
    for (int round = 0; round < 5; ++round) {
      expect_shared(*share, memory, bytes);
      View view(*share, memory, bytes);
      share->release(memory, bytes, Sharing::kShared);
      EXPECT_FALSE(share->shares_any(memory, bytes));
      EXPECT_EQ(file_bytes(*share), 0u);
      store_release(view.get(), 'v');
      EXPECT_TRUE(holds(memory, bytes / 2, 80));
      EXPECT_TRUE(is_zero(memory + bytes / 2, bytes / 2));
      if (round == 0) mappings = count_mappings(memory, bytes);
    }
    // Those of both protections, however often they are registered.
    EXPECT_EQ(mappings, 2u);
    EXPECT_EQ(count_mappings(memory, bytes), mappings);
    ASSERT_TRUE(discards(memory + kPage, bytes / 2));
    EXPECT_TRUE(is_zero(memory + kPage, bytes / 2));
    EXPECT_TRUE(holds(memory, kPage, 80));
    EXPECT_EQ(mprotect(memory + bytes - kPage, kPage, PROT_READ | PROT_WRITE), 0);
    void* grown = mremap(memory, bytes - kPage, 2 * bytes, MREMAP_MAYMOVE);
    ASSERT_NE(grown, MAP_FAILED) << strerror(errno);
    EXPECT_TRUE(holds(static_cast<char*>(grown), kPage, 80));
  });
}

TEST_P(PageShareTest, OverlappingRegistrationsKeepTheirPages) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(6 * kPage);
    fill(memory, 6 * kPage, 81);
    expect_shared(*share, memory, 3 * kPage);
    // Both end and begin in the third page.
    expect_shared(*share, memory + 2 * kPage + 100, 3 * kPage);
    expect_shared(*share, memory, 3 * kPage);
    share->release(memory, 3 * kPage, Sharing::kShared);
    expect_same_both_ways(*share, memory, 6 * kPage);
    share->release(memory, 3 * kPage, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(memory, 2 * kPage));
    expect_same_both_ways(*share, memory + 2 * kPage, 4 * kPage);
    share->release(memory + 2 * kPage + 100, 3 * kPage, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(memory, 6 * kPage));
    EXPECT_EQ(file_bytes(*share), 0u);
    // New memory of the library is what it was.
    Result<void*> made = share->map_new(kPage);
    ASSERT_TRUE(made.ok());
    expect_shared(*share, *made, kPage);
    share->release(*made, kPage, Sharing::kShared);
    expect_same_both_ways(*share, static_cast<char*>(*made), kPage);
  });
}

TEST_P(PageShareTest, ReleasesMemoryThatMovedOrIsGone) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 4 * kPage;
    char* memory = map_private(bytes);
    char* elsewhere = map_private(bytes, PROT_NONE);
    fill(memory, bytes, 82);
    expect_shared(*share, memory, bytes);
    ASSERT_EQ(mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere), elsewhere);
    share->release(memory, bytes, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(elsewhere, bytes));
    EXPECT_TRUE(holds(elsewhere, bytes, 82));
    expect_shared(*share, elsewhere, bytes);
    ASSERT_EQ(munmap(elsewhere, bytes), 0);
    share->release(elsewhere, bytes, Sharing::kShared);
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

// As LosesNothingThatOtherThreadsWrite, there and back.
TEST_P(PageShareTest, ReleasingLosesNothingThatOtherThreadsWrite) {
  run_alone([] {
    auto share = make();
    if (!holds_threads(*share)) return;
    constexpr size_t kPages = 64;
    constexpr size_t kRounds = 200;
    char* memory = map_private(kPages * kPage);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> failures{0};
    std::atomic<uint64_t> passes[2] = {};
    auto word = [&](size_t page, size_t index) {
      return reinterpret_cast<uint64_t*>(memory + page * kPage) + index;
    };
    auto write = [&](size_t me) {
      for (uint64_t value = 0; !stop.load(); passes[me].store(++value)) {
        for (size_t page = 0; page < kPages; ++page) {
          if (load_relaxed(word(page, me)) != value) failures.fetch_add(1);
          store_relaxed(word(page, me), value + 1);
          __atomic_fetch_add(word(page, 2), 1, __ATOMIC_RELAXED);
        }
      }
    };
    Thread a = start_thread("writer", [&] { write(0); });
    Thread b = start_thread("writer", [&] { write(1); });
    for (size_t round = 0; round < kRounds; ++round) {
      const uint64_t before = passes[round % 2].load();
      wait_until([&] { return passes[round % 2].load() > before; });
      expect_shared(*share, memory, kPages * kPage);
      share->release(memory, kPages * kPage, Sharing::kShared);
    }
    stop.store(true);
    a.join();
    b.join();
    EXPECT_EQ(failures.load(), 0u);
    EXPECT_FALSE(share->shares_any(memory, kPages * kPage));
    for (size_t page = 0; page < kPages; ++page) {
      ASSERT_EQ(*word(page, 2), passes[0].load() + passes[1].load());
    }
  });
}

TEST_P(PageShareTest, PeersThatStandStillAreCutOff) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 4 * kPage;
    char* memory = map_private(bytes);
    fill(memory, bytes, 83);
    bool gone_on = false;
    const PageShare::StandingPeers standing{[&] { return gone_on; }, "process 7"};
    expect_shared(*share, memory, bytes);
    expect_shared(*share, memory + kPage, kPage);
    Status refused = share->cut_off(memory, bytes, Sharing::kShared, standing);
    EXPECT_NE(refused.message().find("another registration"), std::string::npos);
    expect_same_both_ways(*share, memory, bytes);
    share->release(memory + kPage, kPage, Sharing::kShared);
    fill(memory, bytes, 83);
    View view(*share, memory, bytes);
    Status cut = share->cut_off(memory, bytes, Sharing::kShared, standing);
    ASSERT_TRUE(cut.ok()) << cut.message();
    // It finds what it was reading, and what it writes is lost.
    EXPECT_TRUE(holds(view.get(), bytes, 83));
    fill(view.get(), bytes, 84);
    EXPECT_TRUE(holds(memory, bytes, 83));
    expect_private(*share, memory + kPage, 10, "process 7 stands still");
    refused = share->cut_off(memory + kPage, 10, Sharing::kPrivate, standing);
    EXPECT_NE(refused.message().find("through the kernel"), std::string::npos);
    share->release(memory + kPage, 10, Sharing::kPrivate);
    gone_on = true;
    expect_shared(*share, memory, bytes);
    EXPECT_TRUE(holds(memory, bytes, 83));
    expect_same_both_ways(*share, memory, bytes);
    // What nobody registers again is given back without that.
    gone_on = false;
    cut = share->cut_off(memory, bytes, Sharing::kShared, standing);
    ASSERT_TRUE(cut.ok()) << cut.message();
    gone_on = true;
    EXPECT_GT(file_bytes(*share), 0u);
    share->look_after_standing_peers();
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

// Nothing is silently wrong where pages cannot move back: the kernel refuses to discard them.
TEST_P(PageShareTest, PagesThatCannotMoveBackAreLocked) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 85);
    expect_shared(*share, memory, 4 * kPage);
    std::atomic<bool> stop{false};
    std::atomic<bool> runs{false};
    Thread thread = start_thread("other", [&] {
      runs.store(true);
      wait_until([&] { return stop.load(); });
    });
    wait_until([&] { return runs.load(); });
    share->release(memory, 4 * kPage, Sharing::kShared);
    const bool moved = holds_threads(*share);
    EXPECT_EQ(share->shares_any(memory, 4 * kPage), !moved);
    EXPECT_EQ(discards(memory, kPage), moved);
    EXPECT_EQ(is_zero(memory, kPage), moved);
    EXPECT_FALSE(is_zero(memory + kPage, kPage));
    stop.store(true);
    thread.join();
    // With the thread gone, there and back.
    expect_shared(*share, memory, 4 * kPage);
    share->release(memory, 4 * kPage, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(memory, 4 * kPage));
    EXPECT_TRUE(discards(memory, 4 * kPage));
    EXPECT_TRUE(is_zero(memory, 4 * kPage));
  });
}

TEST_P(PageShareTest, AStackOfAnotherThreadIsReleasedOrLocked) {
  run_alone([] {
    auto share = make();
    if (!holds_threads(*share)) return;
    std::atomic<char*> stack{nullptr};
    std::atomic<bool> stop{false};
    bool elsewhere = false;
    Thread thread = start_thread("worker", [&] {
      char buffer[16 * 4096];
      fill(buffer, sizeof(buffer), 87);
      // AddressSanitizer keeps such variables elsewhere.
      elsewhere = labs(buffer - static_cast<char*>(__builtin_frame_address(0))) > 131072;
      char* pages = buffer + (kPage - reinterpret_cast<uintptr_t>(buffer) % kPage);
      expect_shared(*share, pages, 2 * kPage);
      stack.store(pages);
      wait_until([&] { return stop.load(); });
      EXPECT_TRUE(holds(buffer, sizeof(buffer), 87));
    });
    wait_until([&] { return stack.load() != nullptr; });
    char* pages = stack.load();
    share->release(pages, 2 * kPage, Sharing::kShared);
    const bool moved = share->writers() == Writers::kHeld || elsewhere;
    EXPECT_EQ(share->shares_any(pages, 2 * kPage), !moved);
    if (!moved) {
      EXPECT_FALSE(discards(pages, kPage));
    }
    stop.store(true);
    thread.join();
  });
}

// The right to lock memory, and the limit without it.
void forbid_locked_memory() {
  const rlimit none{0, 0};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &none), 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights[2] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, rights), 0);
  rights[0].effective &= ~(1u << CAP_IPC_LOCK);
  ASSERT_EQ(syscall(SYS_capset, &header, rights), 0);
}

TEST_P(PageShareTest, WithoutLocksWhatCouldNotMoveBackStaysPrivate) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 88);
    forbid_locked_memory();
    if (!holds_threads(*share)) {
      expect_private(*share, memory, 4 * kPage, "ulimit -l");
      EXPECT_FALSE(share->shares_any(memory, 4 * kPage));
      EXPECT_EQ(file_bytes(*share), 0u);
      share->release(memory, 4 * kPage, Sharing::kPrivate);
      PageShare::set_discards_seen();
    }
    EXPECT_TRUE(holds(memory, 4 * kPage, 88));
    expect_shared(*share, memory, 4 * kPage);
    share->release(memory, 4 * kPage, Sharing::kShared);
    EXPECT_TRUE(discards(memory, 4 * kPage));
    EXPECT_TRUE(is_zero(memory, 4 * kPage));
  });
}

// ---- fork ----

// Runs `body` in a child of the test's process; true if it returns true.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

TEST_P(PageShareTest, ForkSeparatesParentAndChild) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 300 * kPage;
    char* memory = map_private(bytes);
    fill(memory, bytes / 2, 21);
    char stack[3 * 4096];
    fill(stack, sizeof(stack), 22);
    expect_shared(*share, memory, bytes);
    expect_shared(*share, stack, sizeof(stack));
    expect_shared(*share, initialized, sizeof(initialized));
    char* moved = map_private(2 * kPage, PROT_NONE);
    char* old = map_private(2 * kPage);
    fill(old, 2 * kPage, 23);
    expect_shared(*share, old, 2 * kPage);
    ASSERT_EQ(mremap(old, 2 * kPage, 2 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, moved), moved);
    struct stat parent {};
    ASSERT_EQ(fstat(share->fd(), &parent), 0);

    int to_child[2];
    int to_parent[2];
    ASSERT_EQ(pipe(to_child), 0);
    ASSERT_EQ(pipe(to_parent), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    char byte = 0;
    if (child == 0) {
      bool good = true;
      const auto check = [&](bool holds_true, const char* what) {
        if (!holds_true) fmt::print(stderr, "in the child: not {}\n", what);
        good = good && holds_true;
      };
      check(holds(memory, bytes / 2, 21), "the memory at the fork");
      check(holds(stack, sizeof(stack), 22), "the stack at the fork");
      check(holds(moved, 2 * kPage, 23), "the moved memory at the fork");
      fill(memory, bytes, 31);
      fill(stack, sizeof(stack), 32);
      fill(initialized, sizeof(initialized), 33);
      fill(moved, 2 * kPage, 34);
      check(write(to_parent[1], &byte, 1) == 1 && read(to_child[0], &byte, 1) == 1, "the pipe");
      check(holds(memory, bytes, 31), "own memory");
      check(holds(stack, sizeof(stack), 32), "own stack");
      check(holds(initialized, sizeof(initialized), 33), "own globals");
      check(holds(moved, 2 * kPage, 34), "own moved memory");
      // The child can share in turn, with a file of its own under the same number.
      struct stat own {};
      check(fstat(share->fd(), &own) == 0 && own.st_ino != parent.st_ino, "a file of its own");
      Result<PageShare::Outcome> outcome = share->share(memory, bytes);
      check(outcome.ok() && outcome->sharing == Sharing::kShared, "sharing memory");
      View view(*share, memory, bytes);
      check(holds(view.get(), bytes, 31), "the view");
      outcome = share->share(stack, sizeof(stack));
      check(outcome.ok() && outcome->sharing == Sharing::kShared, "sharing the stack");
      // And fork again.
      check(in_child([&] {
              memory[0] = 'g';
              return holds(stack, sizeof(stack), 32);
            }),
            "forking");
      check(holds(memory, bytes, 31), "own memory after forking");
      _exit(good ? 0 : 1);
    }
    ASSERT_EQ(read(to_parent[0], &byte, 1), 1);
    EXPECT_TRUE(holds(memory, bytes / 2, 21));
    EXPECT_EQ(memory[bytes - 1], 0);
    EXPECT_TRUE(holds(stack, sizeof(stack), 22));
    EXPECT_STREQ(initialized, "initialized");
    EXPECT_TRUE(holds(moved, 2 * kPage, 23));
    fill(memory, bytes, 41);
    fill(stack, sizeof(stack), 42);
    fill(initialized, sizeof(initialized), 43);
    fill(moved, 2 * kPage, 44);
    ASSERT_EQ(write(to_child[1], &byte, 1), 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    expect_same_both_ways(*share, memory, bytes);
    expect_same_both_ways(*share, stack, sizeof(stack));
    expect_same_both_ways(*share, initialized, sizeof(initialized));
  });
}

TEST_P(PageShareTest, ForkSeparatesTheHeapToo) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    std::vector<std::unique_ptr<std::string>> blocks;
    for (int i = 0; i < 300; ++i) {
      blocks.push_back(std::make_unique<std::string>(static_cast<size_t>(50 + i), 'p'));
      expect_shared(*share, blocks.back()->data(), blocks.back()->size());
    }
    // Also the memory in which PageShare keeps its own records.
    expect_shared(*share, share.get(), sizeof(PageShare));
    for (int round = 0; round < 20; ++round) {
      EXPECT_TRUE(in_child([&] {
        std::vector<std::string> more;
        more.reserve(1000);
        for (int i = 0; i < 1000; ++i) more.emplace_back(static_cast<size_t>(i), 'c');
        for (auto& block : blocks) block->assign(block->size() * 2, 'c');
        blocks.clear();
        return more[10] == "cccccccccc";
      }));
      for (auto& block : blocks) {
        ASSERT_EQ(block->find_first_not_of('p'), std::string::npos);
        block->push_back('p');
      }
    }
  });
}

TEST_P(PageShareTest, ForkBesideThreadsLeavesTheParentIntact) {
  if (VERBENA_THREAD_SANITIZER) GTEST_SKIP() << "ThreadSanitizer cannot fork with threads";
  run_alone([] {
    auto share = make();
    if (!holds_threads(*share)) return;
    char* memory = map_private(64 * kPage);
    memset(memory, 0, 64 * kPage);
    expect_shared(*share, memory, 64 * kPage);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> failures{0};
    auto write = [&](size_t me) {
      char stack[2 * 4096] = {};
      expect_shared(*share, stack, 4096);
      auto* mine = reinterpret_cast<uint64_t*>(memory + me * 8);
      uint64_t value = load_relaxed(mine);
      while (!stop.load()) {
        for (size_t page = 0; page < 64; ++page) {
          auto* word = reinterpret_cast<uint64_t*>(memory + page * kPage) + me;
          if (load_relaxed(word) != value) failures.fetch_add(1);
          store_relaxed(word, value + 1);
        }
        ++value;
        std::string allocation(static_cast<size_t>(value % 3000), 'x');
        stack[value % 4096] = static_cast<char>(value);
      }
    };
    Thread a = start_thread("writer", [&] { write(0); });
    Thread b = start_thread("writer", [&] { write(1); });
    for (int round = 0; round < 30; ++round) {
      EXPECT_TRUE(in_child([&] {
        memset(memory, 0xff, 64 * kPage);
        return true;
      }));
    }
    stop.store(true);
    a.join();
    b.join();
    EXPECT_EQ(failures.load(), 0u);
  });
}

// A peer writes to the forking thread's stack while its pages are private.
char* peers_view = nullptr;
char* own_byte = nullptr;
void write_during_fork() {
  if (peers_view == nullptr) return;
  peers_view[100] = 'p';
  own_byte[200] = 'o';
}
[[maybe_unused]] const int registered = pthread_atfork(nullptr, write_during_fork, nullptr);

TEST_P(PageShareTest, ForkKeepsWhatPeersWriteToTheStack) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    alignas(4096) char stack[2 * 4096];
    // AddressSanitizer keeps such variables elsewhere.
    if (labs(stack - static_cast<char*>(__builtin_frame_address(0))) > 65536) return;
    memset(stack, 's', sizeof(stack));
    expect_shared(*share, stack, sizeof(stack));
    View view(*share, stack, sizeof(stack));
    peers_view = view.get();
    own_byte = stack;
    EXPECT_TRUE(in_child([&] { return look_at(stack + 100) == 's'; }));
    peers_view = nullptr;
    EXPECT_EQ(look_at(stack + 100), 'p');
    EXPECT_EQ(look_at(view.get() + 100), 'p');
    EXPECT_EQ(look_at(stack + 200), 'o');
    EXPECT_EQ(look_at(view.get() + 200), 'o');
    expect_same_both_ways(*share, stack, sizeof(stack));
  });
}

// ---- limits and refusals ----

#if defined(__SANITIZE_ADDRESS__) || VERBENA_THREAD_SANITIZER
#define SKIP_AT_THE_LIMIT() GTEST_SKIP() << "the sanitizer needs mappings of its own"
#else
#define SKIP_AT_THE_LIMIT()                                                           \
  if (GetParam().options.mappings != VmaQuery::Source::kBest)                         \
    GTEST_SKIP() << "each query reads all of /proc/self/maps, too slow at the limit"; \
  if (MappingLimit().limit() > 300'000) GTEST_SKIP() << "vm.max_map_count is too large to reach"
#endif

// Makes mappings until only `left` more are possible.
class MappingLimit {
 public:
  MappingLimit() {
    std::ifstream file("/proc/sys/vm/max_map_count");
    file >> limit_;
  }
  size_t limit() const { return limit_; }
  // From call to call fewer.
  void leave(size_t left) {
    if (base_ == nullptr) {
      base_ = map_private(2 * limit_ * kPage, PROT_NONE, MAP_NORESERVE);
      used_ = count_mappings();
      page_ = 1;
    }
    for (; used_ + 2 + left <= limit_; page_ += 2, used_ += 2) {
      // What is shared in between counts as well.
      if (mprotect(base_ + page_ * kPage, kPage, PROT_READ) == 0) continue;
      ASSERT_EQ(errno, ENOMEM);
      return;
    }
  }
  void release() { munmap(base_, 2 * limit_ * kPage); }

 private:
  size_t limit_ = 0;
  size_t used_ = 0;
  size_t page_ = 0;
  char* base_ = nullptr;
};

TEST_P(PageShareTest, TooManyMappingsLeaveMemoryPrivate) {
  SKIP_AT_THE_LIMIT();
  run_alone([] {
    auto share = make();
    // Every distance from the limit: whichever step fails, contents stay.
    constexpr size_t kFarthest = 40;
    constexpr size_t kPages = 4 * kFarthest;
    char* memory = map_private(kPages * kPage);
    fill(memory, kPages * kPage, 51);
    char* readonly = map_private(kPages * kPage);
    fill(readonly, kPages * kPage, 52);
    ASSERT_EQ(mprotect(readonly, kPages * kPage, PROT_READ), 0);
    expect_shared(*share, memory, 1);
    MappingLimit limit;
    std::vector<size_t> kept;  // pages of `memory`
    size_t shared = 0;
    for (size_t left = kFarthest; left-- > 0;) {
      limit.leave(left);
      for (char* base : {memory, readonly}) {
        for (size_t page = 4 * left + 1; page < 4 * left + 4; page += 2) {
          Result<PageShare::Outcome> outcome = share->share(base + page * kPage, 1);
          ASSERT_TRUE(outcome.ok()) << outcome.status().message();
          if (outcome->sharing == Sharing::kShared) {
            ++shared;
            continue;
          }
          if (base == memory) kept.push_back(page);
          EXPECT_NE(outcome->reason.find("vm.max_map_count"), std::string::npos) << outcome->reason;
          share->release(base + page * kPage, 1, Sharing::kPrivate);
        }
      }
    }
    EXPECT_FALSE(kept.empty());
    EXPECT_GT(shared, 0u);
    EXPECT_TRUE(holds(memory, kPages * kPage, 51));
    EXPECT_TRUE(holds(readonly, kPages * kPage, 52));
    // With room again, everything can be shared, and nothing is left of what failed.
    limit.release();
    for (const size_t page : kept) {
      ASSERT_EQ(madvise(memory + page * kPage, kPage, MADV_DONTNEED), 0);
    }
    expect_shared(*share, memory, kPages * kPage);
    expect_shared(*share, readonly, kPages * kPage);
    for (const size_t page : kept) {
      for (size_t at = 0; at < kPage; ++at) ASSERT_EQ(memory[page * kPage + at], 0);
    }
    fill(memory, kPages * kPage, 51);
    EXPECT_TRUE(holds(readonly, kPages * kPage, 52));
    expect_same_both_ways(*share, memory, kPages * kPage);
  });
}

TEST_P(PageShareTest, ForkWorksAtTheLimitOfMappings) {
  SKIP_AT_THE_LIMIT();
  run_alone([] {
    auto share = make();
    char* memory = map_private(20 * kPage);
    fill(memory, 20 * kPage, 50);
    expect_shared(*share, memory, 20 * kPage);
    MappingLimit limit;
    limit.leave(0);
    EXPECT_TRUE(in_child([&] {
      // Private or gone, but not the parent's.
      int ends[2];
      if (pipe(ends) != 0) return false;
      if (write(ends[1], memory, 8) == 8) memset(memory, 1, 20 * kPage);
      return true;
    }));
    limit.release();
    EXPECT_TRUE(holds(memory, 20 * kPage, 50));
  });
}

TEST_P(PageShareTest, LeavesAloneWhatCannotBeShared) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    void* shared = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    expect_private(*share, shared, 8, "shared mapping of the application");
    expect_private(*share, map_private(kPage, PROT_NONE), kPage, "cannot be read");
    expect_private(*share, map_private(kPage, PROT_READ | PROT_EXEC), kPage, "executable");
    expect_private(*share, reinterpret_cast<void*>(&expect_private), 8, "executable");
    expect_private(*share, reinterpret_cast<void*>(getauxval(AT_SYSINFO_EHDR)), 8, "");
    void* huge = mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
    if (huge != MAP_FAILED) expect_private(*share, huge, kPage, "huge pages");

    // One page of many: nothing is shared, and nothing lost.
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 60);
    ASSERT_EQ(mprotect(memory + 3 * kPage, kPage, PROT_NONE), 0);
    expect_private(*share, memory, 4 * kPage, "cannot be read");
    EXPECT_TRUE(holds(memory, 3 * kPage, 60));
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

TEST_P(PageShareTest, RefusesWhatIsNotMapped) {
  run_alone([] {
    auto share = make();
    char* memory = map_private(3 * kPage);
    memset(memory, 1, 3 * kPage);
    ASSERT_EQ(munmap(memory + kPage, kPage), 0);
    for (const auto& [address, bytes] :
         {std::pair<char*, size_t>{memory, 3 * kPage},
          {memory + kPage, 1},
          {nullptr, 1},
          {memory, ~size_t{0}},
          {memory, ~size_t{0} - reinterpret_cast<uintptr_t>(memory)}}) {
      Result<PageShare::Outcome> outcome = share->share(address, bytes);
      ASSERT_FALSE(outcome.ok());
      EXPECT_EQ(outcome.status().code(), StatusCode::kInvalidArgument);
    }
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

TEST_P(PageShareTest, NeedsAFileOfUnlimitedSize) {
  run_alone([] {
    const rlimit limit{1 << 30, 1 << 30};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    Result<std::unique_ptr<PageShare>> share = PageShare::create();
    ASSERT_FALSE(share.ok());
    EXPECT_NE(share.status().message().find("ulimit -f"), std::string::npos);
  });
}

// ---- new memory ----

TEST_P(PageShareTest, MapsNewMemory) {
  run_alone([] {
    auto share = make();
    for (const size_t bytes : {size_t{1}, 3 * kPage, size_t{5} << 20}) {
      Result<void*> memory = share->map_new(bytes);
      ASSERT_TRUE(memory.ok()) << memory.status().message();
      char* address = static_cast<char*>(*memory);
      for (size_t at = 0; at < bytes; at += 512) ASSERT_EQ(address[at], 0);
      fill(address, bytes, 70);
      expect_shared(*share, address, bytes);  // nothing to do
      expect_same_both_ways(*share, address, bytes);
      // Not the child's: the kernel finds no page there.
      EXPECT_TRUE(in_child([&] {
        int ends[2];
        return pipe(ends) == 0 && write(ends[1], address, 1) == -1 && errno == EFAULT;
      }));
      const uint64_t before = file_bytes(*share);
      share->unmap_new(address, bytes);
      EXPECT_LT(file_bytes(*share), before);
    }
    EXPECT_EQ(file_bytes(*share), 0u);
    EXPECT_FALSE(share->map_new(0).ok());
    EXPECT_FALSE(share->map_new(~uint64_t{0}).ok());
  });
}

// ---- questions to the kernel ----

TEST(VmaQueryTest, BothWaysSeeTheSame) {
  Result<VmaQuery> best = VmaQuery::open();
  Result<VmaQuery> file = VmaQuery::open(VmaQuery::Source::kMapsFile);
  ASSERT_TRUE(best.ok() && file.ok());
  char* memory = map_private(8 * kPage);
  ASSERT_EQ(mprotect(memory + 2 * kPage, kPage, PROT_READ), 0);
  ASSERT_EQ(munmap(memory + 5 * kPage, kPage), 0);
  const auto begin = reinterpret_cast<uint64_t>(memory);
  const auto code = reinterpret_cast<uint64_t>(&map_private);
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
}

}  // namespace
}  // namespace verbena::soft
