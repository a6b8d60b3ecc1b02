// Regions whose pages stay where they are: peers READ them through the kernel, or only own requests
// fill them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "src/base/runtime.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/rnic.h"
#include "src/device/soft/soft.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

class InPlaceTest : public testing::Test {
 protected:
  static constexpr unsigned kPeersRead = IBV_ACCESS_REMOTE_READ;
  static constexpr unsigned kOwnFill = IBV_ACCESS_LOCAL_WRITE;
  static constexpr size_t kPageBytes = 4096;

  // Mapped by itself, not registered.
  struct Memory {
    explicit Memory(size_t size) : size_bytes(size) {
      void* const pages =
          mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (pages == MAP_FAILED) std::abort();
      bytes = static_cast<std::byte*>(pages);
      std::memset(bytes, 1, size);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { munmap(bytes, size_bytes); }
    uint64_t address() const { return reinterpret_cast<uint64_t>(bytes); }
    bool is_all(int value, size_t size) const {
      for (size_t i = 0; i < size; ++i) {
        if (bytes[i] != static_cast<std::byte>(value)) return false;
      }
      return true;
    }
    std::byte* bytes;
    size_t size_bytes;
  };

  InPlaceTest() { test::connect(near_, far_); }

  MemoryRegion leave(const Memory& memory, unsigned access) {
    return test::must(
        MemoryRegion::create_in_place(node_.domain, memory.bytes, memory.size_bytes, access));
  }
  bool shared(const Memory& memory) const {
    return Rnic::existing()->pages().shares_any(memory.bytes, memory.size_bytes);
  }
  RegionMemory state(const MemoryRegion& region) const {
    return node_.control().region_memory(region.get());
  }
  ibv_sge all_of(const Memory& memory, const MemoryRegion& region) const {
    return {memory.address(), static_cast<uint32_t>(memory.size_bytes), region.lkey()};
  }
  void post_read(const ibv_sge& to, const Memory& from, uint32_t rkey) {
    ASSERT_EQ(test::post(near_.qp(), {.opcode = IBV_WR_RDMA_READ,
                                      .sges = {to},
                                      .remote_address = from.address(),
                                      .rkey = rkey}),
              0);
  }
  ibv_wc_status completed(test::End& end) {
    ibv_wc done{};
    for (Waiter waiter; ibv_poll_cq(end.cq(), 1, &done) == 0;) waiter.idle();
    return done.status;
  }

  test::Node node_;
  test::End near_{node_};
  test::End far_{node_};
};

TEST_F(InPlaceTest, PeersReadItAndNoPageMoves) {
  const Memory source(3 * kPageBytes);
  const Memory target(3 * kPageBytes);
  const MemoryRegion readable = leave(source, kPeersRead);
  const MemoryRegion filled = leave(target, kOwnFill);
  EXPECT_EQ(state(readable), RegionMemory::kLeft);
  EXPECT_EQ(state(filled), RegionMemory::kSame);
  std::memset(source.bytes, 7, source.size_bytes);
  post_read(all_of(target, filled), source, readable.rkey());
  EXPECT_EQ(completed(near_), IBV_WC_SUCCESS);
  EXPECT_TRUE(target.is_all(7, target.size_bytes));
  EXPECT_FALSE(shared(source));
  EXPECT_FALSE(shared(target));
}

TEST_F(InPlaceTest, OtherAccessIsSharedAtOnce) {
  for (const unsigned access :
       {kOwnFill | unsigned{IBV_ACCESS_REMOTE_WRITE}, kOwnFill | kPeersRead, test::kAllAccess}) {
    const Memory memory(kPageBytes);
    const MemoryRegion region = leave(memory, access);
    EXPECT_TRUE(shared(memory)) << access;
    EXPECT_EQ(state(region), RegionMemory::kSame);
  }
}

TEST_F(InPlaceTest, WhatIsGoneIsToldOf) {
  for (const unsigned access : {kPeersRead, kOwnFill}) {
    for (const size_t size_bytes : {2 * kPageBytes, 1024 * kPageBytes}) {
      const Memory memory(size_bytes);
      const MemoryRegion region = leave(memory, access);
      ASSERT_EQ(mprotect(memory.bytes + kPageBytes, kPageBytes, PROT_NONE), 0);
      EXPECT_EQ(state(region), RegionMemory::kOther) << access;
      ASSERT_EQ(mprotect(memory.bytes + kPageBytes, kPageBytes, PROT_READ), 0);
      // Of little memory, the request tells.
      const RegionMemory filled =
          size_bytes == 2 * kPageBytes ? RegionMemory::kSame : RegionMemory::kOther;
      EXPECT_EQ(state(region), access == kOwnFill ? filled : RegionMemory::kLeft);
    }
  }
}

// It would go around what keeps pages from moving under a peer's WRITE.
TEST_F(InPlaceTest, NoReceiveIsFilledThere) {
  const Memory memory(kPageBytes);
  const MemoryRegion filled = leave(memory, kOwnFill);
  test::Buffer source(node_, kPageBytes);
  std::memset(source.data(), 9, kPageBytes);
  ibv_sge piece = all_of(memory, filled);
  ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = &piece, .num_sge = 1};
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(far_.qp(), &receive, &bad), 0);
  ASSERT_EQ(test::post(near_.qp(), {.sges = {source.sge(0, kPageBytes)}}), 0);
  EXPECT_NE(completed(near_), IBV_WC_SUCCESS);
  EXPECT_TRUE(memory.is_all(1, kPageBytes));
}

