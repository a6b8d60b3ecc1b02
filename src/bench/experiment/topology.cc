#include "src/bench/experiment/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace verbena::bench {

namespace {

constexpr std::array kTopologies = {Topology::kOneToOne, Topology::kManyToOne, Topology::kOneToMany,
                                    Topology::kManyToMany, Topology::kAllToAll};

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

Status check_range(const char* what, uint32_t count, uint32_t most) {
  if (count >= 1 && count <= most) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} {}; choose 1 to {}", count, what, most));
}

Status only_one(Topology topology, const char* what, uint32_t count) {
  if (count == 1) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} has one {}, not {}; choose another topology or leave it at 1",
                            topology_name(topology), what, count));
}

class Wirer {
 public:
  explicit Wirer(const TopologyShape& shape) : shape_(shape) {}

  Wiring wire() {
    const bool apart = shape_.topology != Topology::kAllToAll && shape_.responder_nodes > 0;
    for (uint32_t i = 0; i < shape_.nodes; ++i) {
      add_node(shape_.threads, apart ? 0 : shape_.responder_threads);
    }
    for (uint32_t j = 0; apart && j < shape_.responder_nodes; ++j) {
      add_node(0, shape_.responder_threads);
    }
    for (uint32_t number = 0; number < wiring_.requesting.size(); ++number) connect(number);
    wiring_.random_peer = shape_.topology == Topology::kManyToMany;
    return std::move(wiring_);
  }

 private:
  void add_node(uint32_t requesting, uint32_t responding) {
    const auto number = static_cast<uint32_t>(wiring_.nodes.size());
    wiring_.nodes.push_back({.first_requesting = static_cast<uint32_t>(wiring_.requesting.size()),
                             .requesting = requesting,
                             .first_responding = static_cast<uint32_t>(wiring_.responding.size()),
                             .responding = responding});
    for (uint32_t k = 0; k < requesting; ++k) {
      wiring_.requesting.push_back({.node = number, .thread = k, .peers = {}});
    }
    for (uint32_t k = 0; k < responding; ++k) {
      wiring_.responding.push_back({.node = number, .thread = k, .peers = {}});
    }
  }

  void connect(uint32_t number) {
    WiredThread& requester = wiring_.requesting[number];
    std::vector<uint32_t>& peers = requester.peers;
    const auto responders = static_cast<uint32_t>(wiring_.responding.size());
    switch (shape_.topology) {
      case Topology::kOneToOne:
      case Topology::kManyToOne:
        peers = {number % responders};
        break;
      case Topology::kOneToMany:
      case Topology::kAllToAll:
        for (uint32_t other = 0; other < responders; ++other) {
          const WiredThread& responder = wiring_.responding[other];
          if (responder.thread == requester.thread && responder.node != requester.node) {
            peers.push_back(other);
          }
        }
        break;
      case Topology::kManyToMany:
        for (uint32_t other = 0; other < responders; ++other) peers.push_back(other);
        break;
    }
    std::rotate(peers.begin(), peers.begin() + number % static_cast<uint32_t>(peers.size()),
                peers.end());
    for (const uint32_t peer : peers) {
      wiring_.responding[peer].peers.push_back(number);
      ++wiring_.nodes[requester.node].queue_pairs;
      ++wiring_.nodes[wiring_.responding[peer].node].queue_pairs;
    }
  }

  const TopologyShape& shape_;
  Wiring wiring_;
};

}  // namespace

std::span<const Topology> all_topologies() { return kTopologies; }

const char* topology_name(Topology topology) {
  switch (topology) {
    case Topology::kOneToOne:
      return "one-to-one";
    case Topology::kManyToOne:
      return "M:1";
    case Topology::kOneToMany:
      return "1:M";
    case Topology::kManyToMany:
      return "N-to-M";
    case Topology::kAllToAll:
      break;
  }
  return "M:M";
}

Result<Topology> parse_topology(std::string_view name) {
  if (same_name(name, "N-to-1")) return Topology::kManyToOne;
  for (const Topology topology : kTopologies) {
    if (same_name(name, topology_name(topology))) return topology;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("there is no topology '{}'; there are one-to-one, N-to-1 (or M:1), "
                            "1:M, N-to-M and M:M",
                            name));
}

