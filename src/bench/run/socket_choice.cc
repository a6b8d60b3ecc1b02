#include "src/bench/run/socket_choice.h"

#include <algorithm>

#include "verbena/sockets.h"

namespace verbena::bench {

Result<int> choose_socket(SocketPlace place, const Device& device) {
  if (place == SocketPlace::kAny) return kAnySocket;
  const auto sockets = static_cast<int>(machine_sockets().size());
  const int rnic = std::max(socket_of(device), 0);
  if (place == SocketPlace::kRnic) return rnic;
  if (sockets > 1) return (rnic + 1) % sockets;
  return Status(StatusCode::kUnsupported,
                "this machine has one socket, and another one was asked for; choose sockets any or "
                "rnic, a simulated device, or declare two with VERBENA_SOCKETS=2");
}

Status run_at(SocketPlace place, const Device& device) {
  VERBENA_ASSIGN_OR_RETURN(const int socket, choose_socket(place, device));
  return socket == kAnySocket ? Status::ok_status() : run_on_socket(socket);
}

}  // namespace verbena::bench
