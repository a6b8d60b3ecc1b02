// READs that are under way while their own memory is taken away, or their peer ends.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr uint32_t kReadBytes = 32 << 20;  // copied in many parts
constexpr size_t kReadWords = kReadBytes / sizeof(uint64_t);
constexpr uint64_t kOldWord = 0x0101010101010101;
constexpr uint64_t kNewWord = 0x0707070707070707;

class ReadPages {
 public:
  ReadPages() {
    void* const made =
        mmap(nullptr, kReadBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) std::abort();
    words_ = static_cast<uint64_t*>(made);
  }
  ReadPages(const ReadPages&) = delete;
  ReadPages& operator=(const ReadPages&) = delete;
  ~ReadPages() { munmap(words_, kReadBytes); }
  uint64_t* words() const { return words_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(words_); }
  void fill(uint64_t word) {
    for (size_t i = 0; i < kReadWords; ++i) words_[i] = word;
  }
  // How many words at the beginning are new: they come in order.
  size_t new_words() const {
    size_t known_new = 0;
    for (size_t end = kReadWords; known_new < end;) {
      const size_t middle = (known_new + end) / 2;
      if (load_relaxed(words_ + middle) == kNewWord) {
        known_new = middle + 1;
      } else {
        end = middle;
      }
    }
    return known_new;
  }

 private:
  uint64_t* words_;
};

struct ReadSource {
  QueuePairAddress queue_pair;
  uint64_t address;
  uint32_t key;
};

// Connects one queue pair after another, which can read its memory.
VERBENA_TEST_CHILD(read_source) {
  const auto in_place = link.get<bool>();
  Node node;
  ReadPages pages;
  pages.fill(kNewWord);
  const auto make = in_place ? MemoryRegion::create_in_place : MemoryRegion::create;
  const MemoryRegion region =
      must(make(node.domain, pages.words(), kReadBytes, IBV_ACCESS_REMOTE_READ));
  while (link.get<bool>()) {
    End end(node);
    end.connect(link.get<QueuePairAddress>());
    link.put(ReadSource{end.address(), pages.address(), region.rkey()});
    link.get<bool>();
  }
  return 0;
}

class RunningReadTest : public testing::TestWithParam<bool> {
 protected:
  RunningReadTest() {
    target_.fill(kOldWord);
    child_.link().put(GetParam());
  }
  void connect(End& end) {
    child_.link().put(true);
    child_.link().put(end.address());
    source_ = child_.link().get<ReadSource>();
    end.connect(source_.queue_pair);
  }
  MemoryRegion register_target() {
    return must(MemoryRegion::create(node_.domain, target_.words(), kReadBytes, kAllAccess));
  }
  void post_read(End& end, uint32_t key) {
    ASSERT_EQ(post(end.qp(), {.opcode = IBV_WR_RDMA_READ,
                              .sges = {{target_.address(), kReadBytes, key}},
                              .remote_address = source_.address,
                              .rkey = source_.key}),
              0);
  }
  void wait_for_first_word() {
    for (Waiter waiter; load_relaxed(target_.words()) == kOldWord;) waiter.idle();
  }

  Node node_;
  ReadPages target_;
  ReadSource source_{};
  Child child_{"read_source"};
};

// Also where another registration keeps the pages in place.
TEST_P(RunningReadTest, WritesNothingOnceItsMemoryIsDeregistered) {
  const MemoryRegion other = register_target();
  for (size_t round = 0; round < iterations(10) && !HasFailure(); ++round) {
    End end(node_);
    connect(end);
    MemoryRegion region = register_target();
    const uint32_t key = region.lkey();
    Thread reader = start_thread("reader", [&] { post_read(end, key); });
    wait_for_first_word();
    ASSERT_TRUE(region.deregister());
    const size_t written = target_.new_words();
    reader.join();
    EXPECT_EQ(target_.new_words(), written) << "round " << round;
    const ibv_wc_status status = wait_for_one(end.cq()).status;
    EXPECT_TRUE(status == IBV_WC_LOC_PROT_ERR || written == kReadWords) << status;
    target_.fill(kOldWord);
    child_.link().put(true);
  }
  child_.link().put(false);
  EXPECT_EQ(child_.wait(), 0);
}

// As an RNIC, which gets no answer any more.
TEST_P(RunningReadTest, EndsAsWithoutAnAnswerWhereItsPeerIsKilled) {
  End end(node_);
  connect(end);
  const MemoryRegion region = register_target();
  const uint32_t key = region.lkey();
  Thread reader = start_thread("reader", [&] {
    for (int i = 0; i < 64; ++i) post_read(end, key);
  });
  wait_for_first_word();
  child_.kill();
  reader.join();
  ibv_wc_status status = IBV_WC_SUCCESS;
  for (int i = 0; i < 64 && status == IBV_WC_SUCCESS; ++i) status = wait_for_one(end.cq()).status;
  // Where it was copied by itself, all may have been there before.
  EXPECT_TRUE(status == IBV_WC_RETRY_EXC_ERR || (status == IBV_WC_SUCCESS && !GetParam()))
      << status;
}

INSTANTIATE_TEST_SUITE_P(Sources, RunningReadTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "LeftInPlace" : "Shared"; });

}  // namespace
}  // namespace verbena::soft_test
