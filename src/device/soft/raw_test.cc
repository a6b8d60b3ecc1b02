// Raw packets within one process: which frames flows match, and who gets them.
#include "src/device/soft/raw.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "src/device/soft/control.h"
#include "src/device/soft/datagram_end_for_test.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

using Frame = std::vector<uint8_t>;

constexpr uint8_t kServerMac[6] = {0x24, 0x8a, 0x07, 0xa5, 0x28, 0xc8};
constexpr uint8_t kClientMac[6] = {0x24, 0x8a, 0x07, 0xa5, 0x28, 0xb2};
constexpr uint16_t kPort = 7000;

void append(Frame& frame, const void* bytes, size_t size_bytes) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  frame.insert(frame.end(), at, at + size_bytes);
}
void append16(Frame& frame, uint16_t value) {
  frame.push_back(static_cast<uint8_t>(value >> 8));
  frame.push_back(static_cast<uint8_t>(value));
}

Frame ethernet(uint16_t type, const uint8_t (&to)[6] = kServerMac) {
  Frame frame;
  append(frame, to, 6);
  append(frame, kClientMac, 6);
  append16(frame, type);
  return frame;
}
Frame with_vlan(uint16_t type, uint16_t tag) {
  Frame frame = ethernet(0x8100);
  append16(frame, tag);
  append16(frame, type);
  return frame;
}
Frame ipv4(uint8_t protocol, Frame frame = ethernet(0x0800), uint16_t fragment = 0) {
  const uint8_t start[] = {0x45, 0x10, 0, 0, 0, 0};
  append(frame, start, sizeof(start));
  append16(frame, fragment);
  const uint8_t rest[] = {64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2};
  append(frame, rest, sizeof(rest));
  return frame;
}
Frame ipv6(uint8_t protocol) {
  Frame frame = ethernet(0x86dd);
  const uint8_t start[] = {0x61, 0x23, 0x45, 0x67, 0, 0, protocol, 9};
  append(frame, start, sizeof(start));
  for (uint8_t i = 0; i < 32; ++i) frame.push_back(i);
  return frame;
}
Frame with_ports(Frame frame, uint16_t from, uint16_t to) {
  append16(frame, from);
  append16(frame, to);
  frame.resize(frame.size() + 16);
  return frame;
}
FrameFields parse(const Frame& frame) {
  return parse_frame(reinterpret_cast<const std::byte*>(frame.data()), frame.size());
}

TEST(RawFrameTest, FieldsAreFoundInEachKindOfFrame) {
  const FrameFields udp = parse(with_ports(ipv4(17), 5000, kPort));
  EXPECT_EQ(std::memcmp(udp.destination_mac, kServerMac, 6), 0);
  EXPECT_EQ(std::memcmp(udp.source_mac, kClientMac, 6), 0);
  EXPECT_EQ(udp.ip_version, 4);
  EXPECT_EQ(udp.protocol, 17);
  EXPECT_EQ(udp.traffic_class, 0x10);
  EXPECT_EQ(udp.hop_limit, 64);
  EXPECT_EQ(udp.source_ip[3], 1);
  EXPECT_EQ(udp.destination_ip[3], 2);
  EXPECT_EQ(ntohs(udp.source_port), 5000);
  EXPECT_EQ(ntohs(udp.destination_port), kPort);

  const FrameFields tcp = parse(with_ports(ipv6(6), 1, 2));
  EXPECT_EQ(tcp.ip_version, 6);
  EXPECT_EQ(tcp.traffic_class, 0x12);
  EXPECT_EQ(ntohl(tcp.flow_label), 0x34567u);
  EXPECT_EQ(tcp.hop_limit, 9);
  EXPECT_EQ(tcp.source_ip[15], 15);
  EXPECT_EQ(tcp.destination_ip[15], 31);
  EXPECT_EQ(ntohs(tcp.destination_port), 2);

  const FrameFields tagged = parse(with_ports(ipv4(17, with_vlan(0x0800, 0x2007)), 3, 4));
  EXPECT_EQ(ntohs(tagged.vlan_tag), 0x2007);
  EXPECT_EQ(ntohs(tagged.ether_type), 0x0800);
  EXPECT_EQ(ntohs(tagged.destination_port), 4);

  // A later fragment has bytes of the message where the first one has ports.
  const FrameFields fragment = parse(with_ports(ipv4(17, ethernet(0x0800), 0x2001), 5, 6));
  EXPECT_EQ(fragment.protocol, 17);
  EXPECT_EQ(fragment.ip_flags, 4);
  EXPECT_EQ(fragment.destination_port, 0);
}

