// Tagged messages without an MPI: what one costs both ends within a process, and how fast two
// processes are, by rings and by SEND and RECV alone ("mpiiba" compares the two).
#include <benchmark/benchmark.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "verbena/data_path.h"
#include "verbena/message.h"

namespace verbena::message {
namespace {

constexpr uint64_t kMostBytes = uint64_t{4} << 20;
constexpr uint64_t kGoTag = 1;
constexpr uint64_t kPayloadTag = 2;

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

// Of a size that a slot of kLargeSlotBytes takes.
constexpr uint64_t kLargeBytes = 8192;
constexpr uint32_t kLargeSlotBytes = 8320;

MessengerOptions options_of(bool rings) {
  MessengerOptions options;
  if (!rings) options.polling_set = 0;
  return options;
}

// One end of the traffic between two messengers.
class End {
 public:
  End(Messenger& messenger, const MessengerAddress& other)
      : messenger_(messenger), peer_(must(messenger.add_peer(other))) {}

  void send(uint64_t tag, void* bytes, uint64_t size_bytes) {
    const iovec piece{bytes, size_bytes};
    while (messenger_.send({.peer = peer_,
                            .tag = tag,
                            .pieces = {&piece, 1},
                            .flags = size_bytes <= messenger_.eager_limit_bytes()
                                         ? unsigned{kMessageSilent}
                                         : 0u}) == PostResult::kWouldBlock) {
      take();
    }
    if (size_bytes > messenger_.eager_limit_bytes()) ++pending_;
  }
  void receive(uint64_t tag, void* bytes, uint64_t size_bytes) {
    const iovec piece{bytes, size_bytes};
    const PostResult posted =
        messenger_.receive({.source = peer_, .tag = tag, .pieces = {&piece, 1}});
    if (posted != PostResult::kPosted) fail("a receive was refused");
    ++pending_;
  }
  // Until all receives and long sends are done.
  void wait() {
    while (pending_ > 0) take();
  }
  void take() {
    const std::span<const MessageCompletion> done = messenger_.poll_in_place();
    for (const MessageCompletion& one : done) {
      if (one.outcome != MessageOutcome::kOk) fail("an operation failed");
    }
    pending_ -= static_cast<uint32_t>(done.size());
    messenger_.drop_completions(static_cast<uint32_t>(done.size()));
    if (!done.empty()) {
      empty_polls_ = 0;
    } else if (++empty_polls_ > kBusyPolls) {
      waiter_.idle();
    }
  }

 private:
  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
  }

