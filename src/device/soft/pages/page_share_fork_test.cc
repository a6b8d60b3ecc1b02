// fork() separates the shared pages of parent and child.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/pages/page_share_for_test.h"

namespace verbena::soft {
namespace {

using Sharing = PageShare::Sharing;

alignas(65536) char initialized[65536] = {"initialized"};

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

}  // namespace
}  // namespace verbena::soft
