#include "src/device/soft/sysfs_tree.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>

#include "src/base/log.h"
#include "src/device/soft/observe/watch.h"
#include "src/device/soft/registry.h"
#include "src/device/soft/soft.h"
#include "src/device/soft/soft_rnic.h"
#include "verbena/version.h"

namespace verbena::soft {
namespace {

namespace fs = std::filesystem;

// The device hangs from no bus. Who takes the folder above for a PCI address finds a name that is
// none, as with the kernel's own software devices.
constexpr const char* kBus = "sys/devices/virtual/verbena/";

std::string guid_text(__be64 guid) {
  const uint64_t value = __builtin_bswap64(guid);
  return fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", value >> 48, value >> 32 & 0xffff,
                     value >> 16 & 0xffff, value & 0xffff);
}

std::string gid_text(const ibv_gid& gid) {
  return guid_text(gid.global.subnet_prefix) + ":" + guid_text(gid.global.interface_id);
}

const char* state_text(ibv_port_state state) {
  constexpr const char* kNames[] = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  return static_cast<size_t>(state) < std::size(kNames) ? kNames[state] : "UNKNOWN";
}

const char* physical_state_text(uint8_t state) {
  constexpr const char* kNames[] = {
      "<unknown>",         "Sleep",   "Polling", "Disabled", "PortConfigurationTraining", "LinkUp",
      "LinkErrorRecovery", "Phy Test"};
  return state < std::size(kNames) ? kNames[state] : kNames[0];
}

// "100 Gb/sec (4X EDR)".
std::string rate_text(uint8_t width, uint8_t speed) {
  struct Speed {
    uint8_t code;
    uint32_t lane_mbps;
    const char* name;
  };
  constexpr Speed kSpeeds[] = {{1, 2500, ""},      {2, 5000, " DDR"},   {4, 10000, " QDR"},
                               {8, 10000, " QDR"}, {16, 14000, " FDR"}, {32, 25000, " EDR"},
                               {64, 50000, " HDR"}};
  const auto* found = std::find_if(std::begin(kSpeeds), std::end(kSpeeds),
                                   [speed](const Speed& known) { return known.code == speed; });
  const Speed& lane = found == std::end(kSpeeds) ? kSpeeds[0] : *found;
  const uint32_t lanes = width == 2 ? 4 : width == 4 ? 8 : width == 8 ? 12 : width == 16 ? 2 : 1;
  const uint32_t mbps = lane.lane_mbps * lanes;
  return fmt::format("{}{} Gb/sec ({}X{})", mbps / 1000, mbps % 1000 != 0 ? ".5" : "", lanes,
                     lane.name);
}

// Nothing is lost or damaged on the way from memory to memory.
constexpr const char* kErrorCounters[] = {"VL15_dropped",
                                          "excessive_buffer_overrun_errors",
                                          "link_downed",
                                          "link_error_recovery",
                                          "local_link_integrity_errors",
                                          "port_rcv_constraint_errors",
                                          "port_rcv_errors",
                                          "port_rcv_remote_physical_errors",
                                          "port_rcv_switch_relay_errors",
                                          "port_xmit_constraint_errors",
                                          "port_xmit_discards",
                                          "symbol_error"};

std::vector<SysfsEntry> port_entries(const SysfsDevice& shown, const std::string& folder) {
  const ibv_port_attr& port = shown.port;
  std::vector<SysfsEntry> entries = {
      {"state", fmt::format("{}: {}", static_cast<int>(port.state), state_text(port.state)), {}},
      {"phys_state",
       fmt::format("{}: {}", port.phys_state, physical_state_text(port.phys_state)),
       {}},
      {"rate", rate_text(port.active_width, port.active_speed), {}},
      {"lid", fmt::format("{:#x}", port.lid), {}},
      {"lid_mask_count", fmt::format("{}", port.lmc), {}},
      {"sm_lid", fmt::format("{:#x}", port.sm_lid), {}},
      {"sm_sl", fmt::format("{}", port.sm_sl), {}},
      {"cap_mask", fmt::format("{:#010x}", port.port_cap_flags), {}},
      {"link_layer", port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand", {}},
      {"gid_attrs/ndevs", {}, {}, true},
      {"pkeys/0", fmt::format("{:#06x}", shown.partition_key), {}},
  };
  for (const ibv_gid_entry& entry : shown.gids) {
    const uint32_t index = entry.gid_index;
    entries.push_back({fmt::format("gids/{}", index), gid_text(entry.gid), {}});
    if (is_zero_gid(entry.gid)) continue;
    const bool version_2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
    entries.push_back(
        {fmt::format("gid_attrs/types/{}", index), version_2 ? "RoCE v2" : "IB/RoCE v1", {}});
    if (entry.ndev_ifindex == 0) continue;
    entries.push_back({fmt::format("gid_attrs/ndevs/{}", index), kNetworkInterface, {}});
  }
  for (const char* counter : kErrorCounters) {
    entries.push_back({fmt::format("counters/{}", counter), "0", {}});
  }
  // Those of data are brought up to date when a program looks at them.
  for (const auto& [name, value] : sysfs_counters({})) {
    entries.push_back({name, fmt::format("{}", value), {}});
  }
  for (SysfsEntry& entry : entries) entry.path = folder + "/" + entry.path;
  return entries;
}

// Permissions are the kernel's, whatever the umask says.
bool write_file(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << '\n';
  return file.flush().good() && chmod(path.c_str(), 0444) == 0;
}

std::error_code make_folders(const fs::path& path) {
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error)) return {};
  if ((error = make_folders(path.parent_path()))) return error;
  if (fs::create_directory(path, error)) fs::permissions(path, fs::perms(0755), error);
  return error;
}

