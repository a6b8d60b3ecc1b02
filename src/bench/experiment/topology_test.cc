#include "src/bench/experiment/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace verbena::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// A thread as "node.thread".
std::string name_of(const WiredThread& thread) {
  return std::to_string(thread.node) + "." + std::to_string(thread.thread);
}

std::vector<std::string> peers_of(const Wiring& wiring, uint32_t requesting) {
  std::vector<std::string> names;
  for (const uint32_t peer : wiring.requesting[requesting].peers) {
    names.push_back(name_of(wiring.responding[peer]));
  }
  return names;
}

// What every wiring must fulfil, whatever its topology. `to_itself`: nodes are connected to
// themselves, too.
void check_consistent(const Wiring& wiring, bool to_itself) {
  uint32_t requesting = 0;
  uint32_t responding = 0;
  std::vector<uint32_t> queue_pairs(wiring.nodes.size());
  for (const WiredNode& node : wiring.nodes) {
    EXPECT_EQ(node.first_requesting, requesting);
    EXPECT_EQ(node.first_responding, responding);
    requesting += node.requesting;
    responding += node.responding;
  }
  EXPECT_EQ(wiring.requesting.size(), requesting);
  EXPECT_EQ(wiring.responding.size(), responding);
  for (uint32_t number = 0; number < requesting; ++number) {
    const std::vector<uint32_t>& peers = wiring.requesting[number].peers;
    EXPECT_FALSE(peers.empty());
    EXPECT_EQ(std::set<uint32_t>(peers.begin(), peers.end()).size(), peers.size());
    for (const uint32_t peer : peers) {
      EXPECT_THAT(wiring.responding[peer].peers, testing::Contains(number));
      EXPECT_TRUE(to_itself || wiring.responding[peer].node != wiring.requesting[number].node);
      ++queue_pairs[wiring.requesting[number].node];
      ++queue_pairs[wiring.responding[peer].node];
    }
  }
  uint32_t accepted = 0;
  for (const WiredThread& thread : wiring.responding) {
    EXPECT_FALSE(thread.peers.empty());
    accepted += static_cast<uint32_t>(thread.peers.size());
  }
  EXPECT_EQ(accepted, wiring.queue_pairs());
  for (size_t node = 0; node < wiring.nodes.size(); ++node) {
    EXPECT_EQ(wiring.nodes[node].queue_pairs, queue_pairs[node]);
  }
}

Wiring wired(const TopologyShape& shape) {
  Result<Wiring> wiring = wire(shape);
  EXPECT_TRUE(wiring.ok()) << wiring.status().message();
  check_consistent(*wiring, shape.responder_nodes == 0);
  return *wiring;
}

TEST(Topology, NamesAreReadInAnyCase) {
  for (const Topology topology : all_topologies()) {
    EXPECT_EQ(parse_topology(topology_name(topology)).value(), topology);
  }
  EXPECT_EQ(parse_topology("n-TO-1").value(), Topology::kManyToOne);
  EXPECT_EQ(parse_topology("m:1").value(), Topology::kManyToOne);
  EXPECT_EQ(parse_topology("n-to-m").value(), Topology::kManyToMany);
  EXPECT_EQ(parse_topology("m:m").value(), Topology::kAllToAll);
  const Status status = parse_topology("star").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("star"), HasSubstr("N-to-M")));
}

TEST(Topology, OneToOneIsAPairOfNodes) {
  const Wiring wiring = wired({});
  EXPECT_EQ(wiring.nodes.size(), 2u);
  EXPECT_THAT(peers_of(wiring, 0), ElementsAre("1.0"));
  EXPECT_FALSE(wiring.random_peer);
}

// "msgproto" 4: (i,k) with responding thread k; P*S queue pairs at the responder, S per requesting
// node.
TEST(Topology, ManyToOneWithAsManyRespondingThreads) {
  const uint32_t nodes = 5;
  const uint32_t threads = 3;
  const Wiring wiring = wired({.topology = Topology::kManyToOne,
                               .nodes = nodes,
                               .threads = threads,
                               .responder_threads = threads});
  ASSERT_EQ(wiring.nodes.size(), nodes + 1);
  for (uint32_t i = 0; i < nodes; ++i) {
    EXPECT_EQ(wiring.nodes[i].queue_pairs, threads);
    for (uint32_t k = 0; k < threads; ++k) {
      EXPECT_THAT(peers_of(wiring, i * threads + k), ElementsAre("5." + std::to_string(k)));
    }
  }
  EXPECT_EQ(wiring.nodes[nodes].queue_pairs, nodes * threads);
  EXPECT_EQ(wiring.max_queue_pairs(), nodes * threads);
}

