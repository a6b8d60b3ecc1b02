// How queue pairs and nodes share an RNIC and a link: turns, gaps, and what holds up whom. The
// recorder tells what happened when.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/recorder.h"

namespace verbena::sim {
namespace {

class SharingTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 1 << 20;

  static SendRequest write(const Buffer& to, std::vector<ibv_sge> sges, unsigned flags) {
    return {.opcode = IBV_WR_RDMA_WRITE,
            .sges = std::move(sges),
            .flags = flags,
            .remote_address = to.address(),
            .rkey = to.key()};
  }
  // As one list, with one doorbell.
  static void post_list(const End& end, const SendRequest& request, size_t count) {
    std::vector<ibv_send_wr> list(count);
    std::vector<ibv_sge> sges = request.sges;
    for (size_t i = 0; i < count; ++i) {
      list[i].wr_id = i;
      list[i].next = i + 1 < count ? &list[i + 1] : nullptr;
      list[i].sg_list = sges.data();
      list[i].num_sge = static_cast<int>(sges.size());
      list[i].opcode = request.opcode;
      list[i].send_flags = request.flags;
      list[i].wr.rdma = {request.remote_address, request.rkey};
    }
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(end.qp(), list.data(), &bad), 0);
  }
  // What the node's unit did, in its order.
  static std::vector<Step> steps(const Recorder& recorder, StepKind kind, uint32_t node) {
    std::vector<Step> found;
    for (const Step& step : recorder.steps()) {
      if (step.kind == kind && step.node == node && step.packet == PacketKind::kRequest) {
        found.push_back(step);
      }
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Step& a, const Step& b) { return a.begin < b.begin; });
    return found;
  }
  // From one message's departure to the next one's, of two that are posted together.
  static Time departure_gap(const Profile& profile, size_t sges, size_t stride) {
    Cluster cluster(2, /*seed=*/1, profile);
    Buffer here(cluster[0], kBytes);
    Buffer there(cluster[1], kBytes);
    End a(cluster[0]);
    End b(cluster[1]);
    connect(a, b);
    Recorder recorder(1 << 16);
    cluster.simulation().record(&recorder);
    std::vector<ibv_sge> list;
    for (size_t i = 0; i < sges; ++i) list.push_back(here.sge(i * stride, 64));
    post_list(a, write(there, list, IBV_SEND_SIGNALED), 2);
    cluster.settle();
    cluster.simulation().record(nullptr);
    const std::vector<Step> sent = steps(recorder, StepKind::kSend, 0);
    EXPECT_EQ(sent.size(), 2u);
    return sent.size() == 2 ? sent[1].begin - sent[0].begin : 0;
  }
};