std::error_code make_entry(const fs::path& root, const SysfsEntry& entry) {
  const fs::path path = root / entry.path;
  if (entry.is_directory) return make_folders(path);
  std::error_code error = make_folders(path.parent_path());
  if (error) return error;
  if (!entry.link.empty()) {
    fs::create_symlink(entry.link, path, error);
  } else if (!write_file(path, entry.text)) {
    error = std::error_code(errno != 0 ? errno : EIO, std::generic_category());
  }
  return error;
}

// What processes left that ended while they made a tree: "sysfs-HASH.PID".
void remove_unfinished(const fs::path& place) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(place, error)) {
    const std::string name = entry.path().filename();
    const size_t dot = name.rfind('.');
    if (name.rfind(kSysfsTreePrefix + 1, 0) != 0 || dot == std::string::npos) continue;
    pid_t pid = 0;
    std::from_chars(name.data() + dot + 1, name.data() + name.size(), pid);
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH)) fs::remove_all(entry.path(), error);
  }
}

// FNV-1a: the same in every process, whatever C++ library it has.
uint64_t hash_of(const std::vector<SysfsEntry>& entries) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    hash = (hash ^ 0xff) * 0x100000001b3;
  };
  mix("0444");  // a tree with other permissions is another one
  for (const SysfsEntry& entry : entries) {
    mix(entry.path);
    mix(entry.text);
    mix(entry.link);
    mix(entry.is_directory ? "/" : "");
  }
  return hash;
}