TEST_F(InPlaceTest, WherePeersMayNotCopyItIsShared) {
  const Memory before(kPageBytes);
  const MemoryRegion region = leave(before, kPeersRead);
  EXPECT_EQ(state(region), RegionMemory::kLeft);
  const auto expect_shared = [&](const char* why) {
    const Memory memory(kPageBytes);
    const MemoryRegion later = leave(memory, kPeersRead);
    EXPECT_TRUE(shared(memory)) << why;
    EXPECT_EQ(state(later), RegionMemory::kSame) << why;
    EXPECT_EQ(state(region), RegionMemory::kOther) << why;
  };
  // As a peer that attaches this process tells of it.
  std::atomic<uint32_t>& refused = Rnic::existing()->header().copies_refused;
  const uint32_t was_refused = refused.exchange(1);
  expect_shared("a peer may not");
  refused.store(was_refused);
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), 0);
  expect_shared("nobody may");
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
  EXPECT_EQ(state(region), RegionMemory::kLeft);
}

// Other registrations of the same pages move them there and back.
TEST_F(InPlaceTest, ReadsGoOnWhilePagesMove) {
  constexpr int kRounds = 200;
  const Memory source(64 * kPageBytes);
  const Memory target(64 * kPageBytes);
  const MemoryRegion readable = leave(source, kPeersRead);
  const MemoryRegion filled = leave(target, kOwnFill);
  test::fill_pattern(source.bytes, source.size_bytes, 3);
  std::atomic<bool> ended = false;
  Thread mover = start_thread("mover", [&] {
    for (int round = 0; round < kRounds; ++round) {
      const Memory& moved = round % 2 == 0 ? source : target;
      ibv_mr* const region = control().reg_mr(node_.domain.get(), moved.bytes, moved.size_bytes,
                                              moved.address(), test::kAllAccess);
      if (region != nullptr) control().dereg_mr(region);
    }
    ended.store(true);
  });
  bool good = true;
  while (!ended.load() && good) {
    post_read(all_of(target, filled), source, readable.rkey());
    good =
        completed(near_) == IBV_WC_SUCCESS && test::has_pattern(target.bytes, target.size_bytes, 3);
  }
  mover.join();
  EXPECT_TRUE(good);
  EXPECT_FALSE(shared(source));
}

// A poll of memory that the kernel is writing for the device, which ThreadSanitizer takes for a
// plain write of the thread that asked for it.
__attribute__((noinline, no_sanitize("thread"))) uint64_t polled(const std::byte* at) {
  asm volatile("" ::: "memory");
  return *reinterpret_cast<const uint64_t*>(at);  // NOLINT(conventions)
}

