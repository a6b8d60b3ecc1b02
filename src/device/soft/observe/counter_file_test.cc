// The counters of processes: that they are where others read them, outlive their process, and that
// what stands in a file is not believed.
#include "src/device/soft/observe/counter_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/device/soft/atomic_write.h"
#include "src/device/soft/observe/watch.h"
#include "src/device/soft/registry.h"

namespace verbena::soft {
namespace {

class CounterFileTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* before = std::getenv("VERBENA_RUNTIME_DIR");
    if (before != nullptr) before_ = before;
    place_ = testing::TempDir() + "counter-file-XXXXXX";
    ASSERT_NE(mkdtemp(place_.data()), nullptr);
    setenv("VERBENA_RUNTIME_DIR", place_.c_str(), 1);
  }
  void TearDown() override {
    if (before_.has_value()) {
      setenv("VERBENA_RUNTIME_DIR", before_->c_str(), 1);
    } else {
      unsetenv("VERBENA_RUNTIME_DIR");
    }
    std::filesystem::remove_all(place_);
  }

  static Registry open() {
    Result<Registry> registry = Registry::open();
    EXPECT_TRUE(registry.ok()) << registry.status().message();
    return std::move(*registry);
  }
  static uint32_t join(Registry& registry) {
    ProcessRecord record{};
    const Result<uint32_t> slot = registry.join(record);
    EXPECT_TRUE(slot.ok());
    return slot.value();
  }

  struct Seen {
    std::vector<WatchedProcess> processes;
    std::vector<WatchedQueuePair> queue_pairs;
    Counts device{};
  };
  static Seen look(const Registry& registry) {
    Seen seen;
    const Status read = read_counters(
        registry, [&](const WatchedProcess& process) { seen.processes.push_back(process); },
        [&](const WatchedQueuePair& found) { seen.queue_pairs.push_back(found); }, seen.device);
    EXPECT_TRUE(read.ok());
    return seen;
  }

  std::string place_;
  std::optional<std::string> before_;
};

TEST_F(CounterFileTest, OthersReadWhatIsCounted) {
  Registry registry = open();
  const uint32_t slot = join(registry);
  CounterFile file(registry, slot);
  QpCounters& first = file.enter(0, make_qp_number(slot, 0), Transport::kReliable);
  QpCounters& far = file.enter(700, make_qp_number(slot, 700), Transport::kDatagram);
  first.requests[IBV_WR_RDMA_WRITE] += 3;
  first.bytes += 100;
  far.received += 2;
  far.received_bytes += 8;
  far.dropped += 2;
  far.receive_dropped += 3;
  const Seen seen = look(open());
  ASSERT_EQ(seen.processes.size(), 1u);
  EXPECT_EQ(seen.processes[0].pid, getpid());
  EXPECT_EQ(seen.processes[0].living, 1u);
  EXPECT_EQ(seen.processes[0].queue_pairs, 2u);
  ASSERT_EQ(seen.queue_pairs.size(), 2u);
  EXPECT_EQ(seen.queue_pairs[0].number, make_qp_number(slot, 0));
  EXPECT_EQ(seen.queue_pairs[0].counts.requests[IBV_WR_RDMA_WRITE], 3u);
  EXPECT_EQ(seen.queue_pairs[1].transport, static_cast<uint32_t>(Transport::kDatagram));
  EXPECT_EQ(seen.queue_pairs[1].counts.received, 2u);
  EXPECT_EQ(seen.device.bytes, 100u);
  EXPECT_EQ(seen.device.received_bytes, 8u);
  EXPECT_EQ(seen.queue_pairs[1].counts.dropped, 5u);
  EXPECT_EQ(seen.device.dropped, 5u);
}

TEST_F(CounterFileTest, APlaceThatIsUsedAgainBeginsAtZero) {
  Registry registry = open();
  const uint32_t slot = join(registry);
  CounterFile file(registry, slot);
  QpCounters& former = file.enter(5, make_qp_number(slot, 5), Transport::kReliable);
  former.requests[IBV_WR_SEND] += 7;
  former.dropped += 1;
  former.receive_dropped += 1;
  EXPECT_EQ(file.enter(5, make_qp_number(slot, 5), Transport::kReliable).requests[IBV_WR_SEND], 0u);
  const Seen seen = look(registry);
  ASSERT_EQ(seen.queue_pairs.size(), 1u);
  EXPECT_EQ(seen.queue_pairs[0].counts.requests[IBV_WR_SEND], 0u);
  EXPECT_EQ(seen.queue_pairs[0].counts.dropped, 0u);
  EXPECT_EQ(seen.device.requests[IBV_WR_SEND], 7u);
  EXPECT_EQ(seen.device.dropped, 2u);
}

TEST_F(CounterFileTest, WhatWasCountedOutlivesTheProcess) {
  for (uint64_t turn = 1; turn <= 3; ++turn) {
    Registry registry = open();
    const uint32_t slot = join(registry);
    CounterFile file(registry, slot);
    file.enter(0, make_qp_number(slot, 0), Transport::kReliable).bytes += 10;
    EXPECT_EQ(look(registry).device.bytes, 10 * turn);
    registry.leave();
    const Seen left = look(registry);
    EXPECT_EQ(left.device.bytes, 10 * turn);
    for (const WatchedProcess& process : left.processes) EXPECT_EQ(process.living, 0u);
  }
  // The last one's file is still to be added, and then it is gone.
  Registry registry = open();
  join(registry);
  EXPECT_EQ(look(registry).processes.size(), 0u);
  EXPECT_EQ(look(registry).device.bytes, 30u);
}

