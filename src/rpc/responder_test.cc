// What requesters that break off their handshake leave behind.
#include "src/rpc/responder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/wire.h"
#include "src/connect/exchange.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/rpc/layer.h"
#include "src/rpc/requester_control.h"
#include "src/rpc/send_send.h"
#include "verbena/connection.h"
#include "verbena/rpc.h"

namespace verbena::rpc {
namespace {

using test::must;

constexpr int64_t kHandshakeLimitNs = 100'000'000'000;

// A requester's side of the handshake but for its last step: the responder's queue pair is up, and
// the responder waits for this side. Then so many requests of no bytes.
void send_before_the_end(const sim::Cluster::Member& node, ControlConnection& control,
                         uint32_t requests) {
  const RequesterOptions options;
  must(request_design(Protocol::kSendSend, MarkLayout::kImmediate, node.device, control, options)
           .status());
  ConnectionEnd<SendSend<>::RequestChannel, SendSend<>::ResponseChannel, false> end;
  must(end.prepare(node.device, node.domain, end_options(options)).status());
  QueuePair& queue_pair = end.queue_pair();
  const QueuePairAddress mine = must(queue_pair.address());
  constexpr uint8_t kEndpointStep = 1;
  constexpr size_t kMemoryBytes = 76;  // of an EndpointMemory, which here is none
  WireWriter writer;
  connect::begin_step(writer, kLayer, kEndpointStep, Status::ok_status());
  writer.u32(mine.queue_pair_number);
  writer.u32(mine.packet_sequence_number);
  writer.u16(mine.lid);
  writer.raw(std::as_bytes(std::span(mine.gid)));
  writer.u8(mine.has_gid);
  writer.u8(mine.mtu);
  writer.u8(0);
  writer.raw(std::vector<std::byte>(kMemoryBytes));
  must(control.send(writer.bytes(), kHandshakeLimitNs));
  const std::vector<std::byte> frame = must(control.receive(kHandshakeLimitNs));
  WireReader reader(frame);
  must(connect::check_step(control, kLayer, reader, kEndpointStep));
  QueuePairAddress theirs;
  theirs.queue_pair_number = reader.u32();
  theirs.packet_sequence_number = reader.u32();
  theirs.lid = reader.u16();
  std::ranges::copy(reader.raw(sizeof(theirs.gid)),
                    std::as_writable_bytes(std::span(theirs.gid)).begin());
  theirs.has_gid = reader.u8();
  theirs.mtu = reader.u8();
  must(queue_pair.connect(theirs, {.max_outstanding_reads = 0}));
  must(control.receive(kHandshakeLimitNs).status());  // it is ready

  ibv_send_wr request{};
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  Waiter waiter;
  for (uint32_t i = 0; i < requests; ++i) {
    ibv_send_wr* rejected = nullptr;
    ASSERT_EQ(ibv_post_send(queue_pair.get(), &request, &rejected), 0);
    ibv_wc completion{};
    while (ibv_poll_cq(end.endpoint()->send_completions.get(), 1, &completion) == 0) waiter.idle();
    EXPECT_EQ(completion.status, IBV_WC_SUCCESS);
  }
}

// As RNICs do, the simulated one takes the completions of a queue pair along when it is destroyed,
// and with them the numbers of the shared receives that they are of.
TEST(ResponderTest, SharedReceivesOfHandshakesThatFailComeBack) {
  constexpr uint32_t kReceives = 2;
  sim::Cluster cluster;
  const JobSecret secret = JobSecret::random();
  std::optional<ControlListener> listener;
  {
    const sim::OnNode here(cluster.simulation(), cluster.node(0));
    listener.emplace(must(ControlListener::listen("127.0.0.1", 0, secret)));
  }
  const auto connect = [&] {
    return must(
        ControlConnection::connect("127.0.0.1", listener->port(), secret, kHandshakeLimitNs));
  };
  Thread responding = cluster.start(0, [&] {
    ResponderOptions options;
    options.receive_depth = kReceives;
    const auto responder = must(make_responder(Protocol::kSendSend, MarkLayout::kImmediate,
                                               cluster[0].device, cluster[0].domain, options));
    ControlConnection broken_off = must(listener->accept(kHandshakeLimitNs));
    EXPECT_EQ(responder->connect(broken_off).code(), StatusCode::kUnavailable);
    ControlConnection control = must(listener->accept(kHandshakeLimitNs));
    ASSERT_TRUE(responder->connect(control).ok());
    Waiter waiter;
    while (responder->status().ok()) {
      const uint32_t answered = responder->poll([](const Request&, std::span<char>) { return 0u; });
      answered > 0 ? waiter.progress() : waiter.idle();
    }
  });
  Thread requesting = cluster.start(1, [&] {
    {
      ControlConnection control = connect();
      send_before_the_end(cluster[1], control, kReceives);
    }
    ControlConnection control = connect();
    const auto requester = must(make_requester(Protocol::kSendSend, MarkLayout::kImmediate,
                                               cluster[1].device, cluster[1].domain, control, {}));
    ASSERT_EQ(requester->try_post(0, 0), PostResult::kPosted);
    const uint64_t start_ns = now_ns();
    Waiter waiter;
    uint32_t responses = 0;
    while (responses == 0 && requester->status().ok() &&
           now_ns() - start_ns < uint64_t{kHandshakeLimitNs}) {
      responses = requester->poll([](uint32_t, std::span<const char>) {});
      if (responses == 0) waiter.idle(start_ns + uint64_t{kHandshakeLimitNs});
    }
    EXPECT_EQ(responses, 1u) << requester->status().message();
  });
  requesting.join();
  responding.join();
}

}  // namespace
}  // namespace verbena::rpc
