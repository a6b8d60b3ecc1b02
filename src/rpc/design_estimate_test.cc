#include "verbena/design_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "src/rpc/design_choice.h"

namespace verbena::rpc {
namespace {

using testing::AllOf;
using testing::HasSubstr;

DeviceInfo rnic() {
  DeviceInfo device;
  device.name = "rnic0";
  device.max_queue_pairs = 1 << 16;
  device.max_queue_pair_wrs = 16384;
  device.max_cqes = 1 << 20;
  device.max_shared_receive_queues = 1 << 10;
  device.max_shared_receive_queue_wrs = 16384;
  device.max_memory_region_bytes = uint64_t{1} << 40;
  device.max_inline_bytes = 256;
  device.max_outstanding_reads = 16;
  device.active_mtu_bytes = 4096;
  device.writes_in_order = true;
  return device;
}

DesignEstimate best(const std::vector<DesignEstimate>& designs) { return designs.front(); }

// --- the list ---

TEST(DesignEstimateTest, EveryDesignIsListedOnce) {
  std::vector<std::tuple<Protocol, MarkLayout, ReceiveQueues, bool, Transport>> names;
  for (const DesignEstimate& one : estimate_designs(rnic(), {.workers = 4})) {
    names.emplace_back(one.protocol, one.layout, one.receive_queues, one.dispatcher, one.transport);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  // SEND requests and immediates of either kind of receive queue, two transports that lose
  // messages, one of them with either kind, too; each with and without dispatcher.
  EXPECT_EQ(names.size(), 2u * (2 + 5 * 2 + 6 + 6 + 1 + 4));
  EXPECT_EQ(estimate_designs(rnic(), {}).size() * 2, names.size()) << "one worker, no dispatcher";
}

TEST(DesignEstimateTest, TheCheapestComesFirstAndEachSaysWhatLimitsIt) {
  const std::vector<DesignEstimate> designs =
      estimate_designs(rnic(), {.pending = 16, .requesters = 40});
  for (const DesignEstimate& one : designs) {
    ASSERT_TRUE(one.usable) << one.why;
    EXPECT_THAT(one.why, HasSubstr("; limited by "));
    EXPECT_GT(one.round_trip_ns, one.interval_ns);
    EXPECT_GT(one.responder_memory_bytes, 0u);
    EXPECT_GE(one.interval_ns, designs.front().interval_ns * 0.98);
  }
}

// --- what cannot be used ---

TEST(DesignEstimateTest, MarksNeedWritesInOrder) {
  DeviceInfo device = rnic();
  device.writes_in_order = false;
  bool seen_unusable = false;
  for (const DesignEstimate& one : estimate_designs(device, {})) {
    const bool marked = uses_mark_layout(one.protocol) && needs_writes_in_order(one.layout);
    EXPECT_EQ(one.usable, !marked) << one.why;
    if (marked) {
      EXPECT_THAT(one.why, AllOf(HasSubstr("rnic0"), HasSubstr("land in order")));
    }
    EXPECT_TRUE(one.usable || (seen_unusable = true)) << "the usable ones come first";
    EXPECT_FALSE(one.usable && seen_unusable);
  }
  EXPECT_TRUE(seen_unusable);
}

TEST(DesignEstimateTest, WhatGoesOverWhichTransport) {
  const auto over = [](const DeviceInfo& device, const DesignWorkload& workload, Protocol protocol,
                       Transport transport) {
    return estimate_design(device, workload, protocol, MarkLayout::kLastBit,
                           ReceiveQueues::kPerConnection, /*dispatcher=*/false, transport);
  };
  const DesignWorkload large{.response_bytes = 4097};
  EXPECT_TRUE(over(rnic(), {}, Protocol::kSendSend, Transport::kUd).usable);
  EXPECT_TRUE(over(rnic(), large, Protocol::kSendSend, Transport::kUc).usable);
  const DesignEstimate datagrams = over(rnic(), large, Protocol::kSendSend, Transport::kUd);
  EXPECT_FALSE(datagrams.usable);
  EXPECT_THAT(datagrams.why, AllOf(HasSubstr("4097 bytes"), HasSubstr("carries at most 4096")));
  EXPECT_TRUE(over(rnic(), {}, Protocol::kWriteWrite, Transport::kUc).usable);
  EXPECT_EQ(over(rnic(), {}, Protocol::kWriteWrite, Transport::kUc).protocol,
            Protocol::kWriteWrite);
  const DesignEstimate writes = over(rnic(), {}, Protocol::kWriteWrite, Transport::kUd);
  EXPECT_FALSE(writes.usable);
  EXPECT_THAT(writes.why, HasSubstr("only send/send"));
  DeviceInfo simulated = rnic();
  simulated.kind = DeviceKind::kSimulated;
  EXPECT_TRUE(over(simulated, {}, Protocol::kSendSend, Transport::kUc).usable);
}

// The cheapest one may lose messages; who asks for rc does not want that.
TEST(DesignEstimateTest, AutomaticKeepsToTheTransport) {
  ResponderOptions options;
  const auto reliable = choose_design(Protocol::kSendSend, MarkLayout::kAutomatic, rnic(), options);
  ASSERT_TRUE(reliable.ok()) << reliable.status().message();
  EXPECT_EQ(responder_choice(rnic(), *reliable, options).design.transport, Transport::kRc);
  options.transport = Transport::kUd;
  const auto datagrams =
      choose_design(Protocol::kAutomatic, MarkLayout::kAutomatic, rnic(), options);
  ASSERT_TRUE(datagrams.ok()) << datagrams.status().message();
  EXPECT_EQ(datagrams->protocol, Protocol::kSendSend);
  EXPECT_EQ(datagrams->why, "automatic: the one design over ud");
  EXPECT_EQ(responder_choice(rnic(), *datagrams, options).design.transport, Transport::kUd);
  options.transport = Transport::kUc;
  const auto cheapest =
      choose_design(Protocol::kAutomatic, MarkLayout::kAutomatic, rnic(), options);
  ASSERT_TRUE(cheapest.ok()) << cheapest.status().message();
  EXPECT_THAT(cheapest->why, HasSubstr("the cheapest of 2"));
  EXPECT_EQ(cheapest->layout, MarkLayout::kImmediate);
  EXPECT_EQ(responder_choice(rnic(), *cheapest, options).design.transport, Transport::kUc);
  options.transport = Transport::kUd;
  EXPECT_EQ(
      choose_design(Protocol::kWriteWrite, MarkLayout::kAutomatic, rnic(), options).status().code(),
      StatusCode::kUnsupported);
}

TEST(DesignEstimateTest, ReceivesMustFitTheSharedReceiveQueue) {
  DeviceInfo device = rnic();
  device.max_shared_receive_queue_wrs = 128;
  const DesignWorkload workload{.pending = 8, .requesters = 40};
  const auto shared = estimate_design(device, workload, Protocol::kSendWrite, MarkLayout::kLastBit);
  EXPECT_FALSE(shared.usable);
  EXPECT_THAT(shared.why, AllOf(HasSubstr("shared receive queue"), HasSubstr("128")));
  EXPECT_TRUE(estimate_design(device, workload, Protocol::kSendWrite, MarkLayout::kLastBit,
                              ReceiveQueues::kPerConnection)
                  .usable);
  device.max_shared_receive_queues = 0;
  EXPECT_THAT(estimate_design(device, {}, Protocol::kSendSend, MarkLayout::kImmediate).why,
              HasSubstr("no shared receive queues"));
}

TEST(DesignEstimateTest, LimitsOfTheDeviceAreNamed) {
  const auto why = [](const DeviceInfo& device, const DesignWorkload& workload) {
    const auto one = estimate_design(device, workload, Protocol::kWriteWrite, MarkLayout::kLastBit);
    EXPECT_FALSE(one.usable);
    return one.why;
  };
  DeviceInfo device = rnic();
  device.max_queue_pair_wrs = 32;
  EXPECT_THAT(why(device, {.pending = 64}), HasSubstr("rnic0 has 32"));
  device = rnic();
  device.max_queue_pairs = 30;
  EXPECT_THAT(why(device, {.requesters = 40}), AllOf(HasSubstr("40"), HasSubstr("rnic0 has 30")));
  device = rnic();
  device.max_memory_region_bytes = 1 << 20;
  EXPECT_THAT(why(device, {.response_bytes = 1 << 20, .pending = 4}), HasSubstr("1048576"));
  EXPECT_THAT(why(rnic(), {.pending = 0}), HasSubstr("pending is 0"));
  EXPECT_THAT(why(rnic(), {.requesters = kMaxConnections, .workers = kMaxConnections}),
              HasSubstr("choose at most"));
  device = rnic();
  device.max_outstanding_reads = 0;
  EXPECT_THAT(estimate_design(device, {}, Protocol::kRead, MarkLayout::kImmediate).why,
              HasSubstr("no READs"));
}

// --- what decides ---

double interval_ns(const DesignWorkload& workload, Protocol protocol, MarkLayout layout) {
  const DesignEstimate one = estimate_design(rnic(), workload, protocol, layout);
  EXPECT_TRUE(one.usable) << one.why;
  return one.interval_ns;
}

// "patterns" 5 and 6, "msgproto" 4: the request's verb decides where many ask one, the response's
// where one asks many.
TEST(DesignEstimateTest, TheVerbOnTheBusySideDecides) {
  const DesignWorkload many_to_one{.pending = 8, .requesters = 40};
  EXPECT_LT(interval_ns(many_to_one, Protocol::kWriteSend, MarkLayout::kLastBit) * 1.2,
            interval_ns(many_to_one, Protocol::kSendWrite, MarkLayout::kLastBit));
  const DesignWorkload one_to_many{.pending = 8, .responders = 40};
  EXPECT_LT(interval_ns(one_to_many, Protocol::kSendWrite, MarkLayout::kLastBit) * 1.2,
            interval_ns(one_to_many, Protocol::kWriteSend, MarkLayout::kLastBit));
}

// "patterns" 7 and 8: polling many slots in vain costs a responder more than a second WRITE does.
TEST(DesignEstimateTest, ADenseArrayPaysWhereFewOfManyAreActive) {
  const auto dense = [](const DesignWorkload& workload) {
    return estimate_design(rnic(), workload, Protocol::kWriteSend, MarkLayout::kDense);
  };
  const auto slots = [](const DesignWorkload& workload) {
    return estimate_design(rnic(), workload, Protocol::kWriteSend, MarkLayout::kLastBit);
  };
  EXPECT_GT(dense({}).round_trip_ns, slots({}).round_trip_ns);
  const DesignWorkload few_active{.requesters = 500, .active = 5};
  EXPECT_LT(dense(few_active).interval_ns * 2, slots(few_active).interval_ns);
}

TEST(DesignEstimateTest, LengthMarkersCostMoreTheLargerTheMessage) {
  const DesignWorkload large{.response_bytes = 1 << 20};
  EXPECT_GT(interval_ns(large, Protocol::kWriteWrite, MarkLayout::kLengthMarkers),
            interval_ns(large, Protocol::kWriteWrite, MarkLayout::kHeadTail));
}

TEST(DesignEstimateTest, ADispatcherSavesMemoryAndCostsHandOvers) {
  const DesignWorkload workload{.requesters = 4, .workers = 8};
  const auto alone = estimate_design(rnic(), workload, Protocol::kWriteSend, MarkLayout::kLastBit);
  const auto dispatched = estimate_design(rnic(), workload, Protocol::kWriteSend,
                                          MarkLayout::kLastBit, ReceiveQueues::kShared, true);
  EXPECT_GT(dispatched.round_trip_ns, alone.round_trip_ns - 100);
  EXPECT_GT(dispatched.requester_ns, alone.requester_ns + 100);
  EXPECT_GT(dispatched.requester_memory_bytes, alone.requester_memory_bytes)
      << "slots of all workers";
  EXPECT_TRUE(dispatched.dispatcher);
}

TEST(DesignEstimateTest, WhatIsNotInlinedIsReadByTheDevice) {
  const DesignWorkload inlined{};
  DesignWorkload fetched{};
  fetched.inline_bytes = 0;
  const auto a = estimate_design(rnic(), inlined, Protocol::kWriteWrite, MarkLayout::kLastBit);
  const auto b = estimate_design(rnic(), fetched, Protocol::kWriteWrite, MarkLayout::kLastBit);
  EXPECT_EQ(a.requester.device_reads, 0);
  EXPECT_EQ(b.requester.device_reads, 1);
  EXPECT_GT(b.round_trip_ns, a.round_trip_ns + 500) << "two reads over the bus";
}

// --- the choice ---

TEST(DesignChoiceTest, WhatTheOptionsNameIsTaken) {
  const auto chosen = choose_design(Protocol::kSendWrite, MarkLayout::kHeadTail, rnic(), {});
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->protocol, Protocol::kSendWrite);
  EXPECT_EQ(chosen->layout, MarkLayout::kHeadTail);
  EXPECT_EQ(chosen->why, "the options ask for it");
  DeviceInfo unordered = rnic();
  unordered.writes_in_order = false;
  const auto fallen = choose_design(Protocol::kSendWrite, MarkLayout::kHeadTail, unordered, {});
  EXPECT_EQ(fallen->layout, MarkLayout::kImmediate);
  EXPECT_THAT(fallen->why, AllOf(HasSubstr("ask for head-tail"), HasSubstr("land in order")));
}

TEST(DesignChoiceTest, AutomaticTakesTheCheapestThatCallsAHandler) {
  ResponderOptions options;
  options.max_connections = 40;
  const auto chosen = choose_design(Protocol::kAutomatic, MarkLayout::kAutomatic, rnic(), options);
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  auto designs = estimate_designs(rnic(), {.response_bytes = options.response_max_bytes,
                                           .requesters = options.max_connections});
  std::erase_if(designs, [](const DesignEstimate& one) {
    return one.protocol == Protocol::kRead || one.receive_queues == ReceiveQueues::kPerConnection;
  });
  EXPECT_EQ(chosen->protocol, best(designs).protocol);
  EXPECT_EQ(chosen->layout, best(designs).layout);
  EXPECT_THAT(chosen->why, HasSubstr("automatic: the cheapest of 16"));
}

TEST(DesignChoiceTest, EitherHalfCanBeLeftOpen) {
  const auto layout = choose_design(Protocol::kSendWrite, MarkLayout::kAutomatic, rnic(), {});
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->protocol, Protocol::kSendWrite);
  EXPECT_LE(layout->layout, kLastMarkLayout);
  const auto protocol = choose_design(Protocol::kAutomatic, MarkLayout::kDense, rnic(), {});
  ASSERT_TRUE(protocol.ok());
  EXPECT_TRUE(!uses_mark_layout(protocol->protocol) || protocol->layout == MarkLayout::kDense);
  // Nothing is left open for what has no marks.
  EXPECT_EQ(choose_design(Protocol::kRead, MarkLayout::kAutomatic, rnic(), {})->protocol,
            Protocol::kRead);
}

TEST(DesignChoiceTest, AutomaticNeverTakesWhatTheDeviceRulesOut) {
  DeviceInfo device = rnic();
  device.writes_in_order = false;
  device.max_shared_receive_queues = 0;
  const auto chosen = choose_design(Protocol::kAutomatic, MarkLayout::kAutomatic, device, {});
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->layout, MarkLayout::kDense) << "what else is left takes no shared receives";
  device.max_queue_pair_wrs = 1;
  const auto none = choose_design(Protocol::kAutomatic, MarkLayout::kAutomatic, device, {});
  EXPECT_EQ(none.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(none.status().message(), "");
}

}  // namespace
}  // namespace verbena::rpc
