// What the registration cache costs against registering for each use ("of_plain"), and the table of
// used buffers against the copy that it saves ("of_copy"). Ratios, since only these hold elsewhere.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "src/memory/buffer_use.h"
#include "src/memory/registration_cache.h"
#include "verbena/clock.h"
#include "verbena/data_path.h"
#include "verbena/device.h"

namespace verbena {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr unsigned kTarget =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

// The ways by which a cache knows what is current (registration_cache.h).
enum Way : int64_t { kAddresses, kAsked, kEvents };

struct Setting {
  Device device = must(Device::open("soft0"));
  ProtectionDomain domain = must(ProtectionDomain::create(device));
};
Setting& setting() {
  static auto* setting = new Setting;
  return *setting;
}
unsigned access_of(int64_t way) { return way == kAsked ? kTarget : 0; }
RegistrationCacheOptions options_of(int64_t way) { return {.assume_pinned = way == kEvents}; }

class Pages {
 public:
  explicit Pages(uint64_t bytes) : bytes_(bytes) {
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (mapped == MAP_FAILED) std::abort();
    memory_ = static_cast<char*>(mapped);
  }
  ~Pages() { munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* data() const { return memory_; }

 private:
  char* memory_;
  uint64_t bytes_;
};

// A register and a deregister of the same memory, in ns; taken before the measurement.
double plain_ns(char* memory, uint64_t bytes, unsigned access) {
  constexpr int kTimes = 200;
  const uint64_t begun_ns = now_ns();
  for (int i = 0; i < kTimes; ++i) {
    benchmark::DoNotOptimize(must(MemoryRegion::create(setting().domain, memory, bytes, access)));
  }
  return static_cast<double>(now_ns() - begun_ns) / kTimes;
}

// Says what an iteration takes in units of `unit_ns`, when it goes out of scope.
class Share {
 public:
  Share(benchmark::State& state, const char* name, double unit_ns)
      : state_(state), name_(name), unit_ns_(unit_ns) {}
  ~Share() {
    const auto each_ns = static_cast<double>(now_ns() - begun_ns_) /
                         static_cast<double>(std::max<int64_t>(state_.iterations(), 1));
    state_.counters[name_] = each_ns / unit_ns_;
  }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

