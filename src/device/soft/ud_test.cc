// Unreliable datagrams within one process: what is delivered, how, and what vanishes.
#include "src/device/soft/ud.h"

#include <endian.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/device/soft/datagram_end_for_test.h"
#include "src/device/soft/no_descriptors_for_test.h"

namespace verbena::soft {
namespace {

using test::DatagramEnd;
using test::kQkey;
using test::move_to;
using test::post_receive;

constexpr size_t kReceiveAt = 8192;
constexpr size_t kReceiveBytes = kGrhBytes + kMaxDatagramBytes;

class DatagramTest : public testing::Test {
 protected:
  DatagramTest() { buffer_.fill(7, 0, 8192); }
  std::vector<ibv_sge> source(size_t size_bytes) { return {buffer_.sge(0, size_bytes)}; }
  void post(uint64_t id = 1, size_t size_bytes = kReceiveBytes) {
    ASSERT_EQ(post_receive(b_.qp(), id, {buffer_.sge(kReceiveAt, size_bytes)}), 0);
  }
  ibv_gid own_gid() {
    ibv_gid gid{};
    EXPECT_EQ(query_gid(node_.domain.get()->context, 1, 0, &gid), 0);
    return gid;
  }
  ibv_ah* global_handle(const ibv_gid& to, uint16_t lid = 1) {
    ibv_ah_attr attributes{};
    attributes.port_num = 1;
    attributes.dlid = lid;
    attributes.is_global = 1;
    attributes.sl = 3;
    attributes.grh = {
        .dgid = to, .flow_label = 0x12345, .sgid_index = 0, .hop_limit = 9, .traffic_class = 0x42};
    return create_ah(node_.domain.get(), &attributes);
  }

  test::Node node_;
  test::Buffer buffer_{node_, 64 * 1024};
  DatagramEnd a_{node_};
  DatagramEnd b_{node_};
};

TEST_F(DatagramTest, DeliversEverySizeBehindTheHeadersArea) {
  for (const size_t size_bytes : {0, 1, 8, 63, 104, 105, 1024, 4095, 4096}) {
    memset(buffer_.data() + kReceiveAt, 0xee, kReceiveBytes + 64);
    post(size_bytes);
    ASSERT_EQ(a_.send({.sges = source(size_bytes), .to = b_.number()}), 0);
    EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
    const ibv_wc wc = b_.take();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_EQ(wc.wr_id, size_bytes);
    EXPECT_EQ(wc.byte_len, kGrhBytes + size_bytes);
    EXPECT_EQ(wc.src_qp, a_.number());
    EXPECT_EQ(wc.qp_num, b_.number());
    EXPECT_EQ(wc.slid, 1);
    EXPECT_EQ(wc.wc_flags, 0u);
    EXPECT_EQ(memcmp(buffer_.data() + kReceiveAt + kGrhBytes, buffer_.data(), size_bytes), 0);
    EXPECT_EQ(buffer_.at<uint8_t>(kReceiveAt), 0xee);  // no header came with it
    EXPECT_EQ(buffer_.at<uint8_t>(kReceiveAt + kGrhBytes + size_bytes), 0xee);
  }
}

TEST_F(DatagramTest, GathersScattersAndCarriesImmediates) {
  const uint64_t at = kReceiveAt;
  ASSERT_EQ(
      post_receive(b_.qp(), 1,
                   {buffer_.sge(at, 30), buffer_.sge(at + 100, 20), buffer_.sge(at + 200, 200)}),
      0);
  ASSERT_EQ(a_.send({.sges = {buffer_.sge(0, 5), buffer_.sge(5, 0), buffer_.sge(5, 95)},
                     .to = b_.number(),
                     .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
                     .opcode = IBV_WR_SEND_WITH_IMM,
                     .immediate = 0xabcd}),
            0);
  const ibv_wc wc = b_.take();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(wc.imm_data, 0xabcdu);
  EXPECT_EQ(memcmp(buffer_.data() + at + 110, buffer_.data(), 10), 0);
  EXPECT_EQ(memcmp(buffer_.data() + at + 200, buffer_.data() + 10, 90), 0);
}

TEST_F(DatagramTest, WritesTheGlobalRouteHeaderAndAnswersByIt) {
  const ibv_gid gid = own_gid();
  ibv_ah* handle = global_handle(gid);
  ASSERT_NE(handle, nullptr);
  for (const size_t size_bytes : {10, 500}) {
    post();
    ASSERT_EQ(a_.send({.sges = source(size_bytes), .to = b_.number(), .handle = handle}), 0);
    ibv_wc wc = b_.take();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_GRH));
    EXPECT_EQ(wc.sl, 3);
    EXPECT_EQ(memcmp(buffer_.data() + kReceiveAt + kGrhBytes, buffer_.data(), size_bytes), 0);
    auto& grh = buffer_.at<ibv_grh>(kReceiveAt);
    EXPECT_EQ(be32toh(grh.version_tclass_flow), 0x64212345u);
    EXPECT_EQ(grh.next_hdr, 0x1b);
    EXPECT_EQ(grh.hop_limit, 9);
    EXPECT_EQ(be16toh(grh.paylen), 24 + (size_bytes + 3) / 4 * 4);
    EXPECT_EQ(memcmp(&grh.sgid, &gid, sizeof(gid)), 0);
    EXPECT_EQ(memcmp(&grh.dgid, &gid, sizeof(gid)), 0);
    ibv_ah_attr answer{};
    ASSERT_EQ(init_ah_from_wc(node_.domain.get()->context, 1, &wc, &grh, &answer), 0);
    EXPECT_EQ(answer.dlid, 1);
    EXPECT_EQ(answer.sl, 3);
    EXPECT_EQ(answer.is_global, 1);
    EXPECT_EQ(answer.grh.flow_label, 0x12345u);
    EXPECT_EQ(answer.grh.traffic_class, 0x42);
    EXPECT_EQ(memcmp(&answer.grh.dgid, &gid, sizeof(gid)), 0);
  }
  EXPECT_EQ(destroy_ah(handle), 0);
}

