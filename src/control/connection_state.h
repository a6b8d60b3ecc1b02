// What an established control connection holds.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/control/virtual_link.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena {

// Before the bytes of each frame: kFrameMagic and the number of bytes, both u32 little-endian.
inline constexpr uint32_t kFrameMagic = 0x31464256;  // "VBF1"
inline constexpr size_t kFrameHeaderBytes = 8;

struct ControlConnection::State {
  State(FileDescriptor socket_in, std::string peer_name_in)
      : socket(std::move(socket_in)), peer_name(std::move(peer_name_in)) {}
  State(std::unique_ptr<VirtualLink::End> link_in, std::string peer_name_in)
      : link(std::move(link_in)), peer_name(std::move(peer_name_in)) {}

  FileDescriptor socket;
  std::unique_ptr<VirtualLink::End> link;  // instead of the socket, inside a simulation
  std::string peer_name;
  Status send_broken;
  Status receive_broken;

  // The frame that is arriving: first its header, then, once its length is known to be allowed, its
  // bytes.
  std::array<std::byte, kFrameHeaderBytes> header{};
  size_t header_bytes = 0;
  std::vector<std::byte> body;
  size_t body_bytes = 0;
};

}  // namespace verbena