TEST_F(SharingTest, QueuePairsSendInTurnsOfSeveralPackets) {
  constexpr size_t kMessages = 30;
  Profile profile = test_profile();
  profile.queue_pair_write_gap = 0;
  for (const uint64_t turn : {1, 3, 5}) {
    profile.arbitration_burst = turn;
    Cluster cluster(2, /*seed=*/1, profile);
    Buffer here(cluster[0], 64);
    Buffer there(cluster[1], 64);
    End a1(cluster[0]);
    End a2(cluster[0]);
    End b1(cluster[1]);
    End b2(cluster[1]);
    connect(a1, b1);
    connect(a2, b2);
    // Both queue pairs have all their WQEs before the first one's turn is over.
    Recorder recorder(1 << 16);
    cluster.simulation().record(&recorder);
    const SendRequest request = write(there, {here.sge(0, 8)}, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    post_list(a1, request, kMessages);
    post_list(a2, request, kMessages);
    cluster.settle();
    cluster.simulation().record(nullptr);
    const std::vector<Step> sent = steps(recorder, StepKind::kSend, 0);
    ASSERT_EQ(sent.size(), 2 * kMessages);
    // Runs of the same queue pair while both have something to send.
    std::vector<size_t> runs{1};
    for (size_t i = 1; i < kMessages; ++i) {
      const bool same = sent[i].message.queue_pair == sent[i - 1].message.queue_pair;
      if (same) {
        ++runs.back();
      } else {
        runs.push_back(1);
      }
    }
    ASSERT_GT(runs.size(), 3u) << "turn " << turn;
    for (size_t i = 1; i + 1 < runs.size(); ++i) EXPECT_EQ(runs[i], turn) << "run " << i;
  }
}

// What the sending side does for one small message.
TEST_F(SharingTest, AFetchedPayloadTakesTheSendingSideLonger) {
  Profile profile = test_profile();
  const auto sending = [&](unsigned flags) {
    Cluster cluster(2, /*seed=*/1, profile);
    Buffer here(cluster[0], 64);
    Buffer there(cluster[1], 64);
    End a(cluster[0]);
    End b(cluster[1]);
    connect(a, b);
    Recorder recorder(1 << 16);
    cluster.simulation().record(&recorder);
    post_list(a, write(there, {here.sge(0, 8)}, IBV_SEND_SIGNALED | flags), 1);
    cluster.settle();
    cluster.simulation().record(nullptr);
    const std::vector<Step> sent = steps(recorder, StepKind::kSend, 0);
    EXPECT_EQ(sent.size(), 1u);
    return sent.size() == 1 ? sent[0].end - sent[0].begin : 0;
  };
  profile.tx_gather = 0;
  const Time plain = sending(0);
  const Time inlined = sending(IBV_SEND_INLINE);
  profile.tx_gather = 7 * kPsPerNs;
  EXPECT_EQ(sending(0), plain + profile.tx_gather);
  EXPECT_EQ(sending(IBV_SEND_INLINE), inlined);
}

TEST_F(SharingTest, EachFurtherEntryOfAGatherListHoldsUpTheNextMessage) {
  const Profile& profile = test_profile();
  const Time one = departure_gap(profile, 1, 64);
  const Time four = departure_gap(profile, 4, 64);
  EXPECT_EQ(one, profile.queue_pair_write_gap);
  EXPECT_EQ(four, profile.queue_pair_write_gap + 3 * profile.bus_time(64, profile.pcie_down_kib));
}

// What a queue pair has read ahead of what it sends is a property of the chip.
TEST_F(SharingTest, PayloadIsReadAheadAsFarAsTheProfileSays) {
  Profile profile = test_profile();
  // All reads that are asked for together begin together.
  profile.pcie_down_kib = 0;
  profile.dma_kib = 0;
  const auto read_before_the_first_packet = [](const Profile& with) {
    Cluster cluster(2, /*seed=*/1, with);
    Buffer here(cluster[0], kBytes);
    Buffer there(cluster[1], kBytes);
    End a(cluster[0]);
    End b(cluster[1]);
    connect(a, b);
    Recorder recorder(1 << 16);
    cluster.simulation().record(&recorder);
    const auto length = static_cast<uint32_t>(16 * with.mtu_bytes);
    post_list(a, write(there, {here.sge(0, length)}, IBV_SEND_SIGNALED), 1);
    cluster.settle();
    EXPECT_EQ(take_all(a).size(), 1u);
    cluster.simulation().record(nullptr);
    const std::vector<Step> sent = steps(recorder, StepKind::kSend, 0);
    EXPECT_EQ(sent.size(), 16u);
    uint64_t reads = 0;
    for (const Step& step : recorder.steps()) {
      const bool read = step.kind == StepKind::kPayloadFetch && step.node == 0;
      reads += read && step.begin < sent.front().begin;
    }
    return reads;
  };
  for (const uint64_t packets : {2, 3, 10}) {
    profile.payload_prefetch_bytes = packets * profile.mtu_bytes;
    EXPECT_EQ(read_before_the_first_packet(profile), packets);
  }
  profile.payload_prefetch_bytes = 1;
  EXPECT_EQ(read_before_the_first_packet(profile), 2u) << "sending would wait for every read";
}

// The same of a READ, on the side that answers it.
TEST_F(SharingTest, AResponseIsReadAheadAsFarAsTheProfileSays) {
  Profile profile = test_profile();
  profile.pcie_down_kib = 0;
  profile.dma_kib = 0;
  const auto read_at_first = [](const Profile& with) {
    Cluster cluster(2, /*seed=*/1, with);
    Buffer here(cluster[0], kBytes);
    Buffer there(cluster[1], kBytes);
    End a(cluster[0]);
    End b(cluster[1]);
    connect(a, b);
    Recorder recorder(1 << 16);
    cluster.simulation().record(&recorder);
    SendRequest read =
        write(there, {here.sge(0, static_cast<uint32_t>(16 * with.mtu_bytes))}, IBV_SEND_SIGNALED);
    read.opcode = IBV_WR_RDMA_READ;
    post_list(a, read, 1);
    cluster.settle();
    EXPECT_EQ(take_all(a).size(), 1u);
    cluster.simulation().record(nullptr);
    std::vector<Time> begun;
    for (const Step& step : recorder.steps()) {
      if (step.kind == StepKind::kPayloadFetch && step.node == 1) begun.push_back(step.begin);
    }
    EXPECT_EQ(begun.size(), 16u);
    return std::count(begun.begin(), begun.end(), *std::min_element(begun.begin(), begun.end()));
  };
  for (const uint64_t packets : {2, 3, 10}) {
    profile.response_prefetch_bytes = packets * profile.mtu_bytes;
    EXPECT_EQ(read_at_first(profile), packets);
  }
  profile.response_prefetch_bytes = 0;
  EXPECT_EQ(read_at_first(profile), 2);
}

// So many reads wait for their data at once, of all queue pairs together: a gather list has one for
// each of its entries, whatever the other queue pairs do.
TEST_F(SharingTest, QueuePairsShareThePlacesOfReads) {
  static constexpr size_t kMessages = 8;
  static constexpr size_t kEntries = 4;
  constexpr size_t kPlaces = 4;
  Profile profile = test_profile();
  profile.queue_pair_write_gap = 0;
  const auto time_of = [](const Profile& with) {
    Cluster cluster(2, /*seed=*/1, with);
    Buffer here(cluster[0], kBytes);
    Buffer there(cluster[1], kBytes);
    End a1(cluster[0]);
    End a2(cluster[0]);
    End b1(cluster[1]);
    End b2(cluster[1]);
    connect(a1, b1);
    connect(a2, b2);
    std::vector<ibv_sge> list;
    for (size_t i = 0; i < kEntries; ++i) list.push_back(here.sge(i * 64, 64));
    Recorder recorder(1 << 16);
    cluster.simulation().record(&recorder);
    const Time begin = cluster.simulation().now();
    post_list(a1, write(there, list, IBV_SEND_SIGNALED), kMessages);
    post_list(a2, write(there, list, IBV_SEND_SIGNALED), kMessages);
    cluster.settle();
    for (const End* end : {&a1, &a2}) EXPECT_EQ(take_all(*end).size(), kMessages);
    cluster.simulation().record(nullptr);
    return steps(recorder, StepKind::kSend, 0).back().end - begin;
  };
  profile.pcie_reads_at_once = 1024;
  const Time many = time_of(profile);
  profile.pcie_reads_at_once = kPlaces;
  const Time few = time_of(profile);
  // All that have to be read, kPlaces at a time.
  EXPECT_GE(few, 2 * kMessages * kEntries / kPlaces * profile.pcie_read);
  EXPECT_LT(many, few / 2);
}

TEST_F(SharingTest, TranslationsThatAreFetchedHoldUpTheNextMessage) {
  Profile profile = test_profile();
  const size_t apart = profile.page_bytes * kTranslationsOfLine;
  const Time known = departure_gap(profile, 4, apart);
  profile.translation_entries = 0;
  const Time fetched = departure_gap(profile, 4, apart);
  // Those of both messages were asked for before the first one left.
  EXPECT_GE(fetched, known + 4 * profile.pcie_read);
}

// A receiving side that falls behind holds up the switch, and that the senders: what is on its way
// is bounded by the room behind the links.
TEST_F(SharingTest, AReceivingSideThatFallsBehindHoldsUpItsSenders) {
  constexpr size_t kSenders = 3;
  constexpr size_t kMessages = 100;
  constexpr uint32_t kPayload = 1024;
  Profile profile = test_profile();
  profile.rx_packet = 20'000 * kPsPerNs;
  profile.port_buffer_bytes = 4096;
  profile.queue_pair_write_gap = 0;
  Cluster cluster(1 + kSenders, /*seed=*/1, profile);
  Buffer there(cluster[0], kPayload);
  std::vector<std::unique_ptr<Buffer>> from;
  std::vector<std::unique_ptr<End>> ends;
  std::vector<std::unique_ptr<End>> peers;
  Recorder recorder(1 << 20);
  for (uint32_t i = 0; i < kSenders; ++i) {
    from.push_back(std::make_unique<Buffer>(cluster[i + 1], kPayload));
    ends.push_back(std::make_unique<End>(cluster[i + 1]));
    peers.push_back(std::make_unique<End>(cluster[0]));
    connect(*ends[i], *peers[i]);
  }
  cluster.simulation().record(&recorder);
  for (uint32_t i = 0; i < kSenders; ++i) {
    post_list(*ends[i], write(there, {from[i]->sge(0, kPayload)}, IBV_SEND_SIGNALED), kMessages);
  }
  cluster.settle();
  cluster.simulation().record(nullptr);
  for (const auto& end : ends) EXPECT_EQ(take_all(*end).size(), kMessages);
  const std::vector<Step> taken = steps(recorder, StepKind::kReceive, 0);
  ASSERT_EQ(taken.size(), kSenders * kMessages);
  const Time half = taken[taken.size() / 2].begin;
  size_t under_way = 0;
  for (uint32_t i = 0; i < kSenders; ++i) {
    for (const Step& step : steps(recorder, StepKind::kSend, i + 1)) under_way += step.end <= half;
  }
  for (const Step& step : taken) under_way -= step.end <= half;
  // One room before the receiving side and one per input of the switch, each with the packet that
  // fills it beyond, and the one that is being handled.
  const size_t room = profile.port_buffer_bytes / kPayload + 1;
  EXPECT_GE(under_way, room);
  EXPECT_LE(under_way, (1 + kSenders) * (room + 1) + 1);
}

}  // namespace
}  // namespace verbena::sim
