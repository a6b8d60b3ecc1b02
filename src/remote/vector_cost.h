// What a way of vector IO costs; pure arithmetic on the step times of a device.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/device/step_costs.h"
#include "verbena/device.h"
#include "verbena/remote_vector.h"

namespace verbena::remote {

struct VectorCost {
  double thread_ns = 0;
  double queue_pair_ns = 0;
  double device_ns = 0;  // its busiest part, with what other threads ask of it
  double latency_ns = 0;
  double interval_ns = 0;

  // By the time of an operation, and where the device decides that, by what is left to the thread.
  bool is_cheaper_than(const VectorCost& other) const {
    return interval_ns != other.interval_ns ? interval_ns < other.interval_ns
                                            : thread_ns < other.thread_ns;
  }
};
VectorCost vector_cost(const StepCosts& steps, uint32_t mtu_bytes, uint32_t inline_limit_bytes,
                       const VectorWorkload& workload, VectorMethod method);

// Whether a way can be used; else why not, and what to do.
Status check_vector_method(const DeviceInfo& device, const VectorWorkload& workload,
                           VectorMethod method);

// What `workload` would take, by the costs of `costed`: the same, or its rounded form.
std::vector<VectorEstimate> estimate_vector_methods(const DeviceInfo& device,
                                                    const VectorWorkload& workload,
                                                    const VectorWorkload& costed);

// The cheapest usable way for any operation of a connection, looked up without computing: costs are
// those of sizes rounded up to powers of two.
class VectorChoice {
 public:
  VectorChoice() = default;
  // `workload`: what all operations have in common.
  VectorChoice(const DeviceInfo& device, const VectorWorkload& workload);

  VectorMethod method(bool reads, uint32_t entries, uint64_t total_bytes,
                      uint64_t staging_bytes) const {
    for (const VectorMethod method :
         methods_[reads ? 1 : 0][step_of(entries)][step_of(total_bytes / entries)]) {
      if (method == VectorMethod::kSp && total_bytes > staging_bytes) continue;
      if (method == VectorMethod::kSgl && entries > max_sges_) continue;
      return method;
    }
    return VectorMethod::kDoorbell;  // not reached: it can always be used
  }
  // The operation by whose costs such ones are chosen.
  static VectorWorkload rounded(VectorWorkload workload);

 private:
  static constexpr uint32_t kSteps = 32;
  static constexpr size_t kMethodCount = 3;
  static uint32_t step_of(uint64_t value) {
    return value <= 1 ? 0 : static_cast<uint32_t>(64 - __builtin_clzll(value - 1)) % kSteps;
  }

  using CheapestFirst = std::array<VectorMethod, kMethodCount>;
  std::array<std::array<std::array<CheapestFirst, kSteps>, kSteps>, 2> methods_{};
  uint32_t max_sges_ = 0;
};

}  // namespace verbena::remote
