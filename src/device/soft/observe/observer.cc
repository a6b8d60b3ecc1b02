#include "src/device/soft/observe/observer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/base/log.h"
#include "src/device/soft/observe/roce_packet.h"

namespace verbena::soft::observe {
namespace {

constexpr const char* kTraceVariable = "VERBENA_TRACE";
constexpr const char* kPcapVariable = "VERBENA_PCAP";
constexpr const char* kSnapVariable = "VERBENA_PCAP_SNAP";
// Whole packets of the largest MTU.
constexpr uint32_t kDefaultSnapBytes = 65535;
constexpr uint32_t kLeastSnapBytes = 64;
constexpr size_t kTraceRingBytes = size_t{4} << 20;
constexpr size_t kPacketRingBytes = size_t{16} << 20;
constexpr size_t kMaxThreads = 256;
// Further threads have smaller rings: all of them together have 620 MiB.
constexpr size_t kThreadsWithLargeRings = 16;
constexpr size_t kSmallerRings = 16;
constexpr uint64_t kDrainPeriodNs = 2'000'000;
constexpr uint64_t kExitPatienceNs = 1'000'000'000;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

uint32_t snap_bytes() {
  const std::optional<std::string> text = variable(kSnapVariable);
  if (!text.has_value()) return kDefaultSnapBytes;
  char* end = nullptr;
  const unsigned long bytes = strtoul(text->c_str(), &end, 10);
  if (*end != '\0' || bytes < kLeastSnapBytes || bytes > kDefaultSnapBytes) {
    log_warning("{} is '{}'; it can be {} to {} bytes; using {}", kSnapVariable, *text,
                kLeastSnapBytes, kDefaultSnapBytes, kDefaultSnapBytes);
    return kDefaultSnapBytes;
  }
  return static_cast<uint32_t>(bytes);
}

// Not for ever: exit() may have been called by a signal handler, in a thread that holds it.
std::unique_lock<std::mutex> try_to_lock(std::mutex& mutex, uint64_t patience_ns) {
  constexpr uint64_t kBetweenTriesNs = 100'000;
  const uint64_t start_ns = machine_now_ns();
  std::unique_lock lock(mutex, std::try_to_lock);
  while (!lock.owns_lock() && machine_now_ns() - start_ns < patience_ns) {
    sleep_ns(kBetweenTriesNs);
    static_cast<void>(lock.try_lock());
  }
  return lock;
}

void thread_ended(void* rings) {
  static_cast<ThreadRings*>(rings)->in_use.store(false, std::memory_order_release);
}

}  // namespace

std::atomic<Observer*> Observer::instance{nullptr};

std::unique_ptr<Observer> Observer::make() {
  const std::optional<std::string> trace = variable(kTraceVariable);
  const std::optional<std::string> pcap = variable(kPcapVariable);
  if (!trace.has_value() && !pcap.has_value()) return nullptr;
  std::unique_ptr<Observer> made(new Observer);
  made->snap_ = {snap_bytes()};
  const auto claim = [](const std::string& pattern) {
    Result<PrivateFile> file = claim_private_file(pattern);
    if (!file.ok()) log_error("soft0: {}", file.status().message());
    return file;
  };
  if (trace.has_value()) {
    if (Result<PrivateFile> file = claim(*trace); file.ok()) made->trace_.emplace(std::move(*file));
  }
  if (pcap.has_value()) {
    if (Result<PrivateFile> file = claim(*pcap); file.ok())
      made->pcap_.emplace(std::move(*file), made->snap_.bytes);
  }
  if (!made->traces() && !made->captures()) return nullptr;
  if (pthread_key_create(&made->key_, thread_ended) != 0) {
    log_error("soft0: no key for the data of threads is left; no trace and no packets are written");
    return nullptr;
  }
  made->writer_ =
      start_thread("verbena-observe", [observer = made.get()] { observer->write_on(); });
  return made;
}

Observer* Observer::start() {
  struct FinishAtExit {
    ~FinishAtExit() {
      if (Observer* observer = instance.exchange(nullptr)) observer->finish();
    }
  };
  static std::mutex mutex;
  static bool tried = false;
  // What the parent writes is the parent's; the child's first device makes another one. In the
  // parent another thread may have held the mutex.
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    std::construct_at(&mutex);
    instance.store(nullptr);
    tried = false;
  });
  (void)registered;
  const std::lock_guard guard(mutex);
  if (Observer* known = current()) return known;
  if (std::exchange(tried, true)) return nullptr;
  Observer* made = make().release();
  if (made == nullptr) return nullptr;
  // Those that have finished, and the parent's in a forked child, stay: threads may be within.
  static Observer* latest = nullptr;
  made->former_ = std::exchange(latest, made);
  instance.store(made, std::memory_order_release);
  static FinishAtExit finish_at_exit;
  return made;
}

