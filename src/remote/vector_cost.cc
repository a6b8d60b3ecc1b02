#include "src/remote/vector_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/base/assert.h"

namespace verbena {
namespace {

constexpr VectorMethod kMethods[] = {VectorMethod::kSp, VectorMethod::kSgl,
                                     VectorMethod::kDoorbell};

}  // namespace

std::span<const VectorMethod> all_vector_methods() { return kMethods; }

const char* vector_method_name(VectorMethod method) {
  switch (method) {
    case VectorMethod::kSp:
      return "sp";
    case VectorMethod::kSgl:
      return "sgl";
    case VectorMethod::kDoorbell:
      return "doorbell";
    case VectorMethod::kAutomatic:
      break;
  }
  return "automatic";
}

namespace remote {
namespace {

// Of a WQE in front of its gather list or inlined payload, and one entry of that list.
constexpr double kEntryHeadBytes = 32;
constexpr double kSgeBytes = 16;
constexpr double kInlineHeadBytes = 4;

double units_of_64(double bytes) { return std::ceil(bytes / 64); }

uint32_t inline_limit(const DeviceInfo& device, const VectorWorkload& workload) {
  return std::min(workload.inline_bytes, device.max_inline_bytes);
}

}  // namespace

VectorCost vector_cost(const StepCosts& steps, uint32_t mtu_bytes, uint32_t inline_limit_bytes,
                       const VectorWorkload& workload, VectorMethod method) {
  const double entries = workload.entries;
  const double bytes = entries * workload.entry_bytes;
  const double messages = method == VectorMethod::kDoorbell ? entries : 1;
  const double message_bytes = bytes / messages;
  const double sges = method == VectorMethod::kSgl ? entries : 1;
  const bool inlined = !workload.reads && message_bytes <= inline_limit_bytes;
  const double packets = messages * std::max(1.0, std::ceil(message_bytes / mtu_bytes));

  VectorCost cost;
  // The thread: copies, builds, rings, takes the completion.
  const double wqe_bytes =
      kEntryHeadBytes + (inlined ? kInlineHeadBytes + message_bytes : sges * kSgeBytes);
  const bool rung_with_entry = messages == 1 && wqe_bytes <= steps.entry_max_bytes &&
                               (inlined || workload.reads || !steps.entry_only_inline);
  cost.thread_ns =
      messages * steps.post_request_ns +
      (rung_with_entry ? units_of_64(wqe_bytes) * steps.entry_line_ns + steps.entry_lock_ns
                       : steps.doorbell_ns) +
      (steps.completion_ns + steps.device_line_ns) / workload.signal_interval;
  if (method == VectorMethod::kSp) cost.thread_ns += bytes * steps.byte_ns;
  if (inlined || steps.moves_payload) cost.thread_ns += bytes * steps.byte_ns;
  if (steps.moves_payload) cost.thread_ns += (sges - 1) * steps.gather_entry_ns;

  // The queue pair: one message after the other, and one entry of its list after the other, also
  // of a READ, which is a stand-in for placing its pieces (as in the simulated RNIC).
  const bool moved_by_device = !steps.moves_payload;
  if (moved_by_device) {
    cost.queue_pair_ns = messages * (workload.reads ? steps.read_gap_ns : steps.write_gap_ns) +
                         (inlined ? 0 : (sges - 1) * steps.gather_entry_ns);
  }
  // The RNIC's sending side, its bus and the link, which all threads share.
  const double send_ns = packets * steps.send_packet_ns + units_of_64(bytes) * steps.send_64_ns;
  const double bus_ns = inlined ? 0 : bytes * steps.bus_byte_ns;
  const double link_ns = (bytes + packets * steps.packet_overhead_bytes) * steps.link_byte_ns;
  cost.device_ns = workload.threads * std::max({send_ns, bus_ns, link_ns});

  // A lone operation: its way there, and the answer's way back.
  double latency_ns = cost.thread_ns + 2 * (steps.bus_one_way_ns + steps.path_ns) + send_ns +
                      packets * steps.receive_packet_ns + units_of_64(bytes) * steps.receive_64_ns +
                      std::max(bus_ns, link_ns);
  if (moved_by_device) {
    latency_ns += (messages - 1) * (workload.reads ? steps.read_gap_ns : steps.write_gap_ns) +
                  (inlined ? 0 : (sges - 1) * steps.gather_entry_ns);
  }
  if (!rung_with_entry) latency_ns += steps.bus_read_ns;
  if (!inlined) latency_ns += steps.bus_read_ns;  // the payload's, at the side that has it
  cost.latency_ns = latency_ns;
  cost.interval_ns = std::max(
      {cost.thread_ns, cost.queue_pair_ns, cost.device_ns, cost.latency_ns / workload.pending});
  return cost;
}

Status check_vector_method(const DeviceInfo& device, const VectorWorkload& workload,
                           VectorMethod method) {
  const uint64_t bytes = uint64_t{workload.entries} * workload.entry_bytes;
  if (method == VectorMethod::kSp && bytes > workload.staging_bytes) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("{} bytes do not fit the buffer of {} bytes that sp copies through; "
                              "raise value_bytes, or take sgl or doorbell",
                              bytes, workload.staging_bytes));
  }
  if (method == VectorMethod::kSgl && workload.entries > device.max_sges) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("{} pieces are more than the {} entries that {} takes in a gather "
                              "list; take sp or doorbell, or fewer pieces",
                              workload.entries, device.max_sges, device.name));
  }
  return Status::ok_status();
}