 private:
  benchmark::State& state_;
  const char* const name_;
  const double unit_ns_;
  const uint64_t begun_ns_ = now_ns();
};

void hit(benchmark::State& state) {
  const auto bytes = static_cast<uint64_t>(state.range(1));
  const Pages pages(bytes);
  const unsigned access = access_of(state.range(0));
  const double plain = plain_ns(pages.data(), bytes, access);
  const auto cache = must(RegistrationCache::create(setting().domain, options_of(state.range(0))));
  RegistrationLookup lookup(*cache);
  {
    const Share share(state, "of_plain", plain);
    for (auto _ : state) benchmark::DoNotOptimize(lookup.get(pages.data(), bytes, access));
  }
  if (lookup.hits() + 2 < static_cast<uint64_t>(state.iterations())) {
    state.SkipWithError("it did not hit");
  }
}

// Of more regions than the thread's own table has room for: through the lock.
void locked_hit(benchmark::State& state) {
  constexpr uint64_t kRegions = 4096;
  const Pages pages(kRegions * kPageBytes);
  const unsigned access = access_of(state.range(0));
  const double plain = plain_ns(pages.data(), kPageBytes, access);
  const auto cache = must(RegistrationCache::create(setting().domain, options_of(state.range(0))));
  RegistrationLookup lookup(*cache);
  uint64_t page = 0;
  const auto next = [&] { return pages.data() + page++ % kRegions * kPageBytes; };
  for (uint64_t i = 0; i < kRegions; ++i) must(lookup.get(next(), 1, access));
  {
    const Share share(state, "of_plain", plain);
    for (auto _ : state) benchmark::DoNotOptimize(lookup.find(next(), 1, access));
  }
  if (lookup.hits() * 2 > static_cast<uint64_t>(state.iterations())) {
    state.SkipWithError("the thread's own table was enough");
  }
}

// Registered anew each time, as after forget().
void miss(benchmark::State& state) {
  const auto bytes = static_cast<uint64_t>(state.range(1));
  const Pages pages(bytes);
  const unsigned access = access_of(state.range(0));
  const double plain = plain_ns(pages.data(), bytes, access);
  const auto cache = must(RegistrationCache::create(setting().domain, options_of(state.range(0))));
  RegistrationLookup lookup(*cache);
  const Share share(state, "of_plain", plain);
  for (auto _ : state) {
    benchmark::DoNotOptimize(lookup.get(pages.data(), bytes, access));
    cache->forget(pages.data(), bytes);
  }
}

// A miss in a full cache of 1,024 regions, of which the one used longest ago goes.
void miss_and_eviction(benchmark::State& state) {
  constexpr uint32_t kRegions = 1024;
  const Pages pages((kRegions + 1) * kPageBytes);
  const unsigned access = access_of(state.range(0));
  const double plain = plain_ns(pages.data(), kPageBytes, access);
  RegistrationCacheOptions options = options_of(state.range(0));
  options.max_regions = kRegions;
  const auto cache = must(RegistrationCache::create(setting().domain, options));
  RegistrationLookup lookup(*cache);
  uint64_t page = 0;
  const auto next = [&] { return pages.data() + page++ % (kRegions + 1) * kPageBytes; };
  for (uint32_t i = 0; i < kRegions; ++i) must(lookup.get(next(), kPageBytes, access));
  {
    const Share share(state, "of_plain", plain);
    for (auto _ : state) benchmark::DoNotOptimize(lookup.get(next(), kPageBytes, access));
  }
  if (cache->statistics().evictions != static_cast<uint64_t>(state.iterations())) {
    state.SkipWithError("not one eviction per miss");
  }
}

// Several threads with one cache and one region: they share the word with its references.
void shared_hit(benchmark::State& state) {
  static Pages* pages;
  static std::unique_ptr<RegistrationCache> cache;
  if (state.thread_index() == 0) {
    pages = new Pages(kPageBytes);
    cache = must(RegistrationCache::create(setting().domain));
  }
  std::unique_ptr<RegistrationLookup> lookup;
  for (auto _ : state) {
    if (lookup == nullptr) lookup = std::make_unique<RegistrationLookup>(*cache);
    benchmark::DoNotOptimize(lookup->find(pages->data(), kPageBytes, 0));
  }
  lookup.reset();
  if (state.thread_index() == 0) {
    while (cache->statistics().outdated_in_use != 0) {
    }
    cache.reset();
    delete pages;
  }
}

// The copy that is saved, of as many bytes as the decision is about.
double copy_ns(uint64_t bytes) {
  constexpr int kTimes = 20'000;
  const Pages pages(2 * bytes);
  const uint64_t begun_ns = now_ns();
  for (int i = 0; i < kTimes; ++i) {
    copy_bytes(pages.data() + bytes, pages.data(), bytes);
    benchmark::ClobberMemory();
  }
  return static_cast<double>(now_ns() - begun_ns) / kTimes;
}

// Looking up one of many buffers ("bufreuse" figure 3).
void count_use(benchmark::State& state) {
  constexpr uint64_t kBytes = 8192;
  const auto buffers = static_cast<uint64_t>(state.range(1));
  const double copy = copy_ns(kBytes);
  BufferUseTable table = must(BufferUseTable::create(
      ReuseThresholds::of_paper(ReusePath::kEagerWrite),
      {.index = state.range(0) == 0 ? BufferUseIndex::kHash : BufferUseIndex::kTree,
       .max_buffers = static_cast<uint32_t>(buffers),
       .adapts = false}));
  uint64_t next = 0;
  const auto buffer = [&] {
    // In no order.
    next = (next * 5 + 1) % buffers;
    return reinterpret_cast<const void*>(0x7f0000000000u + next * kBytes);
  };
  for (uint64_t i = 0; i < buffers; ++i) table.count(buffer(), kBytes);
  const Share share(state, "of_copy", copy);
  for (auto _ : state) benchmark::DoNotOptimize(table.count(buffer(), kBytes));
}

// V of the paper's cost model: both searches, and the end of the reference.
void send_in_place(benchmark::State& state) {
  constexpr uint64_t kBytes = 8192;
  const double copy = copy_ns(kBytes);
  const Pages pages(kBytes);
  const auto cache = must(RegistrationCache::create(setting().domain, options_of(state.range(0))));
  RegistrationLookup lookup(*cache);
  BufferUseTable table =
      must(BufferUseTable::create(ReuseThresholds::of_paper(ReusePath::kEagerWrite)));
  BufferUse use;
  do use = table.count(pages.data(), kBytes);
  while (use.way == BufferUse::Way::kCopy);
  must(lookup.get(pages.data(), kBytes, access_of(state.range(0))));
  table.registered(use);
  const Share share(state, "of_copy", copy);
  for (auto _ : state) {
    benchmark::DoNotOptimize(table.count(pages.data(), kBytes));
    benchmark::DoNotOptimize(lookup.find(pages.data(), kBytes, access_of(state.range(0))));
  }
}

BENCHMARK(hit)
    ->ArgNames({"way", "bytes"})
    ->ArgsProduct({{kAddresses, kAsked, kEvents}, {4096, 65536}});
BENCHMARK(locked_hit)->ArgName("way")->Arg(kAddresses)->Arg(kAsked)->Arg(kEvents);
BENCHMARK(miss)
    ->ArgNames({"way", "bytes"})
    ->ArgsProduct({{kAddresses, kAsked, kEvents}, {4096, 65536}});
BENCHMARK(miss_and_eviction)->ArgName("way")->Arg(kAddresses)->Arg(kAsked)->Arg(kEvents);
BENCHMARK(shared_hit)->Threads(1)->Threads(2);
BENCHMARK(count_use)->ArgNames({"tree", "buffers"})->ArgsProduct({{0, 1}, {16, 1024, 65536}});
BENCHMARK(send_in_place)->ArgName("way")->Arg(kAddresses)->Arg(kEvents);

}  // namespace
}  // namespace verbena
