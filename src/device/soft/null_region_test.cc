// Regions of ibv_alloc_null_mr(): zeros at any address, and what is written is gone.
#include "src/device/soft/null_region.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/device/soft/datagram_end_for_test.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

// Addresses at which nothing is mapped: they do not matter.
constexpr uint64_t kAddresses[] = {0, 4096, 0x123456789, UINT64_MAX - (1 << 20)};
// Carried in the packet, by one copy, by several.
constexpr uint32_t kSizes[] = {1, 64, 4096, 3 << 20};

class NullRegionTest : public testing::Test {
 protected:
  void SetUp() override {
    region_ = ibv_alloc_null_mr(node_.domain.get());
    ASSERT_NE(region_, nullptr) << last_error();
    verbena::test::connect(a_, b_);
  }
  void TearDown() override {
    a_.close();
    b_.close();
    EXPECT_TRUE(region_ == nullptr || dereg_mr(region_) == 0);
  }
  ibv_sge null_sge(uint64_t address, uint32_t size_bytes) const {
    return {address, size_bytes, region_->lkey};
  }
  void post(const verbena::test::SendRequest& request) {
    ASSERT_EQ(verbena::test::post(a_.qp(), request), 0) << last_error();
  }
  static ibv_wc take(const verbena::test::End& end) {
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(end.cq(), 1, &wc), 1);
    return wc;
  }
  bool is_filled(size_t offset, size_t size_bytes, std::byte value) {
    return std::all_of(buffer_.data() + offset, buffer_.data() + offset + size_bytes,
                       [value](std::byte byte) { return byte == value; });
  }
  void fill(std::byte value) { std::fill_n(buffer_.data(), kBufferBytes, value); }

  static constexpr size_t kBufferBytes = 4 << 20;
  static constexpr std::byte kOld{0xee};
  verbena::test::Node node_;
  verbena::test::Buffer buffer_{node_, kBufferBytes};
  verbena::test::End a_{node_};
  verbena::test::End b_{node_};
  ibv_mr* region_ = nullptr;
};

TEST_F(NullRegionTest, SaysThatItIsAsLongAsCanBeAndNoPeers) {
  EXPECT_EQ(region_->addr, nullptr);
  EXPECT_EQ(region_->length, SIZE_MAX);
  EXPECT_NE(region_->lkey, 0u);
  EXPECT_EQ(region_->rkey, 0u);
  EXPECT_EQ(region_->pd, node_.domain.get());
}

TEST_F(NullRegionTest, WritesAndSendsFromItCarryZeros) {
  for (const uint32_t size_bytes : kSizes) {
    for (const uint64_t address : kAddresses) {
      if (address + size_bytes < address) continue;
      fill(kOld);
      post({.opcode = IBV_WR_RDMA_WRITE,
            .sges = {null_sge(address, size_bytes)},
            .remote_address = buffer_.address(),
            .rkey = buffer_.key()});
      EXPECT_EQ(take(a_).status, IBV_WC_SUCCESS);
      EXPECT_TRUE(is_filled(0, size_bytes, std::byte{}));
      EXPECT_TRUE(is_filled(size_bytes, 64, kOld));
      fill(kOld);
      ASSERT_EQ(verbena::test::post_receive(b_.qp(), 1, {buffer_.sge(0, kBufferBytes)}), 0);
      post({.sges = {null_sge(address, size_bytes)}});
      EXPECT_EQ(take(a_).status, IBV_WC_SUCCESS);
      EXPECT_EQ(take(b_).byte_len, size_bytes);
      EXPECT_TRUE(is_filled(0, size_bytes, std::byte{}));
      EXPECT_TRUE(is_filled(size_bytes, 64, kOld));
    }
  }
}

TEST_F(NullRegionTest, WhatArrivesThereIsDroppedAndItStaysZero) {
  fill(kOld);
  for (const uint32_t size_bytes : kSizes) {
    for (const uint64_t address : kAddresses) {
      if (address + size_bytes < address) continue;
      ASSERT_EQ(verbena::test::post_receive(b_.qp(), 1, {null_sge(address, size_bytes)}), 0);
      post({.sges = {buffer_.sge(0, size_bytes)}});
      EXPECT_EQ(take(a_).status, IBV_WC_SUCCESS);
      const ibv_wc arrived = take(b_);
      EXPECT_EQ(arrived.status, IBV_WC_SUCCESS);
      EXPECT_EQ(arrived.byte_len, size_bytes);
      post({.opcode = IBV_WR_RDMA_READ,
            .sges = {null_sge(address, size_bytes)},
            .remote_address = buffer_.address(),
            .rkey = buffer_.key()});
      EXPECT_EQ(take(a_).status, IBV_WC_SUCCESS);
    }
  }
  post({.opcode = IBV_WR_RDMA_WRITE,
        .sges = {null_sge(0, kBufferBytes)},
        .remote_address = buffer_.address(),
        .rkey = buffer_.key()});
  EXPECT_EQ(take(a_).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(is_filled(0, kBufferBytes, std::byte{}));
}

// What it is for: parts of messages that nobody wants, or that are padding.
TEST_F(NullRegionTest, IsOnePieceAmongOthers) {
  for (const uint32_t part : {8u, 4096u}) {
    fill(kOld);
    verbena::test::fill_pattern(buffer_.data(), 3 * part, 7);
    const size_t landing = 2 << 20;
    ASSERT_EQ(verbena::test::post_receive(b_.qp(), 1,
                                          {buffer_.sge(landing, part), null_sge(0, part),
                                           buffer_.sge(landing + part, part)}),
              0);
    post({.sges = {buffer_.sge(0, 3 * part)}});
    EXPECT_EQ(take(a_).status, IBV_WC_SUCCESS);
    EXPECT_EQ(take(b_).status, IBV_WC_SUCCESS);
    const std::byte* const landed = buffer_.data() + landing;
    EXPECT_EQ(memcmp(landed, buffer_.data(), part), 0);
    EXPECT_EQ(memcmp(landed + part, buffer_.data() + size_t{2} * part, part), 0);
    EXPECT_TRUE(is_filled(landing + size_t{2} * part, part, kOld));
  }
}

TEST_F(NullRegionTest, AtomicsLeaveTheirResultThere) {
  fill({});
  post({.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
        .sges = {null_sge(0, 8)},
        .remote_address = buffer_.address(),
        .rkey = buffer_.key(),
        .compare_add = 5});
  EXPECT_EQ(take(a_).status, IBV_WC_SUCCESS);
  EXPECT_EQ(buffer_.at<uint64_t>(0), 5u);
}

TEST_F(NullRegionTest, NoPeerCanNameIt) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    verbena::test::End from(node_);
    verbena::test::End to(node_);
    verbena::test::connect(from, to);
    ASSERT_EQ(verbena::test::post(from.qp(), {.opcode = opcode,
                                              .sges = {buffer_.sge(0, 8)},
                                              .remote_address = 0,
                                              .rkey = region_->lkey}),
              0);
    EXPECT_EQ(take(from).status, IBV_WC_REM_ACCESS_ERR);
  }
}

