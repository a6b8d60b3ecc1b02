// What the software RNIC's calls cost within one process; how fast two processes are is measured
// by `make bench-peers`.
#include <benchmark/benchmark.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "verbena/device.h"

namespace verbena::soft {
namespace {

constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr size_t kPageBytes = 4096;
constexpr size_t kGiB = size_t{1} << 30;

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

struct Node {
  Device device = must(Device::open("soft0"));
  ProtectionDomain domain = must(ProtectionDomain::create(device));
};

Node& node() {
  static auto* node = new Node;
  return *node;
}

void register_pages_again(benchmark::State& state) {
  static std::byte memory[2 * kPageBytes];
  const MemoryRegion first = must(MemoryRegion::create(node().domain, memory, kPageBytes, kAccess));
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        must(MemoryRegion::create(node().domain, memory, kPageBytes, kAccess)));
  }
}
BENCHMARK(register_pages_again)->Name("reg_mr+dereg_mr/4KiB_converted");

// The same buffer again and again, whose pages hold data: converted and turned back each time.
void register_and_deregister(benchmark::State& state) {
  const auto size = static_cast<size_t>(state.range(0));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    state.SkipWithError("mmap failed");
    return;
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(must(MemoryRegion::create(node().domain, memory, size, kAccess)));
  }
  munmap(memory, size);
}
BENCHMARK(register_and_deregister)
    ->Name("reg_mr+dereg_mr/same")
    ->Arg(kPageBytes)
    ->Arg(size_t{1} << 20)
    ->Arg(kGiB)
    ->UseRealTime();

// Pages that hold data, registered for the first time.
void register_new_pages(benchmark::State& state) {
  const auto size = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    state.PauseTiming();
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      state.SkipWithError("mmap failed");
      return;
    }
    for (size_t at = 0; at < size; at += kPageBytes) static_cast<char*>(memory)[at] = 1;
    state.ResumeTiming();
    std::optional<MemoryRegion> region(
        must(MemoryRegion::create(node().domain, memory, size, kAccess)));
    state.PauseTiming();
    region.reset();
    munmap(memory, size);
    state.ResumeTiming();
  }
  state.SetBytesProcessed(static_cast<int64_t>(size) * state.iterations());
}
BENCHMARK(register_new_pages)->Name("reg_mr/new")->Arg(kPageBytes)->Arg(1 << 20)->UseRealTime();
BENCHMARK(register_new_pages)
    ->Name("reg_mr/new")
    ->Arg(kGiB)
    ->Iterations(3)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Two connected queue pairs.
struct Pair {
  CompletionQueue cq = must(CompletionQueue::create(node().device, {.depth_cqes = 256}));
  CompletionQueue peer_cq = must(CompletionQueue::create(node().device, {.depth_cqes = 256}));
  QueuePair queue_pair = must(
      QueuePair::create(node().domain, {.send_cq = &cq, .recv_cq = &cq, .max_inline_bytes = 64}));
  QueuePair peer =
      must(QueuePair::create(node().domain, {.send_cq = &peer_cq, .recv_cq = &peer_cq}));
  std::vector<std::byte> memory = std::vector<std::byte>(2 << 20);
  MemoryRegion region =
      must(MemoryRegion::create(node().domain, memory.data(), memory.size(), kAccess));

  Pair() {
    const bool connected = queue_pair.init(kAccess).ok() && peer.init(kAccess).ok() &&
                           queue_pair.connect(must(peer.address())).ok() &&
                           peer.connect(must(queue_pair.address())).ok();
    if (!connected) std::exit(1);
  }
  ibv_sge sge(size_t offset, size_t length_bytes) const {
    return {reinterpret_cast<uint64_t>(memory.data()) + offset, static_cast<uint32_t>(length_bytes),
            region.lkey()};
  }
};

void take(ibv_cq* cq) {
  ibv_wc wc;
  while (ibv_poll_cq(cq, 1, &wc) == 0) {
  }
  if (wc.status != IBV_WC_SUCCESS) std::exit(1);
}

// One signaled work request and its completion, at the receiver too where there is one.
void post_and_poll(benchmark::State& state, ibv_wr_opcode opcode) {
  Pair pair;
  const auto size = static_cast<size_t>(state.range(0));
  ibv_sge source = pair.sge(0, size);
  ibv_sge landing = pair.sge(1 << 20, size);
  ibv_recv_wr receive{.wr_id = 0, .next = nullptr, .sg_list = &landing, .num_sge = 1};
  ibv_send_wr wr{};
  wr.sg_list = &source;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic = {
        .remote_addr = landing.addr, .compare_add = 1, .swap = 0, .rkey = pair.region.rkey()};
  } else {
    wr.wr.rdma = {.remote_addr = landing.addr, .rkey = pair.region.rkey()};
  }
  ibv_send_wr* bad_send = nullptr;
  ibv_recv_wr* bad_receive = nullptr;
  for (auto _ : state) {
    if (opcode == IBV_WR_SEND) ibv_post_recv(pair.peer.get(), &receive, &bad_receive);
    ibv_post_send(pair.queue_pair.get(), &wr, &bad_send);
    take(pair.cq.get());
    if (opcode == IBV_WR_SEND) take(pair.peer_cq.get());
  }
  state.SetBytesProcessed(static_cast<int64_t>(size) * state.iterations());
}
BENCHMARK_CAPTURE(post_and_poll, write, IBV_WR_RDMA_WRITE)->Arg(8)->Arg(4096)->Arg(1 << 20);
BENCHMARK_CAPTURE(post_and_poll, send, IBV_WR_SEND)->Arg(8)->Arg(4096)->Arg(1 << 20);
BENCHMARK_CAPTURE(post_and_poll, read, IBV_WR_RDMA_READ)->Arg(8)->Arg(4096)->Arg(1 << 20);
BENCHMARK_CAPTURE(post_and_poll, fetch_and_add, IBV_WR_ATOMIC_FETCH_AND_ADD)->Arg(8);

