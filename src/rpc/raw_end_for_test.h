// One end of a connection over UC or UD, for tests of the other one.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "src/rpc/unreliable_end.h"
#include "verbena/connection.h"

namespace verbena::rpc {

inline constexpr int64_t kLongNs = 120'000'000'000;

// One side's end alone, which sends what the test says, as a broken or a very late peer would.
struct RawEnd {
  explicit RawEnd(ControlConnection its_control) : control(std::move(its_control)) {}

  ControlConnection control;
  UnreliableEnd end;

  // The next message that came, if any: its immediate. Looks often enough for what is on its way.
  std::optional<uint32_t> arrival() {
    for (int look = 0; look < 100; ++look) {
      const ibv_wc* completion = end.arrivals().next();
      if (completion == nullptr) continue;
      EXPECT_EQ(completion->status, IBV_WC_SUCCESS);
      last = *completion;
      end.arrivals().take();
      end.give_back(last.wr_id);
      return ntohl(last.imm_data);
    }
    return std::nullopt;
  }
  std::string text() {
    const uint32_t slot = end.generations().slot(ntohl(last.imm_data));
    const std::span<const char> bytes = end.message(last, slot);
    return {bytes.data(), bytes.size()};
  }
  void send(uint32_t slot, uint32_t generation, const std::string& text) {
    std::memcpy(end.payload(slot), text.data(), text.size());
    ASSERT_TRUE(end.queue().has_room());
    ASSERT_TRUE(end.post(slot, generation, static_cast<uint32_t>(text.size())));
  }

  ibv_wc last{};
};

}  // namespace verbena::rpc