// "msgproto" 4.1.2: 28 nodes; with S = 1, 14 responding threads of 2 queue pairs, else 16 of
// S*P/16.
TEST(Topology, ManyToOneSpreadsRequestersEvenly) {
  const Wiring single =
      wired({.topology = Topology::kManyToOne, .nodes = 28, .threads = 1, .responder_threads = 14});
  for (const WiredThread& thread : single.responding) EXPECT_EQ(thread.peers.size(), 2u);
  for (const uint32_t threads : {2u, 4u, 8u, 16u}) {
    const Wiring wiring = wired({.topology = Topology::kManyToOne,
                                 .nodes = 28,
                                 .threads = threads,
                                 .responder_threads = 16});
    ASSERT_EQ(wiring.responding.size(), 16u);
    for (const WiredThread& thread : wiring.responding) {
      EXPECT_NEAR(static_cast<double>(thread.peers.size()), threads * 28 / 16.0, 0.5);
    }
  }
}

// "patterns" 6: 5 nodes of 8 threads, one responding thread.
TEST(Topology, ManyToOneWithASingleResponder) {
  const Wiring wiring =
      wired({.topology = Topology::kManyToOne, .nodes = 5, .threads = 8, .responder_threads = 1});
  ASSERT_EQ(wiring.responding.size(), 1u);
  EXPECT_EQ(wiring.responding[0].peers.size(), 40u);
}

TEST(Topology, NoRespondingThreadIsWithoutAQueuePair) {
  const TopologyShape shape =
      fitted({.topology = Topology::kManyToOne, .nodes = 2, .threads = 3, .responder_threads = 14})
          .value();
  EXPECT_EQ(shape.responder_threads, 6u);
  EXPECT_EQ(wired(shape).responding.size(), 6u);
}

// "msgproto" 4: Q queue pairs per requesting thread, Q*S at the requester; one per responding
// thread, S per responding node.
TEST(Topology, OneToMany) {
  const uint32_t responders = 4;
  const uint32_t threads = 3;
  const Wiring wiring = wired({.topology = Topology::kOneToMany,
                               .threads = threads,
                               .responder_nodes = responders,
                               .responder_threads = 9});
  ASSERT_EQ(wiring.nodes.size(), 1 + responders);
  EXPECT_EQ(wiring.nodes[0].queue_pairs, responders * threads);
  for (uint32_t j = 1; j <= responders; ++j) EXPECT_EQ(wiring.nodes[j].queue_pairs, threads);
  for (const WiredThread& thread : wiring.responding) EXPECT_EQ(thread.peers.size(), 1u);
  EXPECT_THAT(peers_of(wiring, 1), UnorderedElementsAre("1.1", "2.1", "3.1", "4.1"));
  EXPECT_FALSE(wiring.random_peer);
}

// "msgproto" 4: N-1 queue pairs per thread, (N-1)*2*S per node.
TEST(Topology, AllToAll) {
  const uint32_t nodes = 4;
  const uint32_t threads = 3;
  const Wiring wiring =
      wired({.topology = Topology::kAllToAll, .nodes = nodes, .threads = threads});
  ASSERT_EQ(wiring.nodes.size(), nodes);
  for (const WiredNode& node : wiring.nodes) {
    EXPECT_EQ(node.requesting, threads);
    EXPECT_EQ(node.responding, threads);
    EXPECT_EQ(node.queue_pairs, (nodes - 1) * 2 * threads);
  }
  for (const WiredThread& thread : wiring.requesting) EXPECT_EQ(thread.peers.size(), nodes - 1);
  for (const WiredThread& thread : wiring.responding) EXPECT_EQ(thread.peers.size(), nodes - 1);
  // Thread 2 of node 1.
  EXPECT_THAT(peers_of(wiring, 5), UnorderedElementsAre("0.2", "2.2", "3.2"));
}

// "patterns" 7: 9 nodes of 10 threads, 3 responder nodes of 2, 4 and 6 threads; 90 requesters have
// a queue pair to each responder.
TEST(Topology, ManyToMany) {
  for (const uint32_t threads : {2u, 4u, 6u}) {
    const Wiring wiring = wired({.topology = Topology::kManyToMany,
                                 .nodes = 9,
                                 .threads = 10,
                                 .responder_nodes = 3,
                                 .responder_threads = threads});
    EXPECT_TRUE(wiring.random_peer);
    ASSERT_EQ(wiring.nodes.size(), 12u);
    EXPECT_EQ(wiring.nodes[0].queue_pairs, 10 * 3 * threads);
    EXPECT_EQ(wiring.nodes[11].queue_pairs, 90 * threads);
    for (const WiredThread& thread : wiring.responding) EXPECT_EQ(thread.peers.size(), 90u);
  }
}

