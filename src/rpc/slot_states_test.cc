#include "src/rpc/slot_states.h"

#include <gtest/gtest.h>

namespace verbena::rpc {
namespace {

TEST(SlotStatesTest, FewAndManyAreEachOnesOwn) {
  for (const uint32_t count : {1u, 4u, 5u, 1000u}) {
    SCOPED_TRACE(count);
    SlotStates states(count);
    EXPECT_EQ(states.size(), count);
    for (uint32_t slot = 0; slot < count; ++slot) EXPECT_EQ(states[slot], SlotState::kFree);
    for (uint32_t slot = 0; slot < count; slot += 2) states[slot] = SlotState::kWaiting;
    for (uint32_t slot = 0; slot < count; ++slot) {
      EXPECT_EQ(states[slot], slot % 2 == 0 ? SlotState::kWaiting : SlotState::kFree);
    }
    states.set_all(SlotState::kFailed);
    for (uint32_t slot = 0; slot < count; ++slot) EXPECT_EQ(states[slot], SlotState::kFailed);
  }
}

}  // namespace
}  // namespace verbena::rpc
