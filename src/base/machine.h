// What a result was measured on, for result files: numbers without their machine mean nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace verbena {

struct Machine {
  std::string cpu_model;     // "AMD EPYC 9654 96-Core Processor"
  std::string architecture;  // "x86_64"
  int sockets = 0;
  int cores = 0;                 // physical cores of the machine
  int hardware_threads = 0;      // logical CPUs of the machine
  std::vector<int> usable_cpus;  // of this process, as runtime.h says
  int numa_nodes = 0;
  uint64_t memory_bytes = 0;
  uint64_t page_bytes = 0;
  std::string kernel;      // "6.1.0-28-amd64"
  std::string os;          // "Debian GNU/Linux 12 (bookworm)"
  std::string hypervisor;  // "KVMKVMKVM", as it names itself; empty where there is none or it hides
  bool counts_instructions = false;  // instruction_count.h
  double tsc_cycles_per_ns = 0;      // tsc.h
  std::string commit;                // build_info.h: what the measuring program was built from
  std::string build;                 // its compiler and configuration
};

// This machine. What cannot be found out stays empty or 0. Asked once per process, which takes some
// 30 ms.
const Machine& this_machine();

// The parts that read files, for tests. `cpuinfo` is the text of /proc/cpuinfo, `os_release` of
// /etc/os-release.
std::string cpu_model_from(const std::string& cpuinfo);
std::string os_name_from(const std::string& os_release);

}  // namespace verbena
