#include "src/device/soft/registry.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/layout.h"
#include "src/device/soft/no_descriptors_for_test.h"

namespace {
std::atomic<bool> refuse_streams{false};
}  // namespace

// In place of the C library's in this program: memory can be short.
extern "C" DIR* fdopendir(int fd) {
  if (refuse_streams.load()) {
    errno = ENOMEM;
    return nullptr;
  }
  static const auto open_stream = reinterpret_cast<DIR* (*)(int)>(dlsym(RTLD_NEXT, "fdopendir"));
  return open_stream(fd);
}

namespace verbena::soft {
namespace {

class RegistryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* before = getenv("VERBENA_RUNTIME_DIR")) before_ = before;
    base_ = testing::TempDir() + "registry-XXXXXX";
    ASSERT_NE(mkdtemp(base_.data()), nullptr);
    use(base_);
  }
  void TearDown() override {
    if (before_.empty()) {
      unsetenv("VERBENA_RUNTIME_DIR");
    } else {
      use(before_);
    }
    std::filesystem::remove_all(base_);
  }
  static void use(const std::string& base) { setenv("VERBENA_RUNTIME_DIR", base.c_str(), 1); }

  std::string directory() const { return fmt::format("{}/verbena-{}", base_, geteuid()); }
  std::string slot_path(uint32_t slot) const {
    return fmt::format("{}/soft0.{}", directory(), slot);
  }
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory())) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  Registry open() {
    Result<Registry> registry = Registry::open();
    EXPECT_TRUE(registry.ok()) << registry.status().message();
    return std::move(*registry);
  }
  // One line that names `what`.
  static void expect_error(const Status& status, StatusCode code, const std::string& what) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }

  std::string base_;
  std::string before_;
};

// Does what a process of another program, or of another version, could do in our name.
class ForeignSlot {
 public:
  ForeignSlot(const std::string& path, const std::string& content, bool with_lock)
      : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    EXPECT_EQ(write(file_, content.data(), content.size()), static_cast<ssize_t>(content.size()));
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (with_lock) {
      EXPECT_EQ(fcntl(file_, F_OFD_SETLK, &lock), 0);
    }
  }
  ~ForeignSlot() { close(file_); }

 private:
  int file_;
};

std::string bytes_of(const ProcessRecord& record) {
  return {reinterpret_cast<const char*>(&record), sizeof(record)};
}

ProcessRecord record_of(int32_t memory_fd, uint64_t header_address) {
  ProcessRecord record{};
  record.memory_fd = memory_fd;
  record.header_address = header_address;
  return record;
}

TEST_F(RegistryTest, GroupsAndTheirMembersAreLimited) {
  Registry registry = open();
  const Result<uint32_t> slot = registry.join(record_of(7, 4096));
  ASSERT_TRUE(slot.ok()) << slot.status().message();
  const uint32_t mine = *slot << kQpIndexBits;
  const auto make = [&](uint32_t group, uint32_t number) {
    std::ofstream(fmt::format("{}/group.{:032x}.{:06x}", directory(), group, number));
  };
  const std::string last = fmt::format("{:032x}", kMaxMulticastGroups - 1);
  const std::string further = fmt::format("{:032x}", kMaxMulticastGroups);
  for (uint32_t group = 0; group + 1 < kMaxMulticastGroups; ++group) make(group, mine + 1);
  EXPECT_TRUE(registry.join_group(last, mine + 1).ok());
  expect_error(registry.join_group(further, mine + 1), StatusCode::kLimitExceeded, "max_mcast_grp");
  EXPECT_TRUE(registry.members_of(further)->empty());
  EXPECT_TRUE(registry.join_group(last, mine + 2).ok());
  EXPECT_TRUE(registry.leave_group(last, mine + 1));
  EXPECT_TRUE(registry.leave_group(last, mine + 2));
  EXPECT_TRUE(registry.join_group(further, mine + 1).ok());
  EXPECT_TRUE(registry.join_group(further, mine + 1).ok()) << "already a member";

  for (uint32_t number = kMaxMulticastGroups; number < kMaxGroupMembers; ++number) {
    make(0, mine + number);
  }
  expect_error(registry.join_group(further, mine + 2), StatusCode::kLimitExceeded,
               "max_total_mcast_qp_attach");
  EXPECT_THAT(*registry.members_of(further), testing::ElementsAre(mine + 1));
}

