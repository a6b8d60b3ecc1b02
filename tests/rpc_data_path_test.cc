// After connect: no allocation, no lock and no system call for a message, on either side, under
// every protocol. Counted, not inspected: allocations and locks by functions that this program puts
// in front of the C library's, system calls by tracing both processes.
//
// Looking whether a silent peer still lives is allowed one system call in 10 ms. On a busy machine
// a peer may be silent for that long, so the bound on system calls is in time, far below one per
// message.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string>

#include "tests/rpc_support.h"
#include "tests/support/parameter_names.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VERBENA_COUNTS 0  // the sanitizers put their own functions there
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define VERBENA_COUNTS 0
#endif
#endif
#ifndef VERBENA_COUNTS
#define VERBENA_COUNTS 1
#endif

namespace {

thread_local bool counting = false;
thread_local uint64_t allocations = 0;
thread_local uint64_t locks = 0;

}  // namespace

#if VERBENA_COUNTS
extern "C" {

void* __libc_malloc(size_t size_bytes);
void* __libc_calloc(size_t count, size_t size_bytes);
void* __libc_realloc(void* memory, size_t size_bytes);
void __libc_free(void* memory);

void* malloc(size_t size_bytes) {
  if (counting) ++allocations;
  return __libc_malloc(size_bytes);
}
void* calloc(size_t count, size_t size_bytes) {
  if (counting) ++allocations;
  return __libc_calloc(count, size_bytes);
}
void* realloc(void* memory, size_t size_bytes) {
  if (counting) ++allocations;
  return __libc_realloc(memory, size_bytes);
}
void free(void* memory) {
  if (counting) ++allocations;
  __libc_free(memory);
}

#define VERBENA_COUNT_LOCK(function, Lock)                                                  \
  int function(Lock* lock) noexcept {                                                       \
    if (counting) ++locks;                                                                  \
    static const auto real = reinterpret_cast<int (*)(Lock*)>(dlsym(RTLD_NEXT, #function)); \
    return real(lock);                                                                      \
  }
VERBENA_COUNT_LOCK(pthread_mutex_lock, pthread_mutex_t)
VERBENA_COUNT_LOCK(pthread_mutex_trylock, pthread_mutex_t)
VERBENA_COUNT_LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
VERBENA_COUNT_LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
#undef VERBENA_COUNT_LOCK

// A spin lock is a volatile int, which the macro cannot name.
int pthread_spin_lock(pthread_spinlock_t* lock) noexcept {
  if (counting) ++locks;
  static const auto real =
      reinterpret_cast<int (*)(pthread_spinlock_t*)>(dlsym(RTLD_NEXT, "pthread_spin_lock"));
  return real(lock);
}

}  // extern "C"
#endif

namespace verbena::rpc_test {
namespace {

constexpr uint64_t kWarmUpMessages = 1000;
constexpr uint64_t kCountedMessages = 5000;
// A prctl() that the kernel refuses: tells the tracer where counting begins and ends.
constexpr int kMarker = 0x56524e41;

struct Counts {
  uint64_t allocations = 0;
  uint64_t locks = 0;
  uint64_t yields = 0;  // the loops' of this test
  uint64_t elapsed_ns = 0;
  uint64_t messages = 0;
};

class Counted {
 public:
  void begin() {
    prctl(kMarker, 1, 0, 0, 0);
    allocations = locks = yields_ = 0;
    start_ns_ = now_ns();
    counting = true;
  }
  Counts end(uint64_t messages) {
    counting = false;
    const Counts counts = {allocations, locks, yields_, now_ns() - start_ns_, messages};
    prctl(kMarker, 0, 0, 0, 0);
    return counts;
  }
  // After each poll: on a machine with more work than CPUs, lets the other side run.
  void polled(uint32_t found) {
    empty_polls_ = found > 0 ? 0 : empty_polls_ + 1;
    if (empty_polls_ < 5000) return;
    empty_polls_ = 0;
    ++yields_;
    sched_yield();
  }

 private:
  uint64_t start_ns_ = 0;
  uint64_t empty_polls_ = 0;
  uint64_t yields_ = 0;
};

// --- the two sides, each in a process of its own ---

void request(Requester& requester, const Case& c, uint64_t messages, Counted& counted) {
  uint64_t posted = 0;
  uint64_t done = 0;
  uint32_t slot = 0;
  while (done < messages && requester.status().ok()) {
    while (posted < messages && posted - done < c.pending) {
      char* bytes = requester.request_buffer(slot);
      const ReadRequest read = {8, 64};
      std::memcpy(bytes, &read, sizeof(read));
      if (requester.try_post(slot, c.request_max_bytes) != PostResult::kPosted) break;
      ++posted;
      slot = slot + 1 == c.pending ? 0 : slot + 1;
    }
    const uint32_t found = requester.poll([](uint32_t, std::span<const char>) {});
    done += found;
    counted.polled(found);
  }
}

Status run_requester(const Case& c, uint16_t port, const JobSecret& secret, Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                           ControlConnection::connect("127.0.0.1", port, secret, kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto requester, make_requester(c.protocol, c.layout, device, domain,
                                                          control, requester_options(c)));
  Counted counted;
  request(*requester, c, kWarmUpMessages, counted);
  counted.begin();
  request(*requester, c, kCountedMessages, counted);
  counts = counted.end(kCountedMessages);
  return requester->status();
}

Status run_responder(const Case& c, ControlListener& listener, Counts& counts) {
  VERBENA_ASSIGN_OR_RETURN(ControlConnection control, listener.accept(kTimeoutNs));
  VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
  VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
  std::vector<char> readable = readable_memory();
  VERBENA_ASSIGN_OR_RETURN(auto responder, make_responder(c.protocol, c.layout, device, domain,
                                                          responder_options(c, readable)));
  VERBENA_RETURN_IF_ERROR(responder->connect(control));
  uint64_t answered = 0;
  const auto handler = [](const Request& request, std::span<char> response) {
    std::memcpy(response.data(), request.bytes.data(), request.bytes.size());
    return static_cast<uint32_t>(response.size());
  };
  Counted counted;
  const auto answer_until = [&](uint64_t messages) {
    while (answered < messages && responder->status().ok()) {
      const uint32_t found = responder->poll(handler);
      answered += found;
      counted.polled(found);
    }
  };
  answer_until(kWarmUpMessages);
  // Some before the requester's last message: then it waits for nothing any more.
  constexpr uint64_t kLast = kWarmUpMessages + kCountedMessages - 100;
  const uint64_t before = answered;
  counted.begin();
  answer_until(kLast);
  counts = counted.end(answered - before);
  answer_until(~uint64_t{0});
  return answered >= kLast || c.protocol == Protocol::kRead ? Status::ok_status()
                                                            : responder->status();
}

// --- the tracer ---

struct Traced {
  Counts counts;                          // written by the process
  char message[400] = {};                 // its failure
  std::map<long, uint64_t> system_calls;  // between the markers, by number
};

// Starts `body` in a child that waits to be traced.
template <typename Body>
pid_t start_traced(Traced* shared, Body&& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(2);
  raise(SIGSTOP);
  const Status status = body(shared->counts);
  std::strncpy(shared->message, status.message().c_str(), sizeof(shared->message) - 1);
  _exit(status.ok() ? 0 : 1);
}

// Runs children until they exit; counts what each does between its markers. False if tracing is not
// permitted here.
bool trace(std::map<pid_t, Traced*> children, std::map<pid_t, int>& exit_codes) {
  std::map<pid_t, bool> inside;
  while (!children.empty()) {
    int state = 0;
    const pid_t pid = waitpid(-1, &state, __WALL);
    if (pid < 0) return false;
    if (children.count(pid) == 0) continue;
    if (WIFEXITED(state) || WIFSIGNALED(state)) {
      exit_codes[pid] = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
      children.erase(pid);
      continue;
    }
    int signal = WSTOPSIG(state);
    if (signal == (SIGTRAP | 0x80)) {
      signal = 0;
      __ptrace_syscall_info info{};
      if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) <= 0) return false;
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        const auto number = static_cast<long>(info.entry.nr);
        if (number == SYS_prctl && info.entry.args[0] == kMarker) {
          inside[pid] = info.entry.args[1] == 1;
        } else if (inside[pid]) {
          ++children[pid]->system_calls[number];
        }
      }
    } else if (signal == SIGSTOP) {
      signal = 0;
      if (ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0) {
        return false;
      }
    }
    if (ptrace(PTRACE_SYSCALL, pid, nullptr, signal) != 0 && errno != ESRCH) return false;
  }
  return true;
}

void expect_clean(const char* side, const Traced& traced) {
  SCOPED_TRACE(side);
  const Counts& counts = traced.counts;
  EXPECT_STREQ(traced.message, "");
  EXPECT_EQ(counts.allocations, 0u) << "in " << counts.messages << " messages";
  EXPECT_EQ(counts.locks, 0u) << "in " << counts.messages << " messages";
  const uint64_t allowed = counts.yields + counts.elapsed_ns / 10'000'000 + 1;
  uint64_t total = 0;
  std::string numbers;
  for (const auto& [number, count] : traced.system_calls) {
    total += count;
    numbers += " " + std::to_string(number) + ": " + std::to_string(count);
  }
  EXPECT_LE(total, allowed) << "system calls by number:" << numbers << "; in " << counts.messages
                            << " messages and " << counts.elapsed_ns / 1'000'000 << " ms";
}

void run(const Case& c) {
  SCOPED_TRACE(name_of(c));
  const JobSecret secret = JobSecret::random();
  auto listener = ControlListener::listen("127.0.0.1", 0, secret);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  void* memory =
      mmap(nullptr, 2 * sizeof(Traced), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Traced* responder = new (memory) Traced;
  Traced* requester = new (static_cast<char*>(memory) + sizeof(Traced)) Traced;
  const pid_t responder_pid =
      start_traced(responder, [&](Counts& counts) { return run_responder(c, *listener, counts); });
  const pid_t requester_pid = start_traced(requester, [&](Counts& counts) {
    return run_requester(c, listener->port(), secret, counts);
  });
  std::map<pid_t, int> exit_codes;
  const bool traced = trace({{responder_pid, responder}, {requester_pid, requester}}, exit_codes);
  if (traced) {
    EXPECT_EQ(exit_codes[requester_pid], 0);
    EXPECT_EQ(exit_codes[responder_pid], 0);
    EXPECT_EQ(requester->counts.messages, kCountedMessages);
    expect_clean("requester", *requester);
    if (c.protocol != Protocol::kRead) expect_clean("responder", *responder);
  } else {
    kill(requester_pid, SIGKILL);
    kill(responder_pid, SIGKILL);
    waitpid(requester_pid, nullptr, __WALL);
    waitpid(responder_pid, nullptr, __WALL);
  }
  requester->~Traced();
  responder->~Traced();
  munmap(memory, 2 * sizeof(Traced));
  if (!traced) GTEST_SKIP() << "this system does not let a process trace its children";
}

class RpcDataPathTest : public testing::TestWithParam<Protocol> {};

TEST_P(RpcDataPathTest, NoAllocationNoLockNoSystemCall) {
  if (VERBENA_COUNTS == 0) GTEST_SKIP() << "the sanitizers count differently";
  for (MarkLayout layout : all_mark_layouts()) {
    if (!uses_mark_layout(GetParam()) && layout != MarkLayout::kLastBit) continue;
    for (uint32_t pending : {1u, 16u}) {
      Case c;
      c.protocol = GetParam();
      c.layout = layout;
      c.pending = pending;
      run(c);
      if (testing::Test::IsSkipped()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, RpcDataPathTest,
                         testing::ValuesIn(all_protocols().begin(), all_protocols().end()),
                         test::printed_name<Protocol>);

}  // namespace
}  // namespace verbena::rpc_test
