// Unmodified verbs programs on soft0 through `verbena run`: those of ibverbs-utils and perftest,
// and three of our own that check what those do not use.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "tests/support/own_port.h"
#include "tests/support/perftest.h"
#include "tests/support/tool_process.h"
#include "tests/support/words.h"

namespace verbena {
namespace {

constexpr uint64_t kNsPerSecond = 1'000'000'000;
constexpr uint64_t kPatienceNs = 600 * kNsPerSecond;

// A program with what it prints, as one text.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments)
      : command_(arguments), process_(arguments) {}

  int exit_code() { return process_.wait().exit_code; }
  bool is_running() const { return process_.is_running(); }
  std::string output() const { return process_.out() + process_.err(); }
  std::string description() const {
    std::string text = "$";
    for (const std::string& argument : command_) text.append(" ").append(argument);
    return text.append("\n").append(output());
  }

 private:
  std::vector<std::string> command_;
  test::ToolProcess process_;
};

std::vector<std::string> under_verbena(const std::vector<std::string>& arguments,
                                       const std::string& options = "") {
  std::vector<std::string> command = {VERBENA_TOOL, "run"};
  for (const std::string& option : test::words(options)) command.push_back(option);
  command.emplace_back("--");
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

bool installed(const std::string& program) {
  const char* directories = std::getenv("PATH");
  std::istringstream path(directories != nullptr ? directories : "");
  for (std::string directory; std::getline(path, directory, ':');) {
    if (access((directory + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

class InterposeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string library = VERBENA_TEST_PROCESSES "/../lib/verbena/libverbena-verbs.so";
    if (access(library.c_str(), R_OK) != 0) {
      GTEST_SKIP() << "this build has no " << library << " (builds with sanitizers have none)";
    }
  }
};

// ---- the run command ----

TEST_F(InterposeTest, RunFailsClearlyForAProgramThatIsNotThere) {
  Program run(under_verbena({"no-such-program-anywhere"}));
  EXPECT_EQ(run.exit_code(), 127) << run.description();
  EXPECT_NE(run.output().find("no-such-program-anywhere"), std::string::npos) << run.description();
}

TEST_F(InterposeTest, RunPassesArgumentsAndTheExitCodeOn) {
  Program run(under_verbena({"sh", "-c", "echo \"<$0> <$1>\"; exit 42", "a b", "--help"}));
  EXPECT_EQ(run.exit_code(), 42) << run.description();
  EXPECT_EQ(run.output(), "<a b> <--help>\n");
}

TEST_F(InterposeTest, RunKeepsOtherPreloads) {
  setenv("LD_PRELOAD", "libm.so.6", 1);
  Program run(under_verbena({"sh", "-c", "echo $LD_PRELOAD"}));
  unsetenv("LD_PRELOAD");
  EXPECT_EQ(run.exit_code(), 0) << run.description();
  EXPECT_EQ(run.output().rfind("libm.so.6:/", 0), 0u) << run.description();
  EXPECT_NE(run.output().find("/lib/verbena/libverbena-verbs.so\n"), std::string::npos);
}

TEST_F(InterposeTest, AStaticProgramRunsAndIsToldToHaveNoSoft0) {
  if (!installed("busybox")) GTEST_SKIP() << "install busybox-static";
  Program run(under_verbena({"busybox", "sh", "-c", "exit 3"}));
  EXPECT_EQ(run.exit_code(), 3) << run.description();
  EXPECT_EQ(run.output().rfind("verbena: warning: no soft0 in this program: '", 0), 0u)
      << run.description();
  EXPECT_NE(run.output().find("busybox' is linked statically"), std::string::npos);
}

// ---- programs of one process ----

TEST_F(InterposeTest, ibv_devices) {
  if (!installed("ibv_devices")) GTEST_SKIP() << "install ibverbs-utils";
  Program devices(under_verbena({"ibv_devices"}));
  EXPECT_EQ(devices.exit_code(), 0) << devices.description();
  EXPECT_NE(devices.output().find("soft0"), std::string::npos) << devices.description();
}

TEST_F(InterposeTest, ibv_devinfo) {
  if (!installed("ibv_devinfo")) GTEST_SKIP() << "install ibverbs-utils";
  for (const char* arguments : {"ibv_devinfo", "ibv_devinfo -v -d soft0"}) {
    Program info(under_verbena(test::words(arguments)));
    EXPECT_EQ(info.exit_code(), 0) << info.description();
    EXPECT_NE(info.output().find("soft0"), std::string::npos) << info.description();
    EXPECT_NE(info.output().find("PORT_ACTIVE"), std::string::npos) << info.description();
  }
}

TEST_F(InterposeTest, OwnProgramFindsEveryVerb) {
  Program verbs(under_verbena({VERBENA_TEST_PROCESSES "/interpose_verbs_process"}));
  EXPECT_EQ(verbs.exit_code(), 0) << verbs.description();
}

TEST_F(InterposeTest, OwnProgramKeepsItsMemory) {
  Program memory(under_verbena({VERBENA_TEST_PROCESSES "/interpose_memory_process"}));
  EXPECT_EQ(memory.exit_code(), 0) << memory.description();
}

TEST_F(InterposeTest, ProgramOfGoMayDiscardItsMemory) {
  for (const char* program : {VERBENA_TEST_PROCESSES "/interpose_go_process",
                              VERBENA_TEST_PROCESSES "/interpose_go_stripped_process"}) {
    for (const char* mode : {"locks", "no-locks"}) {
      Program memory(under_verbena({program, mode}));
      EXPECT_EQ(memory.exit_code(), 0) << program << ' ' << mode << ": " << memory.description();
    }
  }
}

TEST_F(InterposeTest, OwnProgramThatOpensTheLibraryItself) {
  Program opener(under_verbena({VERBENA_TEST_PROCESSES "/interpose_dlopen_process"}));
  EXPECT_EQ(opener.exit_code(), 0) << opener.description();
}

TEST_F(InterposeTest, OwnProgramKeepsItsEventChannels) {
  Program opener(under_verbena({VERBENA_TEST_PROCESSES "/interpose_channel_process"}));
  EXPECT_EQ(opener.exit_code(), 0) << opener.description();
}

TEST_F(InterposeTest, OwnProgramFindsTheDeviceInSysfs) {
  Program reader(under_verbena({VERBENA_TEST_PROCESSES "/interpose_sysfs_process"}));
  EXPECT_EQ(reader.exit_code(), 0) << reader.description();
}

// Through shells and tools, which read folders, links and relative paths each in their own way.
TEST_F(InterposeTest, ToolsFindTheDeviceInSysfs) {
  struct Case {
    const char* script;
    const char* output;
  };
  for (const Case& tried : {
           Case{"ls -l /sys/class/infiniband | grep -c soft0", "1\n"},
           Case{"echo /sys/class/infiniband/soft*", "/sys/class/infiniband/soft0\n"},
           Case{"cat /sys/class/infiniband/soft0/ports/1/link_layer", "InfiniBand\n"},
           Case{"cd /sys/class/infiniband/soft0 && cat node_type", "1: CA\n"},
           Case{"cd /sys/class/infiniband/soft0 && readlink -f device",
                "/sys/devices/virtual/verbena/soft0\n"},
           Case{"test -r /sys/class/infiniband/soft0/fw_ver && echo yes", "yes\n"},
           Case{"cat < /sys/class/infiniband_verbs/uverbs-soft0/ibdev", "soft0\n"},
           Case{"find /sys/class/net -maxdepth 1 -name lo", "/sys/class/net/lo\n"},
       }) {
    Program shell(under_verbena({"sh", "-c", tried.script}));
    EXPECT_EQ(shell.exit_code(), 0) << shell.description();
    EXPECT_EQ(shell.output(), tried.output) << shell.description();
  }
}

TEST_F(InterposeTest, ibstat) {
  if (!installed("ibstat")) GTEST_SKIP() << "install infiniband-diags";
  Program status(under_verbena({"ibstat", "soft0"}));
  EXPECT_EQ(status.exit_code(), 0) << status.description();
  EXPECT_NE(status.output().find("State: Active"), std::string::npos) << status.description();
  EXPECT_NE(status.output().find("Link layer: InfiniBand"), std::string::npos)
      << status.description();
}

TEST_F(InterposeTest, WithoutRunThereIsNoSoftDevice) {
  if (!installed("ibv_devices")) GTEST_SKIP() << "install ibverbs-utils";
  Program devices({"ibv_devices"});
  devices.exit_code();
  EXPECT_EQ(devices.output().find("soft0"), std::string::npos) << devices.description();
}

// ---- servers and clients ----

// How a side runs, and on which device.
struct Side {
  const char* options = "";
  const char* device = "soft0";
};

struct Pair {
  const char* name;
  const char* command;
  Side server{};
  Side client{};
};

std::ostream& operator<<(std::ostream& stream, const Pair& pair) { return stream << pair.command; }

class InterposePairTest : public InterposeTest, public ::testing::WithParamInterface<Pair> {
 protected:
  void SetUp() override {
    InterposeTest::SetUp();
    if (IsSkipped()) return;
    const std::string program = test::words(GetParam().command)[0];
    if (!installed(program)) GTEST_SKIP() << "install ibverbs-utils and perftest for " << program;
  }

  // Starts the server, and the client once the server listens.
  void start() {
    const uint16_t port = test::own_port();
    std::vector<std::string> arguments = test::words(GetParam().command);
    arguments.insert(arguments.end(), {"-p", std::to_string(port), "-d"});
    const auto with = [&arguments](const std::vector<std::string>& more) {
      std::vector<std::string> all = arguments;
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    const Side& server = GetParam().server;
    const Side& client = GetParam().client;
    server_ = std::make_unique<Program>(under_verbena(with({server.device}), server.options));
    const uint64_t start_ns = now_ns();
    while (!test::listening(port)) {
      ASSERT_TRUE(server_->is_running() && now_ns() - start_ns < kPatienceNs)
          << server_->description();
      sleep_ns(2'000'000);
    }
    client_ = std::make_unique<Program>(
        under_verbena(with({client.device, "127.0.0.1"}), client.options));
  }

  std::unique_ptr<Program> server_;
  std::unique_ptr<Program> client_;
};

std::string pair_name(const ::testing::TestParamInfo<Pair>& info) { return info.param.name; }

bool gave_up(Program& program) {
  return test::perftest_gave_up(program.exit_code(), program.output());
}

TEST_P(InterposePairTest, Runs) {
  for (int attempt = 0; attempt < test::kPerftestAttempts; ++attempt) {
    start();
    if (HasFatalFailure()) return;
    const bool client_gave_up = gave_up(*client_);
    if (!gave_up(*server_) && !client_gave_up) break;
  }
  EXPECT_EQ(client_->exit_code(), 0) << client_->description() << server_->description();
  EXPECT_EQ(server_->exit_code(), 0) << server_->description();
}

INSTANTIATE_TEST_SUITE_P(
    Utilities, InterposePairTest,
    ::testing::Values(Pair{"rc_pingpong", "ibv_rc_pingpong -c"},
                      Pair{"rc_pingpong_events", "ibv_rc_pingpong -c -e"},
                      Pair{"rc_pingpong_1_byte", "ibv_rc_pingpong -c -s 1"},
                      Pair{"rc_pingpong_8_MiB", "ibv_rc_pingpong -c -s 8388608 -n 50"},
                      Pair{"rc_pingpong_few_receives", "ibv_rc_pingpong -c -r 3 -s 65536"},
                      Pair{"rc_pingpong_on_demand_paging", "ibv_rc_pingpong -c -o"},
                      Pair{"rc_pingpong_timestamps", "ibv_rc_pingpong -c -t"},
                      Pair{"uc_pingpong", "ibv_uc_pingpong"},
                      Pair{"ud_pingpong", "ibv_ud_pingpong"},
                      Pair{"srq_pingpong", "ibv_srq_pingpong -c"},
                      Pair{"srq_pingpong_events", "ibv_srq_pingpong -c -e"},
                      Pair{"srq_pingpong_large", "ibv_srq_pingpong -c -s 1048576 -n 100 -q 4"},
                      Pair{"xsrq_pingpong", "ibv_xsrq_pingpong"},
                      Pair{"xsrq_pingpong_events", "ibv_xsrq_pingpong -e -n 100"},
                      Pair{"xsrq_pingpong_on_demand_paging", "ibv_xsrq_pingpong -o -s 1048576"}),
    pair_name);

INSTANTIATE_TEST_SUITE_P(
    Perftest, InterposePairTest,
    // Few iterations: both ends spin, and where others use the CPUs too, a turn may take a time
    // slice. ib_write has no events.
    ::testing::Values(
        Pair{"write_lat", "ib_write_lat -n 200"},
        Pair{"write_lat_all_sizes", "ib_write_lat -a -n 10"}, Pair{"write_bw", "ib_write_bw"},
        Pair{"write_bw_all_sizes", "ib_write_bw -a -n 20"},
        Pair{"write_bw_both_ways", "ib_write_bw -b"},
        Pair{"write_bw_both_ways_all_sizes", "ib_write_bw -b -a -n 20"},
        Pair{"write_bw_4_queue_pairs", "ib_write_bw -q 4"}, Pair{"read_lat", "ib_read_lat -n 200"},
        Pair{"read_lat_all_sizes", "ib_read_lat -a -n 10"},
        Pair{"read_lat_events", "ib_read_lat -e -n 200"}, Pair{"read_bw", "ib_read_bw"},
        Pair{"read_bw_all_sizes", "ib_read_bw -a -n 20"},
        Pair{"read_bw_both_ways", "ib_read_bw -b"},
        Pair{"read_bw_4_queue_pairs", "ib_read_bw -q 4"}, Pair{"read_bw_events", "ib_read_bw -e"},
        Pair{"send_lat", "ib_send_lat -n 200"}, Pair{"send_lat_all_sizes", "ib_send_lat -a -n 10"},
        Pair{"send_lat_events", "ib_send_lat -e -n 200"},
        Pair{"send_lat_shared_receives", "ib_send_lat --use-srq -n 200"},
        Pair{"send_bw", "ib_send_bw"}, Pair{"send_bw_all_sizes", "ib_send_bw -a -n 20"},
        Pair{"send_bw_both_ways", "ib_send_bw -b"},
        Pair{"send_bw_both_ways_all_sizes", "ib_send_bw -b -a -n 20"},
        Pair{"send_bw_4_queue_pairs", "ib_send_bw -q 4"}, Pair{"send_bw_events", "ib_send_bw -e"},
        Pair{"send_bw_shared_receives", "ib_send_bw --use-srq"},
        Pair{"send_bw_shared_receives_4_queue_pairs", "ib_send_bw --use-srq -q 4"},
        Pair{"send_bw_shared_receives_all_sizes", "ib_send_bw --use-srq -a -n 20"},
        Pair{"atomic_lat_fetch_and_add", "ib_atomic_lat -A FETCH_AND_ADD"},
        Pair{"atomic_lat_compare_and_swap", "ib_atomic_lat -A CMP_AND_SWAP"},
        Pair{"atomic_lat_events", "ib_atomic_lat -e"},
        Pair{"atomic_bw_fetch_and_add", "ib_atomic_bw -A FETCH_AND_ADD"},
        Pair{"atomic_bw_compare_and_swap", "ib_atomic_bw -A CMP_AND_SWAP"},
        Pair{"atomic_bw_both_ways", "ib_atomic_bw -b"},
        Pair{"atomic_bw_4_queue_pairs", "ib_atomic_bw -q 4"},
        Pair{"atomic_bw_events", "ib_atomic_bw -e"}),
    pair_name);

constexpr Side kEthernet{"--link-layer ethernet --devices 2", "soft0"};
constexpr Side kSecondEthernet{"--link-layer ethernet --devices 2", "soft1"};
constexpr Side kTwo{"--devices 2", "soft0"};
constexpr Side kSecond{"--devices 2", "soft1"};

INSTANTIATE_TEST_SUITE_P(
    Presentations, InterposePairTest,
    ::testing::Values(
        Pair{"rc_pingpong_roce_1", "ibv_rc_pingpong -c -g 0", kEthernet, kEthernet},
        Pair{"rc_pingpong_roce_2", "ibv_rc_pingpong -c -g 3", kEthernet, kEthernet},
        Pair{"uc_pingpong_roce", "ibv_uc_pingpong -g 1", kEthernet, kSecondEthernet},
        Pair{"ud_pingpong_roce_1", "ibv_ud_pingpong -g 0", kEthernet, kEthernet},
        Pair{"ud_pingpong_roce_2", "ibv_ud_pingpong -g 3", kSecondEthernet, kEthernet},
        Pair{"srq_pingpong_roce", "ibv_srq_pingpong -c -g 0", kEthernet, kEthernet},
        Pair{"rc_pingpong_two_devices", "ibv_rc_pingpong -c", kTwo, kSecond},
        Pair{"ud_pingpong_two_devices", "ibv_ud_pingpong", kSecond, kTwo},
        Pair{"rc_pingpong_both", "ibv_rc_pingpong -c -g 0", kEthernet, kSecond},
        Pair{"ud_pingpong_both", "ibv_ud_pingpong -g 0", kTwo, kSecondEthernet},
        Pair{"write_bw_roce", "ib_write_bw -n 200", kEthernet, kEthernet},
        Pair{"write_lat_roce_index", "ib_write_lat -n 200 -x 1", kEthernet, kSecondEthernet},
        Pair{"send_lat_roce_datagrams", "ib_send_lat -c UD -n 200", kEthernet, kSecondEthernet},
        Pair{"send_bw_two_devices", "ib_send_bw -n 200", kSecond, kTwo}),
    pair_name);

TEST_F(InterposeTest, ToolsSeeEveryDeviceAndItsGids) {
  if (!installed("ibv_devinfo")) GTEST_SKIP() << "install ibverbs-utils";
  Program info(under_verbena({"ibv_devinfo", "-v"}, "--link-layer ethernet --devices 2"));
  EXPECT_EQ(info.exit_code(), 0);
  const std::string said = info.output();
  for (const char* shown : {"soft0", "soft1", "Ethernet", "::ffff:127.0.0.1, RoCE v2",
                            "::ffff:127.0.0.2, RoCE v2", "7f00:0001, RoCE v1"}) {
    EXPECT_NE(said.find(shown), std::string::npos) << shown << "\n" << info.description();
  }
  Program types(under_verbena({"sh", "-c",
                               "cd /sys/class/infiniband && cat soft1/ports/1/gid_attrs/types/* "
                               "soft1/ports/1/gid_attrs/ndevs/3 soft1/ports/1/gids/3"},
                              "--link-layer ethernet --devices 2"));
  EXPECT_EQ(types.exit_code(), 0) << types.description();
  EXPECT_EQ(types.output(),
            "IB/RoCE v1\nRoCE v2\nIB/RoCE v1\nRoCE v2\nlo\n"
            "0000:0000:0000:0000:0000:ffff:7f00:0002\n");
}

TEST_F(InterposeTest, AWrongPresentationIsRefusedInOneLine) {
  for (const char* wrong : {"--link-layer roce", "--devices 0", "--devices 9"}) {
    Program refused(under_verbena({"true"}, wrong));
    EXPECT_EQ(refused.exit_code(), 2) << refused.description();
    EXPECT_NE(refused.output().find("it can be"), std::string::npos) << refused.description();
  }
}

// What soft0 does not have ends in the program's own error message, never in a crash.
class InterposeRefusalTest : public InterposeTest, public ::testing::WithParamInterface<Pair> {};

TEST_P(InterposeRefusalTest, Refuses) {
  const std::vector<std::string> arguments = test::words(GetParam().command);
  if (!installed(arguments[0])) GTEST_SKIP() << "install ibverbs-utils and perftest";
  Program program(under_verbena(arguments));
  EXPECT_GT(program.exit_code(), 0) << program.description();
  EXPECT_LT(program.exit_code(), 127) << program.description();
  EXPECT_NE(program.output(), "");
}

INSTANTIATE_TEST_SUITE_P(Unsupported, InterposeRefusalTest,
                         ::testing::Values(Pair{"port_2", "ibv_rc_pingpong -d soft0 -i 2"}),
                         pair_name);

}  // namespace
}  // namespace verbena
