// The replicas of a log as a front-end sees them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "log/layout.h"
#include "log/store_messages.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena::log_app {

struct Replica {
  std::string name;
  Header header;
  uint32_t writer = 0;
  std::unique_ptr<RemoteRegion> region;

  Layout layout() const { return Layout(header.places, header.writers); }
  RemotePointer<uint64_t> word(uint64_t place) const { return {layout().word_at(place)}; }
  Result<Control> read_control() const {
    return region->read(RemotePointer<Control>{.offset_bytes = kControlAt});
  }
};

// Whether a region of so many bytes can have this header.
Status check_header(const std::string& store, const Header& header, uint64_t region_bytes);

// Opens the stores, in the order of `controls`, and checks that each is one.
Result<std::vector<Replica>> open_stores(const Device& device, const ProtectionDomain& domain,
                                         std::span<ControlConnection* const> controls, Role role,
                                         const RemoteRegionOptions& options);

// So that the stores do not wait for a front-end that does not come.
inline void hang_up(std::span<ControlConnection* const> controls) {
  for (ControlConnection* const control : controls) control->hang_up();
}

// The same for a log: checks that these are all its replicas, and puts them into its order.
Result<std::vector<Replica>> open_log(const Device& device, const ProtectionDomain& domain,
                                      std::span<ControlConnection* const> controls, Role role,
                                      const RemoteRegionOptions& options);

}  // namespace verbena::log_app