TEST_F(NullRegionTest, OtherDomainsCannotUseIt) {
  const ProtectionDomain other = verbena::test::must(ProtectionDomain::create(node_.device));
  ibv_mr* const foreign = ibv_alloc_null_mr(other.get());
  ASSERT_NE(foreign, nullptr);
  post({.opcode = IBV_WR_RDMA_WRITE,
        .sges = {{0, 8, foreign->lkey}},
        .remote_address = buffer_.address(),
        .rkey = buffer_.key()});
  EXPECT_EQ(take(a_).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(dereg_mr(foreign), 0);
}

TEST_F(NullRegionTest, AReceiveOfAnotherDomainRefusesTheMessage) {
  const ProtectionDomain other = verbena::test::must(ProtectionDomain::create(node_.device));
  ibv_mr* const foreign = ibv_alloc_null_mr(other.get());
  ASSERT_NE(foreign, nullptr);
  ASSERT_EQ(verbena::test::post_receive(b_.qp(), 1, {{0, 4096, foreign->lkey}}), 0);
  post({.sges = {buffer_.sge(0, 4096)}});
  EXPECT_EQ(take(a_).status, IBV_WC_REM_OP_ERR);
  EXPECT_EQ(take(b_).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(dereg_mr(foreign), 0);
}

TEST_F(NullRegionTest, IsNothingAfterDeregistration) {
  const uint32_t key = region_->lkey;
  ASSERT_EQ(verbena::test::post_receive(b_.qp(), 1, {null_sge(0, 4096)}), 0);
  ASSERT_EQ(dereg_mr(region_), 0);
  region_ = nullptr;
  post({.sges = {buffer_.sge(0, 4096)}});
  EXPECT_EQ(take(a_).status, IBV_WC_REM_OP_ERR);
  verbena::test::End from(node_);
  verbena::test::End to(node_);
  verbena::test::connect(from, to);
  ASSERT_EQ(verbena::test::post(from.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                                            .sges = {{0, 8, key}},
                                            .remote_address = buffer_.address(),
                                            .rkey = buffer_.key()}),
            0);
  EXPECT_EQ(take(from).status, IBV_WC_LOC_PROT_ERR);
}

// However long: there is more of it than of the memory that stands for it.
TEST_F(NullRegionTest, AdviceHasNothingToBringIn) {
  ibv_sge list[] = {null_sge(0, UINT32_MAX)};
  for (const ibv_advise_mr_advice advice :
       {IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_ADVICE_PREFETCH,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT}) {
    EXPECT_EQ(advise_mr(node_.domain.get(), advice, 0, list, 1), 0) << last_error();
  }
}

TEST_F(NullRegionTest, CannotBeRegisteredAnewNorHoldWindows) {
  EXPECT_EQ(
      rereg_mr(region_, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_LOCAL_WRITE),
      IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  ibv_mw* const window = alloc_mw(node_.domain.get(), IBV_MW_TYPE_1);
  ASSERT_NE(window, nullptr);
  ibv_mw_bind bind{};
  bind.bind_info = {
      .mr = region_, .addr = 0, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_READ};
  EXPECT_EQ(bind_mw(a_.qp(), window, &bind), 0);
  EXPECT_EQ(take(a_).status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(dealloc_mw(window), 0);
}

TEST_F(NullRegionTest, CarriesDatagramsOfZerosAndDropsThem) {
  test::DatagramEnd from(node_);
  test::DatagramEnd to(node_);
  fill(kOld);
  ASSERT_EQ(verbena::test::post_receive(to.qp(), 1, {buffer_.sge(0, kGrhBytes + 4096)}), 0);
  ASSERT_EQ(from.send({.sges = {null_sge(0, 4096)}, .to = to.number()}), 0);
  EXPECT_EQ(from.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(to.take().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(is_filled(kGrhBytes, 4096, std::byte{}));
  ASSERT_EQ(verbena::test::post_receive(to.qp(), 1, {null_sge(64, kGrhBytes + 4096)}), 0);
  ASSERT_EQ(from.send({.sges = {buffer_.sge(0, 4096)}, .to = to.number()}), 0);
  const ibv_wc arrived = to.take();
  EXPECT_EQ(arrived.status, IBV_WC_SUCCESS);
  EXPECT_EQ(arrived.byte_len, kGrhBytes + 4096);
}

}  // namespace
}  // namespace verbena::soft
