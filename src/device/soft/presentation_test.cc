// What the devices present, by InfiniBand and by Ethernet.
#include "src/device/soft/presentation.h"

#include <gtest/gtest.h>
#include <net/if.h>

#include <cerrno>
#include <cstdlib>
#include <set>
#include <string>

#include "src/device/soft/control.h"
#include "src/device/soft/presented_for_test.h"
#include "src/device/soft/soft.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

using verbena::test::context_of;
using verbena::test::Node;
using verbena::test::open_presented;

ibv_gid gid_at(uint32_t device, LinkLayer link_layer, uint32_t index) {
  ibv_gid_entry entry;
  EXPECT_TRUE(describe_gid(device, link_layer, index, &entry));
  return entry.gid;
}

TEST(PresentationTest, DevicesHaveNamesAndAddressesOfTheirOwn) {
  std::set<std::string> names;
  std::set<uint64_t> guids;
  std::set<std::string> gids;
  const auto add_gid = [&gids](const ibv_gid& gid) {
    gids.emplace(reinterpret_cast<const char*>(gid.raw), sizeof(gid.raw));
  };
  for (uint32_t index = 0; index < kMostSoftDevices; ++index) {
    names.insert(device(index)->name);
    guids.insert(node_guid(index));
    EXPECT_EQ(describe_port(index, LinkLayer::kInfiniBand).lid, 1 + index);
    EXPECT_EQ(device_index(device(index)), index);
    add_gid(gid_at(index, LinkLayer::kInfiniBand, 0));
    for (const uint32_t entry : {0, 2}) add_gid(gid_at(index, LinkLayer::kEthernet, entry));
  }
  EXPECT_EQ(names.size(), kMostSoftDevices);
  EXPECT_EQ(guids.size(), kMostSoftDevices);
  EXPECT_EQ(gids.size(), 3 * kMostSoftDevices);
  EXPECT_STREQ(device(1)->name, "soft1");
  EXPECT_STREQ(device(1)->ibdev_path, "/sys/class/infiniband/soft1");
  EXPECT_STREQ(device(1)->dev_name, "uverbs-soft1");
  const ibv_device other{};
  EXPECT_EQ(device_index(&other), std::nullopt);
}

TEST(PresentationTest, AnEthernetPortHasGidsOfBothVersions) {
  const ibv_port_attr port = describe_port(0, LinkLayer::kEthernet);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.lid, 0);
  EXPECT_EQ(port.flags & IBV_QPF_GRH_REQUIRED, IBV_QPF_GRH_REQUIRED);
  ibv_gid_entry entry;
  for (uint32_t index = 0; index < 4; ++index) {
    ASSERT_TRUE(describe_gid(0, LinkLayer::kEthernet, index, &entry));
    EXPECT_EQ(entry.gid_index, index);
    EXPECT_EQ(entry.gid_type, index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2);
    EXPECT_EQ(entry.ndev_ifindex, if_nametoindex("lo"));
    EXPECT_EQ(entry.gid.raw[0], index < 2 ? 0xfe : 0);
  }
  EXPECT_EQ(entry.gid.raw[10], 0xff);
  EXPECT_EQ(entry.gid.raw[11], 0xff);
  EXPECT_EQ(entry.gid.raw[12], 127);
  EXPECT_EQ(entry.gid.raw[15], 1);
  EXPECT_EQ(gid_at(1, LinkLayer::kEthernet, 3).raw[15], 2);
  ASSERT_TRUE(describe_gid(0, LinkLayer::kEthernet, 4, &entry));
  EXPECT_TRUE(is_zero_gid(entry.gid));
  EXPECT_FALSE(
      describe_gid(0, LinkLayer::kEthernet, static_cast<uint32_t>(port.gid_tbl_len), &entry));
  EXPECT_FALSE(describe_gid(0, LinkLayer::kInfiniBand, 1, &entry));
}