std::string first_line(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<SysfsEntry> sysfs_entries(const SysfsDevice& shown) {
  const std::string name = shown.device->name;
  const std::string verbs_name = shown.device->dev_name;
  const std::string parent = kBus + name;
  const std::string rdma = parent + "/infiniband/" + name;
  const std::string verbs = parent + "/infiniband_verbs/" + verbs_name;
  const ibv_device_attr& attributes = shown.attributes;
  std::vector<SysfsEntry> entries = {
      {"sys/class/infiniband/" + name, {}, "../../" + rdma.substr(4)},
      {"sys/class/infiniband_verbs/" + verbs_name, {}, "../../" + verbs.substr(4)},
      {"sys/class/infiniband_verbs/abi_version", "6", {}},
      {rdma + "/node_type", fmt::format("{}: CA", static_cast<int>(shown.device->node_type)), {}},
      {rdma + "/node_guid", guid_text(attributes.node_guid), {}},
      {rdma + "/sys_image_guid", guid_text(attributes.sys_image_guid), {}},
      {rdma + "/node_desc", fmt::format("{} of Verbena {}", name, kVersion), {}},
      {rdma + "/fw_ver", attributes.fw_ver, {}},
      {rdma + "/hw_rev", fmt::format("{:x}", attributes.hw_ver), {}},
      {rdma + "/board_id", "verbena-soft", {}},
      {rdma + "/hca_type", "verbena", {}},
      {rdma + "/device", {}, "../.."},
      {verbs + "/ibdev", name, {}},
      {verbs + "/abi_version", "1", {}},
      {verbs + "/dev", "0:0", {}},
      {verbs + "/device", {}, "../.."},
      // The memory of all nodes is equally near.
      {parent + "/numa_node", "-1", {}},
      // Connections are made by any address of this host; this interface is always there.
      {fmt::format("{}/net/{}", parent, kNetworkInterface),
       {},
       fmt::format("/sys/class/net/{}", kNetworkInterface)},
      {parent + "/local_cpulist", shown.cpus, {}},
      {parent + "/vendor", fmt::format("{:#06x}", attributes.vendor_id), {}},
      {parent + "/device", fmt::format("{:#06x}", attributes.vendor_part_id), {}},
  };
  const std::vector<SysfsEntry> port = port_entries(shown, rdma + "/ports/1");
  entries.insert(entries.end(), port.begin(), port.end());
  return entries;
}

SysfsDevice describe_for_sysfs(uint32_t index, LinkLayer link_layer, const std::string& cpus) {
  SysfsDevice shown{.device = device(index),
                    .attributes = {},
                    .port = describe_port(index, link_layer),
                    .gids = {},
                    .partition_key = kDefaultPartitionKey,
                    .cpus = cpus};
  control().query_device(nullptr, &shown.attributes);
  shown.attributes.node_guid = node_guid(index);
  ibv_gid_entry entry;
  for (uint32_t i = 0; describe_gid(index, link_layer, i, &entry); ++i) shown.gids.push_back(entry);
  return shown;
}

std::vector<SysfsEntry> sysfs_links_of_real_devices(const std::string& real) {
  std::vector<SysfsEntry> entries;
  for (const char* group : {"class/infiniband", "class/infiniband_verbs"}) {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(real + "/" + group, error)) {
      entries.push_back({fmt::format("sys/{}/{}", group, entry.path().filename().string()),
                         {},
                         entry.path().string()});
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const SysfsEntry& a, const SysfsEntry& b) { return a.path < b.path; });
  return entries;
}

Result<std::string> make_sysfs_tree(const std::string& place,
                                    const std::vector<SysfsEntry>& entries) {
  const std::string path = fmt::format("{}{}{:016x}", place, kSysfsTreePrefix, hash_of(entries));
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) return path;
  remove_unfinished(place);
  // Two threads of a process may be at it.
  static std::atomic<uint32_t> made{0};
  const std::string unfinished = fmt::format("{}.{}.{}", path, made.fetch_add(1), getpid());
  for (const SysfsEntry& entry : entries) {
    error = make_entry(unfinished, entry);
    if (error) break;
  }
  if (!error) fs::rename(unfinished, path, error);
  if (!error) return path;
  const std::string reason = error.message();
  fs::remove_all(unfinished, error);
  if (fs::is_directory(fs::symlink_status(path, error))) return path;  // another one was faster
  return Status(
      StatusCode::kUnavailable,
      fmt::format("soft0: cannot make {}: {}; programs that look for devices in /sys will "
                  "not find soft0; free some space there or set VERBENA_RUNTIME_DIR to "
                  "another directory in memory",
                  path, reason));
}

namespace {

Result<std::string> make_tree_of_this_machine() {
  // It checks that the directory is this user's alone.
  VERBENA_ASSIGN_OR_RETURN(const Registry registry, Registry::open());
  VERBENA_ASSIGN_OR_RETURN(const LinkLayer link_layer, link_layer_from_environment());
  const std::string cpus = first_line("/sys/devices/system/cpu/online");
  std::vector<SysfsEntry> entries = sysfs_links_of_real_devices("/sys");
  std::set<std::string> paths;
  for (const SysfsEntry& entry : entries) paths.insert(entry.path);
  for (uint32_t index = 0; index < device_count(); ++index) {
    // Real files come first: no second one takes their place.
    for (SysfsEntry& entry : sysfs_entries(describe_for_sysfs(index, link_layer, cpus))) {
      if (paths.insert(entry.path).second) entries.push_back(std::move(entry));
    }
  }
  return make_sysfs_tree(registry.path(), entries);
}

}  // namespace

const char* sysfs_root() {
  static const std::string* const root = [] {
    const Result<std::string> made = make_tree_of_this_machine();
    if (!made.ok()) log_warning("{}", made.status().message());
    return new std::string(made.ok() ? *made : std::string());
  }();
  return root->empty() ? nullptr : root->c_str();
}

}  // namespace verbena::soft