TEST(RawFrameTest, WhatIsCutShortIsNotRead) {
  for (const Frame& whole : {with_ports(ipv4(17), 5000, kPort), with_ports(ipv6(6), 5000, kPort),
                             with_ports(ipv4(6, with_vlan(0x0800, 1)), 5000, kPort)}) {
    for (size_t size_bytes = 0; size_bytes < whole.size(); ++size_bytes) {
      // A copy of that size, so that a sanitizer sees reads behind it.
      const Frame cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size_bytes));
      const FrameFields fields = parse(cut);
      EXPECT_TRUE(fields.destination_port == 0 || ntohs(fields.destination_port) == kPort);
      EXPECT_TRUE(fields.ip_version == 0 || size_bytes >= 14 + 20);
    }
  }
}

// Attributes with the specifications behind them.
class FlowAttributes {
 public:
  explicit FlowAttributes(ibv_flow_attr_type type = IBV_FLOW_ATTR_NORMAL, uint16_t priority = 0)
      : bytes_(sizeof(ibv_flow_attr)) {
    get()->type = type;
    get()->priority = priority;
    get()->port = 1;
  }
  template <typename Spec>
  FlowAttributes& add(Spec spec, uint32_t type, size_t size_bytes = sizeof(Spec)) {
    spec.type = static_cast<ibv_flow_spec_type>(type);
    spec.size = static_cast<uint16_t>(size_bytes);
    const auto* at = reinterpret_cast<const std::byte*>(&spec);
    bytes_.insert(bytes_.end(), at, at + sizeof(spec));
    ++get()->num_of_specs;
    return *this;
  }
  ibv_flow_attr* get() { return reinterpret_cast<ibv_flow_attr*>(bytes_.data()); }

 private:
  std::vector<std::byte> bytes_;
};

ibv_flow_spec_eth to_mac(const uint8_t (&mac)[6]) {
  ibv_flow_spec_eth spec{};
  std::memcpy(spec.val.dst_mac, mac, 6);
  std::memset(spec.mask.dst_mac, 0xff, 6);
  return spec;
}
ibv_flow_spec_tcp_udp to_port(uint16_t port) {
  ibv_flow_spec_tcp_udp spec{};
  spec.val.dst_port = htons(port);
  spec.mask.dst_port = 0xffff;
  return spec;
}

// A raw packet queue pair in RTS, with receives posted.
class RawEnd {
 public:
  static constexpr uint32_t kReceives = 8;
  static constexpr size_t kSlotBytes = 8192;

  explicit RawEnd(const verbena::test::Node& node) : buffer_(node, (kReceives + 1) * kSlotBytes) {
    cq_ = create_cq(node.domain.get()->context, 64, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = cq_;
    init.recv_cq = cq_;
    init.cap = {.max_send_wr = 8,
                .max_recv_wr = kReceives,
                .max_send_sge = 4,
                .max_recv_sge = 4,
                .max_inline_data = 256};
    init.qp_type = IBV_QPT_RAW_PACKET;
    qp_ = create_qp(node.domain.get(), &init);
    if (qp_ == nullptr) std::abort();
    move_to(IBV_QPS_INIT, IBV_QP_PORT);
    move_to(IBV_QPS_RTR);
    move_to(IBV_QPS_RTS);
    for (uint64_t slot = 0; slot < kReceives; ++slot) post(slot);
  }
  RawEnd(const RawEnd&) = delete;
  RawEnd& operator=(const RawEnd&) = delete;
  ~RawEnd() {
    if (qp_ != nullptr) destroy_qp(qp_);
    destroy_cq(cq_);
  }

  ibv_qp* qp() const { return qp_; }
  void move_to(ibv_qp_state state, int mask = 0) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    attributes.port_num = 1;
    EXPECT_EQ(modify_qp(qp_, &attributes, IBV_QP_STATE | mask), 0);
  }
  // The status of its completion. In two pieces.
  ibv_wc_status send(const Frame& frame) {
    std::memcpy(buffer_.data(), frame.data(), frame.size());
    const size_t first = std::min<size_t>(frame.size(), 20);
    EXPECT_EQ(verbena::test::post(
                  qp_, {.sges = {buffer_.sge(0, first), buffer_.sge(first, frame.size() - first)}}),
              0);
    ibv_wc wc{};
    EXPECT_EQ(poll_cq(cq_, 1, &wc), 1);
    EXPECT_EQ(wc.opcode, IBV_WC_SEND);
    return wc.status;
  }
  // The frames that have arrived.
  std::vector<Frame> take() {
    std::vector<Frame> frames;
    for (ibv_wc wc; poll_cq(cq_, 1, &wc) == 1; post(wc.wr_id)) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      const auto* at =
          reinterpret_cast<const uint8_t*>(buffer_.data() + (wc.wr_id + 1) * kSlotBytes);
      frames.emplace_back(at, at + wc.byte_len);
    }
    return frames;
  }
  bool gets(RawEnd& from, const Frame& frame) {
    EXPECT_EQ(from.send(frame), IBV_WC_SUCCESS);
    const std::vector<Frame> got = take();
    EXPECT_LE(got.size(), 1u);
    EXPECT_TRUE(got.empty() || got[0] == frame);
    return !got.empty();
  }

 private:
  void post(uint64_t slot) {
    EXPECT_EQ(
        verbena::test::post_receive(qp_, slot, {buffer_.sge((slot + 1) * kSlotBytes, kSlotBytes)}),
        0);
  }
  verbena::test::Buffer buffer_;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
};