TEST_F(CounterFileTest, AFileThatWasAddedButNotRemovedCountsOnce) {
  Registry registry = open();
  const uint32_t slot = join(registry);
  const std::string directory = registry.path();
  const std::string own = directory + "/counters." + std::to_string(slot);
  {
    CounterFile file(registry, slot);
    file.enter(0, make_qp_number(slot, 0), Transport::kReliable).bytes += 10;
  }
  registry.leave();
  std::filesystem::copy_file(own, place_ + "/kept");
  sum_up_ended_counters(registry);
  EXPECT_FALSE(std::filesystem::exists(own));
  std::filesystem::copy_file(place_ + "/kept", own);
  EXPECT_EQ(look(registry).device.bytes, 10u);
  sum_up_ended_counters(registry);
  EXPECT_EQ(look(registry).device.bytes, 10u);
  EXPECT_FALSE(std::filesystem::exists(own));
}

TEST_F(CounterFileTest, AFileThatWasAddedCountsOnceWhereOthersAreAddedBeforeIt) {
  Registry first = open();
  Registry second = open();
  const uint32_t low = join(first);
  const uint32_t high = join(second);
  ASSERT_LT(low, high);
  for (const auto& [registry, slot] : {std::pair{&first, low}, std::pair{&second, high}}) {
    CounterFile file(*registry, slot);
    file.enter(0, make_qp_number(slot, 0), Transport::kReliable).bytes += 10;
  }
  const std::string added = second.path() + "/counters." + std::to_string(high);
  second.leave();
  std::filesystem::copy_file(added, place_ + "/kept");
  sum_up_ended_counters(open());
  std::filesystem::copy_file(place_ + "/kept", added);
  first.leave();
  sum_up_ended_counters(open());
  EXPECT_EQ(look(open()).device.bytes, 20u);
}

// Of what a program does that becomes a daemon: it closes all descriptors, and opens its own.
TEST_F(CounterFileTest, ADescriptorThatTheProgramClosedIsLeftAlone) {
  Registry registry = open();
  const uint32_t slot = join(registry);
  auto file = std::make_unique<CounterFile>(registry, slot);
  file->enter(0, make_qp_number(slot, 0), Transport::kReliable);
  const std::string path = registry.path() + "/counters." + std::to_string(slot);
  int number = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error) == path) {
      number = std::stoi(entry.path().filename());
    }
  }
  ASSERT_GE(number, 0);
  const std::string own = place_ + "/own";
  const int program = ::open(own.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(dup3(program, number, O_CLOEXEC), number);
  for (uint32_t index = 1; index < 200; ++index) {
    file->enter(index, make_qp_number(slot, index), Transport::kReliable).bytes += 1;
  }
  EXPECT_EQ(std::filesystem::file_size(own), 0u);
  file.reset();
  EXPECT_GE(fcntl(number, F_GETFD), 0);
  close(number);
  close(program);
}

TEST_F(CounterFileTest, DamagedFilesAreNotBelieved) {
  Registry registry = open();
  const uint32_t slot = join(registry);
  CounterFile file(registry, slot);
  file.enter(0, make_qp_number(slot, 0), Transport::kReliable).bytes += 10;
  const std::string path = registry.path() + "/counters." + std::to_string(slot);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  // So many queue pairs cannot be. Their number follows the magic, the id, the pid and the slot.
  const uint32_t huge = ~0u;
  ASSERT_EQ(pwrite(fd, &huge, sizeof(huge), 24), static_cast<ssize_t>(sizeof(huge)));
  EXPECT_EQ(look(registry).device.bytes, 10u);
  EXPECT_EQ(look(registry).queue_pairs.size(), 1u);
  // Another layout.
  const uint64_t magic = 1;
  ASSERT_EQ(pwrite(fd, &magic, sizeof(magic), 0), static_cast<ssize_t>(sizeof(magic)));
  EXPECT_EQ(look(registry).processes.size(), 0u);
  close(fd);
  // What is no file, and names that are none of these.
  ASSERT_EQ(mkdir((registry.path() + "/counters.9").c_str(), 0700), 0);
  ASSERT_EQ(mkfifo((registry.path() + "/counters.8").c_str(), 0600), 0);
  std::filesystem::copy_file(path, registry.path() + "/counters.99999");
  EXPECT_EQ(look(registry).processes.size(), 0u);
  EXPECT_EQ(look(registry).device.bytes, 0u);
}

TEST_F(CounterFileTest, SysfsCountsWordsAndMessages) {
  Counts counts{};
  counts.bytes = 4096;
  counts.requests[IBV_WR_RDMA_WRITE] = 2;
  counts.requests[kAtomicWrite] = 4;
  counts.requests[IBV_WR_SEND_WITH_IMM] = 3;
  counts.requests[IBV_WR_BIND_MW] = 5;  // no message
  counts.dropped = 7;
  std::vector<std::pair<std::string, uint64_t>> expected = {{"counters/port_xmit_data", 1024},
                                                            {"counters/port_rcv_data", 1024},
                                                            {"counters/port_xmit_packets", 9},
                                                            {"hw_counters/rx_write_requests", 6},
                                                            {"hw_counters/out_of_buffer", 7}};
  const auto shown = sysfs_counters(counts);
  for (const auto& entry : expected) {
    EXPECT_EQ(std::count(shown.begin(), shown.end(), entry), 1) << entry.first;
  }
}

}  // namespace
}  // namespace verbena::soft
