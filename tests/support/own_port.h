// Ports for servers that have to be told theirs.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/words.h"

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

// Asked of the kernel, since a connection to find out would be the server's one client.
inline bool listening(uint16_t port) {
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream sockets(table);
    std::string line;
    std::getline(sockets, line);  // the heading
    while (std::getline(sockets, line)) {
      const std::vector<std::string> fields = words(line);
      if (fields.size() < 4 || fields[3] != "0A") continue;
      const std::string local_port = fields[1].substr(fields[1].rfind(':') + 1);
      if (std::stoul(local_port, nullptr, 16) == port) return true;
    }
  }
  return false;
}

}  // namespace verbena::test