Result<TopologyShape> fitted(TopologyShape shape) {
  VERBENA_RETURN_IF_ERROR(check_range("nodes", shape.nodes, kMaxNodes));
  VERBENA_RETURN_IF_ERROR(check_range("threads", shape.threads, kMaxThreadsPerNode));
  const Topology topology = shape.topology;
  if (topology != Topology::kManyToMany || shape.responder_nodes != 0) {
    VERBENA_RETURN_IF_ERROR(check_range("responder nodes", shape.responder_nodes, kMaxNodes));
  }
  VERBENA_RETURN_IF_ERROR(
      check_range("responder threads", shape.responder_threads, kMaxThreadsPerNode));
  switch (topology) {
    case Topology::kOneToOne:
      VERBENA_RETURN_IF_ERROR(only_one(topology, "requesting node", shape.nodes));
      VERBENA_RETURN_IF_ERROR(only_one(topology, "requesting thread", shape.threads));
      VERBENA_RETURN_IF_ERROR(only_one(topology, "responder node", shape.responder_nodes));
      VERBENA_RETURN_IF_ERROR(only_one(topology, "responder thread", shape.responder_threads));
      break;
    case Topology::kManyToOne:
      VERBENA_RETURN_IF_ERROR(only_one(topology, "responder node", shape.responder_nodes));
      shape.responder_threads = std::min(shape.responder_threads, shape.nodes * shape.threads);
      break;
    case Topology::kOneToMany:
      VERBENA_RETURN_IF_ERROR(only_one(topology, "requesting node", shape.nodes));
      shape.responder_threads = shape.threads;
      break;
    case Topology::kManyToMany:
      break;
    case Topology::kAllToAll:
      if (shape.nodes < 2) {
        return Status(StatusCode::kInvalidArgument, "M:M needs at least 2 nodes, not 1");
      }
      shape.responder_nodes = shape.nodes;
      shape.responder_threads = shape.threads;
      break;
  }
  return shape;
}

uint32_t Wiring::queue_pairs() const {
  uint32_t count = 0;
  for (const WiredThread& thread : requesting) count += static_cast<uint32_t>(thread.peers.size());
  return count;
}

uint32_t Wiring::max_queue_pairs() const {
  uint32_t most = 0;
  for (const WiredNode& node : nodes) most = std::max(most, node.queue_pairs);
  return most;
}

Wiring with_dispatchers(const Wiring& wiring) {
  Wiring dispatched = wiring;
  dispatched.requesting.clear();
  for (WiredThread& responder : dispatched.responding) responder.peers.clear();
  for (WiredNode& node : dispatched.nodes) node.queue_pairs = 0;
  for (uint32_t number = 0; number < dispatched.nodes.size(); ++number) {
    WiredNode& node = dispatched.nodes[number];
    const uint32_t first = node.first_requesting;
    const uint32_t workers = node.requesting;
    const auto dispatcher = static_cast<uint32_t>(dispatched.requesting.size());
    node.first_requesting = dispatcher;
    node.requesting = workers > 0 ? 1 : 0;
    if (workers == 0) continue;
    WiredThread& thread = dispatched.requesting.emplace_back();
    thread.node = number;
    for (uint32_t worker = first; worker < first + workers; ++worker) {
      for (const uint32_t peer : wiring.requesting[worker].peers) {
        if (std::find(thread.peers.begin(), thread.peers.end(), peer) != thread.peers.end()) {
          continue;
        }
        thread.peers.push_back(peer);
        WiredThread& responder = dispatched.responding[peer];
        responder.peers.push_back(dispatcher);
        ++node.queue_pairs;
        ++dispatched.nodes[responder.node].queue_pairs;
      }
    }
  }
  return dispatched;
}

Result<Wiring> wire(const TopologyShape& shape) {
  VERBENA_ASSIGN_OR_RETURN(const TopologyShape fits, fitted(shape));
  return Wirer(fits).wire();
}

}  // namespace verbena::bench
