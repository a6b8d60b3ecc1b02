// What an installation may have to set about its network, for all programs alike: by environment
// variables, since neither the program nor the device can know it.
//
//   VERBENA_GID_INDEX       entry of the GID table (`ibv_devinfo -v` lists it), 0 to 255; by
//                           default the best one is chosen, see hardware/gid_choice.h
//   VERBENA_ACK_TIMEOUT     1 to 31: a packet is repeated after 4.096 us * 2^N, seven times
//   VERBENA_SERVICE_LEVEL   InfiniBand service level, on RoCE the priority, 0 to 15
//   VERBENA_TRAFFIC_CLASS   of RoCE v2 and routed InfiniBand packets, 0 to 255
//   VERBENA_PKEY_INDEX      entry of the partition key table, 0 to 65535
//
// Real devices only: the software RNIC has no network.
#pragma once

#include <cstdint>
#include <optional>

#include "verbena/status.h"

namespace verbena {

struct PathSettings {
  std::optional<uint8_t> gid_index;
  std::optional<uint8_t> ack_timeout;
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;
  uint16_t pkey_index = 0;
};

// What the environment says now. kInvalidArgument names the variable, its value and its range.
Result<PathSettings> path_settings();

// The encoded time-out for which `wanted` is meant, on devices that take up to `device_delay`
// (ibv_device_attr::local_ca_ack_delay, encoded alike) until they acknowledge: both together,
// rounded up. A shorter one would repeat what is not lost. 0 is a wait without end, and stays one.
uint8_t ack_timeout_for(uint8_t wanted, uint8_t device_delay);

}  // namespace verbena
