// Unmodified programs of librdmacm on soft0 through `verbena run`: those of rdmacm-utils, and
// perftest with connections by rdma_cm.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/own_port.h"
#include "tests/support/perftest.h"
#include "tests/support/tool_process.h"
#include "tests/support/words.h"

namespace verbena {
namespace {

constexpr unsigned kDatagrams = 0x0111;  // a port space

bool is_installed(const std::string& program) {
  const char* directories = std::getenv("PATH");
  std::istringstream path(directories != nullptr ? directories : "");
  for (std::string directory; std::getline(path, directory, ':');) {
    if (access((directory + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// A program under `verbena run`.
class CmProgram {
 public:
  explicit CmProgram(const std::string& command)
      : command_(command), process_(under_run(test::words(command))) {}

  int exit_code() { return process_.wait().exit_code; }
  bool is_running() const { return process_.is_running(); }
  void kill() const { process_.signal(SIGKILL); }
  // rping's words for a peer that is gone. Which of its threads ends it is open: the one that has
  // the event, the one that has a completion with an error, or the one that waits for its turn.
  bool noticed_the_end() const {
    const std::string said = output();
    const auto has = [&](const char* words) { return said.find(words) != std::string::npos; };
    return has("DISCONNECT EVENT") || has("cq completion failed") || has("wait for ");
  }
  std::string output() const { return process_.out() + process_.err(); }
  std::string description() const { return "$ " + command_ + "\n" + output(); }

 private:
  static std::vector<std::string> under_run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {VERBENA_TOOL, "run", "--"});
    return arguments;
  }

  std::string command_;
  test::ToolProcess process_;
};

class LibrdmacmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string library = VERBENA_TEST_PROCESSES "/../lib/verbena/libverbena-verbs.so";
    if (access(library.c_str(), R_OK) != 0) {
      GTEST_SKIP() << "this build has no " << library << " (builds with sanitizers have none)";
    }
    if (!is_installed("rping")) GTEST_SKIP() << "install rdmacm-utils";
    setenv("VERBENA_RUNTIME_DIR", runtime_.path().c_str(), 1);
    port_ = test::own_port();
  }
  void TearDown() override { unsetenv("VERBENA_RUNTIME_DIR"); }

  std::string port() const { return fmt::format(" -p {} ", port_); }
  std::string port_file() const { return port_file(0x0106, port_); }
  std::string port_file(unsigned space, uint16_t port) const {
    return fmt::format("{}/verbena-{}/cm.port.{:04x}.{}", runtime_.path(), geteuid(), space, port);
  }
  // Whether a record of the port's file says so (src/device/soft/cm/port_files.h).
  static bool listens(const std::string& file) {
    constexpr size_t kRecordBytes = 56;
    constexpr size_t kPidAt = 12;
    constexpr size_t kListensAt = 26;
    const std::string records = read_all(file);
    for (size_t at = 0; at + kRecordBytes <= records.size(); at += kRecordBytes) {
      pid_t pid = 0;
      std::memcpy(&pid, &records[at + kPidAt], sizeof(pid));
      if (records[at + kListensAt] != 0 && test::is_alive(pid)) return true;
    }
    return false;
  }
  std::unique_ptr<CmProgram> start_server(const std::string& command) const {
    return start_server(command, port_file());
  }
  static std::unique_ptr<CmProgram> start_server(const std::string& command,
                                                 const std::string& file) {
    auto server = std::make_unique<CmProgram>(command);
    EXPECT_TRUE(test::eventually([&] { return listens(file) || !server->is_running(); }));
    EXPECT_TRUE(server->is_running()) << server->description();
    return server;
  }
  static std::string read_all(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  test::ScratchDirectory runtime_;
  uint16_t port_ = 0;
};

// ---- server and client ----

struct CmPair {
  const char* name;
  const char* server;  // both get the port
  const char* client;
};
std::ostream& operator<<(std::ostream& out, const CmPair& pair) { return out << pair.client; }

class LibrdmacmPairTest : public LibrdmacmTest, public ::testing::WithParamInterface<CmPair> {};

TEST_P(LibrdmacmPairTest, Succeeds) {
  const CmPair& pair = GetParam();
  if (!is_installed(test::words(pair.server)[0]))
    GTEST_SKIP() << "install rdmacm-utils and perftest";
  std::unique_ptr<CmProgram> server;
  std::unique_ptr<CmProgram> client;
  for (int attempt = 0; attempt < test::kPerftestAttempts; ++attempt) {
    server = start_server(pair.server + port());
    client = std::make_unique<CmProgram>(pair.client + port());
    if (client->exit_code() != 0) server->kill();  // it would wait for ever
    const auto gave_up = [](CmProgram& program) {
      return test::perftest_gave_up(program.exit_code(), program.output());
    };
    if (!gave_up(*client) && !gave_up(*server)) break;
  }
  EXPECT_EQ(client->exit_code(), 0) << client->description() << server->description();
  EXPECT_EQ(server->exit_code(), 0) << server->description();
  EXPECT_FALSE(std::filesystem::exists(port_file())) << "the port is free again";
}

INSTANTIATE_TEST_SUITE_P(
    RdmacmUtils, LibrdmacmPairTest,
    ::testing::Values(CmPair{"rping", "rping -s -C 20 -V", "rping -c -a 127.0.0.1 -C 20 -V"},
                      CmPair{"rping_ipv6", "rping -s -a ::1 -C 3 -V", "rping -c -a ::1 -C 3 -V"},
                      CmPair{"ucmatose", "ucmatose", "ucmatose -s 127.0.0.1"},
                      CmPair{"ucmatose_100_connections", "ucmatose -c 100 -C 3",
                             "ucmatose -c 100 -C 3 -s 127.0.0.1"},
                      CmPair{"ucmatose_migrates", "ucmatose -m", "ucmatose -m -s 127.0.0.1"},
                      CmPair{"create_ep", "rdma_server", "rdma_client -s 127.0.0.1"},
                      // It asks for no inline data and sends 16 bytes so.
                      CmPair{"create_ep_inline", "rdma_xserver", "rdma_xclient -s 127.0.0.1"},
                      CmPair{"rstream", "rstream -S 4096 -C 200 -T v",
                             "rstream -S 4096 -C 200 -T v -s 127.0.0.1"},
                      CmPair{"rstream_blocking", "rstream -S 64 -C 20 -T b",
                             "rstream -S 64 -C 20 -T b -s 127.0.0.1"},
                      CmPair{"rstream_nonblocking", "rstream -S 64 -C 20 -T n",
                             "rstream -S 64 -C 20 -T n -s 127.0.0.1"},
                      CmPair{"riostream", "riostream -S 4096 -C 50",
                             "riostream -S 4096 -C 50 -s 127.0.0.1"}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Perftest, LibrdmacmPairTest,
    ::testing::Values(
        CmPair{"write_bw", "ib_write_bw -R -n 200", "ib_write_bw -R -n 200 127.0.0.1"},
        CmPair{"write_bw_4_queue_pairs", "ib_write_bw -R -n 50 -q 4",
               "ib_write_bw -R -n 50 -q 4 127.0.0.1"},
        CmPair{"write_lat", "ib_write_lat -R -n 200", "ib_write_lat -R -n 200 127.0.0.1"},
        CmPair{"read_bw", "ib_read_bw -R -n 200", "ib_read_bw -R -n 200 127.0.0.1"},
        CmPair{"send_lat_events", "ib_send_lat -R -e -n 200", "ib_send_lat -R -e -n 200 127.0.0.1"},
        CmPair{"send_bw_shared_receives", "ib_send_bw -R --use-srq -n 200",
               "ib_send_bw -R --use-srq -n 200 127.0.0.1"},
        CmPair{"atomic_bw", "ib_atomic_bw -R -n 200", "ib_atomic_bw -R -n 200 127.0.0.1"},
        CmPair{"send_lat_datagrams", "ib_send_lat -R -c UD -n 200",
               "ib_send_lat -R -c UD -n 200 127.0.0.1"}),
    [](const auto& info) { return info.param.name; });

// ---- datagrams ----

TEST_F(LibrdmacmTest, Udaddy) {
  // It has one port, and none other can be asked for.
  const std::string file = port_file(kDatagrams, 7174);
  const auto server = start_server("udaddy", file);
  CmProgram client("udaddy -s 127.0.0.1");
  EXPECT_EQ(client.exit_code(), 0) << client.description() << server->description();
  EXPECT_EQ(server->exit_code(), 0) << server->description();
  EXPECT_FALSE(std::filesystem::exists(file)) << "the port is free again";
}

// What its client asks before there is a server is lost, and rpoll() ends by its time-out. Before
// release 63 of librdmacm, one of the calls after the first such never ended.
TEST_F(LibrdmacmTest, UdpongAsksAgain) {
  CmProgram client("udpong -s 127.0.0.1 -S 64 -C 100 -T e" + port());
  // It asks once a second.
  constexpr int kSomeAttemptsMs = 3500;
  poll(nullptr, 0, kSomeAttemptsMs);
  // Without an address of its own, it listens for IPv6 only.
  CmProgram server("udpong -b 127.0.0.1" + port());
  EXPECT_EQ(client.exit_code(), 0) << client.description() << server.description();
  EXPECT_NE(client.output().find("custom"), std::string::npos) << client.description();
  server.kill();
}

TEST_F(LibrdmacmTest, Mckey) {
  // Line by line: a sender that begins before the receiver is in the group sends to nobody.
  CmProgram receiver("stdbuf -oL mckey -m 239.1.2.3");
  ASSERT_TRUE(test::eventually([&] {
    return receiver.output().find("joined dgid") != std::string::npos || !receiver.is_running();
  }));
  CmProgram sender("mckey -m 239.1.2.3 -s");
  EXPECT_EQ(sender.exit_code(), 0) << sender.description() << receiver.description();
  EXPECT_EQ(receiver.exit_code(), 0) << receiver.description();
}

// ---- what goes wrong ----

TEST_F(LibrdmacmTest, NobodyListens) {
  CmProgram ping("rping -c -a 127.0.0.1 -C 1" + port());
  EXPECT_NE(ping.exit_code(), 0) << ping.description();
  EXPECT_NE(ping.output().find("RDMA_CM_EVENT_REJECTED, error 8"), std::string::npos)
      << ping.description();
  CmProgram stream("rstream -S 64 -C 1 -s 127.0.0.1" + port());
  EXPECT_NE(stream.exit_code(), 0) << stream.description();
  EXPECT_NE(stream.output().find("Connection refused"), std::string::npos) << stream.description();
}

TEST_F(LibrdmacmTest, AnotherHostIsOutOfReach) {
  CmProgram client("ucmatose -s 240.0.0.1" + port());
  EXPECT_NE(client.exit_code(), 0) << client.description();
  EXPECT_NE(client.output().find("RDMA_CM_EVENT_ADDR_ERROR"), std::string::npos)
      << client.description();
}

TEST_F(LibrdmacmTest, PortInUse) {
  const auto server = start_server("rping -s" + port());
  CmProgram second("rping -s" + port());
  EXPECT_NE(second.exit_code(), 0) << second.description();
  EXPECT_NE(second.output().find("Address already in use"), std::string::npos)
      << second.description();
  server->kill();
}

TEST_F(LibrdmacmTest, AKilledServerIsNoticedAndLeavesItsPort) {
  const auto server = start_server("rping -s -v" + port());
  CmProgram client("rping -c -v -a 127.0.0.1" + port());
  ASSERT_TRUE(
      test::eventually([&] { return client.output().find("ping data") != std::string::npos; }));
  server->kill();
  client.exit_code();  // it ends, which is what counts
  EXPECT_TRUE(client.noticed_the_end()) << client.description();
  const auto next = start_server("rping -s -C 1" + port());
  CmProgram again("rping -c -C 1 -a 127.0.0.1" + port());
  EXPECT_EQ(again.exit_code(), 0) << again.description() << next->description();
}

TEST_F(LibrdmacmTest, AKilledClientIsNoticed) {
  const auto server = start_server("rping -s -v" + port());
  CmProgram client("rping -c -v -a 127.0.0.1" + port());
  ASSERT_TRUE(
      test::eventually([&] { return client.output().find("ping data") != std::string::npos; }));
  client.kill();
  server->exit_code();  // it ends, which is what counts
  EXPECT_TRUE(server->noticed_the_end()) << server->description();
}

}  // namespace
}  // namespace verbena
