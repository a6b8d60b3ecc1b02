#include "log/replicas.h"

#include <algorithm>
#include <utility>

namespace verbena::log_app {
namespace {

Result<Replica> open_store(const Device& device, const ProtectionDomain& domain,
                           ControlConnection& control, Role role,
                           const RemoteRegionOptions& options) {
  Replica replica;
  replica.name = "the store " + control.peer_name();
  VERBENA_RETURN_IF_ERROR(control.send_value(kHelloTag, Hello{.role = role}));
  VERBENA_ASSIGN_OR_RETURN(const Welcome welcome, control.receive_value<Welcome>(
                                                      kWelcomeTag, options.handshake_timeout_ns));
  VERBENA_RETURN_IF_ERROR(check_welcome(replica.name, welcome));
  replica.writer = welcome.writer;
  auto region = open_region(device, domain, control, options);
  VERBENA_RETURN_IF_ERROR(region.status());
  replica.region = std::move(*region);
  VERBENA_ASSIGN_OR_RETURN(replica.header,
                           replica.region->read(RemotePointer<Header>{.offset_bytes = 0}));
  VERBENA_RETURN_IF_ERROR(check_header(replica.name, replica.header, replica.region->size_bytes()));
  if (replica.writer >= replica.header.writers) {
    return Status(StatusCode::kProtocolViolation,
                  replica.name + " made this writer number " + std::to_string(replica.writer) +
                      ", and has room for " + std::to_string(replica.header.writers) +
                      "; run the same release on both sides");
  }
  return replica;
}

}  // namespace

Status check_header(const std::string& store, const Header& header, uint64_t region_bytes) {
  if (header.magic != kMagic) {
    return Status(StatusCode::kProtocolViolation,
                  store + " has no log in its region; open one of LogStore");
  }
  VERBENA_RETURN_IF_ERROR(check_version(store, header.version));
  // First what the layout multiplies.
  if (header.place_bytes != kPlaceBytes || !std::has_single_bit(header.places) ||
      header.places > region_bytes / kPlaceBytes ||
      Layout(header.places, header.writers).region_bytes() > region_bytes) {
    return Status(StatusCode::kProtocolViolation,
                  store + " has a damaged log: its header gives " + std::to_string(header.places) +
                      " places of " + std::to_string(header.place_bytes) +
                      " bytes, its region has " + std::to_string(region_bytes) +
                      " bytes; form the log anew");
  }
  return Status::ok_status();
}

Result<std::vector<Replica>> open_stores(const Device& device, const ProtectionDomain& domain,
                                         std::span<ControlConnection* const> controls, Role role,
                                         const RemoteRegionOptions& options) {
  if (controls.empty() || controls.size() > kMaxReplicas) {
    return Status(StatusCode::kInvalidArgument, "a log has 1 to " + std::to_string(kMaxReplicas) +
                                                    " replicas, not " +
                                                    std::to_string(controls.size()));
  }
  std::vector<Replica> replicas;
  for (ControlConnection* const control : controls) {
    auto replica = open_store(device, domain, *control, role, options);
    if (!replica.ok()) {
      hang_up(controls);
      return replica.status();
    }
    replicas.push_back(std::move(*replica));
  }
  return replicas;
}

Result<std::vector<Replica>> open_log(const Device& device, const ProtectionDomain& domain,
                                      std::span<ControlConnection* const> controls, Role role,
                                      const RemoteRegionOptions& options) {
  auto opened = open_stores(device, domain, controls, role, options);
  VERBENA_RETURN_IF_ERROR(opened.status());
  std::vector<Replica>& replicas = *opened;
  for (const Replica& replica : replicas) {
    if (replica.header.state != StoreState::kActive) {
      return Status(StatusCode::kUnavailable,
                    replica.name +
                        " is blank: it is new, or was restarted; call form_log() with "
                        "all stores of the log");
    }
  }
  std::ranges::sort(replicas, {}, [](const Replica& replica) { return replica.header.replica; });
  const Header& first = replicas.front().header;
  for (uint32_t i = 0; i < replicas.size(); ++i) {
    const Header& header = replicas[i].header;
    if (header.log_id != first.log_id || header.epoch != first.epoch || header.replica != i ||
        header.replicas != replicas.size() || header.places != first.places) {
      return Status(StatusCode::kInvalidArgument,
                    replicas[i].name + " is replica " + std::to_string(header.replica + 1) +
                        " of " + std::to_string(header.replicas) + " of a log in epoch " +
                        std::to_string(header.epoch) + ", and does not fit the " +
                        std::to_string(replicas.size()) +
                        " stores given; give all of one log, or call form_log()");
    }
  }
  return opened;
}

}  // namespace verbena::log_app
