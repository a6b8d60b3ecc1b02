// What an established control connection holds.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/kept_status.h"
#include "src/control/tls_stream.h"
#include "src/control/virtual_link.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena {

// Before the bytes of each frame: their number, u32 little-endian. A frame begins and ends with a
// TLS record, so that poll() on the socket tells whether there is another one.
inline constexpr size_t kFrameHeaderBytes = 4;

struct ControlConnection::State {
  State(FileDescriptor socket_in, std::unique_ptr<TlsStream> stream_in, std::string peer_name_in)
      : socket(std::move(socket_in)),
        stream(std::move(stream_in)),
        arriving(std::make_unique<Arriving>()),
        peer_name(std::move(peer_name_in)) {}
  State(std::unique_ptr<VirtualLink::End> link_in, std::string peer_name_in)
      : link(std::move(link_in)), peer_name(std::move(peer_name_in)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (stream != nullptr) stream->close_notify();
  }
  // Why no more bytes come where the peer has not said that it closes.
  Status ended() const;
  // To be called now and then, and after bytes were sent. The host of a peer that does not read
  // answers, but does not take what is sent: the system's limit would take that for death.
  void adapt_silence_limit();

  // The frame that is arriving: first its header, then, once its length is known to be allowed, its
  // bytes.
  struct Arriving {
    std::array<std::byte, kFrameHeaderBytes> header{};
    size_t header_bytes = 0;
    std::vector<std::byte> body;
    size_t body_bytes = 0;
  };

  FileDescriptor socket;
  std::unique_ptr<TlsStream> stream;
  std::unique_ptr<Arriving> arriving;
  std::unique_ptr<VirtualLink::End> link;  // instead of these, inside a simulation
  std::string peer_name;
  bool hung_up = false;  // by this side
  bool patient = false;  // without a silence limit
  KeptStatus send_broken;
  KeptStatus receive_broken;
};

}  // namespace verbena