TEST_F(DatagramTest, WhatNobodyCanReceiveVanishes) {
  uint64_t dropped = 0;
  const auto vanishes = [&](DatagramEnd::Message message) {
    EXPECT_EQ(a_.send(std::move(message)), 0);
    EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
    EXPECT_TRUE(b_.is_empty());
    EXPECT_EQ(as_qp(a_.qp()).counters->dropped, ++dropped);
  };
  vanishes({.sges = source(8), .to = b_.number()});  // no receive
  post();
  vanishes({.sges = source(8), .to = b_.number(), .qkey = kQkey + 1});
  vanishes({.sges = source(8), .to = b_.number() + 1});  // no such queue pair
  vanishes({.sges = source(8), .to = make_qp_number(kMaxProcesses - 1, 5)});
  vanishes({.sges = source(8), .to = 0xffffff});
  ibv_gid elsewhere = own_gid();
  elsewhere.raw[15] ^= 1;
  ibv_ah* nowhere = global_handle(elsewhere);
  vanishes({.sges = source(8), .to = b_.number(), .handle = nowhere});
  EXPECT_EQ(destroy_ah(nowhere), 0);
  verbena::test::End connected(node_);
  vanishes({.sges = source(8), .to = connected.qp()->qp_num});  // an RC one
  // And the receive is still there.
  ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number()}), 0);
  EXPECT_EQ(b_.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(as_qp(a_.qp()).counters->dropped, dropped);
  EXPECT_EQ(as_qp(b_.qp()).counters->receive_dropped, 0u);
}

TEST_F(DatagramTest, AQueueKeyWithItsHighestBitMeansTheOwnOne) {
  post();
  ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number(), .qkey = 0x80000000}), 0);
  EXPECT_EQ(b_.take().status, IBV_WC_SUCCESS);
}

TEST_F(DatagramTest, TakesAsManyAsReceivesWerePostedAndNoMore) {
  for (int round = 0; round < 20; ++round) {
    const uint32_t receives = 1 + static_cast<uint32_t>(round) % 16;
    for (uint32_t i = 0; i < receives; ++i) post(i);
    for (uint32_t i = 0; i < receives + 3; ++i) {
      ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number(), .flags = 0}), 0);
      if (i % 16 == 15) {  // frees places of the send queue
        ASSERT_EQ(a_.send({.sges = source(8), .to = 1}), 0);
        EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
      }
    }
    for (uint32_t i = 0; i < receives; ++i) EXPECT_EQ(b_.take().wr_id, i);
    EXPECT_TRUE(b_.is_empty());
    ASSERT_EQ(a_.send({.sges = source(8), .to = 1}), 0);
    EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
  }
}

