// Counts what a program does between two moments: allocations and locks by functions that it puts
// in front of the C library's, system calls by tracing it. Included once, by a test program that is
// a single file: it replaces malloc() and the like for all of it.
//
// Looking whether a silent peer still lives is allowed one system call in 10 ms. On a busy machine
// a peer may be silent for that long, so the bound on system calls is in time, far below one per
// message.
#pragma once

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
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "verbena/status.h"

// The sanitizers put functions of their own there.
#define VERBENA_COUNTS (!VERBENA_ADDRESS_SANITIZER && !VERBENA_THREAD_SANITIZER)

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

namespace verbena::test {
namespace {

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

void expect_clean(const char* side, const Traced& traced, uint64_t calls_per_message) {
  SCOPED_TRACE(side);
  const Counts& counts = traced.counts;
  EXPECT_STREQ(traced.message, "");
  EXPECT_EQ(counts.allocations, 0u) << "in " << counts.messages << " messages";
  EXPECT_EQ(counts.locks, 0u) << "in " << counts.messages << " messages";
  const uint64_t allowed =
      counts.yields + counts.elapsed_ns / 10'000'000 + 1 + calls_per_message * counts.messages;
  uint64_t total = 0;
  std::string numbers;
  for (const auto& [number, count] : traced.system_calls) {
    total += count;
    numbers += " " + std::to_string(number) + ": " + std::to_string(count);
  }
  EXPECT_LE(total, allowed) << "system calls by number:" << numbers << "; in " << counts.messages
                            << " messages and " << counts.elapsed_ns / 1'000'000 << " ms";
}

// Runs each body in a process of its own, `body(Counts&)`, and checks what it did between its
// markers if it `is_counted`. System calls are allowed as far as a message needs them. False:
// tracing is not permitted here.
struct CountedBody {
  const char* name;
  bool is_counted;
  std::function<Status(Counts&)> run;
};
bool run_counted(const std::vector<CountedBody>& bodies, uint64_t messages,
                 uint64_t calls_per_message = 0) {
  const size_t size_bytes = bodies.size() * sizeof(Traced);
  void* memory =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  if (memory == MAP_FAILED) return true;
  std::vector<Traced*> shared;
  std::map<pid_t, Traced*> children;
  std::vector<pid_t> pids;
  for (size_t i = 0; i < bodies.size(); ++i) {
    shared.push_back(new (static_cast<char*>(memory) + i * sizeof(Traced)) Traced);
    pids.push_back(start_traced(shared[i], bodies[i].run));
    children[pids[i]] = shared[i];
  }
  std::map<pid_t, int> exit_codes;
  const bool traced = trace(children, exit_codes);
  for (size_t i = 0; i < bodies.size(); ++i) {
    if (traced) {
      EXPECT_EQ(exit_codes[pids[i]], 0) << bodies[i].name << ": " << shared[i]->message;
      if (bodies[i].is_counted) {
        EXPECT_GE(shared[i]->counts.messages, messages);
        expect_clean(bodies[i].name, *shared[i], calls_per_message);
      }
    } else {
      kill(pids[i], SIGKILL);
      waitpid(pids[i], nullptr, __WALL);
    }
    shared[i]->~Traced();
  }
  munmap(memory, size_bytes);
  return traced;
}

}  // namespace
}  // namespace verbena::test
