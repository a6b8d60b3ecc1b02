// Calls of a device that take no peer, and what it reports.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "src/base/runtime.h"
#include "src/calibrate/parameter_probe.h"
#include "src/calibrate/quickest.h"
#include "verbena/device.h"

namespace verbena::calibrate {

namespace {

constexpr size_t kPageBytes = 4096;

struct Aligned {
  explicit Aligned(size_t bytes)
      : memory(static_cast<char*>(std::aligned_alloc(kPageBytes, bytes)), &std::free) {
    std::fill_n(memory.get(), bytes, 1);
  }
  std::unique_ptr<char, decltype(&std::free)> memory;
};

// The quickest registration of so much memory that was touched and never registered before.
Result<double> registration_ns(const ProtectionDomain& domain, size_t bytes) {
  double quickest = 1e18;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Aligned buffer(bytes);
    const uint64_t begun = now_ns();
    VERBENA_ASSIGN_OR_RETURN(const MemoryRegion region,
                             MemoryRegion::create(domain, buffer.memory.get(), bytes,
                                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                                      IBV_ACCESS_REMOTE_READ));
    quickest = std::min(quickest, static_cast<double>(now_ns() - begun));
  }
  return quickest;
}

}  // namespace

Result<std::vector<Probe>> probe_device(const std::string& name) {
  VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open(name));
  VERBENA_ASSIGN_OR_RETURN(const ProtectionDomain domain, ProtectionDomain::create(device));
  constexpr size_t kPages = 257;
  VERBENA_ASSIGN_OR_RETURN(const double one, registration_ns(domain, kPageBytes));
  VERBENA_ASSIGN_OR_RETURN(const double many, registration_ns(domain, kPages * kPageBytes));
  const double page = std::max(0.0, (many - one) / (kPages - 1));
  const DeviceInfo& info = device.info();
  return std::vector<Probe>{
      {"registration", std::max(0.0, one - page), "registering 4 KiB, less the page"},
      {"registration_page", page, "registering 257 pages and one"},
      {"max_inline", static_cast<double>(info.max_inline_bytes), "reported by the device"},
      {"max_inline_datagram", static_cast<double>(info.max_inline_bytes), "the same"},
      {"max_outstanding_reads", static_cast<double>(std::max(info.max_outstanding_reads, 1u)),
       "reported by the device"},
      {"mtu", static_cast<double>(info.active_mtu_bytes), "reported by the device"},
  };
}

}  // namespace verbena::calibrate