TEST_F(DatagramTest, ATooLongMessageFailsTheSendQueueUntilItIsSetRight) {
  ASSERT_EQ(a_.send({.sges = source(4097), .to = b_.number()}), 0);
  EXPECT_EQ(a_.take().status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(a_.qp()->state, IBV_QPS_SQE);
  ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number()}), 0);
  EXPECT_EQ(a_.take().status, IBV_WC_WR_FLUSH_ERR);
  // It still receives.
  ASSERT_EQ(post_receive(a_.qp(), 5, {buffer_.sge(kReceiveAt, kReceiveBytes)}), 0);
  ASSERT_EQ(b_.send({.sges = source(8), .to = a_.number(), .flags = 0}), 0);
  EXPECT_EQ(a_.take().wr_id, 5u);
  ASSERT_EQ(move_to(a_.qp(), IBV_QPS_RTS), 0);
  post();
  ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number()}), 0);
  EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(b_.take().status, IBV_WC_SUCCESS);
}

TEST_F(DatagramTest, WhatAReceiveHasNoRoomForVanishesAndTheReceiveStays) {
  post(1, kGrhBytes + 7);
  for (const uint32_t size_bytes : {8u, 200u, 7u}) {
    EXPECT_TRUE(b_.is_empty());
    ASSERT_EQ(a_.send({.sges = source(size_bytes), .to = b_.number()}), 0);
    EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
  }
  const ibv_wc wc = b_.take();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 1u);
  EXPECT_EQ(wc.byte_len, kGrhBytes + 7);
  EXPECT_EQ(b_.qp()->state, IBV_QPS_RTS);
  EXPECT_EQ(as_qp(b_.qp()).counters->receive_dropped, 2u);
}

TEST_F(DatagramTest, ErrorsFlushReceivesAndAResetBeginsAnew) {
  post(1);
  post(2);
  ASSERT_EQ(move_to(b_.qp(), IBV_QPS_ERR), 0);
  EXPECT_EQ(b_.take().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(b_.take().status, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number()}), 0);
  EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(b_.is_empty());
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(move_to(b_.qp(), IBV_QPS_RESET), 0);
    ASSERT_EQ(test::start_datagrams(b_.qp()), 0);
    post(3);
    post(4);
    ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number(), .flags = 0}), 0);
    EXPECT_EQ(b_.take().wr_id, 3u);
    // Left unpolled, and gone with the reset.
    ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number(), .flags = 0}), 0);
  }
  // Their places are free at once, not only when they would have been polled.
  ASSERT_EQ(move_to(b_.qp(), IBV_QPS_RESET), 0);
  ASSERT_EQ(test::start_datagrams(b_.qp()), 0);
  post(5);
  ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number(), .flags = 0}), 0);
  EXPECT_EQ(b_.take().wr_id, 5u);
  ASSERT_EQ(move_to(b_.qp(), IBV_QPS_RESET), 0);
  EXPECT_TRUE(b_.is_empty());
}

TEST_F(DatagramTest, ANewQueuePairGetsNothingThatWasForAnOlderOne) {
  for (int round = 0; round < 5; ++round) {
    DatagramEnd end(node_, 8);
    ASSERT_EQ(post_receive(end.qp(), 1, {buffer_.sge(kReceiveAt, kReceiveBytes)}), 0);
    ASSERT_EQ(post_receive(end.qp(), 2, {buffer_.sge(kReceiveAt, kReceiveBytes)}), 0);
    EXPECT_TRUE(end.is_empty());
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(a_.send({.sges = source(8), .to = end.number(), .flags = 0}), 0);
    }
    EXPECT_EQ(end.take().wr_id, 1u);
  }
}

// Polls look at it only after an arrival, and must not wait for a next one.
TEST_F(DatagramTest, AnUnfinishedDatagramHoldsUpNobodyWhereQueuePairsAreMany) {
  std::vector<std::unique_ptr<DatagramEnd>> others;
  for (uint32_t i = 1; i < Cq::kScanned; ++i) {
    others.push_back(std::make_unique<DatagramEnd>(node_, 16, nullptr, b_.cq()));
  }
  DatagramEnd last(node_, 16, nullptr, b_.cq());
  ASSERT_NE(last.inside().ready_bit, kNoReadyBit);
  DatagramRing& ring = *last.inside().datagrams;
  for (int round = 0; round < 3; ++round) {
    for (uint64_t id = 0; id < 16; ++id) {
      ASSERT_EQ(post_receive(last.qp(), id, {buffer_.sge(kReceiveAt, kReceiveBytes)}), 0);
    }
    // Another sender has taken a position, and fills it later.
    const uint32_t position = ring.shared()->datagram.next_hint.load();
    ring.claims()[position % ring.slots()].store(make_datagram_claim(position, b_.number()));
    ring.shared()->datagram.next_hint.store(position + 1);
    for (uint64_t id = 0; id < 15; ++id) {
      ASSERT_EQ(a_.send({.sges = source(8), .to = last.number(), .flags = 0}), 0);
      const ibv_wc wc = last.take();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << id;
      EXPECT_EQ(wc.wr_id, id);
    }
    // It is of no queue pair's generation: it vanishes, and its receive stays.
    ring.datagrams()[position % ring.slots()].receiver_generation = 0;
    ring.datagrams()[position % ring.slots()].mark.store(position + 1);
    EXPECT_TRUE(last.is_empty());
    ASSERT_EQ(a_.send({.sges = source(8), .to = last.number()}), 0);
    EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
    EXPECT_EQ(last.take().wr_id, 15u);
  }
}

