// The hardware of one simulated node: RNIC, host bus, processor, link. A profile is a file,
// profiles/NAME.toml; every parameter in it has a unit, a source and an evidence class. What is the
// RNIC's own stands in profiles/chips/NAME.toml, once for all profiles that name this chip: a host
// and a cluster change nothing of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/device/sim/event_queue.h"
#include "verbena/status.h"

namespace verbena::sim {

// Devices are named "sim:PROFILE", the node's RNIC by its port on the first socket, or
// "sim:PROFILE@SOCKET", by its port on that one ("memsem" figure 9).
inline constexpr std::string_view kDevicePrefix = "sim:";
inline constexpr char kPortMark = '@';

// Times are per operation unless their name says otherwise. The table in rnic_profile.cc has each
// with its unit and meaning.
struct Profile {
  std::string name;
  std::string title;
  std::string chip;  // empty: the profile has all parameters itself

  // --- processor ---
  Time cpu_cycle = 0;
  uint64_t cores = 0;  // per socket
  uint64_t sockets = 0;
  uint64_t hyperthread_percent = 0;
  uint64_t jitter_percent = 0;
  Time cpu_poll = 0;
  Time cpu_device_line = 0;
  Time cpu_message = 0;
  Time cpu_copy_kib = 0;
  Time cpu_line_transfer = 0;
  Time cpu_atomic = 0;
  uint64_t shared_host = 0;
  Time cpu_switch = 0;
  Time cpu_slice = 0;
  Time cpu_pause = 0;
  Time cpu_remote_mmio = 0;
  Time cpu_remote_line = 0;
  Time cpu_remote_copy_kib = 0;

  // --- the verbs library on it; post_64 and what follows: a software RNIC ---
  Time post_wqe = 0;
  Time post_sge = 0;
  uint64_t posts_move_payload = 0;
  Time post_64 = 0;
  Time post_lines = 0;
  Time post_read_64 = 0;
  Time post_read = 0;
  Time post_send = 0;
  Time post_atomic = 0;
  Time post_visible = 0;
  Time post_visible_send = 0;
  Time post_doorbell = 0;
  Time post_blueflame_64 = 0;
  uint64_t blueflame_max_bytes = 0;
  uint64_t blueflame_single_only = 0;
  uint64_t blueflame_idle_only = 0;
  uint64_t blueflame_queue = 0;
  uint64_t doorbell_registers = 0;
  uint64_t dedicated_registers = 0;
  uint64_t doorbell_lock = 0;
  Time blueflame_lock_alone = 0;
  Time blueflame_lock_contended = 0;
  Time blueflame_lock_waiter = 0;
  uint64_t shared_queue_lines = 0;
  Time poll_empty = 0;
  Time poll_completion = 0;
  Time post_receive = 0;
  Time post_shared_receive = 0;

  // --- host bus ---
  Time pcie_down_kib = 0;  // to the RNIC
  Time pcie_up_kib = 0;
  uint64_t pcie_shared = 0;
  Time pcie_one_way = 0;
  Time pcie_read = 0;
  uint64_t pcie_reads_at_once = 0;
  uint64_t pcie_payload_bytes = 0;
  uint64_t pcie_header_bytes = 0;
  Time dma_kib = 0;  // what the RNIC itself can move, in each direction
  Time dma_remote = 0;
  Time dma_remote_kib = 0;

  // --- RNIC ---
  Time tx_message = 0;
  Time tx_64 = 0;
  Time tx_gather = 0;
  Time tx_ack = 0;
  Time rx_packet = 0;
  Time rx_64 = 0;
  Time rx_ack = 0;
  Time rx_receive = 0;
  uint64_t arbitration_burst = 0;
  Time queue_pair_write_gap = 0;
  Time queue_pair_read_gap = 0;
  Time atomic_operation = 0;
  uint64_t max_outstanding_reads = 0;
  uint64_t completion_bytes = 0;
  uint64_t wqe_prefetch = 0;
  uint64_t wqe_cache_entries = 0;
  uint64_t wqe_misses_at_once = 0;
  uint64_t payload_prefetch_bytes = 0;
  uint64_t response_prefetch_bytes = 0;
  uint64_t max_inline_bytes = 0;
  uint64_t max_inline_datagram_bytes = 0;
  uint64_t datagram_address_bytes = 0;
  uint64_t context_cache_entries = 0;
  Time context_miss = 0;
  uint64_t context_misses_at_once = 0;
  uint64_t read_state_queue_pairs = 0;
  Time read_state_miss = 0;
  uint64_t translation_entries = 0;
  Time translation_miss = 0;
  uint64_t page_bytes = 0;
  Time registration = 0;
  Time registration_page = 0;

  Time tx_latency = 0;
  Time rx_latency = 0;

  // --- network ---
  Time link_kib = 0;
  uint64_t mtu_bytes = 0;
  uint64_t packet_overhead_bytes = 0;
  Time switch_latency = 0;
  Time cable = 0;
  uint64_t switch_input_queues = 0;
  uint64_t port_buffer_bytes = 0;

  // Of so many bytes on the host bus, in its packets; `kib`: one of its directions.
  Time bus_time(uint64_t bytes, Time kib) const {
    const uint64_t packets = (bytes + pcie_payload_bytes - 1) / pcie_payload_bytes;
    return (bytes + packets * pcie_header_bytes) * kib / 1024;
  }
  Time link_time(uint64_t bytes) const { return bytes * link_kib / 1024; }

  bool operator==(const Profile&) const = default;
};

struct ValueRange {
  double least = 0;
  double most = 0;
};

// One parameter as its file has it, or, of a variant, as it was drawn.
struct ParameterText {
  std::string name{};
  std::string value{};
  double number = 0;  // the same, in its unit
  // Between what an assumed one may be, or a calibrated one was measured, where the file says so.
  std::optional<ValueRange> range{};
  std::string unit{};
  std::string evidence{};
  std::string source{};
  std::string meaning{};
  std::vector<std::string> claims{};  // that it was calibrated by
  bool of_chip = false;               // a property of the RNIC, in whichever host
};

// Reads a profile; `name` may be that of a variant (profile_variants.h). kNotFound names those
// there are; kInvalidArgument names the parameter that is missing, unknown, in another unit,
// outside of its range, without a source, or in the wrong one of the two files. parse_profile()
// takes a profile's text, and reads the file of the chip that it names.
Result<Profile> load_profile(std::string_view name);
Result<Profile> parse_profile(std::string_view text, std::string_view name);
Result<std::vector<ParameterText>> profile_parameters(std::string_view name);
// Of a file in profiles/templates, which is complete without a chip.
Result<std::vector<ParameterText>> template_parameters(std::string_view name);
// The text of a profile with these parameters, and no chip. parse_profile() takes it whatever title
// and comment are: what cannot stand in one line of TOML is replaced.
std::string profile_text(std::string_view title, std::string_view comment,
                         std::span<const ParameterText> parameters);

}  // namespace verbena::sim
