#include "src/base/runtime.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string_view>
#include <utility>

#include "src/base/log.h"

namespace verbena {

namespace {

constexpr uint64_t kNsPerSecond = 1'000'000'000;

timespec to_timespec(uint64_t ns) {
  return {static_cast<time_t>(ns / kNsPerSecond), static_cast<long>(ns % kNsPerSecond)};
}

}  // namespace

uint64_t now_ns() {
  if (VirtualTime* const time = VirtualTime::current()) return time->now_ns();
  return machine_now_ns();
}

uint64_t machine_now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerSecond + static_cast<uint64_t>(now.tv_nsec);
}

void sleep_ns(uint64_t duration_ns) {
  if (VirtualTime* const time = VirtualTime::current()) return time->sleep_ns(duration_ns);
  // An absolute deadline: interrupting signals do not stretch the sleep.
  const timespec deadline = to_timespec(now_ns() + duration_ns);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
  }
}

// ---- threads ----

struct Thread::State {
  pthread_t handle{};
  std::string name;
  std::function<void()> body;
  VirtualTime* time = nullptr;  // where it is a thread of a simulation
  void* fiber = nullptr;
};

Thread::Thread() = default;
Thread::Thread(Thread&&) noexcept = default;

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    join();
    state_ = std::move(other.state_);
  }
  return *this;
}

Thread::~Thread() { join(); }

bool Thread::joinable() const { return state_ != nullptr; }

void Thread::join() {
  if (state_ == nullptr) return;
  if (state_->time != nullptr) {
    state_->time->join_thread(state_->fiber);
  } else {
    pthread_join(state_->handle, nullptr);
  }
  state_.reset();
}

Thread start_thread(std::string name, std::function<void()> body) {
  constexpr size_t kMaxNameChars = 15;
  Thread thread;
  thread.state_ = std::make_unique<Thread::State>();
  name.resize(std::min(name.size(), kMaxNameChars));
  thread.state_->name = std::move(name);
  thread.state_->body = std::move(body);

  if (VirtualTime* const time = VirtualTime::current()) {
    thread.state_->time = time;
    thread.state_->fiber = time->start_thread(thread.state_->name, std::move(thread.state_->body));
    return thread;
  }
  // The new thread inherits a mask that blocks everything: signals stay with the application's
  // threads, but for those that a thread's own instructions cause.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto run = [](void* argument) -> void* {
    auto* state = static_cast<Thread::State*>(argument);
    pthread_setname_np(pthread_self(), state->name.c_str());
    state->body();
    return nullptr;
  };
  const int error = pthread_create(&thread.state_->handle, nullptr, run, thread.state_.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    log_error(
        "cannot start the thread '{}': {}; raise the limit of processes (ulimit -u, pids.max)",
        thread.state_->name, std::strerror(error));
    thread.state_.reset();
  }
  return thread;
}

// ---- CPUs ----

