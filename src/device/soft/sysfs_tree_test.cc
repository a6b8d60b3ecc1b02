// The directory that stands for /sys: what is in it, that it is made once and as a whole, and that
// it has the machine's own devices too.
#include "src/device/soft/sysfs_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/soft.h"
#include "src/device/soft/soft_rnic.h"

namespace verbena::soft {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    found.insert(entry.path().filename());
  }
  return found;
}

class SysfsTreeTest : public testing::Test {
 protected:
  void SetUp() override {
    place_ = testing::TempDir() + "sysfs-tree-XXXXXX";
    ASSERT_NE(mkdtemp(place_.data()), nullptr);
  }
  void TearDown() override { fs::remove_all(place_); }

  static SysfsDevice shown() { return describe_for_sysfs(0, LinkLayer::kInfiniBand, "0-3"); }
  fs::path make(const std::vector<SysfsEntry>& entries) {
    const Result<std::string> made = make_sysfs_tree(place_, entries);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? *made : "";
  }

  std::string place_;
};

TEST_F(SysfsTreeTest, HasWhatProgramsRead) {
  SysfsDevice device = shown();
  device.attributes.node_guid = __builtin_bswap64(0x0123456789abcdef);
  device.attributes.sys_image_guid = __builtin_bswap64(0x1122334455667788);
  device.attributes.vendor_id = 0x567262;
  strcpy(device.attributes.fw_ver, "1.2.3");
  device.gids[0].gid.global.interface_id = __builtin_bswap64(0x0123456789abcdef);
  device.port.lid = 0x1f;
  const fs::path root = make(sysfs_entries(device));
  const fs::path rdma = root / "sys/class/infiniband/soft0";
  EXPECT_EQ(contents(rdma / "node_type"), "1: CA\n");
  EXPECT_EQ(contents(rdma / "node_guid"), "0123:4567:89ab:cdef\n");
  EXPECT_EQ(contents(rdma / "sys_image_guid"), "1122:3344:5566:7788\n");
  EXPECT_EQ(contents(rdma / "fw_ver"), "1.2.3\n");
  EXPECT_EQ(contents(rdma / "ports/1/state"), "4: ACTIVE\n");
  EXPECT_EQ(contents(rdma / "ports/1/phys_state"), "5: LinkUp\n");
  EXPECT_EQ(contents(rdma / "ports/1/rate"), "100 Gb/sec (4X EDR)\n");
  EXPECT_EQ(contents(rdma / "ports/1/lid"), "0x1f\n");
  EXPECT_EQ(contents(rdma / "ports/1/link_layer"), "InfiniBand\n");
  EXPECT_EQ(contents(rdma / "ports/1/gids/0"), "fe80:0000:0000:0000:0123:4567:89ab:cdef\n");
  EXPECT_EQ(contents(rdma / "ports/1/pkeys/0"), "0xffff\n");
  EXPECT_EQ(contents(rdma / "ports/1/counters/symbol_error"), "0\n");
  EXPECT_EQ(contents(rdma / "device/numa_node"), "-1\n");
  EXPECT_EQ(fs::read_symlink(rdma / "device/net/lo"), "/sys/class/net/lo");
  EXPECT_EQ(contents(rdma / "device/local_cpulist"), "0-3\n");
  EXPECT_EQ(contents(rdma / "device/vendor"), "0x567262\n");
  // Programs take the first name there for a network interface's, and connect by its address.
  EXPECT_EQ(names(rdma / "device/net"), std::set<std::string>{"lo"});
  EXPECT_EQ(names(rdma / "device/infiniband"), std::set<std::string>{"soft0"});
  const fs::path verbs = root / "sys/class/infiniband_verbs";
  EXPECT_EQ(contents(verbs / device.device->dev_name / "ibdev"), "soft0\n");
  EXPECT_TRUE(fs::exists(verbs / device.device->dev_name / "dev"));
  EXPECT_TRUE(fs::exists(verbs / "abi_version"));
  // Where it hangs: on no PCI bus.
  EXPECT_EQ(fs::canonical(rdma / ".." / ".."),
            fs::canonical(root / "sys/devices/virtual/verbena/soft0"));
  EXPECT_EQ(fs::canonical(rdma / "device"),
            fs::canonical(root / "sys/devices/virtual/verbena/soft0"));
}

TEST_F(SysfsTreeTest, AFileMayBeEmptyAndIsNoFolder) {
  SysfsDevice device = shown();
  device.cpus = "";
  const fs::path root = make(sysfs_entries(device));
  const fs::path rdma = root / "sys/class/infiniband/soft0";
  EXPECT_EQ(contents(rdma / "device/local_cpulist"), "\n");
  EXPECT_TRUE(fs::is_directory(rdma / "ports/1/gid_attrs/ndevs"));
}

