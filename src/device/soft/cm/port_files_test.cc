// The files of the connection manager's ports, where a process holds one and stands still.
#include "src/device/soft/cm/port_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "src/base/file_descriptor.h"

namespace verbena::soft::cm {
namespace {

constexpr uint16_t kSpace = 0x106;
constexpr uint16_t kPort = 7471;

class PortFilesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(directory_.valid()); }
  void TearDown() override { std::filesystem::remove_all(path_); }
  static std::string make_path() {
    std::string path = std::filesystem::temp_directory_path() / "verbena-ports-XXXXXX";
    return mkdtemp(path.data()) == nullptr ? "" : path;
  }
  static PortWish wish() {
    PortWish wish;
    wish.space = kSpace;
    wish.id = 1;
    wish.endpoint.family = AF_INET;
    wish.endpoint.port = kPort;
    return wish;
  }
  // The lock of the one file that there is, as a process has it that is stopped.
  FileDescriptor hold() const {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      FileDescriptor file(open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
      EXPECT_EQ(flock(file.get(), LOCK_EX | LOCK_NB), 0);
      return file;
    }
    ADD_FAILURE() << "no file";
    return FileDescriptor();
  }

  const std::string path_ = make_path();
  const FileDescriptor directory_{open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  PortFiles ports_{directory_.get(), {.slot = 3, .pid = 7}, [](const PortOwner&) { return true; }};
};

TEST_F(PortFilesTest, AListenerIsFoundThoughTheFileIsHeld) {
  PortWish bound = wish();
  ASSERT_EQ(ports_.bind(bound), 0);
  EXPECT_FALSE(ports_.listener(kSpace, bound.endpoint).ok());
  ASSERT_EQ(ports_.listen(bound), 0);
  const FileDescriptor held = hold();
  const auto found = ports_.listener(kSpace, bound.endpoint);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->owner.pid, 7);
}

TEST_F(PortFilesTest, NobodyChangesAFileThatIsHeld) {
  PortWish bound = wish();
  ASSERT_EQ(ports_.bind(bound), 0);
  const FileDescriptor held = hold();
  EXPECT_EQ(ports_.listen(bound), EBUSY);
}

TEST_F(PortFilesTest, WhatFindsNoRoomLeavesNoFile) {
  // As a full file system: no file may grow.
  const sighandler_t former = signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  PortWish refused = wish();
  const int error = ports_.bind(refused);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, former);
  EXPECT_EQ(error, EFBIG);
  EXPECT_TRUE(std::filesystem::is_empty(path_));
  PortWish bound = wish();
  EXPECT_EQ(ports_.bind(bound), 0);
}

TEST_F(PortFilesTest, WhatCannotBeReleasedIsReleasedLater) {
  PortWish bound = wish();
  ASSERT_EQ(ports_.bind(bound), 0);
  {
    const FileDescriptor held = hold();
    ports_.release(bound);
    EXPECT_TRUE(ports_.owes());
    ports_.release_owed();
    EXPECT_TRUE(ports_.owes());
  }
  PortFiles others(directory_.get(), {.slot = 4, .pid = 8}, [](const PortOwner&) { return true; });
  PortWish wanted = wish();
  EXPECT_EQ(others.bind(wanted), EADDRINUSE);
  ports_.release_owed();
  EXPECT_FALSE(ports_.owes());
  EXPECT_EQ(others.bind(wanted), 0);
}

TEST_F(PortFilesTest, WhoCouldNotReleaseAPortCanBindItAgain) {
  PortWish bound = wish();
  ASSERT_EQ(ports_.bind(bound), 0);
  {
    const FileDescriptor held = hold();
    ports_.release(bound);
  }
  PortWish again = wish();
  EXPECT_EQ(ports_.bind(again), 0);
  EXPECT_FALSE(ports_.owes());
}

TEST_F(PortFilesTest, WhatIsNoFileIsNobodysPort) {
  PortWish wanted = wish();
  ASSERT_EQ(ports_.bind(wanted), 0);
  std::string port_file;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) port_file = entry.path();
  ports_.release(wanted);
  ASSERT_FALSE(std::filesystem::exists(port_file));
  ASSERT_EQ(mkfifo(port_file.c_str(), 0600), 0);
  EXPECT_EQ(ports_.bind(wanted), EADDRINUSE);
  EXPECT_FALSE(ports_.listener(kSpace, wanted.endpoint).ok());
  ports_.clean_up();
  ASSERT_EQ(unlink(port_file.c_str()), 0);
  ASSERT_EQ(mkdir(port_file.c_str(), 0700), 0);
  EXPECT_EQ(ports_.bind(wanted), EADDRINUSE);
  ASSERT_EQ(rmdir(port_file.c_str()), 0);
  EXPECT_EQ(ports_.bind(wanted), 0);
}

// As another thread may do meanwhile: the child has the open file, too.
TEST_F(PortFilesTest, AForkedChildDoesNotKeepTheFile) {
  PortWish bound = wish();
  ASSERT_EQ(ports_.bind(bound), 0);
  pid_t child = 0;
  PortFiles forking(directory_.get(), {.slot = 3, .pid = 7}, [&child](const PortOwner&) {
    if (child == 0) {
      child = fork();
      while (child == 0) pause();
    }
    return true;
  });
  EXPECT_EQ(forking.listen(bound), 0);
  ASSERT_GT(child, 0);
  const FileDescriptor held = hold();  // which expects that it can be had
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace verbena::soft::cm
