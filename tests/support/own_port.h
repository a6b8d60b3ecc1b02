// Ports for servers that have to be told theirs.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace verbena::test {

// A port that nobody listens on. It lies below those that the kernel hands out, which another
// process could get between this call and its use, and among 16 that belong to this process as long
// as pids do not repeat.
inline uint16_t own_port() {
  constexpr uint32_t kFirst = 10'240;
  constexpr uint32_t kPortsOfProcess = 16;
  constexpr uint32_t kProcesses = 1'400;
  static uint32_t used = 0;
  for (uint32_t i = 0; i < kPortsOfProcess; ++i) {
    const uint32_t first = kFirst + static_cast<uint32_t>(getpid()) % kProcesses * kPortsOfProcess;
    const auto port = static_cast<uint16_t>(first + used++ % kPortsOfProcess);
    const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    // As servers do: connections of an earlier one that linger do not count.
    const int one = 1;
    setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    const bool free = bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(probe);
    if (free) return port;
  }
  ADD_FAILURE() << "all ports of this process are in use";
  return 0;
}

}  // namespace verbena::test
