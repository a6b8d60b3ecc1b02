// Processes as containers have them: an ordinary user without capabilities, whose system calls a
// filter restricts, or whom the kernel lets nobody look into.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"
#include "tests/support/tool_process.h"

namespace verbena::soft_test {
namespace {

constexpr uid_t kSomeUser = 4711;
constexpr size_t kMessageBytes = 40000;
constexpr uint64_t kSendSeed = 5;
constexpr uint64_t kWriteSeed = 6;
constexpr uint64_t kSourceSeed = 7;

enum class Confinement {
  kOrdinaryUser,
  kUndumpable,
  kWithoutUserfaultfd,
  kFiltered,
  kAllOfThem,
  kFilteredSender,  // whose receiver is an ordinary user
};

std::ostream& operator<<(std::ostream& out, Confinement confinement) {
  const char* const names[] = {"OrdinaryUser", "Undumpable", "WithoutUserfaultfd",
                               "Filtered",     "AllOfThem",  "FilteredSender"};
  return out << names[static_cast<size_t>(confinement)];
}

// What a child is told; its registry is where an ordinary user may write.
struct ConfinedRole {
  Confinement confinement;
  char registry[256];
  bool is_sender;
};

struct ConfinedEnd {
  QueuePairAddress address;
  uint64_t memory;
  uint32_t key;
};

// As the filters of container runtimes: EPERM to what they do not allow, or do not know. Memory
// moves into the memory file with userfaultfd, or peers reach it by process_vm_*; where there is
// neither, the user has to promise something.
bool refuse_calls(Confinement confinement) {
  std::vector<unsigned> refused = {SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pidfd_getfd};
  if (confinement != Confinement::kFiltered) refused.push_back(SYS_userfaultfd);
  if (confinement != Confinement::kWithoutUserfaultfd) {
    refused.insert(refused.end(), {SYS_process_vm_readv, SYS_process_vm_writev, SYS_membarrier,
                                   SYS_ptrace, SYS_kcmp});
  }
  if (confinement == Confinement::kAllOfThem && setenv("VERBENA_QUIET_REGISTRATION", "1", 1) != 0) {
    return false;
  }
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, nr)))};
  for (const unsigned call : refused) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{.len = static_cast<uint16_t>(program.size()), .filter = program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0 &&
         syscall(SYS_pidfd_open, getpid(), 0) == -1 && errno == EPERM;
}

bool confine(Confinement confinement) {
  const bool all = confinement == Confinement::kAllOfThem;
  // Capabilities go with it. To give up rights makes a process undumpable by itself.
  if (geteuid() == 0 && (setresgid(kSomeUser, kSomeUser, kSomeUser) != 0 ||
                         setresuid(kSomeUser, kSomeUser, kSomeUser) != 0)) {
    return false;
  }
  const bool undumpable = all || confinement == Confinement::kUndumpable;
  if (undumpable) setenv("VERBENA_MAKE_DUMPABLE", "1", 1);
  if (prctl(PR_SET_DUMPABLE, undumpable ? 0 : 1, 0, 0, 0) != 0) return false;
  return confinement < Confinement::kWithoutUserfaultfd || refuse_calls(confinement);
}

// Another thread of the program. It keeps pages from moving where it cannot be held meanwhile.
class Bystander {
 public:
  Bystander() : made_(pipe(pipe_) == 0) {
    thread_ = start_thread("bystander", [this] {
      char byte = 0;
      while (made_ && read(pipe_[0], &byte, 1) > 0) {
      }
    });
  }
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;
  ~Bystander() {
    if (made_) close(pipe_[1]);
    thread_.join();
    if (made_) close(pipe_[0]);
  }

 private:
  int pipe_[2] = {-1, -1};
  bool made_;
  Thread thread_;
};

// What a process of any sort can read from another one: where pages are left in place, too.
int read_in_place(End& end, Buffer& buffer, const ConfinedEnd& peer) {
  SendRequest read;
  read.opcode = IBV_WR_RDMA_READ;
  read.sges = {buffer.sge(0, kMessageBytes)};
  read.remote_address = peer.memory;
  read.rkey = peer.key;
  post(end.qp(), read);
  if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 12;
  return buffer.has(kSourceSeed, 0, kMessageBytes) ? 0 : 13;
}