// A sender may show where it was long after.
TEST_F(DatagramTest, AnOldHintCostsNoDatagram) {
  for (int i = 0; i < 100; ++i) {
    post();
    ASSERT_EQ(a_.send({.sges = source(8), .to = b_.number()}), 0);
    EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
    EXPECT_EQ(b_.take().status, IBV_WC_SUCCESS);
  }
  const uint32_t next = b_.inside().shared->datagram.next_hint.load();
  for (const uint32_t behind : {1u, 15u, 16u, 17u, 64u, 100u}) {
    b_.inside().shared->datagram.next_hint.store(next - behind);
    DatagramEnd other(node_);
    post(behind);
    ASSERT_EQ(other.send({.sges = source(8), .to = b_.number()}), 0);
    EXPECT_EQ(other.take().status, IBV_WC_SUCCESS);
    EXPECT_EQ(b_.take().wr_id, behind);
  }
}

TEST_F(DatagramTest, SharedReceiveQueuesServeDatagramsToo) {
  ibv_srq_init_attr init{};
  init.attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0};
  ibv_srq* srq = create_srq(node_.domain.get(), &init);
  ASSERT_NE(srq, nullptr);
  {
    DatagramEnd one(node_, 0, srq);
    DatagramEnd two(node_, 0, srq);
    for (int round = 0; round < 10; ++round) {
      for (uint64_t id = 0; id < 4; ++id) {
        ASSERT_EQ(post_receive(srq, id, {buffer_.sge(kReceiveAt, kReceiveBytes)}), 0);
      }
      std::set<uint64_t> ids;
      for (DatagramEnd* end : {&one, &two}) {
        for (int i = 0; i < 2; ++i) {
          ASSERT_EQ(a_.send({.sges = source(8), .to = end->number()}), 0);
          EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
          const ibv_wc wc = end->take();
          EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
          ids.insert(wc.wr_id);
        }
      }
      EXPECT_EQ(ids.size(), 4u);
      ASSERT_EQ(a_.send({.sges = source(8), .to = one.number()}), 0);
      EXPECT_EQ(a_.take().status, IBV_WC_SUCCESS);
      EXPECT_TRUE(one.is_empty());
    }
  }
  EXPECT_EQ(destroy_srq(srq), 0);
}

