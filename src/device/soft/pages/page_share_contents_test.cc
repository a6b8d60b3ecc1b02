// What lies in the pages stays when they are shared, whatever kind of memory they are, once or
// again.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/base/vma_query.h"
#include "src/device/soft/pages/page_share_for_test.h"

namespace verbena::soft {
namespace {

using Sharing = PageShare::Sharing;
using Writers = PageShare::Writers;

INSTANTIATE_TEST_SUITE_P(
    Ways, PageShareTest,
    testing::Values(Setting{"best", {}},
                    Setting{"older_kernel", {Writers::kHeld, VmaQuery::Source::kMapsFile}},
                    Setting{"user_faults", {Writers::kHeldInUser, VmaQuery::Source::kBest}},
                    Setting{"no_userfaultfd", {Writers::kNone, VmaQuery::Source::kBest}}),
    testing::PrintToStringParamName());

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

}  // namespace
}  // namespace verbena::soft
