// What ranks tell each other while they join, and how it travels in frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "verbena/status.h"

namespace verbena::job {

inline constexpr uint16_t kJobVersion = 1;

// From each rank to rank 0.
struct JoinRequest {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint16_t port = 0;  // where it waits for the other ranks
  std::string host;   // what its host calls itself
};

// One line of the list that rank 0 sends back when all are there.
struct Member {
  std::string address;  // as rank 0 sees it; empty: on rank 0's host
  uint16_t port = 0;
  std::string host;
};

std::vector<std::byte> encode(const JoinRequest& request);
Result<JoinRequest> decode_request(std::span<const std::byte> frame, const std::string& peer);

// The list, or why there is none.
std::vector<std::byte> encode(const Result<std::vector<Member>>& members);
// Why there will be no job, of whatever frame says so; ok of all others.
Status refusal_in(std::span<const std::byte> frame);
Result<std::vector<Member>> decode_members(std::span<const std::byte> frame, uint32_t size,
                                           const std::string& peer);

// "node-a:7471", "node-a", "[2001:db8::7]:7471"; the port is kDefaultCoordinatorPort if there is
// none.
struct HostAndPort {
  std::string host;
  uint16_t port = 0;
};
Result<HostAndPort> split_address(const std::string& text);

// "[2001:db8::7]:7471" is "2001:db8::7".
std::string address_of(const std::string& peer_name);
bool is_loopback(const std::string& address);

}  // namespace verbena::job
