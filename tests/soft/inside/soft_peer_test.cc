// Peers that end without dying (exec, closed descriptors), and peers whose memory file is none.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

using soft::ProcessRecord;

constexpr int kLinkDescriptor = 3;

// ---- a peer that ends without dying ----

enum class Way { kExec, kForkAndExec, kCloneAndExec, kSpawnAndExec, kCloseAll, kDaemon };
constexpr Way kWays[] = {Way::kExec,         Way::kForkAndExec, Way::kCloneAndExec,
                         Way::kSpawnAndExec, Way::kCloseAll,    Way::kDaemon};

// What became of a peer: another program in its process.
VERBENA_TEST_CHILD(another_program) {
  link.put(true);
  link.get<bool>();
  return 0;
}

// Ends when its parent has.
VERBENA_TEST_CHILD(bystander) {
  link.get<bool>();
  return 0;
}

void become_another_program() {
  fcntl(kLinkDescriptor, F_SETFD, 0);
  execl("/proc/self/exe", "/proc/self/exe", "--child=another_program", nullptr);
  _exit(96);
}

VERBENA_TEST_CHILD(leaver) {
  const auto way = static_cast<Way>(std::stoi(arguments.at(0)));
  Node node;
  Buffer buffer(node.domain, 4096);
  End end(node);
  link.put(end.address());
  link.put(Responder::Memory{buffer.address(), buffer.key()});
  end.connect(link.get<QueuePairAddress>());
  link.put(true);
  link.get<bool>();
  switch (way) {
    case Way::kExec:
      become_another_program();
      break;
    case Way::kForkAndExec:
      // The child that stays is no peer.
      if (fork() != 0) become_another_program();
      break;
    case Way::kCloneAndExec: {
      const pid_t parent = getpid();
      // No handler of pthread_atfork() runs: the child keeps the pipe's end and the slot's lock.
      if (syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr) != 0) {
        become_another_program();
      }
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      // On a busy machine it may have ended before this ran for the first time.
      while (getppid() == parent) pause();
      _exit(0);
    }
    case Way::kSpawnAndExec: {
      [[maybe_unused]] static const auto* spawned = new Child("bystander");
      become_another_program();
      break;
    }
    case Way::kCloseAll:
      close_range(kLinkDescriptor + 1, ~0u, 0);
      link.put(true);
      break;
    case Way::kDaemon:
      if (fork() != 0) _exit(0);
      link.put(true);
      break;
  }
  link.get<bool>();
  _exit(0);
}

std::ostream& operator<<(std::ostream& out, Way way) {
  const char* const names[] = {"Exec",         "ForkAndExec", "CloneAndExec",
                               "SpawnAndExec", "CloseAll",    "Daemon"};
  return out << names[static_cast<int>(way)];
}
class LeavingTest : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, LeavingTest, testing::ValuesIn(kWays),
                         testing::PrintToStringParamName());

TEST_P(LeavingTest, IsAnEndAsDeathIs) {
  const FileDescriptor thread(static_cast<int>(
      syscall(SYS_pidfd_open, syscall(SYS_gettid), static_cast<unsigned>(O_EXCL))));
  if (GetParam() == Way::kCloneAndExec && !thread.valid()) {
    GTEST_SKIP() << "this system has no pidfds of threads (Linux 6.9)";
  }
  Node node;
  Buffer buffer(node.domain, 4096);
  End end(node);
  Child child("leaver", {std::to_string(static_cast<int>(GetParam()))});
  const auto peer = child.link().get<QueuePairAddress>();
  const auto remote = child.link().get<Responder::Memory>();
  child.link().put(end.address());
  end.connect(peer);
  child.link().get<bool>();
  ASSERT_EQ(post_receive(end.qp(), 1, {buffer.sge(0, 64)}), 0);
  const SendRequest write{.id = 2,
                          .opcode = IBV_WR_RDMA_WRITE,
                          .sges = {buffer.sge(0, 8)},
                          .remote_address = remote.address,
                          .rkey = remote.key};
  ASSERT_EQ(post(end.qp(), write), 0);
  ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);

  child.link().put(true);
  // Without the end of this queue pair nobody would be told: it only receives.
  EXPECT_EQ(wait_for_event(node), IBV_EVENT_QP_FATAL);
  EXPECT_EQ(state_of(node, end.qp()), IBV_QPS_ERR);
  const ibv_wc flushed = wait_for_one(end.cq());
  EXPECT_EQ(flushed.wr_id, 1u);
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(post(end.qp(), write), 0);
  EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_RETRY_EXC_ERR);
  ASSERT_EQ(post(end.qp(), write), 0);
  EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_WR_FLUSH_ERR);

  // Whoever comes later finds nobody.
  End late(node);
  late.connect(peer, kImpatient);
  ASSERT_EQ(post(late.qp(), {.sges = {buffer.sge(0, 8)}}), 0);
  EXPECT_EQ(wait_for_one(late.cq()).status, IBV_WC_RETRY_EXC_ERR);
}

