// Loops over memory and over calls of the system.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/tsc.h"
#include "src/calibrate/parameter_probe.h"
#include "src/calibrate/quickest.h"
#include "src/calibrate/slice_watch.h"

namespace verbena::calibrate {

namespace {

constexpr uint64_t kRounds = 20'000;

// Of what other programs on the CPU may make last for ever.
constexpr uint64_t kLongestNs = 60'000'000;

double copy_gb_per_s() {
  constexpr size_t kBytes = 64 << 10;  // beyond the first cache, within the second
  std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes, 2);
  const double ns = quickest_ns(200, [&](uint64_t i) {
    from[i] = static_cast<char>(i);
    std::memcpy(to.data(), from.data(), kBytes);
    asm volatile("" : : "r"(to.data()) : "memory");
  });
  return static_cast<double>(kBytes) / ns;
}

struct alignas(128) Word {
  std::atomic<uint64_t> value{0};
};

double atomic_ns() {
  Word word;
  return quickest_ns(kRounds, [&](uint64_t) { word.value.fetch_add(1); });
}

// Half of a round trip of one word between two cores.
double line_transfer_ns(int other_cpu) {
  Word there;
  Word back;
  double ns = 0;
  Thread other = start_thread("calibrate", [&] {
    pin_this_thread(other_cpu);
    for (uint64_t i = 1; i <= kAttempts * kRounds; ++i) {
      while (there.value.load(std::memory_order_acquire) != i) cpu_relax();
      back.value.store(i, std::memory_order_release);
    }
  });
  uint64_t number = 0;
  ns = quickest_ns(kRounds, [&](uint64_t) {
    there.value.store(++number, std::memory_order_release);
    while (back.value.load(std::memory_order_acquire) != number) cpu_relax();
  });
  other.join();
  return ns / 2;
}

uint64_t cpu_time_of_process_ns() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);  // NOLINT(conventions): no clock of a simulation
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// Of two threads on one CPU that give way to each other. The time that they had it counts, without
// that of a third one, of another program, which takes a whole slice each time; and since it leaves
// them cold caches, what few yields take.
double switch_ns(int cpu) {
  constexpr uint64_t kBatches = 1'000;
  constexpr uint64_t kYields = 10;
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> of_other{0};
  Thread other = start_thread("calibrate", [&] {
    pin_this_thread(cpu);
    for (uint64_t i = 1; !ended.load(std::memory_order_relaxed); ++i) {
      of_other.store(i, std::memory_order_relaxed);
      sched_yield();
    }
  });
  std::vector<double> batches_ns;
  const uint64_t begun = now_ns();
  while (batches_ns.size() < kBatches && (batches_ns.empty() || now_ns() - begun < kLongestNs)) {
    const uint64_t before = of_other.load(std::memory_order_relaxed);
    const uint64_t had_ns = cpu_time_of_process_ns();
    for (uint64_t i = 0; i < kYields; ++i) sched_yield();
    const auto ns = static_cast<double>(cpu_time_of_process_ns() - had_ns);
    const uint64_t switches = kYields + of_other.load(std::memory_order_relaxed) - before;
    batches_ns.push_back(ns / static_cast<double>(switches));
  }
  ended.store(true, std::memory_order_relaxed);
  other.join();
  const auto undisturbed = batches_ns.begin() + static_cast<ptrdiff_t>(batches_ns.size() / 10);
  std::nth_element(batches_ns.begin(), undisturbed, batches_ns.end());
  return *undisturbed;
}

// Of two threads that want the same CPU.
struct Slice {
  std::optional<double> ns;
  double cpu_share;  // what the two had of it
};
Slice measure_slice(int cpu) {
  std::atomic<bool> ended{false};
  Thread other = start_thread("calibrate", [&] {
    pin_this_thread(cpu);
    while (!ended.load(std::memory_order_relaxed)) cpu_relax();
  });
  const uint64_t begun = now_ns();
  const uint64_t had_ns = cpu_time_of_process_ns();
  SliceWatch slices(begun);
  while (slices.look(now_ns())) {
  }
  const auto ns = static_cast<double>(cpu_time_of_process_ns() - had_ns);
  const double cpu_share = std::min(ns / static_cast<double>(now_ns() - begun), 1.0);
  ended.store(true, std::memory_order_relaxed);
  other.join();
  return {.ns = slices.median_ns(), .cpu_share = cpu_share};
}

}  // namespace

HostProbes probe_host() {
  const std::vector<int> cpus = usable_cpus();
  pin_this_thread(cpus.front());
  std::vector<Probe> probes = {
      {"cpu_clock", tsc_cycles_per_ns(), "cycles are those of the time stamp counter"},
      {"cores", static_cast<double>(cpus.size()), "CPUs that the process may use"},
      {"cpu_copy", copy_gb_per_s(), "copies of 64 KiB within the caches"},
      {"cpu_atomic", atomic_ns(), "fetch-and-add on a word in the first cache"},
      {"cpu_pause", quickest_ns(kRounds, [](uint64_t) { cpu_relax(); }), "pauses in a row"},
      {"cpu_switch", switch_ns(cpus.front()), "two threads that yield to each other"},
  };
  const Slice slice = measure_slice(cpus.front());
  if (slice.ns.has_value()) {
    probes.push_back({"cpu_slice", *slice.ns, "two threads that both want one CPU"});
  }
  if (cpus.size() > 1) {
    probes.push_back({"cpu_line_transfer", line_transfer_ns(cpus[1]),
                      "half of a round trip of one word between two cores"});
  }
  pin_this_thread(cpus);
  return {.probes = std::move(probes), .cpu_share = slice.cpu_share};
}

}  // namespace verbena::calibrate
