// Copies whose destination lies a few bytes behind the source in its page, by memcpy() and by
// copy_bytes(): bytes per second.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "verbena/data_path.h"

namespace verbena {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Pages = std::unique_ptr<void, Free>;

Pages pages(size_t bytes) {
  constexpr size_t kPageBytes = 4096;
  const size_t room = (bytes / kPageBytes + 2) * kPageBytes;
  Pages made(std::aligned_alloc(kPageBytes, room));
  std::memset(made.get(), 1, room);
  return made;
}

template <typename Copy>
void measure(benchmark::State& state, Copy&& copy) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const Pages source = pages(bytes);
  const Pages destination = pages(bytes);
  char* const to = static_cast<char*>(destination.get()) + state.range(1);
  for (auto _ : state) {
    copy(to, source.get(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void with_memcpy(benchmark::State& state) { measure(state, std::memcpy); }
void with_copy_bytes(benchmark::State& state) { measure(state, copy_bytes); }

void arguments(benchmark::internal::Benchmark* each) {
  each->ArgNames({"bytes", "behind"})->ArgsProduct({{1024, 4096, 65536, 1 << 20}, {0, 8, 16, 64}});
}
BENCHMARK(with_memcpy)->Apply(arguments);
BENCHMARK(with_copy_bytes)->Apply(arguments);

}  // namespace
}  // namespace verbena