// ---- another file under a number that was a pipe's ----

// Closes the descriptor of a channel that is armed, and has a pipe of its own come to lie there.
VERBENA_TEST_CHILD(channel_closer) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node, {.with_channel = true});
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  if (post_receive(end.qp(), 1, {buffer.sge(0, 64)}) != 0) return 2;
  if (ibv_req_notify_cq(end.cq(), 0) != 0) return 3;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return 4;
  if (dup3(ends[0], end.channel().get()->fd, O_CLOEXEC) < 0) return 5;
  link.put(true);
  link.get<bool>();
  char byte;
  if (read(ends[0], &byte, 1) != -1) return 6;  // nobody wrote
  return wait_for_one(end.cq()).status == IBV_WC_SUCCESS ? 0 : 7;
}

TEST(ForeignPipeTest, IsNotWrittenTo) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node);
  Child child("channel_closer");
  const auto peer = child.link().get<QueuePairAddress>();
  child.link().put(end.address());
  end.connect(peer);
  child.link().get<bool>();
  ASSERT_EQ(post(end.qp(), {.sges = {buffer.sge(0, 8)}}), 0);
  EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
  child.link().put(true);
  EXPECT_EQ(child.wait(), 0);
}

// ---- a peer whose memory file is none ----

enum class File { kUnsealed, kShort, kOrdinary, kReadOnly, kHugePages, kPipe, kClosed };
constexpr File kFiles[] = {File::kUnsealed,  File::kShort, File::kOrdinary, File::kReadOnly,
                           File::kHugePages, File::kPipe,  File::kClosed};
constexpr off_t kFileBytes = off_t{1} << 47;

int sealed(int fd, off_t size_bytes, int seals) {
  return ftruncate(fd, size_bytes) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0 ? fd : -1;
}

// What the impostor offers as its memory; -1 if this machine has no such thing.
int make_file(File kind) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  switch (kind) {
    case File::kUnsealed:
      return sealed(memfd_create("unsealed", MFD_ALLOW_SEALING), kFileBytes, F_SEAL_GROW);
    case File::kShort:
      return sealed(memfd_create("short", MFD_ALLOW_SEALING), kFileBytes / 2, kSeals);
    case File::kReadOnly:
      return sealed(memfd_create("read only", MFD_ALLOW_SEALING), kFileBytes,
                    kSeals | F_SEAL_FUTURE_WRITE);
    case File::kHugePages:
      return sealed(memfd_create("huge", MFD_ALLOW_SEALING | MFD_HUGETLB), kFileBytes, kSeals);
    case File::kOrdinary: {
      char path[] = "/dev/shm/verbena-test-XXXXXX";
      const int fd = mkstemp(path);
      unlink(path);
      return fd >= 0 && ftruncate(fd, kFileBytes) == 0 ? fd : -1;
    }
    case File::kPipe: {
      int ends[2];
      return pipe(ends) == 0 ? ends[0] : -1;
    }
    case File::kClosed:
      return 1 << 20;
  }
  return -1;
}

