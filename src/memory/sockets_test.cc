#include "verbena/sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/memory/socket_topology.h"

namespace verbena {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

// A machine as hwloc describes it.
Topology synthetic(const char* description) {
  hwloc_topology_t topology = nullptr;
  EXPECT_EQ(hwloc_topology_init(&topology), 0);
  EXPECT_EQ(hwloc_topology_set_synthetic(topology, description), 0);
  EXPECT_EQ(hwloc_topology_load(topology), 0);
  return Topology(topology);
}

TEST(SocketsTest, ASocketHasTheProcessorsAndTheMemoryOfItsPackage) {
  const Topology machine = synthetic("package:2 [numa] core:4 pu:1");
  const auto sockets = sockets_of(machine.get(), {0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_EQ(sockets.size(), 2u);
  EXPECT_THAT(sockets[0].cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sockets[1].cpus, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(sockets[0].numa_nodes, ElementsAre(0));
  EXPECT_THAT(sockets[1].numa_nodes, ElementsAre(1));
  EXPECT_EQ(socket_of_node(sockets, 1), 1);
  EXPECT_EQ(socket_of_node(sockets, 2), kAnySocket);
}

TEST(SocketsTest, APackageMayHaveSeveralNumaNodes) {
  const Topology machine = synthetic("package:2 group:2 [numa] core:2 pu:1");
  const auto sockets = sockets_of(machine.get(), {0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_EQ(sockets.size(), 2u);
  EXPECT_THAT(sockets[0].numa_nodes, ElementsAre(0, 1));
  EXPECT_THAT(sockets[1].numa_nodes, ElementsAre(2, 3));
}

// In the order in which they are handed out; a socket none of whose processors may be used stays.
TEST(SocketsTest, OnlyUsableProcessorsCount) {
  const Topology machine = synthetic("package:2 [numa] core:4 pu:1");
  const auto sockets = sockets_of(machine.get(), {3, 1});
  ASSERT_EQ(sockets.size(), 2u);
  EXPECT_THAT(sockets[0].cpus, ElementsAre(3, 1));
  EXPECT_THAT(sockets[1].cpus, IsEmpty());
}

TEST(SocketsTest, DeclaredSocketsShareTheProcessors) {
  const auto two = declared_sockets(2, {5, 6, 7, 8});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_THAT(two[0].cpus, ElementsAre(5, 6));
  EXPECT_THAT(two[1].cpus, ElementsAre(7, 8));
  EXPECT_THAT(two[0].numa_nodes, IsEmpty());

  const auto uneven = declared_sockets(3, {0, 1, 2, 3});
  EXPECT_THAT(uneven[0].cpus, ElementsAre(0));
  EXPECT_THAT(uneven[1].cpus, ElementsAre(1));
  EXPECT_THAT(uneven[2].cpus, ElementsAre(2, 3));

  const auto more_than_processors = declared_sockets(4, {0, 1});
  ASSERT_EQ(more_than_processors.size(), 4u);
  EXPECT_THAT(more_than_processors[0].cpus, ElementsAre(0));
  EXPECT_THAT(more_than_processors[1].cpus, ElementsAre(0));
  EXPECT_THAT(more_than_processors[3].cpus, ElementsAre(1));
}

TEST(SocketsTest, ReadsHowManyAreDeclared) {
  EXPECT_EQ(*parse_socket_count("2"), 2u);
  EXPECT_EQ(*parse_socket_count("64"), 64u);
  for (const char* wrong : {"", "0", "65", "-1", "2 ", "two", "2.0", "99999999999"}) {
    const auto count = parse_socket_count(wrong);
    ASSERT_FALSE(count.ok()) << wrong;
    EXPECT_THAT(count.status().message(), HasSubstr("choose 1 to 64, or unset it"));
  }
}

TEST(SocketsTest, ReadsTheNumaNodeOfADevice) {
  const std::string folder = testing::TempDir() + "/sockets_test-" + std::to_string(getpid());
  std::filesystem::create_directories(folder + "/device");
  const auto node_with = [&folder](const char* text) {
    std::ofstream(folder + "/device/numa_node") << text;
    return numa_node_of_device(folder);
  };
  EXPECT_EQ(numa_node_of_device(folder), -1);
  EXPECT_EQ(node_with("1\n"), 1);
  EXPECT_EQ(node_with("-1\n"), -1);  // what the kernel says where it does not know
  EXPECT_EQ(node_with("none\n"), -1);
  std::filesystem::remove_all(folder);
}

TEST(SocketsTest, ThisMachineHasSocketsWithTheUsableProcessors) {
  size_t cpus = 0;
  for (const Socket& socket : machine_sockets()) cpus += socket.cpus.size();
  EXPECT_GE(machine_sockets().size(), 1u);
  EXPECT_GE(cpus, 1u);
}

TEST(SocketsTest, MemoryIsWhereItWasPlaced) {
  const size_t bytes = size_t{1} << 20;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto& sockets = machine_sockets();
  for (int socket = 0; socket < static_cast<int>(sockets.size()); ++socket) {
    const Status placed = place_on_socket(memory, bytes, socket);
    if (!placed.ok()) GTEST_SKIP() << placed.message();
    for (size_t i = 0; i < bytes; i += 4096) static_cast<char*>(memory)[i] = 1;
    const int found = socket_of_memory(memory, bytes);
    // Where the system does not let us ask, nothing is known.
    EXPECT_THAT(found, testing::AnyOf(socket, kAnySocket));
  }
  EXPECT_TRUE(place_on_socket(memory, bytes, kAnySocket).ok());
  munmap(memory, bytes);
}

TEST(SocketsTest, ASocketThatIsNotThereIsRefused) {
  const auto count = static_cast<int>(machine_sockets().size());
  char memory[64];
  for (int socket : {count, -2}) {
    EXPECT_EQ(place_on_socket(memory, sizeof(memory), socket).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(run_on_socket(socket).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(run_on_socket(count).message(), HasSubstr("choose 0 to"));
}

TEST(SocketsTest, AThreadRunsOnTheProcessorsOfItsSocket) {
  for (size_t i = 0; i < machine_sockets().size(); ++i) {
    const std::vector<int>& cpus = machine_sockets()[i].cpus;
    Status placed;
    int cpu = -1;
    start_thread("on a socket", [&] {
      placed = run_on_socket(static_cast<int>(i));
      cpu = sched_getcpu();
    }).join();
    if (cpus.empty()) {
      EXPECT_EQ(placed.code(), StatusCode::kUnavailable);
    } else {
      EXPECT_TRUE(placed.ok()) << placed.message();
      EXPECT_THAT(cpus, testing::Contains(cpu));
    }
  }
}

TEST(SocketsTest, Soft0IsOnNoSocket) {
  auto device = Device::open("soft0");
  if (!device.ok()) GTEST_SKIP() << "no soft0 here: " << device.status().message();
  EXPECT_EQ(socket_of(*device), kAnySocket);
}

}  // namespace
}  // namespace verbena