class RawPacketTest : public testing::Test {
 protected:
  verbena::test::Node node_;
  RawEnd client_{node_};
  RawEnd server_{node_};
};

TEST_F(RawPacketTest, AFlowBringsTheFramesThatItNames) {
  const Frame frame = with_ports(ipv4(17), 5000, kPort);
  EXPECT_FALSE(server_.gets(client_, frame));
  ibv_flow* flow = create_flow(server_.qp(), FlowAttributes()
                                                 .add(to_mac(kServerMac), IBV_FLOW_SPEC_ETH)
                                                 .add(to_port(kPort), IBV_FLOW_SPEC_UDP)
                                                 .get());
  ASSERT_NE(flow, nullptr) << last_error();
  EXPECT_TRUE(server_.gets(client_, frame));
  EXPECT_TRUE(server_.gets(client_, with_ports(ipv6(17), 1, kPort)));
  EXPECT_FALSE(server_.gets(client_, with_ports(ipv4(17), 5000, kPort + 1)));
  EXPECT_FALSE(server_.gets(client_, with_ports(ipv4(6), 5000, kPort)));
  EXPECT_FALSE(server_.gets(client_, with_ports(ipv4(17, ethernet(0x0800, kClientMac)), 1, kPort)));
  // Not back to who sends it.
  EXPECT_FALSE(server_.gets(server_, frame));
  EXPECT_EQ(destroy_flow(flow), 0);
  EXPECT_FALSE(server_.gets(client_, frame));
  EXPECT_EQ(destroy_flow(flow), EINVAL);
}

TEST_F(RawPacketTest, TheBestPriorityDecidesAndDefaultsGetTheRest) {
  RawEnd other(node_);
  RawEnd sniffer(node_);
  const Frame frame = with_ports(ipv4(17), 5000, kPort);
  Frame group = with_ports(ipv4(17), 5000, kPort + 1);
  group[0] = 1;
  ibv_flow* flows[] = {
      create_flow(
          server_.qp(),
          FlowAttributes(IBV_FLOW_ATTR_NORMAL, 2).add(to_port(kPort), IBV_FLOW_SPEC_UDP).get()),
      create_flow(other.qp(), FlowAttributes(IBV_FLOW_ATTR_MC_DEFAULT).get()),
      create_flow(client_.qp(), FlowAttributes(IBV_FLOW_ATTR_ALL_DEFAULT).get()),
      create_flow(sniffer.qp(), FlowAttributes(IBV_FLOW_ATTR_SNIFFER).get())};
  for (const ibv_flow* flow : flows) ASSERT_NE(flow, nullptr) << last_error();
  RawEnd source(node_);
  EXPECT_TRUE(server_.gets(source, frame));
  EXPECT_TRUE(other.take().empty());
  EXPECT_TRUE(client_.take().empty());
  EXPECT_TRUE(other.gets(source, group));
  EXPECT_TRUE(client_.take().empty());
  EXPECT_TRUE(client_.gets(source, ethernet(0x88cc)));
  EXPECT_TRUE(other.take().empty());
  EXPECT_EQ(sniffer.take().size(), 3u);
  // Of the same priority both get it, of a better one that one alone.
  ibv_flow* same = create_flow(
      other.qp(),
      FlowAttributes(IBV_FLOW_ATTR_NORMAL, 2).add(to_mac(kServerMac), IBV_FLOW_SPEC_ETH).get());
  EXPECT_TRUE(server_.gets(source, frame));
  EXPECT_EQ(other.take().size(), 1u);
  ibv_flow* better = create_flow(
      other.qp(),
      FlowAttributes(IBV_FLOW_ATTR_NORMAL, 1).add(to_mac(kServerMac), IBV_FLOW_SPEC_ETH).get());
  EXPECT_FALSE(server_.gets(source, frame));
  EXPECT_EQ(other.take().size(), 1u);
  EXPECT_EQ(destroy_qp(other.qp()), EBUSY);
  EXPECT_NE(std::string(last_error()).find("3 flows"), std::string::npos) << last_error();
  for (ibv_flow* flow : flows) EXPECT_EQ(destroy_flow(flow), 0);
  EXPECT_EQ(destroy_flow(same), 0);
  EXPECT_EQ(destroy_flow(better), 0);
}