TEST(PresentationTest, OwnAddressesAreThoseOfAllDevicesInEitherPresentation) {
  for (const uint32_t index : {0u, kMostSoftDevices - 1}) {
    EXPECT_TRUE(is_own_lid(lid_of(index)));
    EXPECT_TRUE(is_own_gid(gid_at(index, LinkLayer::kInfiniBand, 0)));
    EXPECT_TRUE(is_own_gid(gid_at(index, LinkLayer::kEthernet, 0)));
    EXPECT_TRUE(is_own_gid(gid_at(index, LinkLayer::kEthernet, 3)));
  }
  ibv_gid other = gid_at(0, LinkLayer::kEthernet, 3);
  other.raw[12] = 10;
  EXPECT_FALSE(is_own_gid(other));
  EXPECT_FALSE(is_own_gid(ibv_gid{}));
  EXPECT_FALSE(is_own_lid(0));
  EXPECT_FALSE(is_own_lid(static_cast<uint16_t>(lid_of(kMostSoftDevices - 1) + 1)));
  EXPECT_FALSE(is_multicast(other));
  other.raw[12] = 0xe0;
  EXPECT_TRUE(is_multicast(other));
}

TEST(PresentationTest, TheTableIsAskedByVerbs) {
  const Node ethernet = open_presented("ethernet");
  ibv_gid_entry entry;
  EXPECT_EQ(query_gid_entry(context_of(ethernet), 1, 3, &entry), 0);
  EXPECT_EQ(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
  EXPECT_EQ(query_gid_entry(context_of(ethernet), 1, 4, &entry), ENODATA);
  EXPECT_EQ(query_gid_entry(context_of(ethernet), 1, kEthernetGids, &entry), EINVAL);
  EXPECT_EQ(query_gid_entry(context_of(ethernet), 2, 0, &entry), EINVAL);
  EXPECT_EQ(query_gid_entry(nullptr, 1, 0, &entry), EINVAL);
  // As libibverbs, to whom an empty entry is one of zeros.
  ibv_gid gid{};
  gid.raw[0] = 1;
  EXPECT_EQ(query_gid(context_of(ethernet), 1, 4, &gid), 0);
  EXPECT_TRUE(is_zero_gid(gid));
  EXPECT_NE(query_gid(context_of(ethernet), 1, -1, &gid), 0);
  EXPECT_EQ(ethernet.device.info().link_layer, "Ethernet");
  EXPECT_EQ(ethernet.device.info().lid, 0);
}

TEST(PresentationTest, AWrongVariableFailsTheOpening) {
  setenv(kLinkLayerVariable, "roce", 1);
  const Result<Device> refused = Device::open("soft0");
  unsetenv(kLinkLayerVariable);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("VERBENA_SOFT_LINK_LAYER is 'roce'"), std::string::npos)
      << refused.status().message();
  EXPECT_FALSE(Device::open("soft1").ok());  // there is one unless more are asked for
}

TEST(PresentationTest, EthernetNeedsGidsInAddresses) {
  const Node node = open_presented("ethernet");
  ibv_cq* cq = create_cq(context_of(node), 4, nullptr, nullptr, 0);
  ibv_qp_init_attr init{};
  init.send_cq = cq;
  init.recv_cq = cq;
  init.cap = {.max_send_wr = 1,
              .max_recv_wr = 1,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  init.qp_type = IBV_QPT_UC;
  ibv_qp* qp = create_qp(node.domain.get(), &init);
  ASSERT_NE(qp, nullptr);
  ibv_qp_attr to{};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = 1;
  ASSERT_EQ(
      modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = IBV_MTU_4096;
  to.dest_qp_num = qp->qp_num;
  const auto receive = [&] {
    return modify_qp(qp, &to,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
  };
  const auto refused_for = [&](const char* reason) {
    const int error = receive();
    return error == EINVAL && std::string(control().last_error()).find(reason) != std::string::npos;
  };
  to.ah_attr.port_num = 1;
  to.ah_attr.dlid = 1;
  EXPECT_TRUE(refused_for("is_global")) << control().last_error();
  to.ah_attr.is_global = 1;
  EXPECT_TRUE(refused_for("the peer's GID is zero")) << control().last_error();
  to.ah_attr.grh.dgid = gid_at(1, LinkLayer::kInfiniBand, 0);
  to.ah_attr.grh.sgid_index = 4;
  EXPECT_TRUE(refused_for("no GID of index 4")) << control().last_error();
  to.ah_attr.grh.sgid_index = 3;
  EXPECT_EQ(receive(), 0) << control().last_error();
  EXPECT_EQ(destroy_qp(qp), 0);
  EXPECT_EQ(destroy_cq(cq), 0);

  ibv_ah_attr address{};
  address.port_num = 1;
  address.dlid = 1;
  EXPECT_EQ(create_ah(node.domain.get(), &address), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
}  // namespace verbena::soft