// 0 if a WRITE, a SEND and a READ succeed, and the READ gets what the WRITE left.
int send_all(End& end, Buffer& buffer, const ConfinedEnd& peer) {
  const ibv_sge all = buffer.sge(0, kMessageBytes);
  SendRequest one_sided;
  one_sided.opcode = IBV_WR_RDMA_WRITE;
  one_sided.sges = {all};
  one_sided.remote_address = peer.memory;
  one_sided.rkey = peer.key;
  buffer.fill(kWriteSeed, 0, kMessageBytes);
  post(end.qp(), one_sided);
  if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 4;
  buffer.fill(kSendSeed, 0, kMessageBytes);
  post(end.qp(), {.sges = {all}});
  if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 5;
  one_sided.opcode = IBV_WR_RDMA_READ;
  post(end.qp(), one_sided);
  if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 6;
  return buffer.has(kWriteSeed, 0, kMessageBytes) ? 0 : 7;
}

// One side. The sender tells its result, and then waits to be killed.
VERBENA_TEST_CHILD(confined) {
  const auto role = link.get<ConfinedRole>();
  if (setenv("VERBENA_RUNTIME_DIR", role.registry, 1) != 0 || !confine(role.confinement)) return 2;
  const Bystander bystander;
  Node node;
  Buffer inbox(node.domain, kMessageBytes);
  Buffer memory(node.domain, kMessageBytes);
  End end(node, {});
  link.put(ConfinedEnd{end.address(), memory.address(), memory.key()});
  const auto peer = link.get<ConfinedEnd>();
  end.connect(peer.address);
  if (!role.is_sender && post_receive(end.qp(), 1, {inbox.sge(0, kMessageBytes)}) != 0) return 3;
  link.put(true);
  link.get<bool>();
  if (role.is_sender) {
    const int read = read_in_place(end, inbox, link.get<ConfinedEnd>());
    link.put(read != 0 ? read : send_all(end, inbox, peer));
    link.get<bool>();
  }
  std::vector<std::byte> source(kMessageBytes);
  fill_pattern(source.data(), source.size(), kSourceSeed);
  const MemoryRegion readable = must(MemoryRegion::create_in_place(
      node.domain, source.data(), source.size(), IBV_ACCESS_REMOTE_READ));
  link.put(ConfinedEnd{end.address(), reinterpret_cast<uint64_t>(source.data()), readable.rkey()});
  if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 8;
  if (!inbox.has(kSendSeed, 0, kMessageBytes)) return 9;
  if (!memory.has(kWriteSeed, 0, kMessageBytes)) return 10;
  // The sender's end is noticed with these means, too.
  return wait_until([&] { return state_of(node, end.qp()) == IBV_QPS_ERR; }) ? 0 : 11;
}

// For an ordinary user, too.
ConfinedRole role_in(const test::ScratchDirectory& registry, Confinement confinement) {
  ConfinedRole role{};
  role.confinement = confinement;
  EXPECT_EQ(chmod(registry.path().c_str(), 0777), 0);
  EXPECT_LT(registry.path().size(), sizeof(role.registry));
  std::snprintf(role.registry, sizeof(role.registry), "%s", registry.path().c_str());
  return role;
}

// Whether an ordinary user may enter all folders above.
bool others_reach(std::filesystem::path path) {
  while (path.has_relative_path()) {
    path = path.parent_path();
    struct stat status {};
    if (stat(path.c_str(), &status) != 0 || (status.st_mode & S_IXOTH) == 0) return false;
  }
  return true;
}

// Neither way to its memory is left.
VERBENA_TEST_CHILD(unreachable) {
  const auto role = link.get<ConfinedRole>();
  if (setenv("VERBENA_RUNTIME_DIR", role.registry, 1) != 0 || !confine(role.confinement) ||
      unsetenv("VERBENA_QUIET_REGISTRATION") != 0) {
    return 2;
  }
  const Bystander bystander;
  Node node;
  testing::internal::CaptureStderr();
  Buffer buffer(node.domain, kMessageBytes);
  const std::string printed = testing::internal::GetCapturedStderr();
  std::fputs(printed.c_str(), stderr);
  return printed.find("warning: soft0: peers cannot reach 40000 bytes") != std::string::npos ? 0
                                                                                             : 3;
}

