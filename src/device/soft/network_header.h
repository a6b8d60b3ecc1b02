// The 40 bytes before a datagram: a global route header, as of IPv6, or for RoCE version 2 between
// addresses of IPv4 a header of that in the last 20 of them.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::soft {

inline constexpr uint32_t kNetworkHeaderBytes = sizeof(ibv_grh);

// As an address handle has it: the length is that of each message.
class NetworkHeader {
 public:
  NetworkHeader() = default;
  NetworkHeader(const ibv_gid_entry& source, const ibv_global_route& route);

  // With a message of so many bytes; the transport headers and the CRC count, too.
  void write(uint32_t message_bytes, std::byte* to) const;

 private:
  std::array<std::byte, kNetworkHeaderBytes> bytes_{};
  bool is_ipv4_ = false;
  uint32_t udp_bytes_ = 0;
};

// What a receiver finds in one.
struct ReadHeader {
  ibv_gid source{};
  ibv_gid destination{};
  uint32_t flow_label = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  bool is_udp = false;  // RoCE version 2
};
ReadHeader read_header(const ibv_grh&);

}  // namespace verbena::soft