// Nothing is written there once it is deregistered, in the midst of a READ either.
TEST_F(InPlaceTest, ATargetIsTakenInTheMiddleOfARead) {
  const Memory source(64 << 20);
  const Memory target(64 << 20);
  const MemoryRegion readable = leave(source, kPeersRead);
  MemoryRegion filled = leave(target, kOwnFill);
  std::memset(source.bytes, 7, source.size_bytes);
  Thread reader =
      start_thread("reader", [&] { post_read(all_of(target, filled), source, readable.rkey()); });
  for (Waiter waiter; polled(target.bytes) == 0x0101010101010101u;) waiter.idle();
  ASSERT_TRUE(filled.deregister());
  std::memset(target.bytes, 8, target.size_bytes);
  reader.join();
  const ibv_wc_status status = completed(near_);
  EXPECT_TRUE(status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_SUCCESS) << status;
  EXPECT_TRUE(target.is_all(8, target.size_bytes));
}

// The key names other memory then: what it named before is not written any more.
TEST_F(InPlaceTest, ATargetIsRegisteredElsewhereInTheMiddleOfARead) {
  const Memory source(64 << 20);
  const Memory target(64 << 20);
  const Memory later(64 << 20);
  const MemoryRegion readable = leave(source, kPeersRead);
  const MemoryRegion filled = leave(target, kOwnFill);
  std::memset(source.bytes, 7, source.size_bytes);
  Thread reader =
      start_thread("reader", [&] { post_read(all_of(target, filled), source, readable.rkey()); });
  for (Waiter waiter; polled(target.bytes) == 0x0101010101010101u;) waiter.idle();
  ASSERT_EQ(rereg_mr(filled.get(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, later.bytes,
                     later.size_bytes, 0),
            0);
  std::memset(target.bytes, 8, target.size_bytes);
  reader.join();
  const ibv_wc_status status = completed(near_);
  EXPECT_TRUE(status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_SUCCESS) << status;
  EXPECT_TRUE(target.is_all(8, target.size_bytes));
  EXPECT_TRUE(later.is_all(1, later.size_bytes));
}

// What the sender's thread copies from is out of its reach, too, once it is deregistered: in the
// midst of a WRITE or SEND, whatever becomes of the memory then.
class SourceInPlaceTest : public InPlaceTest, public testing::WithParamInterface<ibv_wr_opcode> {};

TEST_P(SourceInPlaceTest, IsTakenInTheMiddleOfARequest) {
  const Memory source(64 << 20);
  test::Buffer target(node_, source.size_bytes);
  MemoryRegion read = leave(source, 0);
  const ibv_sge all = all_of(source, read);
  ASSERT_EQ(test::post_receive(far_.qp(), 1, {target.sge(0, target.size())}), 0);
  std::atomic<int> posted = -1;
  Thread sender = start_thread("sender", [&] {
    posted.store(test::post(near_.qp(), {.opcode = GetParam(),
                                         .sges = {all},
                                         .remote_address = target.address(),
                                         .rkey = target.key()}));
  });
  for (Waiter waiter; polled(target.data()) == 0;) waiter.idle();
  ASSERT_TRUE(read.deregister());
  ASSERT_EQ(mprotect(source.bytes, source.size_bytes, PROT_NONE), 0);
  sender.join();
  ASSERT_EQ(posted.load(), 0);
  const ibv_wc_status status = completed(near_);
  EXPECT_TRUE(status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_SUCCESS) << status;
}

INSTANTIATE_TEST_SUITE_P(InTwoWays, SourceInPlaceTest,
                         testing::Values(IBV_WR_RDMA_WRITE, IBV_WR_SEND),
                         [](const testing::TestParamInfo<ibv_wr_opcode>& info) {
                           return info.param == IBV_WR_SEND ? "Send" : "Write";
                         });

// What was registered in place is not private for others: a later registration gets shared pages.
TEST_F(InPlaceTest, ARegistrationBesideItIsShared) {
  const Memory memory(2 * kPageBytes);
  const MemoryRegion readable = leave(memory, kPeersRead);
  const MemoryRegion filled = leave(memory, kOwnFill);
  {
    const MemoryRegion all = test::must(
        MemoryRegion::create(node_.domain, memory.bytes, memory.size_bytes, test::kAllAccess));
    EXPECT_TRUE(shared(memory));
    EXPECT_EQ(state(all), RegionMemory::kSame);
    EXPECT_EQ(state(readable), RegionMemory::kLeft);
    // Shared already: there is nothing to leave.
    const MemoryRegion again = leave(memory, kPeersRead);
    EXPECT_EQ(state(again), RegionMemory::kSame);
  }
  EXPECT_FALSE(shared(memory));
}

}  // namespace
}  // namespace verbena::soft