TEST_F(RawPacketTest, LongAndShortFrames) {
  ibv_flow* flow = create_flow(server_.qp(), FlowAttributes(IBV_FLOW_ATTR_ALL_DEFAULT).get());
  ASSERT_NE(flow, nullptr) << last_error();
  for (const size_t size_bytes : {size_t{14}, size_t{64}, size_t{1514}, size_t{kMaxFrameBytes}}) {
    Frame frame = ethernet(0x88cc);
    frame.resize(size_bytes, 0x5a);
    EXPECT_TRUE(server_.gets(client_, frame)) << size_bytes;
  }
  for (const size_t size_bytes : {size_t{13}, size_t{kMaxFrameBytes} + 1}) {
    RawEnd sender(node_);
    EXPECT_EQ(sender.send(Frame(size_bytes)), IBV_WC_LOC_LEN_ERR) << size_bytes;
    EXPECT_TRUE(server_.take().empty());
  }
  EXPECT_EQ(destroy_flow(flow), 0);
}

TEST_F(RawPacketTest, WhatNoFlowCanBeIsRefused) {
  const auto refused = [this](FlowAttributes& attributes) {
    EXPECT_EQ(create_flow(server_.qp(), attributes.get()), nullptr);
    return errno;
  };
  FlowAttributes other_port;
  other_port.get()->port = 2;
  EXPECT_EQ(refused(other_port), EINVAL);
  FlowAttributes flagged;
  flagged.get()->flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
  EXPECT_EQ(refused(flagged), EOPNOTSUPP);
  EXPECT_EQ(refused(FlowAttributes().add(ibv_flow_spec_tunnel{}, IBV_FLOW_SPEC_VXLAN_TUNNEL)),
            EOPNOTSUPP);
  EXPECT_EQ(refused(FlowAttributes().add(to_port(1), IBV_FLOW_SPEC_UDP, 8)), EINVAL);
  EXPECT_EQ(
      refused(
          FlowAttributes().add(to_port(1), IBV_FLOW_SPEC_UDP).add(to_port(1), IBV_FLOW_SPEC_TCP)),
      EINVAL);
  EXPECT_EQ(refused(FlowAttributes(IBV_FLOW_ATTR_SNIFFER).add(to_port(1), IBV_FLOW_SPEC_UDP)),
            EINVAL);
  test::DatagramEnd datagrams(node_);
  EXPECT_EQ(create_flow(datagrams.qp(), FlowAttributes().get()), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  std::vector<ibv_flow*> flows;
  for (uint32_t i = 0; i < kMaxFlows; ++i) {
    flows.push_back(create_flow(server_.qp(), FlowAttributes().get()));
    ASSERT_NE(flows.back(), nullptr) << last_error();
  }
  FlowAttributes one_more;
  EXPECT_EQ(refused(one_more), ENOMEM);
  for (ibv_flow* flow : flows) EXPECT_EQ(destroy_flow(flow), 0);
  ibv_send_wr wr{};
  ibv_send_wr* bad = nullptr;
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  EXPECT_EQ(ibv_post_send(client_.qp(), &wr, &bad), EINVAL);
}

// Neither do raw packets reach queue pairs of datagrams, nor the other way round.
TEST_F(RawPacketTest, DatagramsAreNoFrames) {
  ibv_flow* flow = create_flow(server_.qp(), FlowAttributes(IBV_FLOW_ATTR_ALL_DEFAULT).get());
  ASSERT_NE(flow, nullptr) << last_error();
  verbena::test::Buffer buffer(node_, 4096);
  test::DatagramEnd datagrams(node_);
  ASSERT_EQ(datagrams.send({.sges = {buffer.sge(0, 64)}, .to = server_.qp()->qp_num}), 0);
  EXPECT_EQ(datagrams.take().status, IBV_WC_SUCCESS);
  EXPECT_TRUE(server_.take().empty());
  EXPECT_EQ(destroy_flow(flow), 0);
}

}  // namespace
}  // namespace verbena::soft