// All with all, those of the own node among them.
TEST(Topology, ManyToManyOnTheSameNodes) {
  const Wiring wiring = wired({.topology = Topology::kManyToMany,
                               .nodes = 3,
                               .threads = 2,
                               .responder_nodes = 0,
                               .responder_threads = 4});
  ASSERT_EQ(wiring.nodes.size(), 3u);
  for (const WiredNode& node : wiring.nodes) {
    EXPECT_EQ(node.requesting, 2u);
    EXPECT_EQ(node.responding, 4u);
    EXPECT_EQ(node.queue_pairs, 2u * 12 + 4 * 6);
  }
  for (const WiredThread& thread : wiring.requesting) EXPECT_EQ(thread.peers.size(), 12u);
  for (const WiredThread& thread : wiring.responding) EXPECT_EQ(thread.peers.size(), 6u);
}

TEST(Topology, RequestersBeginWithDifferentResponders) {
  const Wiring wiring = wired({.topology = Topology::kManyToMany,
                               .nodes = 1,
                               .threads = 4,
                               .responder_nodes = 4,
                               .responder_threads = 1});
  std::set<uint32_t> first;
  for (const WiredThread& thread : wiring.requesting) first.insert(thread.peers.front());
  EXPECT_EQ(first.size(), 4u);
}

TEST(Topology, RefusesWhatDoesNotFit) {
  const auto refusal = [](const TopologyShape& shape) {
    const Result<Wiring> wiring = wire(shape);
    EXPECT_EQ(wiring.status().code(), StatusCode::kInvalidArgument);
    return wiring.status().message();
  };
  EXPECT_THAT(refusal({.topology = Topology::kAllToAll, .nodes = 1}), HasSubstr("2 nodes"));
  EXPECT_THAT(refusal({.topology = Topology::kManyToOne, .responder_nodes = 0}),
              HasSubstr("0 responder nodes"));
  EXPECT_THAT(refusal({.topology = Topology::kOneToMany, .nodes = 3}), HasSubstr("1:M has one"));
  EXPECT_THAT(refusal({.topology = Topology::kManyToOne, .responder_nodes = 2}),
              HasSubstr("M:1 has one"));
  EXPECT_THAT(refusal({.threads = 2}), HasSubstr("one-to-one has one"));
  EXPECT_THAT(refusal({.topology = Topology::kManyToOne, .nodes = 0}), HasSubstr("1 to 1024"));
  EXPECT_THAT(refusal({.topology = Topology::kManyToOne, .nodes = 2, .threads = 257}),
              HasSubstr("1 to 256"));
}

// "patterns" 6: 5 connections instead of 40 at full scale.
TEST(Dispatchers, OneQueuePairPerNodeAndRespondingThread) {
  const Wiring wiring = with_dispatchers(
      wired({.topology = Topology::kManyToOne, .nodes = 5, .threads = 8, .responder_threads = 1}));
  EXPECT_EQ(wiring.queue_pairs(), 5u);
  EXPECT_EQ(wiring.requesting.size(), 5u);
  EXPECT_THAT(wiring.responding[0].peers, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(wiring.nodes[5].queue_pairs, 5u);
}

TEST(Dispatchers, ReachEveryThreadThatAWorkerTalksTo) {
  const Wiring private_wiring = wired({.topology = Topology::kAllToAll, .nodes = 3, .threads = 2});
  const Wiring wiring = with_dispatchers(private_wiring);
  ASSERT_EQ(wiring.requesting.size(), 3u);
  for (uint32_t node = 0; node < 3; ++node) {
    EXPECT_EQ(wiring.nodes[node].first_requesting, node);
    EXPECT_EQ(wiring.nodes[node].requesting, 1u);
    EXPECT_EQ(wiring.requesting[node].node, node);
    EXPECT_EQ(wiring.requesting[node].peers.size(), 4u);
    for (uint32_t worker = 0; worker < 2; ++worker) {
      for (const uint32_t peer : private_wiring.requesting[node * 2 + worker].peers) {
        EXPECT_THAT(wiring.requesting[node].peers, testing::Contains(peer));
        EXPECT_THAT(wiring.responding[peer].peers, testing::Contains(node));
      }
    }
  }
}

}  // namespace
}  // namespace verbena::bench
