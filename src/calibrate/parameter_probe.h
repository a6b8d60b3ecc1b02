// What a loop over memory, or over calls of a device, tells of a parameter of a profile without a
// message: each probe measures one parameter, in its unit.
#pragma once

#include <string>
#include <vector>

#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::calibrate {

struct Probe {
  std::string parameter;
  double value = 0;
  std::string what;  // that was measured, for the profile
};

struct HostProbes {
  std::vector<Probe> probes;
  // Of a CPU that threads of this process wanted all the time, what they had of it: 1 where no
  // other program did.
  double cpu_share = 1;
};

// Of the processor and its memory, some 100 ms. The calling thread is pinned meanwhile. Where
// the process may use one CPU only, those that take two are missing, and where other programs have
// its CPUs, how long a slice is.
HostProbes probe_host();
// Of what a device needs of the processor without a peer, and what it reports.
Result<std::vector<Probe>> probe_device(const std::string& device);

}  // namespace verbena::calibrate
