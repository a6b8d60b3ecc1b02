// The control connection from a requesting thread to a responding one.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "src/bench/run/node_job.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::bench {

// What a requesting thread tells the responding thread that it connects to.
struct PairHello {
  uint32_t requesting = 0;
};
inline constexpr uint32_t kPairHelloType = 0x70616972;  // "pair"

// The control connection to a responding thread, which knows then who comes. It listens already:
// where nobody does, its node has ended.
inline Result<std::unique_ptr<ControlConnection>> reach(const NodeJob& job, uint32_t number,
                                                        uint32_t responding) {
  const ThreadAddress& address = job.addresses[responding];
  VERBENA_ASSIGN_OR_RETURN(
      ControlConnection control,
      ControlConnection::connect(address.host, address.port, job.secret, kSetupTimeoutNs,
                                 ControlConnection::IfNobodyListens::kFail));
  VERBENA_RETURN_IF_ERROR(control.send_value(kPairHelloType, PairHello{number}));
  return std::make_unique<ControlConnection>(std::move(control));
}

}  // namespace verbena::bench
