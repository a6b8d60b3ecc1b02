#include "src/base/machine.h"

#include <hwloc.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "src/base/build_info.h"
#include "src/base/instruction_count.h"
#include "src/base/runtime.h"
#include "src/base/tsc.h"

namespace verbena {

namespace {

std::string read_text(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// What stands behind the first `key` at the start of a line and a `separator`.
std::string_view value_of(std::string_view text, std::string_view key, char separator) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const size_t at = line.find(separator);
    if (at != std::string_view::npos && trimmed(line.substr(0, at)) == key) {
      return trimmed(line.substr(at + 1));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

std::string hypervisor_name() {
#if defined(__x86_64__)
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kHypervisorPresent = 1u << 31;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kHypervisorPresent) == 0) return {};
  // The leaf that is reserved for hypervisors: 12 characters of its name.
  __cpuid(0x40000000, eax, ebx, ecx, edx);
  const unsigned words[] = {ebx, ecx, edx};
  std::string name(reinterpret_cast<const char*>(words), sizeof(words));
  std::erase_if(name, [](char c) { return c < ' ' || c > '~'; });
  return name;
#else
  return {};
#endif
}

void describe_topology(Machine* machine) {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return;
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(topology) == 0) {
    // hwloc says -1 where a kind lies on several levels, which happens to none of these.
    const auto count = [topology](hwloc_obj_type_t type) {
      return std::max(hwloc_get_nbobjs_by_type(topology, type), 0);
    };
    machine->sockets = count(HWLOC_OBJ_PACKAGE);
    machine->cores = count(HWLOC_OBJ_CORE);
    machine->hardware_threads = count(HWLOC_OBJ_PU);
    machine->numa_nodes = count(HWLOC_OBJ_NUMANODE);
  }
  hwloc_topology_destroy(topology);
}

Machine describe() {
  Machine machine;
  machine.cpu_model = cpu_model_from(read_text("/proc/cpuinfo"));
  machine.os = os_name_from(read_text("/etc/os-release"));
  utsname names{};
  if (uname(&names) == 0) {
    machine.kernel = names.release;
    machine.architecture = names.machine;
  }
  struct sysinfo info {};
  if (sysinfo(&info) == 0) machine.memory_bytes = uint64_t{info.totalram} * info.mem_unit;
  machine.page_bytes = static_cast<uint64_t>(std::max(sysconf(_SC_PAGESIZE), 0L));
  machine.hypervisor = hypervisor_name();
  machine.usable_cpus = usable_cpus();
  describe_topology(&machine);
  machine.counts_instructions = InstructionCounter::available();
  machine.tsc_cycles_per_ns = tsc_cycles_per_ns();
  machine.commit = build_commit();
  machine.build = build_configuration();
  return machine;
}

}  // namespace

std::string cpu_model_from(const std::string& cpuinfo) {
  // "Model" is what a Raspberry Pi and its like have.
  for (std::string_view key : {"model name", "Model", "cpu model", "cpu"}) {
    const std::string_view value = value_of(cpuinfo, key, ':');
    if (!value.empty()) return std::string(value);
  }
  return {};
}

std::string os_name_from(const std::string& os_release) {
  std::string_view name = value_of(os_release, "PRETTY_NAME", '=');
  if (name.size() >= 2 && (name.front() == '"' || name.front() == '\'') &&
      name.back() == name.front()) {
    name = name.substr(1, name.size() - 2);
  }
  return std::string(name);
}

const Machine& this_machine() {
  static const Machine* const machine = new Machine(describe());
  return *machine;
}

}  // namespace verbena