TEST_F(DatagramTest, AGroupsMembersGetOneEach) {
  ibv_gid group{};
  group.raw[0] = 0xff;
  group.raw[15] = 9;
  constexpr uint16_t kGroupLid = 0xc009;
  ibv_ah* handle = global_handle(group, kGroupLid);
  ASSERT_NE(handle, nullptr);
  DatagramEnd c(node_);
  const auto send = [&] {
    ASSERT_EQ(a_.send({.sges = source(8), .to = kMulticastQpNumber, .handle = handle, .flags = 0}),
              0);
  };
  for (uint64_t i = 0; i < 4; ++i) {
    post(i);
    ASSERT_EQ(post_receive(c.qp(), 10 + i, {buffer_.sge(kReceiveAt, kReceiveBytes)}), 0);
  }
  send();
  EXPECT_TRUE(b_.is_empty());
  ASSERT_EQ(attach_mcast(b_.qp(), &group, kGroupLid), 0);
  send();
  EXPECT_EQ(b_.take().wc_flags, static_cast<unsigned>(IBV_WC_GRH));
  EXPECT_EQ(memcmp(&buffer_.at<ibv_grh>(kReceiveAt).dgid, &group, sizeof(group)), 0);
  EXPECT_TRUE(c.is_empty());
  ASSERT_EQ(attach_mcast(c.qp(), &group, kGroupLid), 0);
  send();
  EXPECT_EQ(b_.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(c.take().status, IBV_WC_SUCCESS);
  ASSERT_EQ(detach_mcast(b_.qp(), &group, kGroupLid), 0);
  EXPECT_EQ(detach_mcast(b_.qp(), &group, kGroupLid), EINVAL);
  send();
  EXPECT_TRUE(b_.is_empty());
  EXPECT_EQ(c.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(destroy_ah(handle), 0);
}

// What the sender's thread copies from is out of its reach once it is deregistered: between two
// members of a group, too, whatever becomes of the memory then.
TEST_F(DatagramTest, ASourceIsTakenInTheMiddleOfAMulticast) {
  constexpr size_t kMembers = 32;
  constexpr int kRounds = 50;
  ibv_gid group{};
  group.raw[0] = 0xff;
  group.raw[15] = 11;
  constexpr uint16_t kLid = 0xc00b;
  ibv_ah* handle = global_handle(group, kLid);
  ASSERT_NE(handle, nullptr);
  const auto receive = [this](const DatagramEnd& member) {
    ASSERT_EQ(post_receive(member.qp(), 0, {buffer_.sge(kReceiveAt, kReceiveBytes)}), 0);
  };
  std::vector<std::unique_ptr<DatagramEnd>> members;
  for (size_t i = 0; i < kMembers; ++i) {
    members.push_back(std::make_unique<DatagramEnd>(node_));
    ASSERT_EQ(attach_mcast(members.back()->qp(), &group, kLid), 0);
    receive(*members.back());
  }
  void* const pages =
      mmap(nullptr, kMaxDatagramBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_EQ(mprotect(pages, kMaxDatagramBytes, PROT_READ | PROT_WRITE), 0);
    memset(pages, 1, kMaxDatagramBytes);
    MemoryRegion region = verbena::test::must(
        MemoryRegion::create_in_place(node_.domain, pages, kMaxDatagramBytes, 0));
    DatagramEnd sender(node_);
    const ibv_sge all = {reinterpret_cast<uintptr_t>(pages), kMaxDatagramBytes, region.lkey()};
    int posted = -1;
    Thread thread = start_thread("sender", [&] {
      posted = sender.send({.sges = {all}, .to = kMulticastQpNumber, .handle = handle});
    });
    ibv_wc wc{};
    for (Waiter waiter; ibv_poll_cq(members[0]->cq(), 1, &wc) == 0;) waiter.idle();
    ASSERT_TRUE(region.deregister());
    ASSERT_EQ(mprotect(pages, kMaxDatagramBytes, PROT_NONE), 0);
    thread.join();
    ASSERT_EQ(posted, 0);
    const ibv_wc_status status = sender.take().status;
    ASSERT_TRUE(status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_SUCCESS) << status;
    receive(*members[0]);
    for (const auto& member : members) {
      for (; ibv_poll_cq(member->cq(), 1, &wc) != 0; receive(*member))
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    }
  }
  munmap(pages, kMaxDatagramBytes);
  members.clear();
  EXPECT_EQ(destroy_ah(handle), 0);
}

// Nobody is known then, and the next send asks again.
TEST_F(DatagramTest, MembersThatCouldNotBeReadAreReadAgain) {
  ibv_gid group{};
  group.raw[0] = 0xff;
  group.raw[15] = 10;
  constexpr uint16_t kLid = 0xc00a;
  ibv_ah* handle = global_handle(group, kLid);
  ASSERT_NE(handle, nullptr);
  ASSERT_EQ(attach_mcast(b_.qp(), &group, kLid), 0);
  post(0);
  const auto send = [&] {
    ASSERT_EQ(a_.send({.sges = source(8), .to = kMulticastQpNumber, .handle = handle, .flags = 0}),
              0);
  };
  {
    const verbena::soft::test::NoDescriptors none;
    send();
  }
  EXPECT_TRUE(b_.is_empty());
  send();
  EXPECT_FALSE(b_.is_empty());
  EXPECT_EQ(destroy_ah(handle), 0);
}

// What it left in the registry would stay until its process ends.
TEST_F(DatagramTest, ADestroyedMemberLeavesItsGroupsWithoutADescriptor) {
  const Registry& registry = as_context(node_.domain.get()->context).rnic->registry();
  ibv_gid groups[3] = {};
  for (uint8_t i = 0; i < 3; ++i) {
    groups[i].raw[0] = 0xff;
    groups[i].raw[15] = i;
  }
  auto member = std::make_unique<DatagramEnd>(node_);
  for (const uint8_t i : {0, 0, 1, 2}) ASSERT_EQ(attach_mcast(member->qp(), &groups[i], 0), 0);
  ASSERT_EQ(detach_mcast(member->qp(), &groups[2], 0), 0);
  {
    const verbena::soft::test::NoDescriptors none;
    member.reset();
  }
  for (const char last : {'0', '1', '2'}) {
    const auto left = registry.members_of("ff00000000000000000000000000000" + std::string(1, last));
    EXPECT_TRUE(verbena::test::must(left).empty()) << last;
  }
}

TEST_F(DatagramTest, AddressHandlesAreChecked) {
  const auto refused = [&](ibv_ah_attr attributes) {
    const std::string reason =
        create_ah(node_.domain.get(), &attributes) != nullptr ? "none" : last_error();
    EXPECT_EQ(errno, EINVAL);
    return reason;
  };
  ibv_ah_attr good{};
  good.port_num = 1;
  good.dlid = 1;
  ibv_ah_attr bad = good;
  bad.port_num = 2;
  EXPECT_NE(refused(bad).find("port"), std::string::npos);
  bad = good;
  bad.dlid = 0;
  EXPECT_NE(refused(bad).find("LID"), std::string::npos);
  bad = good;
  bad.is_global = 1;
  bad.grh.sgid_index = 1;
  EXPECT_NE(refused(bad).find("GID index"), std::string::npos);
  bad = good;
  bad.sl = 16;
  EXPECT_NE(refused(bad).find("service level"), std::string::npos);

  ibv_ah* handle = create_ah(node_.domain.get(), &good);
  EXPECT_EQ(destroy_ah(handle), 0);
  EXPECT_EQ(destroy_ah(handle), EINVAL);
  EXPECT_EQ(a_.send({.sges = source(8), .to = b_.number(), .handle = handle}), EINVAL);
  EXPECT_EQ(a_.send({.sges = source(8), .to = b_.number(), .opcode = IBV_WR_RDMA_WRITE}), EINVAL);
}

TEST_F(DatagramTest, AddressHandlesAreAsManyAsTheDeviceSays) {
  ibv_ah_attr attributes{};
  attributes.port_num = 1;
  attributes.dlid = 1;
  ibv_pd* const domain = node_.domain.get();
  std::atomic<uint32_t>& count = as_context(domain->context).rnic->address_handle_count;
  const uint32_t others = count.exchange(kMaxAddressHandles - 1);
  ibv_ah* const last = create_ah(domain, &attributes);
  ASSERT_NE(last, nullptr) << last_error();
  EXPECT_EQ(create_ah(domain, &attributes), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(destroy_ah(last), 0);
  ibv_ah* const next = create_ah(domain, &attributes);
  EXPECT_NE(next, nullptr) << last_error();
  EXPECT_EQ(destroy_ah(next), 0);
  count = others;
}

TEST_F(DatagramTest, TransitionsTakeTheAttributesOfDatagrams) {
  ibv_qp* qp = a_.qp();
  ASSERT_EQ(move_to(qp, IBV_QPS_RESET), 0);
  const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  EXPECT_EQ(move_to(qp, IBV_QPS_INIT, init), EINVAL);
  EXPECT_EQ(move_to(qp, IBV_QPS_INIT, init | IBV_QP_ACCESS_FLAGS), EINVAL);
  EXPECT_NE(std::string(last_error()).find("UD"), std::string::npos);
  EXPECT_EQ(move_to(qp, IBV_QPS_INIT, init | IBV_QP_QKEY), 0);
  EXPECT_EQ(move_to(qp, IBV_QPS_RTR, IBV_QP_DEST_QPN), EINVAL);
  EXPECT_EQ(move_to(qp, IBV_QPS_RTR), 0);
  EXPECT_EQ(move_to(qp, IBV_QPS_RTS), EINVAL);
  EXPECT_EQ(move_to(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN), 0);
  EXPECT_EQ(move_to(qp, IBV_QPS_RTS, IBV_QP_QKEY, 0x222), 0);
  ibv_qp_attr now{};
  ibv_qp_init_attr made{};
  EXPECT_EQ(query_qp(qp, &now, IBV_QP_QKEY, &made), 0);
  EXPECT_EQ(now.qkey, 0x222u);
  EXPECT_EQ(now.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(made.qp_type, IBV_QPT_UD);
}

}  // namespace
}  // namespace verbena::soft
