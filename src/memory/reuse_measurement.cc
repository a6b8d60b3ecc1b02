#include "src/memory/reuse_measurement.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "verbena/clock.h"
#include "verbena/data_path.h"

namespace verbena {

namespace {

constexpr uint32_t kPageOfMemoryBytes = 4096;
constexpr uint32_t kFewPages = 1;
constexpr uint32_t kManyPages = 9;
constexpr uint32_t kFewBytes = 64;
constexpr uint32_t kManyBytes = 8192;
constexpr int kRounds = 9;
constexpr int kRepetitions = 256;

// The source of copies, and where they go in turn.
constexpr uint32_t kTargets = 8;
constexpr uint64_t kMemoryBytes = uint64_t{kManyPages + kTargets * 2} * kPageOfMemoryBytes;

template <typename Work>
double median_ns(int repetitions, Work&& work) {
  std::vector<double> rounds_ns;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t begun_ns = now_ns();
    for (int i = 0; i < repetitions; ++i) work(i);
    rounds_ns.push_back(static_cast<double>(now_ns() - begun_ns) / repetitions);
  }
  std::nth_element(rounds_ns.begin(), rounds_ns.begin() + kRounds / 2, rounds_ns.end());
  return rounds_ns[kRounds / 2];
}

struct Unmap {
  void operator()(char* memory) const { munmap(memory, kMemoryBytes); }
};

// A constant and a part for each unit, from what two numbers of units cost.
std::pair<double, double> line_through(double few_ns, uint32_t few, double many_ns, uint32_t many) {
  const double unit_ns = std::max(0.0, (many_ns - few_ns) / (many - few));
  return {std::max(0.0, few_ns - few * unit_ns), unit_ns};
}

}  // namespace

Result<ReuseCostModel> measure_reuse_costs(RegistrationCache& cache, unsigned access,
                                           BufferUseIndex index) {
  void* const mapped = mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot measure what registrations cost: no {} bytes of memory ({}); "
                              "free some",
                              kMemoryBytes, std::strerror(errno)));
  }
  const std::unique_ptr<char, Unmap> memory(static_cast<char*>(mapped));
  RegistrationLookup lookup(cache);
  Status failed;
  const auto register_pages = [&](uint32_t pages) {
    const uint64_t bytes = uint64_t{pages} * kPageOfMemoryBytes;
    // What ends a registration is no part of R.
    std::vector<double> rounds_ns;
    for (int round = 0; round < kRounds && failed.ok(); ++round) {
      const uint64_t begun_ns = now_ns();
      const Result<Registration> made = lookup.get(memory.get(), bytes, access);
      rounds_ns.push_back(static_cast<double>(now_ns() - begun_ns));
      if (!made.ok()) failed = made.status();
      cache.forget(memory.get(), bytes);
    }
    std::sort(rounds_ns.begin(), rounds_ns.end());
    return rounds_ns[rounds_ns.size() / 2];
  };
  ReuseCostModel costs;
  const double few_pages_ns = register_pages(kFewPages);
  std::tie(costs.registration_ns, costs.registration_page_ns) =
      line_through(few_pages_ns, kFewPages, register_pages(kManyPages), kManyPages);
  if (!failed.ok()) return failed;

  char* const targets = memory.get() + uint64_t{kManyPages} * kPageOfMemoryBytes;
  const auto copy = [&](uint32_t bytes) {
    return median_ns(kRepetitions, [&](int i) {
      copy_bytes(targets + uint64_t{kManyBytes} * (static_cast<uint32_t>(i) % kTargets),
                 memory.get(), bytes);
    });
  };
  const double few_bytes_ns = copy(kFewBytes);
  std::tie(costs.copy_ns, costs.copy_byte_ns) =
      line_through(few_bytes_ns, kFewBytes, copy(kManyBytes), kManyBytes);

  // Buffers of one page each, which are registered from their second use on.
  VERBENA_ASSIGN_OR_RETURN(
      BufferUseTable table,
      BufferUseTable::create(
          ReuseThresholds::from_costs({.registration_ns = 0, .copy_ns = 1}, /*least_bytes=*/0),
          {.index = index, .bucket_bits = 16, .max_buffers = kManyPages}));
  const auto send_in_place = [&](int i) {
    char* const buffer =
        memory.get() + uint64_t{static_cast<uint32_t>(i) % kManyPages} * kPageOfMemoryBytes;
    const BufferUse use = table.count(buffer, kPageOfMemoryBytes);
    if (use.way == BufferUse::Way::kInPlace) {
      if (!lookup.find(buffer, kPageOfMemoryBytes, access)) table.lost(use);
    } else if (use.way == BufferUse::Way::kRegister) {
      const Result<Registration> made = lookup.get(buffer, kPageOfMemoryBytes, access);
      if (made.ok()) table.registered(use);
    }
  };
  for (int i = 0; i < 2 * static_cast<int>(kManyPages); ++i) send_in_place(i);
  costs.overhead_ns = median_ns(kRepetitions, send_in_place);
  cache.forget(memory.get(), kMemoryBytes);
  return costs;
}

}  // namespace verbena