// Says so, and is told whether to go on.
VERBENA_TEST_CHILD(impostor) {
  Node node;
  End end(node);
  const int file = make_file(static_cast<File>(std::stoi(arguments.at(0))));
  link.put(file >= 0);
  if (file < 0) return 0;
  // Its tables stand there, as the real ones.
  soft::Rnic& rnic = *soft::Rnic::existing();
  const auto header = reinterpret_cast<uint64_t>(&rnic.header());
  [[maybe_unused]] const ssize_t written =
      pwrite(file, &rnic.header(), soft::kCacheLineBytes, static_cast<off_t>(header));
  const std::string path = std::string(getenv("VERBENA_RUNTIME_DIR")) + "/verbena-" +
                           std::to_string(geteuid()) + "/soft0." + std::to_string(rnic.slot());
  ProcessRecord record{};
  const FileDescriptor entry(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (pread(entry.get(), &record, sizeof(record), 0) != sizeof(record)) return 1;
  record.memory_fd = file;
  if (pwrite(entry.get(), &record, sizeof(record), 0) != sizeof(record)) return 1;
  link.put(end.address());
  link.get<bool>();
  return 0;
}

std::ostream& operator<<(std::ostream& out, File file) {
  const char* const names[] = {"Unsealed",  "Short", "Ordinary", "ReadOnly",
                               "HugePages", "Pipe",  "Closed"};
  return out << names[static_cast<int>(file)];
}
class ImpostorTest : public testing::TestWithParam<File> {};
INSTANTIATE_TEST_SUITE_P(Files, ImpostorTest, testing::ValuesIn(kFiles),
                         testing::PrintToStringParamName());

TEST_P(ImpostorTest, ItsMemoryIsNotMapped) {
  Node node;
  End end(node);
  Child child("impostor", {std::to_string(static_cast<int>(GetParam()))});
  if (!child.link().get<bool>()) GTEST_SKIP() << "this machine makes no such file";
  const Status status = end.queue_pair().connect(child.link().get<QueuePairAddress>());
  child.link().put(true);
  if (GetParam() == File::kClosed) {
    // As a peer that is gone: requests will not get through.
    EXPECT_TRUE(status.ok()) << status.message();
  } else {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("process " + std::to_string(child.pid())), std::string::npos)
        << status.message();
    EXPECT_EQ(state_of(node, end.qp()), IBV_QPS_INIT);
  }
  EXPECT_EQ(child.wait(), 0);
}

// A sender has disarmed the queue and was killed, or stopped, before it wrote the event.
TEST(RingingTest, IsTakenOverByWhoHasAnotherEvent) {
  Node node;
  Buffer buffer(node.domain, 128);
  End from(node, {.with_channel = true});
  End to(node, {.with_channel = true});
  connect(from, to);
  ASSERT_EQ(post_receive(to.qp(), 0, {buffer.sge(0, 64)}), 0);
  const auto leave_ringing = [](const End& end) {
    soft::as_cq(end.cq()).shared->armed.store(soft::make_ringing(7));
  };
  const auto expect_event = [](End& end) {
    Result<ibv_cq*> event = end.channel().wait(static_cast<int64_t>(kPatienceNs));
    ASSERT_TRUE(event.ok()) << event.status().message();
    EXPECT_EQ(soft::as_cq(end.cq()).shared->armed.load(), 0u);
  };
  // An own completion, and a peer's message.
  leave_ringing(from);
  leave_ringing(to);
  ASSERT_EQ(post(from.qp(), {.sges = {buffer.sge(0, 8)}}), 0);
  expect_event(from);
  expect_event(to);
  // The flush of an error.
  leave_ringing(to);
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(node.control().modify_qp(to.qp(), &error, IBV_QP_STATE), 0);
  expect_event(to);
}

}  // namespace
}  // namespace verbena::soft_test
