#include "src/device/sim/rnic_profile.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "src/base/virtual_time.h"
#include "src/device/sim/profile_files.h"
#include "src/device/sim/profile_variants.h"

namespace verbena::sim {

namespace {

enum class Unit { kNs, kGbPerS, kGigabitPerS, kGhz, kCount, kBytes, kPercent, kYesNo };

const char* unit_text(Unit unit) {
  switch (unit) {
    case Unit::kNs:
      return "ns";
    case Unit::kGbPerS:
      return "GB/s";
    case Unit::kGigabitPerS:
      return "Gb/s";
    case Unit::kGhz:
      return "GHz";
    case Unit::kCount:
      return "count";
    case Unit::kBytes:
      return "B";
    case Unit::kPercent:
      return "%";
    case Unit::kYesNo:
      return "yes/no";
  }
  return "";
}

// In which file a parameter stands: that of the chip if it is a property of the RNIC itself.
enum class File : uint8_t { kProfile, kChip };

struct Parameter {
  const char* name;
  File file;
  Unit unit;
  uint64_t Profile::*member;
  const char* meaning;
};

constexpr uint64_t kMostReadsAtOnce = 65536;
constexpr uint64_t kMostRegisters = 1024;
// A second, 1e9 things or bytes: so that neither sums of them nor virtual time overflow.
constexpr double kLargestValue = 1e9;
constexpr double kSmallestRate = 1e-3;
constexpr double kMostCores = 65536;  // of a socket
constexpr double kMostPercent = 10'000;
constexpr double kMostReadsOfQueuePair = UINT8_MAX;  // ibv_qp_attr::max_rd_atomic

// clang-format off
constexpr Parameter kParameters[] = {
    {"cpu_clock", File::kProfile, Unit::kGhz, &Profile::cpu_cycle, "clock of a core under this load"},
    {"cores", File::kProfile, Unit::kCount, &Profile::cores, "cores per socket"},
    {"sockets", File::kProfile, Unit::kCount, &Profile::sockets, "sockets; the RNIC has a port on each, and is used by that of the first"},
    {"hyperthread_slowdown", File::kProfile, Unit::kPercent, &Profile::hyperthread_percent, "time of work on a core that two threads share, in percent of that on a core alone"},
    {"cpu_jitter", File::kProfile, Unit::kPercent, &Profile::jitter_percent, "how far the time of a piece of work is spread around its mean"},
    {"cpu_poll", File::kProfile, Unit::kNs, &Profile::cpu_poll, "a poll of a word in the cache, loop included"},
    {"cpu_device_line", File::kProfile, Unit::kNs, &Profile::cpu_device_line, "first touch of a cache line that the RNIC wrote"},
    {"cpu_message", File::kProfile, Unit::kNs, &Profile::cpu_message, "handling of one message: bookkeeping, handler, clearing the mark"},
    {"cpu_copy", File::kProfile, Unit::kGbPerS, &Profile::cpu_copy_kib, "clearing or copying by one core"},
    {"cpu_line_transfer", File::kProfile, Unit::kNs, &Profile::cpu_line_transfer, "a cache line from one core to another"},
    {"cpu_atomic", File::kProfile, Unit::kNs, &Profile::cpu_atomic, "a compare-and-swap or fetch-and-add on a word whose line the core has"},
    {"shared_host", File::kProfile, Unit::kYesNo, &Profile::shared_host, "all nodes are processes of one machine and share its cores"},
    {"cpu_switch", File::kProfile, Unit::kNs, &Profile::cpu_switch, "a shared core goes from one thread to another"},
    {"cpu_slice", File::kProfile, Unit::kNs, &Profile::cpu_slice, "how long a thread has a shared core before another one that wants it"},
    {"cpu_pause", File::kProfile, Unit::kNs, &Profile::cpu_pause, "the pause after an empty poll, where threads share cores"},
    {"cpu_remote_mmio", File::kProfile, Unit::kNs, &Profile::cpu_remote_mmio, "further cost of a doorbell from the other socket"},
    {"cpu_remote_line", File::kProfile, Unit::kNs, &Profile::cpu_remote_line, "further cost of a line that the RNIC wrote to the other socket, or that comes from a core there"},
    {"cpu_remote_copy", File::kProfile, Unit::kGbPerS, &Profile::cpu_remote_copy_kib, "clearing or copying by one core, of buffers on the other socket"},
    {"post_wqe", File::kProfile, Unit::kNs, &Profile::post_wqe, "building one WQE"},
    {"post_sge", File::kProfile, Unit::kNs, &Profile::post_sge, "each further SGE of its gather list"},
    {"posts_move_payload", File::kProfile, Unit::kYesNo, &Profile::posts_move_payload, "a software RNIC: the thread that posts does what an RNIC would do"},
    {"post_64", File::kProfile, Unit::kNs, &Profile::post_64, "a software RNIC: each 64 B of payload that the thread that posts moves to its peer"},
    {"post_lines", File::kProfile, Unit::kNs, &Profile::post_lines, "a software RNIC: further time of more than 128 B"},
    {"post_read_64", File::kProfile, Unit::kNs, &Profile::post_read_64, "a software RNIC: each 64 B that a READ brings, in its post"},
    {"post_read", File::kProfile, Unit::kNs, &Profile::post_read, "a software RNIC: further time of a READ in its post"},
    {"post_send", File::kProfile, Unit::kNs, &Profile::post_send, "a software RNIC: further time of a SEND, which finds its receive"},
    {"post_atomic", File::kProfile, Unit::kNs, &Profile::post_atomic, "a software RNIC: further time of an atomic"},
    {"post_visible", File::kProfile, Unit::kNs, &Profile::post_visible, "a software RNIC: until the peer's core sees what a post wrote"},
    {"post_visible_send", File::kProfile, Unit::kNs, &Profile::post_visible_send, "a software RNIC: the same of the completion of a receive, further"},
    {"post_doorbell", File::kProfile, Unit::kNs, &Profile::post_doorbell, "a doorbell, with the store fence"},
    {"post_blueflame_64", File::kProfile, Unit::kNs, &Profile::post_blueflame_64, "each 64 B of a WQE that is written with its doorbell (BlueFlame); without a lock the fence included"},
    {"blueflame_max", File::kChip, Unit::kBytes, &Profile::blueflame_max_bytes, "largest WQE that is written with its doorbell; 0: none is"},
    {"blueflame_single_only", File::kChip, Unit::kYesNo, &Profile::blueflame_single_only, "only a single inline or READ WQE is written with its doorbell"},
    {"blueflame_idle_only", File::kChip, Unit::kYesNo, &Profile::blueflame_idle_only, "1: one that came along is used only if its queue pair has nothing else outstanding, else fetched"},
    {"blueflame_queue", File::kChip, Unit::kCount, &Profile::blueflame_queue, "such WQEs that wait on the chip, beyond which the bus fills and then the store stalls"},
    {"doorbell_registers", File::kChip, Unit::kCount, &Profile::doorbell_registers, "registers of a context by which its queue pairs ring, each with a lock"},
    {"dedicated_registers", File::kChip, Unit::kCount, &Profile::dedicated_registers, "of these, that have one queue pair each and no lock: those created first"},
    {"doorbell_lock", File::kChip, Unit::kYesNo, &Profile::doorbell_lock, "plain doorbells take the register's lock, too"},
    {"blueflame_lock_alone", File::kProfile, Unit::kNs, &Profile::blueflame_lock_alone, "holding a register's lock, with the fence; 0: no locks"},
    {"blueflame_lock_contended", File::kProfile, Unit::kNs, &Profile::blueflame_lock_contended, "the same where another thread held it last, its line included"},
    {"blueflame_lock_waiter", File::kProfile, Unit::kNs, &Profile::blueflame_lock_waiter, "what handing it on takes longer for each further thread that waits for it"},
    {"shared_queue_lines", File::kProfile, Unit::kCount, &Profile::shared_queue_lines, "cache lines that come with the lock of a queue pair or completion queue which another thread used last; 0: such locks are not modelled"},
    {"poll_empty", File::kProfile, Unit::kNs, &Profile::poll_empty, "ibv_poll_cq that finds nothing"},
    {"poll_completion", File::kProfile, Unit::kNs, &Profile::poll_completion, "ibv_poll_cq, for each completion"},
    {"post_receive", File::kProfile, Unit::kNs, &Profile::post_receive, "ibv_post_recv, for each"},
    {"post_shared_receive", File::kProfile, Unit::kNs, &Profile::post_shared_receive, "ibv_post_srq_recv, for each"},
    {"pcie_down", File::kProfile, Unit::kGbPerS, &Profile::pcie_down_kib, "host bus towards the RNIC, raw"},
    {"pcie_up", File::kProfile, Unit::kGbPerS, &Profile::pcie_up_kib, "host bus from the RNIC, raw"},
    {"pcie_shared", File::kProfile, Unit::kYesNo, &Profile::pcie_shared, "both directions share one bus"},
    {"pcie_one_way", File::kProfile, Unit::kNs, &Profile::pcie_one_way, "a write from processor to RNIC, or from RNIC to visible memory"},
    {"pcie_read", File::kProfile, Unit::kNs, &Profile::pcie_read, "a DMA read, from request to first data"},
    {"pcie_reads_at_once", File::kChip, Unit::kCount, &Profile::pcie_reads_at_once, "DMA reads of the RNIC that wait for their data"},
    {"pcie_payload", File::kProfile, Unit::kBytes, &Profile::pcie_payload_bytes, "payload of a bus packet"},
    {"pcie_header", File::kProfile, Unit::kBytes, &Profile::pcie_header_bytes, "everything else of a bus packet"},
    {"dma_rate", File::kChip, Unit::kGbPerS, &Profile::dma_kib, "payload that the RNIC moves to or from memory"},
    {"dma_remote", File::kProfile, Unit::kNs, &Profile::dma_remote, "further time of a DMA access to memory of the other socket"},
    {"dma_remote_rate", File::kProfile, Unit::kGbPerS, &Profile::dma_remote_kib, "payload that the RNIC moves to or from memory of the other socket"},
    {"tx_message", File::kChip, Unit::kNs, &Profile::tx_message, "sending side of the RNIC, each packet"},
    {"tx_64", File::kChip, Unit::kNs, &Profile::tx_64, "sending side, each 64 B of payload"},
    {"tx_gather", File::kChip, Unit::kNs, &Profile::tx_gather, "sending side, besides, each packet whose payload it has read from memory for a request"},
    {"tx_ack", File::kChip, Unit::kNs, &Profile::tx_ack, "sending side, an acknowledgement"},
    {"tx_latency", File::kChip, Unit::kNs, &Profile::tx_latency, "sending side, the way of a packet through it beside others, besides its own time"},
    {"rx_latency", File::kChip, Unit::kNs, &Profile::rx_latency, "receiving side, the same"},
    {"rx_packet", File::kChip, Unit::kNs, &Profile::rx_packet, "receiving side, each packet"},
    {"rx_64", File::kChip, Unit::kNs, &Profile::rx_64, "receiving side, each 64 B of payload"},
    {"rx_receive", File::kChip, Unit::kNs, &Profile::rx_receive, "receiving side, taking a receive and making its completion, besides the packet"},
    {"rx_ack", File::kChip, Unit::kNs, &Profile::rx_ack, "receiving side, an acknowledgement"},
    {"arbitration_burst", File::kChip, Unit::kCount, &Profile::arbitration_burst, "arbitration burst: packets of a queue pair before another one sends"},
    {"queue_pair_write_gap", File::kChip, Unit::kNs, &Profile::queue_pair_write_gap, "between two WQEs of one queue pair"},
    {"queue_pair_read_gap", File::kChip, Unit::kNs, &Profile::queue_pair_read_gap, "the same for READ and atomics"},
    {"atomic_operation", File::kChip, Unit::kNs, &Profile::atomic_operation, "the unit that executes atomics, each"},
    {"max_outstanding_reads", File::kChip, Unit::kCount, &Profile::max_outstanding_reads, "READs and atomics of a queue pair on their way"},
    {"completion_entry", File::kChip, Unit::kBytes, &Profile::completion_bytes, "one CQE"},
    {"wqe_prefetch", File::kChip, Unit::kCount, &Profile::wqe_prefetch, "WQEs that one fetch of a queue brings"},
    {"wqe_cache", File::kChip, Unit::kCount, &Profile::wqe_cache_entries, "on-chip cache: WQEs that are not completed; 0: all of them"},
    {"wqe_misses_at_once", File::kChip, Unit::kCount, &Profile::wqe_misses_at_once, "fetches of such WQEs, each a DMA read, that overlap"},
    {"payload_prefetch", File::kChip, Unit::kBytes, &Profile::payload_prefetch_bytes, "payload of a queue pair that is read from memory ahead of what it sends; two packets at least"},
    {"response_prefetch", File::kChip, Unit::kBytes, &Profile::response_prefetch_bytes, "the same of a READ's response; two packets at least"},
    {"max_inline", File::kChip, Unit::kBytes, &Profile::max_inline_bytes, "largest inline payload"},
    {"max_inline_datagram", File::kChip, Unit::kBytes, &Profile::max_inline_datagram_bytes, "the same of a UD queue pair, whose WQEs have an address"},
    {"datagram_address", File::kChip, Unit::kBytes, &Profile::datagram_address_bytes, "of a UD queue pair's WQE: the address vector that it has for its receiver"},
    {"context_cache", File::kChip, Unit::kCount, &Profile::context_cache_entries, "on-chip cache: contexts of queue pairs and of receive queues"},
    {"context_miss", File::kChip, Unit::kNs, &Profile::context_miss, "fetching state from where it is kept"},
    {"context_misses_at_once", File::kChip, Unit::kCount, &Profile::context_misses_at_once, "such fetches that overlap, on each side of the RNIC"},
    {"read_state_queue_pairs", File::kChip, Unit::kCount, &Profile::read_state_queue_pairs, "queue pairs whose requester state for READ fits the chip"},
    {"read_state_miss", File::kChip, Unit::kNs, &Profile::read_state_miss, "swapping such state, which stops the sending side"},
    {"translation_cache", File::kChip, Unit::kCount, &Profile::translation_entries, "on-chip address translations"},
    {"translation_miss", File::kChip, Unit::kNs, &Profile::translation_miss, "fetching a translation from memory of the card; 0: the table is in memory of the host, and a fetch is a DMA read"},
    {"page", File::kChip, Unit::kBytes, &Profile::page_bytes, "memory that one translation covers"},
    {"registration", File::kProfile, Unit::kNs, &Profile::registration, "registering memory, besides its pages"},
    {"registration_page", File::kProfile, Unit::kNs, &Profile::registration_page, "registering memory, each 4 KiB"},
    {"link_rate", File::kProfile, Unit::kGigabitPerS, &Profile::link_kib, "link, after encoding"},
    {"mtu", File::kProfile, Unit::kBytes, &Profile::mtu_bytes, "path MTU"},
    {"packet_overhead", File::kProfile, Unit::kBytes, &Profile::packet_overhead_bytes, "of a packet on the wire besides transport headers and payload"},
    {"switch_latency", File::kProfile, Unit::kNs, &Profile::switch_latency, "port to port"},
    {"cable", File::kProfile, Unit::kNs, &Profile::cable, "one way between RNIC and switch"},
    {"switch_input_queues", File::kProfile, Unit::kYesNo, &Profile::switch_input_queues, "one FIFO per switch input: its head can block what is behind"},
    {"port_buffer", File::kProfile, Unit::kBytes, &Profile::port_buffer_bytes, "room behind a link: packets for which its sender has credits"},
};
// clang-format on

const Parameter* find_parameter(std::string_view name) {
  const auto found = std::find_if(std::begin(kParameters), std::end(kParameters),
                                  [name](const Parameter& one) { return one.name == name; });
  return found == std::end(kParameters) ? nullptr : found;
}

// To what the model computes with: picoseconds, picoseconds per KiB, whole numbers.
uint64_t to_internal(Unit unit, double value) {
  switch (unit) {
    case Unit::kNs:
      return static_cast<uint64_t>(std::llround(value * 1e3));
    case Unit::kGbPerS:
      return static_cast<uint64_t>(std::llround(1024e3 / value));
    case Unit::kGigabitPerS:
      return static_cast<uint64_t>(std::llround(1024e3 * 8 / value));
    case Unit::kGhz:
      return static_cast<uint64_t>(std::llround(1e3 / value));
    default:
      return static_cast<uint64_t>(std::llround(value));
  }
}

bool divides(Unit unit) {
  return unit == Unit::kGbPerS || unit == Unit::kGigabitPerS || unit == Unit::kGhz;
}

// What is faster is no time at all in picoseconds; and what is spread by more than its mean would
// turn clocks back.
double largest_value(const Parameter& parameter) {
  if (parameter.member == &Profile::jitter_percent) return 100;
  if (parameter.member == &Profile::cores) return kMostCores;
  if (parameter.member == &Profile::max_outstanding_reads) return kMostReadsOfQueuePair;
  switch (parameter.unit) {
    case Unit::kGbPerS:
      return 2 * 1024e3;
    case Unit::kGigabitPerS:
      return 2 * 1024e3 * 8;
    case Unit::kGhz:
      return 2 * 1e3;
    case Unit::kPercent:
      return kMostPercent;
    case Unit::kYesNo:
      return 1;
    default:
      return kLargestValue;
  }
}

double smallest_value(const Parameter& parameter) {
  return divides(parameter.unit) ? kSmallestRate : 0;
}

Status bad(std::string_view file, const std::string& what) {
  return {StatusCode::kInvalidArgument, fmt::format("profile {}: {}", file, what)};
}

Status check_size(std::string_view file, const Parameter& parameter, double value) {
  if (parameter.unit == Unit::kYesNo && value != 0 && value != 1) {
    return bad(file, fmt::format("{} is 1 (yes) or 0 (no), not {:g}", parameter.name, value));
  }
  const double largest = largest_value(parameter);
  const double smallest = smallest_value(parameter);
  if (value >= smallest && value <= largest) return {};
  return bad(file,
             fmt::format("{} is at {} {:g}{}{}, not {:g}", parameter.name,
                         value > largest ? "most" : "least", value > largest ? largest : smallest,
                         parameter.unit == Unit::kCount ? "" : " ",
                         parameter.unit == Unit::kCount ? "" : unit_text(parameter.unit), value));
}

// Between what a value may be that is assumed, or how far its measurements spread:
// "range = [8, 12]".
Status check_range(std::string_view file, const Parameter& parameter, double value,
                   std::string_view evidence, const toml::node& node) {
  const toml::array* const ends = node.as_array();
  const auto end = [ends](size_t index) { return (*ends)[index].value<double>(); };
  if (ends == nullptr || ends->size() != 2 || !end(0) || !end(1) || !(*end(0) >= 0) ||
      !(*end(1) >= *end(0)) || (divides(parameter.unit) && *end(0) <= 0)) {
    return bad(file,
               fmt::format("the range of {} must be two values, such as [8, 12]", parameter.name));
  }
  for (const size_t index : {0, 1}) {
    VERBENA_RETURN_IF_ERROR(check_size(file, parameter, *end(index)));
  }
  if (evidence == "documented") {
    return bad(file,
               fmt::format("{} is {} and has no range; only what is assumed or calibrated has",
                           parameter.name, evidence));
  }
  if (value >= *end(0) && value <= *end(1)) return {};
  return bad(file, fmt::format("{} is {:g}, outside of its range from {:g} to {:g}", parameter.name,
                               value, *end(0), *end(1)));
}

Result<double> check_entry(std::string_view file, const Parameter& parameter,
                           const toml::table& entry) {
  const auto value = entry["value"].value<double>();
  if (!value || !(*value >= 0) || (divides(parameter.unit) && *value <= 0)) {
    return bad(file, fmt::format("{} needs a value of 0 or more", parameter.name));
  }
  VERBENA_RETURN_IF_ERROR(check_size(file, parameter, *value));
  const auto unit = entry["unit"].value<std::string>();
  if (unit != unit_text(parameter.unit)) {
    return bad(file, fmt::format("the unit of {} is {}, not {}", parameter.name,
                                 unit_text(parameter.unit), unit.value_or("nothing")));
  }
  const std::string evidence = entry["evidence"].value_or(std::string());
  if (evidence != "documented" && evidence != "calibrated" && evidence != "assumed") {
    return bad(file, fmt::format("the evidence of {} must be documented, calibrated or assumed",
                                 parameter.name));
  }
  if (entry["source"].value_or(std::string()).empty()) {
    return bad(file, fmt::format("{} has no source", parameter.name));
  }
  if (const toml::node* const range = entry.get("range")) {
    VERBENA_RETURN_IF_ERROR(check_range(file, parameter, *value, evidence, *range));
  }
  return *value;
}

Result<toml::table> parse(std::string_view text, std::string_view name) {
  try {
    return toml::parse(text, std::string(name));
  } catch (const toml::parse_error& error) {
    return bad(name, fmt::format("{} (line {})", error.description(), error.source().begin.line));
  }
}

// Of an entry that has been checked, in this variant.
ParameterText parameter_text(const Parameter& parameter, const toml::table& entry,
                             uint32_t variant) {
  ParameterText one{.name = parameter.name,
                    .value = {},
                    .number = entry["value"].value_or(0.0),
                    .unit = unit_text(parameter.unit),
                    .evidence = entry["evidence"].value_or(std::string()),
                    .source = entry["source"].value_or(std::string()),
                    .meaning = parameter.meaning,
                    .claims = {},
                    .of_chip = parameter.file == File::kChip};
  if (const toml::array* range = entry["range"].as_array()) {
    one.range = ValueRange{(*range)[0].value_or(0.0), (*range)[1].value_or(0.0)};
  }
  if (const toml::array* claims = entry["claims"].as_array()) {
    for (const toml::node& claim : *claims) one.claims.push_back(claim.value_or(std::string()));
  }
  // A value near a limit is not drawn beyond it.
  one.number =
      std::clamp(variant_value(one, variant), smallest_value(parameter), largest_value(parameter));
  one.value = fmt::format("{:g}", one.number);
  return one;
}

// What follows from limits of the model, which draws of several parameters may miss together.
void keep_within_limits(Profile* profile) {
  profile->pcie_reads_at_once = std::min(profile->pcie_reads_at_once, kMostReadsAtOnce);
  profile->doorbell_registers = std::min(profile->doorbell_registers, kMostRegisters);
  profile->dedicated_registers =
      std::min(profile->dedicated_registers, profile->doorbell_registers - 1);
}

// The entries of a profile's file, and those of the chip that it names.
struct ProfileTables {
  std::string chip;
  toml::table profile;
  toml::table of_chip;

