// The ways to write records, and what they cost. Control path.
#include <algorithm>
#include <utility>

#include "verbena/apps/shuffle.h"
#include "verbena/remote_vector.h"

namespace verbena {
namespace {

// What a record takes of the thread, as measured: to copy it into a buffer that stays in the cache,
// or to hand it over as a piece of a gather list.
constexpr double kCopiedByteNs = 0.02;
constexpr double kPieceNs = 12;

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
  const uint32_t records = method == ShuffleMethod::kBasic ? 1 : std::min(options.batch, fitting);
  // What was copied is one piece.
  const uint32_t pieces = method == ShuffleMethod::kSp ? 1 : records;
  const VectorWorkload workload = {.entries = pieces,
                                   .entry_bytes = record_bytes * (records / pieces),
                                   .pending = options.pending,
                                   .threads = options.threads};
  const VectorEstimate found = vector_estimate(device, workload, VectorMethod::kSgl);
  const double record_thread_ns = method == ShuffleMethod::kSp    ? record_bytes * kCopiedByteNs
                                  : method == ShuffleMethod::kSgl ? kPieceNs
                                                                  : 0;
  ShuffleEstimate result;
  result.method = method;
  result.usable = found.usable;
  result.record_ns =
      std::max(found.interval_ns, found.thread_ns + records * record_thread_ns) / records;
  if (!found.usable) {
    result.why = std::string(shuffle_method_name(method)) + ": a WRITE of " +
                 std::to_string(records) + " records takes as many gather entries, " + device.name +
                 " has " + std::to_string(device.max_sges) + "; lower batch, or take sp";
    return result;
  }
  const bool by_thread = result.record_ns * records > found.interval_ns;
  result.why =
      std::string(shuffle_method_name(method)) + ": " +
      std::to_string(static_cast<uint64_t>(result.record_ns + 0.5)) + " ns from one record of " +
      std::to_string(record_bytes) + " bytes to the next, " + std::to_string(records) +
      " by a WRITE, " +
      (by_thread ? "limited by the thread" : found.why.substr(found.why.rfind("limited by")));
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
