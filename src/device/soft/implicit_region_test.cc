// Regions of the whole address space: what is there when it is used can be used, and what is not
// there is an error of the request, no signal.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "src/base/sanitizer.h"
#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

constexpr size_t kImplicitPageBytes = 4096;
constexpr unsigned kOnDemand = verbena::test::kAllAccess | IBV_ACCESS_ON_DEMAND;

class ImplicitRegionTest : public testing::Test {
 protected:
  void SetUp() override {
    region_ = reg_mr(node_.domain.get(), nullptr, SIZE_MAX, 0, kOnDemand & ~IBV_ACCESS_MW_BIND);
    ASSERT_NE(region_, nullptr) << last_error();
    verbena::test::connect(a_, b_);
  }
  void TearDown() override {
    a_.close();
    b_.close();
    EXPECT_TRUE(region_ == nullptr || dereg_mr(region_) == 0);
  }
  ibv_sge sge(const void* at, size_t size_bytes) const {
    return {reinterpret_cast<uint64_t>(at), static_cast<uint32_t>(size_bytes), region_->lkey};
  }
  ibv_wc_status write(const void* from, void* to, size_t size_bytes,
                      ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    EXPECT_EQ(verbena::test::post(a_.qp(), {.opcode = opcode,
                                            .sges = {sge(from, size_bytes)},
                                            .remote_address = reinterpret_cast<uint64_t>(to),
                                            .rkey = region_->rkey}),
              0);
    return take(a_);
  }
  static ibv_wc_status take(const verbena::test::End& end) {
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(end.cq(), 1, &wc), 1);
    return wc.status;
  }
  // A page that nobody can use.
  class Gone {
   public:
    Gone()
        : page_(mmap(nullptr, kImplicitPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
    ~Gone() { munmap(page_, kImplicitPageBytes); }
    Gone(const Gone&) = delete;
    Gone& operator=(const Gone&) = delete;
    void* get() const { return page_; }

   private:
    void* page_;
  };

  verbena::test::Node node_;
  verbena::test::End a_{node_};
  verbena::test::End b_{node_};
  ibv_mr* region_ = nullptr;
};

TEST_F(ImplicitRegionTest, AnyMemoryCanBeUsedWhenItIsThere) {
  std::vector<char> from(100'000, 'x');
  const auto to = std::make_unique<char[]>(from.size());
  EXPECT_EQ(write(from.data(), to.get(), from.size()), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(from.data(), to.get(), from.size()), 0);
  // Made after the registration; on the stack.
  char local[64] = {};
  EXPECT_EQ(write(local, to.get(), sizeof(local), IBV_WR_RDMA_READ), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(local, to.get(), sizeof(local)), 0);
  ASSERT_EQ(verbena::test::post_receive(b_.qp(), 1, {sge(local, sizeof(local))}), 0);
  ASSERT_EQ(verbena::test::post(a_.qp(), {.sges = {sge("received", 8)}}), 0);
  EXPECT_EQ(take(a_), IBV_WC_SUCCESS);
  EXPECT_EQ(take(b_), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(local, "received", 8), 0);
}

TEST_F(ImplicitRegionTest, WhatIsNotThereIsAnErrorOfTheRequest) {
  const Gone gone;
  char local[64] = {};
  EXPECT_EQ(write(gone.get(), local, sizeof(local)), IBV_WC_LOC_PROT_ERR);
}

TEST_F(ImplicitRegionTest, ATargetThatIsNotThereIsAnErrorOfTheRequest) {
  const Gone gone;
  char local[64] = {};
  EXPECT_EQ(write(local, gone.get(), sizeof(local)), IBV_WC_REM_OP_ERR);
}

TEST_F(ImplicitRegionTest, ReadOnlyMemoryStaysAsItIs) {
  void* const page =
      mmap(nullptr, kImplicitPageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  char local[64] = {'x'};
  EXPECT_EQ(write(local, page, sizeof(local)), IBV_WC_REM_OP_ERR);
  EXPECT_EQ(*static_cast<char*>(page), 0);
  munmap(page, kImplicitPageBytes);
}

// The kernel may hold on to a page that a peer writes to, so no page moves.
TEST_F(ImplicitRegionTest, OtherRegistrationsStayWhereTheyAre) {
  void* const page =
      mmap(nullptr, kImplicitPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const auto reaches_by_kernel = [&] {
    ibv_mr* const region =
        reg_mr(node_.domain.get(), page, kImplicitPageBytes, reinterpret_cast<uint64_t>(page),
               verbena::test::kAllAccess & ~IBV_ACCESS_MW_BIND);
    EXPECT_NE(region, nullptr) << last_error();
    if (region == nullptr) return false;
    const bool follows = region_memory(region) == RegionMemory::kFollows;
    EXPECT_EQ(dereg_mr(region), 0);
    return follows;
  };
  EXPECT_TRUE(reaches_by_kernel());
  ASSERT_EQ(dereg_mr(region_), 0);
  region_ = nullptr;
  // Where other threads run that nothing holds, as a sanitizer's own, no memory is shared at all.
  if (!VERBENA_THREAD_SANITIZER) {
    EXPECT_FALSE(reaches_by_kernel());
  }
  munmap(page, kImplicitPageBytes);
}

TEST_F(ImplicitRegionTest, NothingIsReachedAfterDeregistration) {
  char from[8] = {'x'};
  char to[8] = {};
  const uint32_t key = region_->rkey;
  ASSERT_EQ(dereg_mr(region_), 0);
  region_ = nullptr;
  EXPECT_EQ(
      verbena::test::post(a_.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                                    .sges = {{reinterpret_cast<uint64_t>(from), sizeof(from), key}},
                                    .remote_address = reinterpret_cast<uint64_t>(to),
                                    .rkey = key}),
      0);
  EXPECT_EQ(take(a_), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(to[0], 0);
}

TEST_F(ImplicitRegionTest, AdviceBringsIn) {
  const Gone gone;
  std::vector<char> bytes(3 * kImplicitPageBytes);
  ibv_sge list[] = {sge(bytes.data(), bytes.size())};
  ibv_pd* const domain = node_.domain.get();
  for (const ibv_advise_mr_advice advice :
       {IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE}) {
    EXPECT_EQ(advise_mr(domain, advice, IBV_ADVISE_MR_FLAG_FLUSH, list, 1), 0) << last_error();
  }
  list[0] = sge(gone.get(), 64);
  EXPECT_EQ(advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, list, 1), EFAULT);
  EXPECT_EQ(advise_mr(domain, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, list, 1), 0);
}

// Whoever is advised to bring memory in for writing changes none of it: others are writing there.
TEST_F(ImplicitRegionTest, AdviceLeavesWhatOthersWriteMeanwhile) {
  constexpr int kAdvices = 200'000;
  std::atomic<uint8_t> byte{0};
  std::vector<ibv_sge> list(100, sge(&byte, 1));
  std::atomic<bool> advised{false};
  uint32_t failed = 0;
  std::thread adviser([&] {
    for (int i = 0; i < kAdvices; ++i) {
      if (advise_mr(node_.domain.get(), IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, list.data(),
                    static_cast<uint32_t>(list.size())) != 0) {
        ++failed;
      }
    }
    advised.store(true);
  });
  uint32_t lost = 0;
  for (uint8_t last = 0; !advised.load();) {
    if (byte.load() != last) ++lost;
    byte.store(++last);
  }
  adviser.join();
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(lost, 0u);
}

TEST_F(ImplicitRegionTest, OnlyOnDemandAndWithoutWindows) {
  ibv_pd* const domain = node_.domain.get();
  EXPECT_EQ(reg_mr(domain, nullptr, SIZE_MAX, 0, verbena::test::kAllAccess), nullptr);
  EXPECT_EQ(reg_mr(domain, nullptr, SIZE_MAX, 0, kOnDemand | IBV_ACCESS_MW_BIND), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace verbena::soft