  const toml::table& entry(const Parameter& parameter) const {
    const bool in_chip = !chip.empty() && parameter.file == File::kChip;
    return *(in_chip ? of_chip : profile)[parameter.name].as_table();
  }
};

Result<ProfileTables> read_tables(std::string_view text, std::string_view name) {
  ProfileTables tables;
  VERBENA_ASSIGN_OR_RETURN(tables.profile, parse(text, name));
  const toml::node* const chip = tables.profile.get("chip");
  if (chip == nullptr) return tables;
  tables.chip = chip->value_or(std::string());
  const Result<std::string> chip_text = read_chip_text(tables.chip);
  if (!chip_text.ok()) return bad(name, chip_text.status().message());
  VERBENA_ASSIGN_OR_RETURN(tables.of_chip, parse(*chip_text, fmt::format("chips/{}", tables.chip)));
  return tables;
}

// Takes the parameters of one of the two files.
Status take_entries(const toml::table& table, std::string_view file, const std::string& chip,
                    bool of_chip, uint32_t variant, Profile* profile,
                    std::set<std::string_view>* seen) {
  for (const auto& [key, node] : table) {
    if (key.str() == "title" || (key.str() == "chip" && !of_chip)) continue;
    const Parameter* parameter = find_parameter(key.str());
    if (parameter == nullptr || !node.is_table()) {
      return bad(file, fmt::format("there is no parameter '{}'", key.str()));
    }
    const bool belongs = chip.empty() || (parameter->file == File::kChip) == of_chip;
    if (!belongs) {
      return bad(file, of_chip ? fmt::format("{} is not the chip's: it stands in the profiles that "
                                             "name this chip",
                                             key.str())
                               : fmt::format("{} is the chip's: it stands in chips/{}.toml alone",
                                             key.str(), chip));
    }
    VERBENA_ASSIGN_OR_RETURN(double value, check_entry(file, *parameter, *node.as_table()));
    if (variant > 0) value = parameter_text(*parameter, *node.as_table(), variant).number;
    profile->*parameter->member = to_internal(parameter->unit, value);
    seen->insert(parameter->name);
  }
  return {};
}

Result<Profile> profile_of(const ProfileTables& tables, std::string_view name,
                           uint32_t variant = 0) {
  Profile profile;
  profile.name = name;
  profile.title = tables.profile["title"].value_or(std::string());
  profile.chip = tables.chip;
  const std::string chip_file = fmt::format("chips/{}", tables.chip);
  std::set<std::string_view> seen;
  VERBENA_RETURN_IF_ERROR(
      take_entries(tables.profile, name, tables.chip, /*of_chip=*/false, variant, &profile, &seen));
  if (!tables.chip.empty()) {
    VERBENA_RETURN_IF_ERROR(take_entries(tables.of_chip, chip_file, tables.chip, /*of_chip=*/true,
                                         variant, &profile, &seen));
  }
  for (const Parameter& parameter : kParameters) {
    if (!seen.contains(parameter.name)) {
      const bool in_chip = !tables.chip.empty() && parameter.file == File::kChip;
      return bad(in_chip ? std::string_view(chip_file) : name,
                 fmt::format("{} is missing: {}", parameter.name, parameter.meaning));
    }
  }
  for (const char* positive :
       {"cores", "sockets", "hyperthread_slowdown", "pcie_payload", "mtu", "max_outstanding_reads",
        "context_misses_at_once", "pcie_reads_at_once", "page", "wqe_prefetch",
        "wqe_misses_at_once", "payload_prefetch", "arbitration_burst", "port_buffer"}) {
    if (profile.*find_parameter(positive)->member == 0) {
      return bad(name, fmt::format("{} must be above 0", positive));
    }
  }
  if (variant > 0) keep_within_limits(&profile);
  if (profile.pcie_reads_at_once > kMostReadsAtOnce) {
    return bad(name, fmt::format("pcie_reads_at_once must be at most {}", kMostReadsAtOnce));
  }
  if (profile.doorbell_registers > kMostRegisters ||
      profile.dedicated_registers >= profile.doorbell_registers) {
    return bad(name, fmt::format("doorbell_registers must be at most {}, and more than "
                                 "dedicated_registers",
                                 kMostRegisters));
  }
  if (profile.sockets > VirtualTime::kMostSockets) {
    return bad(name, fmt::format("sockets must be at most {}", VirtualTime::kMostSockets));
  }
  if (profile.mtu_bytes < 256 || profile.mtu_bytes > 4096 ||
      (profile.mtu_bytes & (profile.mtu_bytes - 1)) != 0) {
    return bad(name, "mtu must be a power of two from 256 to 4096");
  }
  return profile;
}

Result<std::vector<ParameterText>> parameters_of(std::string_view text, std::string_view name,
                                                 uint32_t variant) {
  VERBENA_ASSIGN_OR_RETURN(const ProfileTables tables, read_tables(text, name));
  VERBENA_RETURN_IF_ERROR(profile_of(tables, name).status());
  std::vector<ParameterText> list;
  for (const Parameter& parameter : kParameters) {
    list.push_back(parameter_text(parameter, tables.entry(parameter), variant));
  }
  return list;
}

// In one line and as TOML takes it, also where it has a file's name of any bytes: without control
// characters, and where it is no UTF-8, in ASCII.
std::string toml_line(std::string_view text) {
  std::string line(text);
  const auto replace = [&line](auto is_wrong, char by) {
    std::replace_if(
        line.begin(), line.end(),
        [&](char one) { return is_wrong(static_cast<unsigned char>(one)); }, by);
  };
  replace([](unsigned char one) { return one < ' ' || one == 0x7f; }, ' ');
  try {
    static_cast<void>(toml::parse("# " + line));
  } catch (const toml::parse_error&) {
    replace([](unsigned char one) { return one > 0x7f; }, '?');
  }
  return line;
}

// A string of TOML.
std::string toml_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char one : toml_line(text)) {
    if (one == '"' || one == '\\') quoted += '\\';
    quoted += one;
  }
  return quoted + '"';
}

}  // namespace