  Messenger& messenger_;
  const PeerNumber peer_;
  // So many in a row are made without a pause.
  static constexpr uint32_t kBusyPolls = 64;
  uint32_t pending_ = 0;
  uint32_t empty_polls_ = 0;
  Waiter waiter_;
};

// ---- two processes ----

struct Board {
  MessengerAddress address[2];
  std::atomic<bool> told[2];  // NOLINT(conventions): between processes
  double result_s = 0;
  double lowest_s = 0;
};

struct Plan {
  bool rings;
  uint64_t bytes;
  uint32_t window;  // messages before the other side answers
  uint64_t windows;
  JobSecret secret = JobSecret::random();
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Windows of messages there, and an answer of the same size (a ping-pong) or of 8 bytes back.
void run_windows(End& end, bool first, const Plan& plan, char* payload, uint64_t windows) {
  uint64_t go = 0;
  const bool ping_pong = plan.window == 1;
  for (uint64_t i = 0; i < windows; ++i) {
    if (first) {
      end.receive(kGoTag, ping_pong ? payload : reinterpret_cast<char*>(&go),
                  ping_pong ? plan.bytes : sizeof(go));
      for (uint32_t j = 0; j < plan.window; ++j) end.send(kPayloadTag, payload, plan.bytes);
      end.wait();
    } else {
      for (uint32_t j = 0; j < plan.window; ++j) end.receive(kPayloadTag, payload, plan.bytes);
      end.wait();
      end.send(kGoTag, ping_pong ? payload : reinterpret_cast<char*>(&go),
               ping_pong ? plan.bytes : sizeof(go));
      end.wait();
    }
  }
}

void run_end(Board& board, int number, const Plan& plan) {
  constexpr int kParts = 101;
  cpu_set_t cpus;
  sched_getaffinity(0, sizeof(cpus), &cpus);
  if (CPU_COUNT(&cpus) > 1) {
    const std::vector<int> usable = usable_cpus();
    static_cast<void>(pin_this_thread(usable[static_cast<size_t>(number)]));
  }
  const Device device = must(Device::open("soft0"));
  const ProtectionDomain domain = must(ProtectionDomain::create(device));
  const auto messenger = must(open_messenger(device, domain, plan.secret, options_of(plan.rings)));
  board.address[number] = messenger->address();
  board.told[number].store(true, std::memory_order_release);
  Waiter waiter;
  while (!board.told[1 - number].load(std::memory_order_acquire)) waiter.idle();
  End end(*messenger, board.address[1 - number]);
  void* const payload = mmap(nullptr, kMostBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (payload == MAP_FAILED) std::exit(1);
  clear_bytes(payload, kMostBytes);
  std::vector<double> parts;
  run_windows(end, number == 0, plan, static_cast<char*>(payload), plan.windows / 4 + 1);
  for (int part = 0; part < kParts; ++part) {
    const uint64_t begun_ns = now_ns();
    run_windows(end, number == 0, plan, static_cast<char*>(payload), plan.windows);
    parts.push_back(static_cast<double>(now_ns() - begun_ns) / 1e9);
  }
  if (number != 0) return;
  board.result_s = median(parts);
  board.lowest_s = *std::min_element(parts.begin(), parts.end());
}

// One side ends with the other; what either has to say it has said.
bool run_both(Board& board, const Plan& plan) {
  pid_t pids[2];
  for (int number = 0; number < 2; ++number) {
    pids[number] = fork();  // NOLINT(conventions): before there are threads
    if (pids[number] != 0) continue;
    run_end(board, number, plan);
    std::exit(0);
  }
  bool good = true;
  for (int i = 0; i < 2; ++i) {
    int state = 0;
    const pid_t ended = wait(&state);
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0) continue;
    good = false;
    kill(ended == pids[0] ? pids[1] : pids[0], SIGKILL);
  }
  return good;
}

void two_processes(benchmark::State& state, bool rings, uint64_t bytes, uint32_t window) {
  Plan plan{.rings = rings, .bytes = bytes, .window = window, .windows = 0};
  constexpr uint64_t kBytesOfPart = 10'000'000;
  const uint64_t messages = std::min<uint64_t>(5'000, kBytesOfPart / bytes);
  plan.windows = std::max<uint64_t>(messages / window, 2);
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return state.SkipWithError("mmap failed");
  for (auto _ : state) {
    Board& board = *new (memory) Board{};
    if (!run_both(board, plan)) {
      state.SkipWithError("a process failed");
      break;
    }
    // One way: half of a round trip.
    const double all = static_cast<double>(plan.windows) * (window == 1 ? 2 : window);
    state.SetIterationTime(board.result_s / all);
    state.counters["B/s"] = static_cast<double>(bytes) * all / board.result_s;
    state.counters["lowest_ns"] = board.lowest_s / all * 1e9;
    state.counters["messages/s"] = all / board.result_s;
  }
  munmap(memory, sizeof(Board));
}

// ---- one process: no waiting, so its instructions can be counted ----

void within_process(benchmark::State& state, bool rings) {
  const JobSecret secret = JobSecret::random();
  const Device device = must(Device::open("soft0"));
  const ProtectionDomain domain = must(ProtectionDomain::create(device));
  const auto one = must(open_messenger(device, domain, secret, options_of(rings)));
  const auto other = must(open_messenger(device, domain, secret, options_of(rings)));
  End here(*one, other->address());
  End there(*other, one->address());
  const auto bytes = static_cast<uint64_t>(state.range(0));
  std::vector<char> payload(bytes);
  const auto pass = [&](End& from, End& to) {
    to.receive(kPayloadTag, payload.data(), bytes);
    from.send(kPayloadTag, payload.data(), bytes);
    to.wait();
  };
  // Connections are made by the first messages, of which both ends must hear at the same time.
  Thread helper = start_thread("helper", [&] {
    there.receive(kGoTag, payload.data(), bytes);
    there.wait();
    there.send(kGoTag, payload.data(), bytes);
  });
  here.receive(kGoTag, payload.data(), bytes);
  here.send(kGoTag, payload.data(), bytes);
  here.wait();
  helper.join();
  for (int i = 0; i < 2000; ++i) {
    pass(here, there);
    pass(there, here);
  }
  for (auto _ : state) {
    pass(here, there);
    pass(there, here);
  }
  state.SetItemsProcessed(2 * static_cast<int64_t>(state.iterations()));
}

// One there, and its completions. In a function of its own, so that its instructions can be counted
// by its name (callgrind --toggle-collect).
[[gnu::noinline]] void exchange_one(Messenger& from, PeerNumber to_peer, Messenger& to, char* bytes,
                                    uint64_t size_bytes, char* into) {
  const iovec target{into, size_bytes};
  const iovec source{bytes, size_bytes};
  uint32_t awaited = 2;
  if (to.receive({.tag = kPayloadTag, .pieces = {&target, 1}}) != PostResult::kPosted) std::exit(1);
  while (from.send({.peer = to_peer, .tag = kPayloadTag, .pieces = {&source, 1}}) !=
         PostResult::kPosted) {
    from.progress();
    to.progress();
  }
  while (awaited > 0) {
    MessageCompletion done[2];
    awaited -= to.poll(done) + from.poll(done);
  }
}

// Large short messages from one buffer, or each from an address that none came from before: what
// the table of used buffers saves and costs.
void of_buffers(benchmark::State& state, ReusedBuffers reused, bool fresh, uint64_t bytes) {
  constexpr uint64_t kStride = 64;
  const auto count = static_cast<uint64_t>(state.max_iterations) + 1;
  const JobSecret secret = JobSecret::random();
  const Device device = must(Device::open("soft0"));
  const ProtectionDomain domain = must(ProtectionDomain::create(device));
  MessengerOptions options;
  options.slot_bytes = kLargeSlotBytes;
  options.reused_buffers = reused;
  const auto one = must(open_messenger(device, domain, secret, options));
  const auto other = must(open_messenger(device, domain, secret, options));
  const PeerNumber peer = must(one->add_peer(other->address()));
  static_cast<void>(must(other->add_peer(one->address())));
  std::vector<char> payload(bytes + (fresh ? count * kStride : 0), 'p');
  std::vector<char> into(bytes);
  // Long enough for a ring, for the thresholds, and for a table of fresh buffers to be closed.
  std::vector<char> before(bytes + 4000 * kStride, 'b');
  for (uint64_t i = 0; i < 4000; ++i) {
    exchange_one(*one, peer, *other, fresh ? before.data() + i * kStride : payload.data(), bytes,
                 into.data());
  }
  const uint64_t gathered = one->statistics().gathered;
  uint64_t at = 0;
  for (auto _ : state) {
    exchange_one(*one, peer, *other, payload.data() + (fresh ? at++ * kStride : 0), bytes,
                 into.data());
  }
  state.counters["gathered"] = static_cast<double>(one->statistics().gathered - gathered) /
                               static_cast<double>(state.iterations());
}

// Those of two processes first: their processes are to begin without an open device.
const bool kRegistered = [] {
  for (const bool rings : {true, false}) {
    const std::string channel = rings ? "ring" : "send";
    for (const uint64_t bytes : {8, 64, 1024, 2048, 65536, 1 << 20}) {
      benchmark::RegisterBenchmark(("ping_pong/" + channel + "/" + std::to_string(bytes)).c_str(),
                                   two_processes, rings, bytes, 1u)
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kNanosecond);
      benchmark::RegisterBenchmark(("windows/" + channel + "/" + std::to_string(bytes)).c_str(),
                                   two_processes, rings, bytes, 64u)
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kNanosecond);
    }
  }
  for (const bool rings : {true, false}) {
    benchmark::RegisterBenchmark(rings ? "within_process/ring" : "within_process/send",
                                 within_process, rings)
        ->Arg(8)
        ->Arg(1024);
  }
  for (const bool fresh : {false, true}) {
    for (const uint64_t bytes : {uint64_t{8}, kLargeBytes}) {
      for (const ReusedBuffers reused :
           {ReusedBuffers::kCopied, ReusedBuffers::kMeasured, ReusedBuffers::kPaper}) {
        const char* const name = reused == ReusedBuffers::kCopied     ? "copied/"
                                 : reused == ReusedBuffers::kMeasured ? "measured/"
                                                                      : "paper/";
        benchmark::RegisterBenchmark(
            ((fresh ? "fresh_buffers/" : "one_buffer/") + std::string(name) + std::to_string(bytes))
                .c_str(),
            of_buffers, reused, fresh, bytes)
            ->Iterations(20'000);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace verbena::message
