// Receives of a queue pair that has failed by itself: their buffers are the program's again when
// they complete as flushed, so its peer is done with them by then.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/flight.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

// Posts what its peer refuses, after which the queue pair is in the error state.
void fail_by_request(verbena::test::End& end, const verbena::test::Buffer& source) {
  ASSERT_EQ(verbena::test::post(end.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                                           .sges = {source.sge(0, 8)},
                                           .remote_address = source.address(),
                                           .rkey = ~0u}),
            0);
}

// Polls until a receive has completed.
ibv_wc_status take_receive_of(const verbena::test::End& end, uint64_t id) {
  ibv_wc wc{};
  Waiter waiter;
  while (ibv_poll_cq(end.cq(), 1, &wc) == 0 || wc.wr_id != id) waiter.idle();
  return wc.status;
}

TEST(FlushTest, ReceivesAreFlushedWhenThePeerIsOutsideOfThem) {
  constexpr uint64_t kReceive = 7;
  constexpr uint64_t kLongestWaitNs = 100'000'000;
  const verbena::test::Node node;
  const verbena::test::Buffer buffer(node, 4096);
  verbena::test::End a(node);
  verbena::test::End b(node);
  verbena::test::connect(a, b);
  ASSERT_EQ(verbena::test::post_receive(a.qp(), kReceive, {buffer.sge(0, 4096)}), 0);
  std::atomic<bool> outside{false};
  std::atomic<bool> flushed{false};
  bool too_early = false;
  std::optional<Flight> flight(std::in_place, as_qp(b.qp()));
  fail_by_request(a, buffer);
  std::thread poller([&] {
    EXPECT_EQ(take_receive_of(a, kReceive), IBV_WC_WR_FLUSH_ERR);
    too_early = !outside.load();
    flushed.store(true);
  });
  const uint64_t limit_ns = now_ns() + kLongestWaitNs;
  for (Waiter waiter; !flushed.load() && now_ns() < limit_ns;) waiter.idle();
  outside.store(true);
  flight.reset();
  poller.join();
  EXPECT_FALSE(too_early);
}

TEST(FlushTest, NothingIsPlacedIntoFlushedReceives) {
  constexpr int kRounds = 200;
  constexpr size_t kMessage = 4 << 20;
  constexpr size_t kBetweenMarks = 512;
  constexpr uint64_t kReceive = 7;
  constexpr std::byte kSent{1};
  constexpr std::byte kMark{2};
  const verbena::test::Node node;
  verbena::test::Buffer from(node, kMessage);
  verbena::test::Buffer into(node, kMessage);
  std::memset(from.data(), static_cast<int>(kSent), kMessage);
  for (int round = 0; round < kRounds; ++round) {
    verbena::test::End a(node);
    verbena::test::End b(node);
    verbena::test::connect(a, b);
    std::memset(into.data(), 0, kMessage);
    ASSERT_EQ(verbena::test::post_receive(a.qp(), kReceive, {into.sge(0, kMessage)}), 0);
    std::thread sender(
        [&] { EXPECT_EQ(verbena::test::post(b.qp(), {.sges = {from.sge(0, kMessage)}}), 0); });
    // Its message is on its way.
    const auto* const first = reinterpret_cast<const std::atomic<std::byte>*>(into.data());
    for (Waiter waiter; first->load() != kSent;) waiter.idle();
    fail_by_request(a, from);
    std::vector<size_t> marked;
    if (take_receive_of(a, kReceive) == IBV_WC_WR_FLUSH_ERR) {
      // What the message has not reached.
      for (size_t at = kMessage - 1; at > kBetweenMarks; at -= kBetweenMarks) {
        if (into.data()[at] != std::byte{0}) break;
        into.data()[at] = kMark;
        marked.push_back(at);
      }
    }
    sender.join();
    for (const size_t at : marked) ASSERT_EQ(into.data()[at], kMark) << at;
  }
}

}  // namespace
}  // namespace verbena::soft