Result<Profile> parse_profile(std::string_view text, std::string_view name) {
  VERBENA_ASSIGN_OR_RETURN(const ProfileTables tables, read_tables(text, name));
  return profile_of(tables, name);
}

Result<Profile> load_profile(std::string_view name) {
  VERBENA_ASSIGN_OR_RETURN(const VariantName parsed, parse_variant_name(name));
  VERBENA_ASSIGN_OR_RETURN(const std::string text, read_profile_text(parsed.profile));
  VERBENA_ASSIGN_OR_RETURN(const ProfileTables tables, read_tables(text, parsed.profile));
  // As given it must be right, too: what is drawn may hide what is wrong.
  VERBENA_ASSIGN_OR_RETURN(Profile profile, profile_of(tables, parsed.profile));
  if (parsed.variant == 0) return profile;
  return profile_of(tables, name, parsed.variant);
}

Result<std::vector<ParameterText>> profile_parameters(std::string_view name) {
  VERBENA_ASSIGN_OR_RETURN(const VariantName parsed, parse_variant_name(name));
  VERBENA_ASSIGN_OR_RETURN(const std::string text, read_profile_text(parsed.profile));
  return parameters_of(text, parsed.profile, parsed.variant);
}

Result<std::vector<ParameterText>> template_parameters(std::string_view name) {
  VERBENA_ASSIGN_OR_RETURN(const std::string text, read_template_text(name));
  return parameters_of(text, name, 0);
}

std::string profile_text(std::string_view title, std::string_view comment,
                         std::span<const ParameterText> parameters) {
  std::string text = fmt::format("# {}\ntitle = {}\n", toml_line(comment), toml_string(title));
  for (const ParameterText& one : parameters) {
    text += fmt::format("\n[{}]\nvalue = {:.10g}\n", one.name, one.number);
    if (one.range.has_value()) {
      text += fmt::format("range = [{:.10g}, {:.10g}]\n", one.range->least, one.range->most);
    }
    text += fmt::format("unit = {}\nevidence = {}\nsource = {}\n", toml_string(one.unit),
                        toml_string(one.evidence), toml_string(one.source));
  }
  return text;
}

}  // namespace verbena::sim