namespace {

// A CPU set of whatever size the kernel needs.
std::vector<int> cpus_of_this_thread() {
  for (int cpu_count = CPU_SETSIZE; cpu_count <= (1 << 20); cpu_count *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpu_count);
    if (set == nullptr) break;
    const size_t size_bytes = CPU_ALLOC_SIZE(cpu_count);
    const int status = sched_getaffinity(0, size_bytes, set);
    const int error = errno;
    std::vector<int> cpus;
    if (status == 0) {
      for (int cpu = 0; cpu < cpu_count; ++cpu) {
        if (CPU_ISSET_S(cpu, size_bytes, set)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
    if (status == 0) return cpus;
    if (error != EINVAL) break;
  }
  return {0};
}

// What the process was started with: asked before anything can pin a thread, since a pinned thread
// would see only its own CPU.
const std::vector<int>& cpus_at_start() {
  static const std::vector<int>* const cpus = new std::vector<int>(cpus_of_this_thread());
  return *cpus;
}
[[maybe_unused]] const bool cpus_at_start_asked = (cpus_at_start(), true);

// Sorts by (how many siblings of the core come before, NUMA node, core): every core's first
// hardware thread before any second one.
std::vector<int> in_hand_out_order(const std::vector<int>& cpus) {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return cpus;
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  if (hwloc_topology_load(topology) != 0) {
    hwloc_topology_destroy(topology);
    return cpus;
  }
  struct Place {
    int sibling;
    unsigned numa_node;
    unsigned core;
    int cpu;
    auto operator<=>(const Place&) const = default;
  };
  std::vector<Place> places;
  std::map<unsigned, int> siblings_of_core;
  for (int cpu : cpus) {
    Place place{0, 0, static_cast<unsigned>(cpu), cpu};
    hwloc_obj_t unit = hwloc_get_pu_obj_by_os_index(topology, static_cast<unsigned>(cpu));
    if (unit != nullptr) {
      hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, unit);
      place.core = core != nullptr ? core->logical_index : unit->logical_index;
      const int node = unit->nodeset != nullptr ? hwloc_bitmap_first(unit->nodeset) : -1;
      place.numa_node = node < 0 ? 0 : static_cast<unsigned>(node);
    }
    place.sibling = siblings_of_core[place.core]++;
    places.push_back(place);
  }
  hwloc_topology_destroy(topology);
  std::sort(places.begin(), places.end());
  std::vector<int> ordered;
  ordered.reserve(places.size());
  for (const Place& place : places) ordered.push_back(place.cpu);
  return ordered;
}

}  // namespace

bool pin_this_thread(const std::vector<int>& cpus) {
  constexpr int kMostCpus = 1 << 20;
  if (cpus.empty()) return false;
  const auto [least, most] = std::minmax_element(cpus.begin(), cpus.end());
  if (*least < 0 || *most >= kMostCpus) return false;
  const int cpu_count = std::max(*most + 1, CPU_SETSIZE);
  cpu_set_t* set = CPU_ALLOC(cpu_count);
  if (set == nullptr) return false;
  const size_t size_bytes = CPU_ALLOC_SIZE(cpu_count);
  CPU_ZERO_S(size_bytes, set);
  for (int cpu : cpus) CPU_SET_S(cpu, size_bytes, set);
  const bool pinned = sched_setaffinity(0, size_bytes, set) == 0;
  CPU_FREE(set);
  return pinned;
}

bool pin_this_thread(int cpu) { return pin_this_thread(std::vector<int>{cpu}); }

std::vector<int> usable_cpus() {
  static const std::vector<int>* const ordered =
      new std::vector<int>(in_hand_out_order(cpus_at_start()));
  return *ordered;
}

// ---- waiting ----

namespace {

// How often the kernel gave this thread's CPU to another one. A yield counts as involuntary.
uint64_t context_switches() {
  rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
  return static_cast<uint64_t>(usage.ru_nvcsw) + static_cast<uint64_t>(usage.ru_nivcsw);
}

}  // namespace

void Waiter::back_off(uint64_t due_ns) {
  if (VirtualTime* const time = VirtualTime::current()) return time->idle(due_ns);
  uint64_t before_ns = now_ns();
  if (first_yield_ns_ == 0) {
    first_yield_ns_ = before_ns;
    switches_ = context_switches();
  }
  if (crowded_ > 0 && before_ns - first_yield_ns_ > kSleepAfterNs) {
    sleep_ns(kSleepNs);
    switches_ = context_switches();
    before_ns = now_ns();
  }
  sched_yield();
  bool another_ran = false;
  if (now_ns() - before_ns > kYieldTookLongNs) {
    // A slow yield alone proves nothing: an interrupt or a hypervisor may have taken the time.
    const uint64_t switches = context_switches();
    another_ran = switches != switches_;
    switches_ = switches;
  }
  if (another_ran) {
    crowded_ = kCrowdedMemory;
    spins_ = kSpinsCrowded;
  } else if (crowded_ > 0 && --crowded_ == 0) {
    spins_ = kSpins;
  }
}

PollingBackoff::PollingBackoff() : waiter_(std::make_unique<Waiter>()) {}
PollingBackoff::~PollingBackoff() = default;
void PollingBackoff::progress() { waiter_->progress(); }
void PollingBackoff::idle() { waiter_->idle(); }

// ---- randomness ----

uint64_t Random::next() {
  // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t run_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("VERBENA_SEED");
    if (text != nullptr && *text != '\0') {
      const std::string_view digits(text);
      uint64_t value = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (error == std::errc() && end == digits.data() + digits.size()) return value;
      log_warning("VERBENA_SEED is '{}', not a decimal number below 2^64; drawing a seed",
                  digits.substr(0, 32));
    }
    uint64_t drawn;
    secure_random(&drawn, sizeof(drawn));
    return drawn;
  }();
  return seed;
}

void secure_random(void* bytes, size_t size_bytes) {
  auto* at = static_cast<unsigned char*>(bytes);
  if (VirtualTime* const time = VirtualTime::current()) {
    // The same in every run; nobody outside of the simulation ever sees it.
    for (; size_bytes > 0; --size_bytes) *at++ = static_cast<unsigned char>(time->random());
  }
  while (size_bytes > 0) {
    const ssize_t got = getrandom(at, size_bytes, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      // Going on without randomness would make secrets guessable.
      log_error("the kernel gives no random bytes: {}", std::strerror(errno));
      std::abort();
    }
    at += got;
    size_bytes -= static_cast<size_t>(got);
  }
}

}  // namespace verbena