VectorWorkload VectorChoice::rounded(VectorWorkload workload) {
  workload.entries = 1u << step_of(workload.entries);
  workload.entry_bytes = 1u << step_of(workload.entry_bytes);
  return workload;
}

VectorChoice::VectorChoice(const DeviceInfo& device, const VectorWorkload& workload)
    : max_sges_(device.max_sges) {
  const StepCosts steps = step_costs(device);
  for (uint32_t reads = 0; reads < 2; ++reads) {
    for (uint32_t entries = 0; entries < kSteps; ++entries) {
      for (uint32_t bytes = 0; bytes < kSteps; ++bytes) {
        VectorWorkload one = workload;
        one.reads = reads != 0;
        one.entries = 1u << entries;
        one.entry_bytes = 1u << bytes;
        // Those that cannot be used are passed over when their sizes are known.
        std::array<std::pair<VectorCost, VectorMethod>, kMethodCount> costs;
        for (size_t i = 0; i < kMethodCount; ++i) {
          costs[i] = {vector_cost(steps, device.active_mtu_bytes, inline_limit(device, one), one,
                                  all_vector_methods()[i]),
                      all_vector_methods()[i]};
        }
        std::ranges::stable_sort(
            costs, [](const auto& a, const auto& b) { return a.first.is_cheaper_than(b.first); });
        for (size_t i = 0; i < kMethodCount; ++i) {
          methods_[reads][entries][bytes][i] = costs[i].second;
        }
      }
    }
  }
}

std::vector<VectorEstimate> estimate_vector_methods(const DeviceInfo& device,
                                                    const VectorWorkload& workload,
                                                    const VectorWorkload& costed) {
  const StepCosts steps = step_costs(device);
  std::vector<VectorEstimate> estimates;
  for (const VectorMethod method : all_vector_methods()) {
    const Status usable = check_vector_method(device, workload, method);
    const VectorCost cost =
        vector_cost(steps, device.active_mtu_bytes, inline_limit(device, costed), costed, method);
    const char* const limit = cost.interval_ns == cost.thread_ns       ? "the thread"
                              : cost.interval_ns == cost.queue_pair_ns ? "the queue pair"
                              : cost.interval_ns == cost.device_ns     ? "the device"
                                                                       : "the latency";
    VectorEstimate estimate;
    estimate.method = method;
    estimate.usable = usable.ok();
    estimate.of_this_device = steps.of_this_device;
    estimate.interval_ns = cost.interval_ns;
    estimate.latency_ns = cost.latency_ns;
    estimate.thread_ns = cost.thread_ns;
    estimate.why = usable.ok()
                       ? fmt::format(
                             "{}: {:.0f} ns from one operation of {} x {} bytes to the "
                             "next, limited by {}",
                             vector_method_name(method), cost.interval_ns, costed.entries,
                             costed.entry_bytes, limit)
                       : fmt::format("{}: {}", vector_method_name(method), usable.message());
    estimates.push_back(std::move(estimate));
  }
  std::stable_sort(estimates.begin(), estimates.end(),
                   [](const VectorEstimate& a, const VectorEstimate& b) {
                     if (a.usable != b.usable) return a.usable;
                     return a.interval_ns != b.interval_ns ? a.interval_ns < b.interval_ns
                                                           : a.thread_ns < b.thread_ns;
                   });
  return estimates;
}

}  // namespace remote

std::vector<VectorEstimate> estimate_vector_methods(const DeviceInfo& device,
                                                    const VectorWorkload& workload) {
  return remote::estimate_vector_methods(device, workload, workload);
}

}  // namespace verbena