// A value that was stored just before, as most small messages are.
void write_fresh_value(benchmark::State& state) {
  Pair pair;
  ibv_sge source = pair.sge(0, 8);
  ibv_send_wr wr{};
  wr.sg_list = &source;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma = {.remote_addr = pair.sge(1 << 20, 8).addr, .rkey = pair.region.rkey()};
  ibv_send_wr* bad = nullptr;
  uint64_t count = 0;
  for (auto _ : state) {
    const bool signaled = ++count % 64 == 0;
    wr.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
    memcpy(pair.memory.data(), &count, sizeof(count));
    ibv_post_send(pair.queue_pair.get(), &wr, &bad);
    if (signaled) take(pair.cq.get());
  }
}
BENCHMARK(write_fresh_value)->Name("post_send/write_8B_just_stored_unsignaled");

// The least there is: no completion.
void post_inline_write(benchmark::State& state) {
  Pair pair;
  uint64_t value = 0;
  ibv_sge source{reinterpret_cast<uint64_t>(&value), sizeof(value), 0};
  ibv_send_wr wr{};
  wr.sg_list = &source;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.wr.rdma = {.remote_addr = pair.sge(0, 8).addr, .rkey = pair.region.rkey()};
  ibv_send_wr* bad = nullptr;
  uint64_t count = 0;
  for (auto _ : state) {
    const bool signaled = ++count % 64 == 0;
    wr.send_flags = IBV_SEND_INLINE | (signaled ? IBV_SEND_SIGNALED : 0);
    ibv_post_send(pair.queue_pair.get(), &wr, &bad);
    if (signaled) take(pair.cq.get());
  }
}
BENCHMARK(post_inline_write)->Name("post_send/write_inline_8B_unsignaled");

// A short SEND that leaves no completion, and the poll that takes it at the receiver.
void send_inline(benchmark::State& state) {
  Pair pair;
  uint64_t value = 0;
  ibv_sge source{reinterpret_cast<uint64_t>(&value), sizeof(value), 0};
  ibv_sge landing = pair.sge(1 << 20, sizeof(value));
  ibv_recv_wr receive{.wr_id = 0, .next = nullptr, .sg_list = &landing, .num_sge = 1};
  ibv_send_wr wr{};
  wr.sg_list = &source;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  ibv_send_wr* bad_send = nullptr;
  ibv_recv_wr* bad_receive = nullptr;
  uint64_t count = 0;
  for (auto _ : state) {
    const bool signaled = ++count % 64 == 0;
    wr.send_flags = IBV_SEND_INLINE | (signaled ? IBV_SEND_SIGNALED : 0);
    ibv_post_recv(pair.peer.get(), &receive, &bad_receive);
    ibv_post_send(pair.queue_pair.get(), &wr, &bad_send);
    take(pair.peer_cq.get());
    if (signaled) take(pair.cq.get());
  }
}
BENCHMARK(send_inline)->Name("post_send+poll_cq/send_inline_8B_unsignaled");

// What a poll costs that finds nothing, with so many connected queue pairs on the queue.
void poll_empty(benchmark::State& state) {
  const CompletionQueue cq = must(CompletionQueue::create(node().device, {.depth_cqes = 256}));
  std::vector<QueuePair> queue_pairs;
  const QueuePairOptions options{
      .send_cq = &cq, .recv_cq = &cq, .send_depth_wrs = 4, .recv_depth_wrs = 4};
  for (int64_t i = 0; i < state.range(0); ++i) {
    queue_pairs.push_back(must(QueuePair::create(node().domain, options)));
    const bool connected = queue_pairs.back().init(kAccess).ok() &&
                           queue_pairs.back().connect(must(queue_pairs.back().address())).ok();
    if (!connected) std::exit(1);
  }
  ibv_wc wc;
  for (auto _ : state) benchmark::DoNotOptimize(ibv_poll_cq(cq.get(), 1, &wc));
}
BENCHMARK(poll_empty)->Arg(1)->Arg(8)->Arg(64)->Arg(512);

}  // namespace
}  // namespace verbena::soft
