// The ways to write records, and what they cost. Control path.
#include <algorithm>
#include <utility>

#include "verbena/apps/shuffle.h"
#include "verbena/remote_vector.h"

namespace verbena {
namespace {

VectorEstimate vector_estimate(const DeviceInfo& device, const VectorWorkload& workload,
                               VectorMethod method) {
  for (VectorEstimate& estimate : estimate_vector_methods(device, workload)) {
    if (estimate.method == method) return std::move(estimate);
  }
  return {};
}

ShuffleEstimate estimate(const DeviceInfo& device, const ShuffleSenderOptions& options,
                         uint32_t record_bytes, ShuffleMethod method) {
  const uint32_t fitting = std::max(options.batch_bytes / std::max(record_bytes, 1u), 1u);
  const VectorWorkload workload = {
      .entries = method == ShuffleMethod::kBasic ? 1 : std::min(options.batch, fitting),
      .entry_bytes = record_bytes,
      .pending = options.pending,
      .threads = options.threads};
  // One entry alone is a gather list of one: nothing is copied.
  const VectorEstimate found = vector_estimate(
      device, workload, method == ShuffleMethod::kSp ? VectorMethod::kSp : VectorMethod::kSgl);
  ShuffleEstimate result;
  result.method = method;
  result.usable = found.usable;
  result.record_ns = found.interval_ns / workload.entries;
  if (!found.usable) {
    result.why = std::string(shuffle_method_name(method)) + ": a WRITE of " +
                 std::to_string(workload.entries) + " records takes as many gather entries, " +
                 device.name + " has " + std::to_string(device.max_sges) +
                 "; lower batch, or take sp";
    return result;
  }
  // After the name of the vector method.
  result.why = std::string(shuffle_method_name(method)) + ": " +
               std::to_string(static_cast<uint64_t>(result.record_ns + 0.5)) +
               " ns from one record to the next (" + found.why.substr(found.why.find(' ') + 1) +
               ")";
  return result;
}

}  // namespace

const char* shuffle_method_name(ShuffleMethod method) {
  switch (method) {
    case ShuffleMethod::kBasic:
      return "basic";
    case ShuffleMethod::kSp:
      return "sp";
    case ShuffleMethod::kSgl:
      return "sgl";
    case ShuffleMethod::kAutomatic:
      break;
  }
  return "automatic";
}

std::vector<ShuffleEstimate> estimate_shuffle_methods(const DeviceInfo& device,
                                                      const ShuffleSenderOptions& options,
                                                      uint32_t record_bytes) {
  std::vector<ShuffleEstimate> estimates;
  for (const ShuffleMethod method :
       {ShuffleMethod::kSp, ShuffleMethod::kSgl, ShuffleMethod::kBasic}) {
    estimates.push_back(estimate(device, options, record_bytes, method));
  }
  std::ranges::stable_sort(estimates, [](const ShuffleEstimate& a, const ShuffleEstimate& b) {
    return a.usable != b.usable ? a.usable : a.record_ns < b.record_ns;
  });
  return estimates;
}

}  // namespace verbena
