// The tuples that an executor brings to the join, and what the join has to make of all of them.
//
// Inner tuple i of n has a key that no other inner tuple has. Outer tuple j has the key of one of
// them, and no other outer tuple has that. So each finds one, and the result has n rows.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "verbena/apps/arrow.h"
#include "verbena/apps/join.h"

namespace verbena::bench {

class JoinTuples {
 public:
  // Every `executors`-th tuple of both relations, from number `executor` on.
  JoinTuples(uint64_t tuples, uint32_t tuple_bytes, uint32_t executor, uint32_t executors);

  uint64_t count() const { return inner_keys_.size(); }  // of each relation
  void inner(ArrowArrayStream* stream) const { open(inner_keys_, inner_, "inner", stream); }
  void outer(ArrowArrayStream* stream) const { open(outer_keys_, outer_, "outer", stream); }
  static JoinOptions options(uint32_t threads) {
    return {.keys = {{"key", ""}}, .threads = threads};
  }

  // Reads the executor's part of the result to its end and releases it. How many of its rows are
  // not as they must be; and whether they are all that belong here, which counts as one more.
  uint64_t mismatches(ArrowArrayStream* result) const;

 private:
  void open(const std::vector<uint64_t>& keys, const std::vector<char>& payload, const char* name,
            ArrowArrayStream* stream) const;
  uint64_t key_of_outer(uint64_t number) const;

  const uint64_t tuples_;
  const uint32_t payload_bytes_;
  const uint32_t executor_;
  const uint32_t executors_;
  std::vector<uint64_t> inner_keys_;
  std::vector<uint64_t> outer_keys_;
  std::vector<char> inner_;  // payload, which begins with the key and the number
  std::vector<char> outer_;
};

}  // namespace verbena::bench
