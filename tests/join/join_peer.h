// What the processes of the join's tests tell each other.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "join/executors_for_test.h"
#include "join/join_for_test.h"
#include "tests/rpc_support.h"

namespace verbena::join_test {

using rpc_test::kTimeoutNs;

inline constexpr uint32_t kExecutors = 3;

// When an executor dies, by the kernel's timer, which finds it at work however busy the machine is.
enum class Moment : uint8_t { kNever, kFromItsStart, kFromTheJoin };

struct Task {
  uint32_t number = 0;
  uint64_t seed = 0;  // of the tables
  Moment moment = Moment::kNever;
  uint32_t dies_after_us = 0;  // that moment
  int64_t setup_timeout_ns = kTimeoutNs;
};
inline constexpr uint32_t kTaskTag = 0x4a4f4901;
inline constexpr uint32_t kPortTag = 0x4a4f4902;
struct Ports {
  uint16_t of[kExecutors] = {};
};
inline constexpr uint32_t kPortsTag = 0x4a4f4903;

// Of rows in any order.
struct RowSum {
  uint64_t rows = 0;
  uint64_t hashes = 0;
  bool operator==(const RowSum&) const = default;

  void add(const RowSum& other) {
    rows += other.rows;
    hashes += other.hashes;
  }
};
inline RowSum sum_of(const std::vector<std::vector<join_app::Value>>& rows) {
  RowSum sum;
  for (const auto& row : rows) {
    std::string text;
    for (const join_app::Value& value : row) {
      text += value ? std::to_string(value->size()) + ":" + *value : "-";
    }
    ++sum.rows;
    sum.hashes += shuffle_hash(text);
  }
  return sum;
}

// How it ended.
struct Outcome {
  StatusCode code = StatusCode::kOk;
  RowSum joined;
  char message[600] = {};
};
inline constexpr uint32_t kOutcomeTag = 0x4a4f4904;

// The tables follow from their seed; each executor takes its part of them.
struct Tables {
  JoinOptions options = {.keys = {{"key0", "right_key0"}}, .threads = 1};
  join_app::TestTable left;
  join_app::TestTable right;
  std::vector<join_app::TestTable> left_parts;
  std::vector<join_app::TestTable> right_parts;

  explicit Tables(uint64_t seed) {
    Random random(seed);
    const join_app::Case keys = {"key", {{"l", "l"}}};
    left = join_app::draw_table(random, keys, true, 1000 + random.below(1000), 90);
    right = join_app::draw_table(random, keys, false, random.below(300), 90);
    left_parts = join_app::in_parts(left, kExecutors, random);
    right_parts = join_app::in_parts(right, kExecutors, random);
  }
};

}  // namespace verbena::join_test