// What the dead leave does not count, though only the next process removes it.
TEST_F(RegistryTest, GroupsOfTheDeadLeaveRoom) {
  Registry registry = open();
  const Result<uint32_t> slot = registry.join(record_of(7, 4096));
  ASSERT_TRUE(slot.ok()) << slot.status().message();
  const uint32_t dead = (*slot + 1) << kQpIndexBits;
  for (uint32_t group = 0; group < kMaxMulticastGroups; ++group) {
    std::ofstream(fmt::format("{}/group.{:032x}.{:06x}", directory(), group, dead));
  }
  const Status joined = registry.join_group(std::string(32, 'f'), *slot << kQpIndexBits);
  EXPECT_TRUE(joined.ok()) << joined.message();
}

TEST_F(RegistryTest, WithoutMemoryForAListingNoDescriptorStaysOpen) {
  const auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  Registry registry = open();
  const auto before = open_files();
  refuse_streams.store(true);
  EXPECT_TRUE(registry.join(record_of(7, 4096)).ok());
  refuse_streams.store(false);
  EXPECT_EQ(open_files(), before + 1);  // the slot's
}

TEST_F(RegistryTest, JoiningAndFinding) {
  Registry one = open();
  Registry other = open();
  const Result<uint32_t> slot = one.join(record_of(7, 4096));
  ASSERT_TRUE(slot.ok()) << slot.status().message();
  EXPECT_GT(*slot, 0u);
  EXPECT_LT(*slot, kMaxProcesses);
  const Result<ProcessRecord> found = other.find(*slot);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->pid, getpid());
  EXPECT_EQ(found->memory_fd, 7);
  EXPECT_EQ(found->header_address, 4096u);
  EXPECT_NE(found->start_time_ticks, 0u);
  EXPECT_TRUE(other.alive(*slot));
  one.leave();
  EXPECT_FALSE(other.alive(*slot));
  EXPECT_EQ(files(), std::set<std::string>{"lock"});
}

TEST_F(RegistryTest, SlotsRotate) {
  uint32_t last = 0;
  for (int round = 0; round < 50; ++round) {
    Registry registry = open();
    const Result<uint32_t> slot = registry.join({});
    ASSERT_TRUE(slot.ok()) << slot.status().message();
    EXPECT_NE(*slot, last);
    last = *slot;
  }
}

TEST_F(RegistryTest, TheLastSlotCanBeTakenAndNotOneMore) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  if (limit.rlim_max < 2 * kMaxProcesses || setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    GTEST_SKIP() << "needs ulimit -n " << 2 * kMaxProcesses;
  }
  open();
  constexpr uint32_t kFree = 700;
  std::vector<std::unique_ptr<ForeignSlot>> others;
  for (uint32_t slot = 1; slot < kMaxProcesses; ++slot) {
    if (slot == kFree) continue;
    others.push_back(std::make_unique<ForeignSlot>(slot_path(slot), bytes_of({}), true));
  }
  Registry last = open();
  const Result<uint32_t> slot = last.join({});
  ASSERT_TRUE(slot.ok()) << slot.status().message();
  EXPECT_EQ(*slot, kFree);
  Registry one_more = open();
  expect_error(one_more.join({}).status(), StatusCode::kLimitExceeded,
               std::to_string(kMaxProcesses - 1));
  last.leave();
  EXPECT_TRUE(one_more.join({}).ok());
}