ThreadRings* Observer::rings() {
  if (void* known = pthread_getspecific(key_)) return static_cast<ThreadRings*>(known);
  const std::lock_guard guard(rings_mutex_);
  // Those of a thread that has ended: what it wrote is read first.
  auto free = std::find_if(rings_.begin(), rings_.end(), [](const auto& rings) {
    return !rings->in_use.load(std::memory_order_acquire);
  });
  if (free == rings_.end()) {
    if (rings_.size() == kMaxThreads) return nullptr;
    auto made = std::make_unique<ThreadRings>();
    const size_t part = rings_.size() < kThreadsWithLargeRings ? 1 : kSmallerRings;
    if (traces()) made->trace = std::make_unique<RecordRing>(kTraceRingBytes / part);
    if (captures()) made->packets = std::make_unique<RecordRing>(kPacketRingBytes / part);
    free = rings_.insert(rings_.end(), std::move(made));
  }
  (*free)->in_use.store(true, std::memory_order_relaxed);
  pthread_setspecific(key_, free->get());
  return free->get();
}

TrackedQueuePair& Observer::tracked(const Qp& qp) {
  std::atomic<TrackedQueuePair*>& place = tracked_[qp.index];
  if (TrackedQueuePair* known = place.load(std::memory_order_acquire)) return *known;
  const std::lock_guard guard(tracked_mutex_);
  if (TrackedQueuePair* known = place.load(std::memory_order_acquire)) return *known;
  auto* made = new TrackedQueuePair;
  made->number = qp.number;
  place.store(made, std::memory_order_release);
  return *made;
}

// Both who posts and who polls copies under the queue pair's mutex.
void Observer::wait_for_captures() {
  for (std::atomic<TrackedQueuePair*>& place : tracked_) {
    TrackedQueuePair* queue_pair = place.load(std::memory_order_acquire);
    if (queue_pair == nullptr) continue;
    const std::lock_guard guard(queue_pair->mutex);
  }
}

void Observer::write_on() {
  std::unique_lock lock(mutex_);
  while (!asked_.wait_for(lock, kDrainPeriodNs, [this] { return ending_; })) {
    lock.unlock();
    drain(0);
    lock.lock();
  }
}

void Observer::drain(uint64_t patience_ns) {
  read_rings(patience_ns);
  // Threads that are about to have rings do not wait for the file.
  if (traces()) trace_->flush();
  if (captures()) pcap_->flush();
}

void Observer::read_rings(uint64_t patience_ns) {
  const std::unique_lock lock = try_to_lock(rings_mutex_, patience_ns);
  if (!lock.owns_lock()) return;
  for (const std::unique_ptr<ThreadRings>& rings : rings_) {
    if (rings->trace != nullptr) {
      rings->trace->drain([this](const std::byte* bytes, uint32_t) {
        TraceRecord record;
        std::memcpy(&record, bytes, sizeof(record));
        trace_->add(record);
      });
    }
    if (rings->packets != nullptr) {
      rings->packets->drain([this](const std::byte* bytes, uint32_t) {
        PacketRecord record;
        std::memcpy(&record, bytes, sizeof(record));
        pcap_->add(record, bytes + sizeof(record));
      });
    }
  }
}

void Observer::add_unpolled() {
  const uint64_t now_ns = machine_now_ns();
  for (std::atomic<TrackedQueuePair*>& place : tracked_) {
    TrackedQueuePair* queue_pair = place.load(std::memory_order_acquire);
    if (queue_pair == nullptr) continue;
    const std::unique_lock lock(queue_pair->mutex, std::try_to_lock);
    if (!lock.owns_lock()) continue;
    for (; !queue_pair->sends.empty(); queue_pair->sends.pop()) {
      const Posted& posted = queue_pair->sends.at(0);
      trace_->add({.start_ns = posted.time_ns,
                   .end_ns = now_ns,
                   .wr_id = posted.wr_id,
                   .qp_number = queue_pair->number,
                   .bytes = posted.length_bytes,
                   .opcode = posted.opcode,
                   .status = TraceRecord::kUnpolled,
                   .receive = false});
    }
  }
}

uint64_t Observer::dropped_of(std::unique_ptr<RecordRing> ThreadRings::*ring) {
  uint64_t dropped = dropped_.load();
  const std::unique_lock lock = try_to_lock(rings_mutex_, kExitPatienceNs);
  if (!lock.owns_lock()) return dropped;
  for (const std::unique_ptr<ThreadRings>& rings : rings_) dropped += ((*rings).*ring)->dropped();
  return dropped;
}

void Observer::finish() {
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
  }
  asked_.notify_all();
  if (writer_.joinable()) writer_.join();
  drain(kExitPatienceNs);
  if (traces()) {
    add_unpolled();
    trace_->finish(dropped_of(&ThreadRings::trace));
  }
  if (captures()) pcap_->finish(dropped_of(&ThreadRings::packets));
}

}  // namespace verbena::soft::observe