TEST_F(SysfsTreeTest, RatesAreThoseOfWidthAndSpeed) {
  struct Rate {
    uint8_t width;
    uint8_t speed;
    const char* text;
  };
  for (const Rate& rate :
       {Rate{1, 1, "2.5 Gb/sec (1X)\n"}, Rate{2, 4, "40 Gb/sec (4X QDR)\n"},
        Rate{4, 16, "112 Gb/sec (8X FDR)\n"}, Rate{16, 64, "100 Gb/sec (2X HDR)\n"}}) {
    SysfsDevice device = shown();
    device.port.active_width = rate.width;
    device.port.active_speed = rate.speed;
    const fs::path root = make(sysfs_entries(device));
    EXPECT_EQ(contents(root / "sys/class/infiniband/soft0/ports/1/rate"), rate.text);
  }
}

TEST_F(SysfsTreeTest, IsMadeOnceForEachContents) {
  const fs::path first = make(sysfs_entries(shown()));
  const auto made_at = fs::last_write_time(first);
  EXPECT_EQ(make(sysfs_entries(shown())), first);
  EXPECT_EQ(fs::last_write_time(first), made_at);
  SysfsDevice other = shown();
  other.cpus = "0-5";
  EXPECT_NE(make(sysfs_entries(other)), first);
  EXPECT_EQ(names(place_).size(), 2u);
}

TEST_F(SysfsTreeTest, IsForReadingWhateverTheMask) {
  const mode_t before = umask(0137);
  const fs::path root = make({{"sys/one/two", "text", {}}, {"sys/empty", {}, {}, true}});
  umask(before);
  EXPECT_EQ(fs::status(root / "sys/one/two").permissions(), fs::perms(0444));
  for (const char* folder : {"", "sys", "sys/one", "sys/empty"}) {
    EXPECT_EQ(fs::status(root / folder).permissions(), fs::perms(0755)) << folder;
  }
}

TEST_F(SysfsTreeTest, ManyMayMakeItAtATime) {
  std::vector<Thread> threads;
  std::vector<std::string> made(8);
  for (std::string& path : made) {
    threads.push_back(
        start_thread("maker", [&] { path = *make_sysfs_tree(place_, sysfs_entries(shown())); }));
  }
  threads.clear();
  for (const std::string& path : made) EXPECT_EQ(path, made[0]);
  EXPECT_EQ(names(place_).size(), 1u);
}

TEST_F(SysfsTreeTest, WhatADeadProcessLeftIsRemoved) {
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  const std::string left = "sysfs-0123456789abcdef.0." + std::to_string(dead);
  const std::string in_work = "sysfs-0123456789abcdef.0." + std::to_string(getpid());
  fs::create_directories(fs::path(place_) / left / "sys");
  fs::create_directories(fs::path(place_) / in_work / "sys");
  make(sysfs_entries(shown()));
  EXPECT_EQ(names(place_).count(left), 0u);
  EXPECT_EQ(names(place_).count(in_work), 1u);
}

TEST_F(SysfsTreeTest, FailsWithALineWhereThereIsNoPlace) {
  std::ofstream(place_ + "/file") << "in the way";
  const Result<std::string> refused = make_sysfs_tree(place_ + "/file", sysfs_entries(shown()));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), testing::HasSubstr(place_ + "/file"));
}

TEST_F(SysfsTreeTest, ShowsTheMachinesOwnDevicesToo) {
  const fs::path real = fs::path(place_) / "real";
  fs::create_directories(real / "class/infiniband/mlx5_0");
  fs::create_directories(real / "class/infiniband_verbs/uverbs0");
  std::ofstream(real / "class/infiniband_verbs/abi_version") << "7\n";
  std::ofstream(real / "class/infiniband/mlx5_0/fw_ver") << "28.1\n";
  std::vector<SysfsEntry> entries = sysfs_links_of_real_devices(real);
  ASSERT_EQ(entries.size(), 3u);
  const fs::path root = make(entries);
  EXPECT_EQ(names(root / "sys/class/infiniband"), std::set<std::string>{"mlx5_0"});
  EXPECT_EQ(contents(root / "sys/class/infiniband/mlx5_0/fw_ver"), "28.1\n");
  EXPECT_EQ(contents(root / "sys/class/infiniband_verbs/abi_version"), "7\n");
}

TEST_F(SysfsTreeTest, AMachineWithoutDevicesHasNoLinks) {
  EXPECT_TRUE(sysfs_links_of_real_devices(place_).empty());
}

}  // namespace
}  // namespace verbena::soft