TEST_F(RegistryTest, LeftOversOfTheDeadAreRemovedByTheNext) {
  open();
  for (const uint32_t slot : {3u, 500u, 1023u}) {
    ForeignSlot(slot_path(slot), bytes_of({}), false);
  }
  ForeignSlot garbage(slot_path(77), "", false);
  const ForeignSlot living(slot_path(9), bytes_of({}), true);
  ASSERT_EQ(mkfifo(slot_path(11).c_str(), 0600), 0);
  ASSERT_EQ(symlink("/etc/passwd", slot_path(12).c_str()), 0);
  std::ofstream(directory() + "/not-ours") << "x";
  Registry registry = open();
  const Result<uint32_t> slot = registry.join({});
  ASSERT_TRUE(slot.ok()) << slot.status().message();
  EXPECT_EQ(files(),
            (std::set<std::string>{"lock", "not-ours", "soft0.9", fmt::format("soft0.{}", *slot)}));
  EXPECT_TRUE(std::filesystem::exists("/etc/passwd"));
}

TEST_F(RegistryTest, ADirectoryInASlotsPlaceIsPassedOver) {
  open();
  for (uint32_t slot = 1; slot < 20; ++slot) {
    ASSERT_TRUE(std::filesystem::create_directory(slot_path(slot)));
  }
  Registry registry = open();
  const Result<uint32_t> slot = registry.join({});
  ASSERT_TRUE(slot.ok()) << slot.status().message();
  EXPECT_GE(*slot, 20u);
}

TEST_F(RegistryTest, WhoHoldsTheLockIsNamed) {
  Registry registry = open();
  const int holder = ::open((directory() + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(holder, 0);
  ASSERT_EQ(flock(holder, LOCK_EX), 0);
  const Status status = registry.join({}, 50'000'000).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), testing::HasSubstr(directory() + "/lock"));
  // Where the kernel lists locks and this process sees itself under the same number.
  std::ifstream locks("/proc/locks");
  const std::string listed((std::istreambuf_iterator<char>(locks)),
                           std::istreambuf_iterator<char>());
  if (listed.find(fmt::format(" WRITE {} ", getpid())) != std::string::npos) {
    EXPECT_THAT(status.message(), testing::HasSubstr(fmt::format("process {} (", getpid())));
    EXPECT_THAT(status.message(), testing::HasSubstr(fmt::format("kill -CONT {}", getpid())));
  }
  // It left nothing, and the next one gets in as soon as the lock is free.
  EXPECT_EQ(files(), std::set<std::string>{"lock"});
  close(holder);
  EXPECT_TRUE(registry.join({}, 50'000'000).ok());
}

