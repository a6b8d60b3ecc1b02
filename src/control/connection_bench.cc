// What a control connection costs, between two threads over the loopback interface: to make one, a
// small frame there and back, and the rates of frames one way.
#include <benchmark/benchmark.h>

#include <optional>
#include <vector>

#include "src/base/runtime.h"
#include "verbena/connection.h"

namespace verbena {
namespace {

constexpr int64_t kTimeoutNs = 60'000'000'000;

const JobSecret& secret() {
  static const JobSecret made = JobSecret::random();
  return made;
}

// Serves one connection after the other until the last one, with whom it is told to stop.
template <typename Serve>
Thread serve(ControlListener& listener, int connections, const Serve& serve_one) {
  return start_thread("server", [&listener, connections, serve_one] {
    for (int i = 0; i < connections; ++i) {
      Result<ControlConnection> connection = listener.accept(kTimeoutNs);
      if (!connection.ok()) return;
      serve_one(*connection);
    }
  });
}

ControlConnection connect_to(const ControlListener& listener) {
  return *ControlConnection::connect("127.0.0.1", listener.port(), secret(), kTimeoutNs);
}

void connect(benchmark::State& state) {
  constexpr int kAtATime = 100;
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  for (auto _ : state) {
    const Thread server = serve(listener, kAtATime, [](ControlConnection&) {});
    for (int i = 0; i < kAtATime; ++i) benchmark::DoNotOptimize(connect_to(listener));
  }
  state.SetItemsProcessed(state.iterations() * kAtATime);
}
BENCHMARK(connect)->UseRealTime();

void round_trip(benchmark::State& state) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  const Thread server = serve(listener, 1, [](ControlConnection& connection) {
    while (true) {
      const Result<std::vector<std::byte>> frame = connection.receive(kTimeoutNs);
      if (!frame.ok() || !connection.send(*frame).ok()) return;
    }
  });
  ControlConnection connection = connect_to(listener);
  const std::vector<std::byte> frame(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    if (!connection.send(frame).ok() || !connection.receive(kTimeoutNs).ok()) {
      return state.SkipWithError("the connection broke");
    }
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(round_trip)->Arg(64)->UseRealTime();

void stream(benchmark::State& state) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  const Thread server = serve(listener, 1, [](ControlConnection& connection) {
    while (connection.receive(kTimeoutNs).ok()) {
    }
  });
  ControlConnection connection = connect_to(listener);
  const std::vector<std::byte> frame(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    if (!connection.send(frame).ok()) return state.SkipWithError("the connection broke");
  }
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(stream)->Arg(64)->Arg(1 << 20)->UseRealTime();

}  // namespace
}  // namespace verbena
