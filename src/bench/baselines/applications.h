// The applications as contenders, and what key-value stores of others have to do beside them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "src/base/runtime.h"
#include "src/bench/baselines/process_pair.h"
#include "src/bench/hashtable/keys.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

// One client of a store with `keys` keys, which it uses in any order.
struct KeyValuePlan {
  static constexpr uint64_t kKeys = 100'000;
  static constexpr uint32_t kKeyBytes = 16;
  static constexpr uint32_t kValueBytes = 64;

  bool updates = false;  // else searches
  uint32_t pending = 1;
  uint64_t operations = 100'000;
};

// The keys and values of all stores, in the same order.
class KeyValueLoad {
 public:
  struct Entry {
    std::string_view key;
    std::string_view value;
  };

  // Each number below kKeys once.
  Entry entry(uint64_t number) {
    DescribedValue::fill(value_, number, ++version_);
    return {text_.of(number), {value_, sizeof(value_)}};
  }
  Entry next() { return entry(random_.below(KeyValuePlan::kKeys)); }

 private:
  KeyText text_{KeyValuePlan::kKeyBytes};
  char value_[KeyValuePlan::kValueBytes];
  uint64_t version_ = 0;
  Random random_{1};
};

// Operations per second.
Result<double> hashtable_rate(const CpuPair& cpus, const KeyValuePlan& plan);

// Appended entries of 64 B per second, 32 at once, several batches on their way.
inline constexpr uint32_t kAppendedBytes = 64;
inline constexpr uint32_t kAppendedBatch = 32;
Result<double> log_rate(const CpuPair& cpus, uint64_t batches);
// The same into a file, by writev(): they are in the page cache then.
Result<double> file_append_rate(const CpuPair& cpus, uint64_t batches);

}  // namespace verbena::bench::baselines
