// Which thread talks to which: the topologies of "patterns" (1.2) and "msgproto" (4), as pure
// wiring. Nothing here connects anything.
//
//   name         requesting threads           responding threads      queue pairs
//   one-to-one   1                            1                       (0,0) - (1,0)
//   M:1          P nodes x S                  1 node x T              one per requesting thread,
//   the (N-to-1)                                                          threads taken in turn:
//   with
//                                                                     T = S, (i,k) - k
//   1:M          1 node x S                   Q nodes x S             k - (j,k) for every j
//   N-to-M       N nodes x S                  Q nodes x T             all with all; each request
//                                                                     goes to a random one
//   ... of Q = 0 N nodes x S                  the same N nodes x T    the same
//   M:M          N nodes x S                  the same N nodes x S    (i,k) - (j,k) for every other
//                                                                     node j
//
// "msgproto" numbers the responding threads of M:M from S on; here each role counts from 0.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbena/status.h"

namespace verbena::bench {

enum class Topology : uint8_t { kOneToOne, kManyToOne, kOneToMany, kManyToMany, kAllToAll };

std::span<const Topology> all_topologies();
// "one-to-one", "M:1", "1:M", "N-to-M", "M:M".
const char* topology_name(Topology topology);
// The inverse, whatever the case; "N-to-1" is M:1. kInvalidArgument names what there is.
Result<Topology> parse_topology(std::string_view name);

struct TopologyShape {
  Topology topology = Topology::kOneToOne;
  uint32_t nodes = 1;              // that request (P, N)
  uint32_t threads = 1;            // that request, per node (S)
  uint32_t responder_nodes = 1;    // Q; 0, in N-to-M alone: those that request
  uint32_t responder_threads = 1;  // per responding node (T)
};

inline constexpr uint32_t kMaxNodes = 1024;
inline constexpr uint32_t kMaxThreadsPerNode = 256;

// `shape` with what the topology fixes: in 1:M and M:M as many threads respond as request, and no
// responding thread of M:1 is without a queue pair. kInvalidArgument where numbers are out of range
// or contradict the topology (1:M with three requesting nodes, M:M with a single one).
Result<TopologyShape> fitted(TopologyShape shape);

// One thread; those of each role are numbered through over all nodes, in order of node and thread.
struct WiredThread {
  uint32_t node = 0;
  uint32_t thread = 0;  // within its node and role
  // Requesting: the responding threads that it has a queue pair to, in the order in which to
  // connect. Responding: the requesting threads that connect to it.
  std::vector<uint32_t> peers;
};

struct WiredNode {
  uint32_t first_requesting = 0;
  uint32_t requesting = 0;
  uint32_t first_responding = 0;
  uint32_t responding = 0;
  uint32_t queue_pairs = 0;  // of both roles
};

struct Wiring {
  std::vector<WiredNode> nodes;
  std::vector<WiredThread> requesting;
  std::vector<WiredThread> responding;
  // Each request goes to one of the thread's peers, drawn anew; else every queue pair is kept busy.
  bool random_peer = false;

  uint32_t queue_pairs() const;      // between requesting and responding threads, each counted once
  uint32_t max_queue_pairs() const;  // of the node that has most
};

// The nodes that request come first. Each requesting thread begins with another responding thread,
// so that all connect at once and nobody waits for a popular one. Same errors as fitted().
Result<Wiring> wire(const TopologyShape& shape);

// Who connects where each node's requesting threads leave that to a dispatcher ("patterns" 4.1,
// design 2): a single requesting thread per node, with one queue pair to each responding thread
// that any of them talks to.
Wiring with_dispatchers(const Wiring& wiring);

}  // namespace verbena::bench
