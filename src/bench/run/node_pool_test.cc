#include "src/bench/run/node_pool.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/control/peers_for_test.h"
#include "tests/support/own_port.h"

namespace verbena::bench {
namespace {

FileDescriptor connected_to(uint16_t port) {
  FileDescriptor peer(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(peer.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return peer;
}

bool was_dropped(const FileDescriptor& peer) {
  char bytes[256];
  ssize_t count = 0;
  while ((count = recv(peer.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
  }
  return count == 0 || errno != EAGAIN;
}

// On a busy machine none of many nodes that start at once may be through with it for a while.
TEST(NodePool, HandshakesOfManyNodesTakeTheirTimeBesideEachOther) {
  constexpr int kNodes = 100;
  const uint16_t port = test::own_port();
  const auto pool =
      NodePool::on_this_host("soft0", secret(), port, {"sh", "-c", "exec sleep 1000"});
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  std::vector<FileDescriptor> slow;
  for (int i = 0; i < kNodes; ++i) slow.push_back(connected_to(port));
  EXPECT_EQ((*pool)->take(1, /*stall_ns=*/1).status().code(), StatusCode::kTimeout);
  for (int i = 0; i < kNodes; ++i) EXPECT_FALSE(was_dropped(slow[i])) << i;
}

}  // namespace
}  // namespace verbena::bench
