#include "src/rpc/endpoint_memory.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "verbena/rpc.h"

namespace verbena::rpc {
namespace {

EndpointMemory memory() {
  EndpointMemory memory;
  memory.connection = 7;
  memory.slots_address = 0x10000;
  memory.slots_bytes = 8192;
  memory.slots_rkey = 11;
  memory.readable_address = 0x20000;
  memory.readable_bytes = 1;
  memory.readable_rkey = 12;
  return memory;
}

TEST(CheckMemoryTest, ImpossibleNumbersAreViolations) {
  const EndpointNeeds needs = {.slots_bytes = 8192, .readable = true};
  EXPECT_TRUE(check_memory(memory(), needs).ok());

  std::vector<EndpointMemory> wrong(5, memory());
  wrong[0].connection = kMaxConnections;
  wrong[1].slots_bytes = 8191;
  wrong[2].slots_address = std::numeric_limits<uint64_t>::max() - 8190;
  wrong[3].slots_address = 0;
  wrong[4].readable_bytes = std::numeric_limits<uint64_t>::max();
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_EQ(check_memory(wrong[i], needs).code(), StatusCode::kProtocolViolation) << i;
  }
  wrong[1].slots_bytes = 0;
  wrong[1].slots_address = 0;
  EXPECT_TRUE(check_memory(wrong[1], {.readable = true}).ok()) << "slots nobody needs";
}

TEST(CheckMemoryTest, SlotsOfTheQueuePairMustSuffice) {
  EndpointMemory some = memory();
  some.first_slot = 8;
  some.queue_pair_slots = 12;
  EXPECT_TRUE(check_memory(some, {.queue_pair_slots = 4}).ok());
  EXPECT_EQ(check_memory(some, {.queue_pair_slots = 5}).code(), StatusCode::kProtocolViolation);
  some.first_slot = ~0u;
  EXPECT_EQ(check_memory(some, {.queue_pair_slots = 4}).code(), StatusCode::kProtocolViolation);
  some.first_slot = 0;
  some.queue_pair_slots = kMaxQueuePairSlots + 1;
  EXPECT_EQ(check_memory(some, {}).code(), StatusCode::kProtocolViolation);
}

TEST(CheckMemoryTest, NotificationBytesMustSuffice) {
  EndpointMemory some = memory();
  some.notifications_address = 0x30000;
  some.notifications_bytes = 15;
  EXPECT_TRUE(check_memory(some, {.notifications_bytes = 15}).ok());
  EXPECT_EQ(check_memory(some, {.notifications_bytes = 16}).code(), StatusCode::kProtocolViolation);
}

}  // namespace
}  // namespace verbena::rpc