// Another thread's children have the lock's descriptor until they end, or begin another program.
TEST_F(RegistryTest, AForkedChildDoesNotKeepTheLock) {
  open();
  std::vector<pid_t> children;
  std::atomic<bool> stop{false};
  Thread joiner = start_thread("join", [&] {
    while (!stop) {
      Registry registry = open();
      ASSERT_TRUE(registry.join({}).ok());
    }
  });
  for (int i = 0; i < 200; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) pause();
    }
    children.push_back(child);
  }
  stop = true;
  joiner.join();
  const int lock = ::open((directory() + "/lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(lock, 0);
  EXPECT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  close(lock);
  for (const pid_t child : children) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

// Who waits for a lock that others take in turn is not told that somebody holds it.
TEST_F(RegistryTest, ManyThatJoinAtOnceAllGetASlotOfTheirOwn) {
  open();
  constexpr int kThreads = 8;
  constexpr int kRounds = 20;
  std::mutex mutex;
  std::set<uint32_t> taken;
  std::vector<Thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.push_back(start_thread("join", [&] {
      for (int round = 0; round < kRounds; ++round) {
        Registry registry = open();
        const Result<uint32_t> slot = registry.join({});
        ASSERT_TRUE(slot.ok()) << slot.status().message();
        const std::lock_guard first(mutex);
        EXPECT_TRUE(taken.insert(*slot).second) << "two have slot " << *slot;
        taken.erase(*slot);
      }
    }));
  }
  threads.clear();
}

TEST_F(RegistryTest, TooFewDescriptorsAreNamed) {
  Registry registry = open();
  Registry other = open();
  const Result<uint32_t> slot = other.join({});
  ASSERT_TRUE(slot.ok());
  for (rlim_t more = 0; more < 3; ++more) {
    std::optional<test::FewDescriptors> few(more);
    const Status joined = registry.join({}).status();
    const Status found = registry.find(*slot).status();
    few.reset();
    if (!joined.ok()) expect_error(joined, StatusCode::kLimitExceeded, "ulimit -n");
    if (!found.ok()) expect_error(found, StatusCode::kLimitExceeded, "ulimit -n");
    if (more == 0) {
      EXPECT_FALSE(joined.ok());
      expect_error(found, StatusCode::kLimitExceeded, "ulimit -n");
    }
    registry.leave();
  }
}

TEST_F(RegistryTest, FindingRefusesWhatCannotBe) {
  Registry registry = open();
  const Result<uint32_t> own = registry.join(record_of(3, 0));
  ASSERT_TRUE(own.ok());
  const Result<ProcessRecord> good = registry.find(*own);
  ASSERT_TRUE(good.ok());

  expect_error(registry.find(600).status(), StatusCode::kUnavailable, "600");
  expect_error(registry.find(~0u >> 14).status(), StatusCode::kUnavailable, "slot");

  ProcessRecord record = *good;
  record.slot = 601;
  {
    const ForeignSlot dead(slot_path(601), bytes_of(record), false);
    expect_error(registry.find(601).status(), StatusCode::kUnavailable, "601");
  }
  record.slot = 602;
  record.start_time_ticks += 1;
  const ForeignSlot reused(slot_path(602), bytes_of(record), true);
  expect_error(registry.find(602).status(), StatusCode::kUnavailable, "gone");
  record = *good;
  record.slot = 603;
  record.start_time_ticks = 0;
  const ForeignSlot unknown(slot_path(603), bytes_of(record), true);
  expect_error(registry.find(603).status(), StatusCode::kUnavailable, "gone");
  record = *good;
  record.slot = 604;
  record.version = kLayoutVersion + 1;
  const ForeignSlot newer(slot_path(604), bytes_of(record), true);
  expect_error(registry.find(604).status(), StatusCode::kProtocolViolation,
               std::to_string(kLayoutVersion + 1));
  record = *good;
  record.slot = 605;
  record.magic ^= 1;
  const ForeignSlot strange(slot_path(605), bytes_of(record), true);
  expect_error(registry.find(605).status(), StatusCode::kProtocolViolation, "605");
  record = *good;
  record.slot = 1;
  const ForeignSlot misplaced(slot_path(606), bytes_of(record), true);
  expect_error(registry.find(606).status(), StatusCode::kProtocolViolation, "606");
  record = *good;
  record.slot = 607;
  record.pid_namespace ^= 1;
  const ForeignSlot contained(slot_path(607), bytes_of(record), true);
  expect_error(registry.find(607).status(), StatusCode::kUnsupported, "container");
  const ForeignSlot truncated(slot_path(608), bytes_of(record).substr(0, 20), true);
  expect_error(registry.find(608).status(), StatusCode::kProtocolViolation, "608");
  ASSERT_EQ(mkfifo(slot_path(609).c_str(), 0600), 0);
  expect_error(registry.find(609).status(), StatusCode::kUnavailable, "609");
}

TEST_F(RegistryTest, AForkedChildLeavesTheSlotToItsParent) {
  Registry registry = open();
  const Result<uint32_t> slot = registry.join({});
  ASSERT_TRUE(slot.ok());
  // What the RNIC's fork handler does in the child.
  registry.abandon();
  registry.leave();
  EXPECT_TRUE(std::filesystem::exists(slot_path(*slot)));
}

TEST_F(RegistryTest, ADirectoryThatOthersMayEnterIsRefused) {
  open();
  for (const mode_t mode : {0750, 0705, 0777, 01777}) {
    ASSERT_EQ(chmod(directory().c_str(), mode), 0);
    expect_error(Registry::open().status(), StatusCode::kPermissionDenied, directory());
    expect_error(Registry::open().status(), StatusCode::kPermissionDenied, "mode 700");
  }
  ASSERT_EQ(chmod(directory().c_str(), 0700), 0);
  EXPECT_TRUE(Registry::open().ok());
}

TEST_F(RegistryTest, AnotherUsersDirectoryIsRefused) {
  open();
  if (chown(directory().c_str(), 12345, 12345) != 0) GTEST_SKIP() << "needs root to chown";
  expect_error(Registry::open().status(), StatusCode::kPermissionDenied, "user 12345");
}

TEST_F(RegistryTest, WhatIsNoDirectoryIsRefused) {
  ASSERT_EQ(symlink("/tmp", directory().c_str()), 0);
  expect_error(Registry::open().status(), StatusCode::kPermissionDenied, directory());
  ASSERT_EQ(unlink(directory().c_str()), 0);
  std::ofstream(directory()) << "x";
  expect_error(Registry::open().status(), StatusCode::kPermissionDenied, directory());
}

TEST_F(RegistryTest, AMissingPlaceIsNamed) {
  use(base_ + "/not-there");
  expect_error(Registry::open().status(), StatusCode::kPermissionDenied, "VERBENA_RUNTIME_DIR");
  expect_error(Registry::open().status(), StatusCode::kPermissionDenied, "not-there");
  expect_error(Registry::open().status(), StatusCode::kPermissionDenied,
               "make its parent directory");
}

TEST_F(RegistryTest, AnEmptyPlaceMeansTheUsualOne) {
  use("");
  EXPECT_TRUE(Registry::open().ok());
}

TEST_F(RegistryTest, AFullFileSystemIsNamed) {
  if (mount("none", base_.c_str(), "tmpfs", 0, "size=8k,nr_inodes=64") != 0) {
    GTEST_SKIP() << "needs the right to mount a tmpfs";
  }
  {
    Registry registry = open();
    const int filler = ::open((base_ + "/filler").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const std::string block(4096, 'x');
    while (write(filler, block.data(), block.size()) > 0) {
    }
    const Status full = registry.join({}).status();
    expect_error(full, StatusCode::kLimitExceeded, directory());
    expect_error(full, StatusCode::kLimitExceeded, "No space left");
    expect_error(full, StatusCode::kLimitExceeded, "free some space there");
    expect_error(full, StatusCode::kLimitExceeded, "VERBENA_RUNTIME_DIR");
    EXPECT_EQ(ftruncate(filler, 0), 0);
    // No half-written slot stays behind, and then it works.
    const Result<uint32_t> slot = registry.join({});
    ASSERT_TRUE(slot.ok()) << slot.status().message();
    EXPECT_EQ(files().size(), 2u);
    close(filler);
  }
  EXPECT_EQ(umount(base_.c_str()), 0);
}

TEST_F(RegistryTest, NoFreeInodesAreNamed) {
  if (mount("none", base_.c_str(), "tmpfs", 0, "size=1m,nr_inodes=3") != 0) {
    GTEST_SKIP() << "needs the right to mount a tmpfs";
  }
  {
    // The root, the directory and the lock are three.
    Registry registry = open();
    expect_error(registry.join({}).status(), StatusCode::kLimitExceeded, "No space left");
  }
  EXPECT_EQ(umount(base_.c_str()), 0);
}

}  // namespace
}  // namespace verbena::soft
