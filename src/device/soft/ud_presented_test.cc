// Datagrams between devices in either presentation.
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>

#include "src/device/soft/datagram_end_for_test.h"
#include "src/device/soft/network_header.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/presented_for_test.h"
#include "src/device/soft/soft.h"

namespace verbena::soft {
namespace {

using verbena::test::context_of;
using verbena::test::open_presented;

constexpr size_t kArrivalAt = 8192;
constexpr size_t kArrivalBytes = kGrhBytes + 4096;

ibv_gid presented_gid(uint32_t device, LinkLayer link_layer, uint32_t index) {
  ibv_gid_entry entry;
  EXPECT_TRUE(describe_gid(device, link_layer, index, &entry));
  return entry.gid;
}

bool same(const ibv_gid& one, const ibv_gid& other) {
  return memcmp(&one, &other, sizeof(one)) == 0;
}

struct Direction {
  const char* from;
  const char* to;
  uint8_t source_index;
  LinkLayer named;  // which of the receiver's addresses is used
  uint8_t named_index;
};
std::ostream& operator<<(std::ostream& stream, const Direction& direction) {
  return stream << direction.from << " " << int{direction.source_index} << " to " << direction.to
                << " " << int{direction.named_index};
}

class PresentedDatagramTest : public testing::TestWithParam<Direction> {};

// To another device, in whatever presentation, and back by what the completion says.
TEST_P(PresentedDatagramTest, ArrivesAndIsAnswered) {
  const Direction& direction = GetParam();
  const test::Node here = open_presented(direction.from, "soft0");
  const test::Node there = open_presented(direction.to, "soft1");
  test::Buffer here_buffer(here, 64 * 1024);
  test::Buffer there_buffer(there, 64 * 1024);
  here_buffer.fill(7, 0, kArrivalAt);
  there_buffer.fill(9, 0, kArrivalAt);
  test::DatagramEnd a(here);
  test::DatagramEnd b(there);
  ibv_ah_attr address{};
  address.port_num = 1;
  address.is_global = 1;
  address.sl = 5;
  address.grh.dgid = presented_gid(1, direction.named, direction.named_index);
  address.grh.sgid_index = direction.source_index;
  address.grh.hop_limit = 17;
  address.grh.traffic_class = 0x42;
  ibv_ah* handle = create_ah(here.domain.get(), &address);
  ASSERT_NE(handle, nullptr) << control().last_error();
  ASSERT_EQ(test::post_receive(b.qp(), 1, {there_buffer.sge(kArrivalAt, kArrivalBytes)}), 0);
  ASSERT_EQ(a.send({.sges = {here_buffer.sge(0, 99)}, .to = b.number(), .handle = handle}), 0);
  EXPECT_EQ(a.take().status, IBV_WC_SUCCESS);
  ibv_wc arrived = b.take();
  ASSERT_EQ(arrived.status, IBV_WC_SUCCESS);
  EXPECT_EQ(arrived.wc_flags, static_cast<unsigned>(IBV_WC_GRH));
  EXPECT_EQ(arrived.sl, 5);
  EXPECT_EQ(arrived.slid, strcmp(direction.to, "ethernet") == 0 ? 0 : lid_of(0));
  EXPECT_EQ(memcmp(there_buffer.data() + kArrivalAt + kGrhBytes, here_buffer.data(), 99), 0);

  auto& grh = there_buffer.at<ibv_grh>(kArrivalAt);
  ibv_ah_attr back{};
  ASSERT_EQ(init_ah_from_wc(context_of(there), 1, &arrived, &grh, &back), 0)
      << control().last_error();
  EXPECT_EQ(back.is_global, 1);
  EXPECT_EQ(back.grh.hop_limit, 17);
  EXPECT_EQ(back.grh.traffic_class, 0x42);
  const LinkLayer from = link_layer_of(context_of(here));
  EXPECT_TRUE(same(back.grh.dgid, presented_gid(0, from, direction.source_index)));
  if (link_layer_of(context_of(there)) == direction.named) {
    EXPECT_TRUE(same(presented_gid(1, direction.named, back.grh.sgid_index), address.grh.dgid));
  }
  ibv_ah* answer = create_ah(there.domain.get(), &back);
  ASSERT_NE(answer, nullptr) << control().last_error();
  ASSERT_EQ(test::post_receive(a.qp(), 2, {here_buffer.sge(kArrivalAt, kArrivalBytes)}), 0);
  ASSERT_EQ(b.send({.sges = {there_buffer.sge(0, 50)}, .to = a.number(), .handle = answer}), 0);
  EXPECT_EQ(b.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(a.take().status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(here_buffer.data() + kArrivalAt + kGrhBytes, there_buffer.data(), 50), 0);
  EXPECT_EQ(destroy_ah(handle), 0);
  EXPECT_EQ(destroy_ah(answer), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Directions, PresentedDatagramTest,
    testing::Values(Direction{"infiniband", "infiniband", 0, LinkLayer::kInfiniBand, 0},
                    Direction{"ethernet", "ethernet", 0, LinkLayer::kEthernet, 0},
                    Direction{"ethernet", "ethernet", 1, LinkLayer::kEthernet, 1},
                    Direction{"ethernet", "ethernet", 2, LinkLayer::kEthernet, 2},
                    Direction{"ethernet", "ethernet", 3, LinkLayer::kEthernet, 3},
                    Direction{"ethernet", "infiniband", 3, LinkLayer::kInfiniBand, 0},
                    Direction{"ethernet", "infiniband", 3, LinkLayer::kEthernet, 3},
                    Direction{"infiniband", "ethernet", 0, LinkLayer::kEthernet, 3},
                    Direction{"infiniband", "ethernet", 0, LinkLayer::kInfiniBand, 0}));

TEST(NetworkHeaderTest, IsOneOfIpv4BetweenSuchAddresses) {
  ibv_gid_entry source;
  ASSERT_TRUE(describe_gid(0, LinkLayer::kEthernet, kEthernetIpv4Index, &source));
  ibv_global_route route{};
  route.dgid = presented_gid(1, LinkLayer::kEthernet, kEthernetIpv4Index);
  route.hop_limit = 64;
  std::byte bytes[kNetworkHeaderBytes];
  NetworkHeader(source, route).write(100, bytes);
  EXPECT_EQ(std::to_integer<int>(bytes[20]), 0x45);
  EXPECT_EQ(std::to_integer<int>(bytes[23]), 128);  // 20 bytes, 8 of UDP, 100
  EXPECT_EQ(std::to_integer<int>(bytes[29]), 17);
  uint32_t sum = 0;
  for (size_t at = 20; at < kNetworkHeaderBytes; at += 2) {
    sum += std::to_integer<uint32_t>(bytes[at]) << 8 | std::to_integer<uint32_t>(bytes[at + 1]);
  }
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  EXPECT_EQ(sum, 0xffffu);
}

}  // namespace
}  // namespace verbena::soft
