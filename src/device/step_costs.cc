#include "src/device/step_costs.h"

#include <algorithm>
#include <string_view>

#include "src/device/sim/rnic_profile.h"

namespace verbena {
namespace {

constexpr uint64_t kLineBytes = 64;  // a short entry of a gather list

double ns(sim::Time time) { return static_cast<double>(time) / sim::kPsPerNs; }
double byte_ns(sim::Time kib) { return ns(kib) / 1024; }

StepCosts profile_costs(const sim::Profile& profile) {
  StepCosts costs;
  costs.of_this_device = true;
  costs.post_request_ns = ns(profile.post_wqe);
  costs.doorbell_ns = ns(profile.post_doorbell);
  costs.entry_line_ns = ns(profile.post_blueflame_64);
  costs.entry_lock_ns = ns(profile.blueflame_lock_alone);
  costs.entry_max_bytes = static_cast<uint32_t>(profile.blueflame_max_bytes);
  costs.entry_only_inline = profile.blueflame_single_only != 0;
  costs.post_receive_ns = ns(profile.post_receive);
  costs.post_shared_receive_ns = ns(profile.post_shared_receive);
  costs.poll_memory_ns = ns(profile.cpu_poll);
  costs.poll_queue_ns = ns(profile.poll_empty);
  costs.completion_ns = ns(profile.poll_completion);
  costs.device_line_ns = ns(profile.cpu_device_line);
  costs.message_ns = ns(profile.cpu_message);
  costs.byte_ns = byte_ns(profile.cpu_copy_kib);
  costs.moves_payload = profile.posts_move_payload != 0;
  costs.hand_over_ns = ns(profile.cpu_line_transfer);
  costs.registration_ns = ns(profile.registration);
  costs.registration_page_ns = ns(profile.registration_page);
  costs.bus_one_way_ns = ns(profile.pcie_one_way);
  costs.bus_read_ns = ns(profile.pcie_read);
  costs.bus_byte_ns = byte_ns(std::max(profile.dma_kib, profile.pcie_down_kib));
  costs.send_packet_ns = ns(profile.tx_message);
  costs.send_64_ns = ns(profile.tx_64);
  costs.receive_packet_ns = ns(profile.rx_packet);
  costs.receive_64_ns = ns(profile.rx_64);
  costs.take_receive_ns = ns(profile.rx_receive);
  costs.write_gap_ns = ns(profile.queue_pair_write_gap);
  costs.read_gap_ns = ns(profile.queue_pair_read_gap);
  costs.gather_entry_ns = ns(std::max(profile.bus_time(kLineBytes, profile.pcie_down_kib),
                                      profile.pcie_read / profile.pcie_reads_at_once));
  costs.fetch_ahead_bytes = static_cast<double>(profile.payload_prefetch_bytes);
  costs.path_ns = ns(profile.switch_latency + 2 * profile.cable);
  costs.link_byte_ns = byte_ns(profile.link_kib);
  costs.packet_overhead_bytes = static_cast<double>(profile.packet_overhead_bytes);
  return costs;
}

// Of soft0: threads do all the work, and what passes between cores are cache lines. Fitted to its
// round trips and rates of 64 B on a virtual machine of two x86-64 cores.
StepCosts software_costs() {
  StepCosts costs;
  costs.post_request_ns = 25;
  costs.doorbell_ns = costs.entry_line_ns = 0;
  costs.post_receive_ns = 8;
  costs.post_shared_receive_ns = 15;
  costs.poll_memory_ns = 2;
  costs.poll_queue_ns = 10;
  costs.completion_ns = 45;
  costs.device_line_ns = 110;
  costs.message_ns = 15;
  costs.moves_payload = true;
  // Peers get pages that they share, and the kernel knows whether they are still there.
  costs.registration_ns = 42000;
  costs.registration_page_ns = 4500;
  costs.region_check_ns = 350;
  // The kernel pins each page of the source and copies with its own instructions.
  costs.in_place_registration_ns = 3000;
  costs.in_place_use_ns = 1500;
  costs.in_place_byte_ns = 0.055;
  costs.bus_one_way_ns = costs.bus_read_ns = costs.bus_byte_ns = 0;
  costs.send_packet_ns = costs.send_64_ns = 0;
  costs.receive_packet_ns = costs.receive_64_ns = 0;
  costs.take_receive_ns = 60;  // the line of the receive queue goes to the sender
  costs.write_gap_ns = 110;    // each message is a line that goes to the receiver
  costs.read_gap_ns = 0;
  costs.gather_entry_ns = 5;
  costs.path_ns = costs.link_byte_ns = costs.packet_overhead_bytes = 0;
  return costs;
}

}  // namespace

StepCosts step_costs(const DeviceInfo& device) {
  if (device.kind == DeviceKind::kSoft) return software_costs();
  if (device.kind == DeviceKind::kSimulated) {
    const std::string_view name = std::string_view(device.name).substr(sim::kDevicePrefix.size());
    const Result<sim::Profile> profile = sim::load_profile(name);
    if (profile.ok()) return profile_costs(*profile);
  }
  return {};
}

}  // namespace verbena