TEST(ConfinedTest, MemoryThatNobodyReachesIsNamed) {
#if VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER
  GTEST_SKIP() << "at its end, a sanitizer uses system calls that the filter refuses";
#endif
  test::ScratchDirectory registry;
  if (!others_reach(registry.path())) GTEST_SKIP() << "an ordinary user cannot enter its parent";
  Child child("unreachable");
  child.link().put(role_in(registry, Confinement::kAllOfThem));
  EXPECT_EQ(child.wait(), 0);
}

std::atomic<int> trace_permissions = 0;

// Counts, and lets the call succeed.
void count_permission(int, siginfo_t*, void* context) {
  trace_permissions.fetch_add(1);
#if defined(__x86_64__)
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = 0;
#elif defined(__aarch64__)
  static_cast<ucontext_t*>(context)->uc_mcontext.regs[0] = 0;
#endif
}

bool watch_trace_permissions() {
  struct sigaction action {};
  action.sa_sigaction = count_permission;
  action.sa_flags = SA_SIGINFO;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, nr))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, args[0]))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_SET_PTRACER, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = static_cast<uint16_t>(std::size(program)), .filter = program};
  return sigaction(SIGSYS, &action, nullptr) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// 0, or what is wrong; -1 where memory cannot be shared.
VERBENA_TEST_CHILD(untraceable) {
  if (!watch_trace_permissions()) return 1;
  Node node;
  Buffer buffer(node.domain, kMessageBytes);
  const MemoryRegion again =
      must(MemoryRegion::create(node.domain, buffer.data(), kMessageBytes, kAllAccess));
  if (node.control().region_memory(again.get()) == RegionMemory::kFollows) {
    link.put(-1);
    return 0;
  }
  End end(node);
  End other(node);
  connect(end, other);
  const MemoryRegion filled = must(MemoryRegion::create_in_place(
      node.domain, buffer.data(), kMessageBytes, IBV_ACCESS_LOCAL_WRITE));
  int wrong = trace_permissions.load() != 0 ? 2 : 0;
  const MemoryRegion nothing =
      must(MemoryRegion::create_in_place(node.domain, nullptr, 0, IBV_ACCESS_REMOTE_READ));
  if (wrong == 0 && trace_permissions.load() == 0) wrong = 3;
  link.put(wrong);
  return 0;
}

// Only who leaves memory in place for peers to READ lets them copy from it, which is to trace it.
TEST(ConfinedTest, NobodyMayTraceAProcessWhoseMemoryIsShared) {
  Child child("untraceable");
  const int wrong = child.link().get<int>();
  EXPECT_EQ(child.wait(), 0);
  if (wrong < 0) GTEST_SKIP() << "memory cannot be shared here";
  EXPECT_EQ(wrong, 0);
}

class ConfinedPairTest : public testing::TestWithParam<Confinement> {};

TEST_P(ConfinedPairTest, TwoProcessesExchangeMessages) {
#if VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER
  GTEST_SKIP() << "at its end, a sanitizer uses system calls that the filter refuses";
#endif
  test::ScratchDirectory registry;
  if (!others_reach(registry.path())) GTEST_SKIP() << "an ordinary user cannot enter its parent";
  const bool sender_only = GetParam() == Confinement::kFilteredSender;
  ConfinedRole role = role_in(registry, sender_only ? Confinement::kOrdinaryUser : GetParam());
  Child receiver("confined");
  Child sender("confined");
  receiver.link().put(role);
  role.is_sender = true;
  if (sender_only) role.confinement = Confinement::kFiltered;
  sender.link().put(role);
  sender.link().put(receiver.link().get<ConfinedEnd>());
  receiver.link().put(sender.link().get<ConfinedEnd>());
  for (Child* child : {&receiver, &sender}) child->link().get<bool>();
  for (Child* child : {&receiver, &sender}) child->link().put(true);
  sender.link().put(receiver.link().get<ConfinedEnd>());
  EXPECT_EQ(sender.link().get<int>(), 0);
  sender.kill();
  EXPECT_EQ(receiver.wait(), 0);
}

INSTANTIATE_TEST_SUITE_P(Confinements, ConfinedPairTest,
                         testing::Values(Confinement::kOrdinaryUser, Confinement::kUndumpable,
                                         Confinement::kWithoutUserfaultfd, Confinement::kFiltered,
                                         Confinement::kAllOfThem, Confinement::kFilteredSender),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace verbena::soft_test
