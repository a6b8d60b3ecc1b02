#include "src/device/soft/observe/counter_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "src/base/assert.h"
#include "src/base/file_descriptor.h"
#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/directory_files.h"
#include "src/device/soft/registry.h"

namespace verbena::soft {
namespace {

constexpr uint64_t kCountersMagic = 0x32736f4362725600;  // another layout has another one
constexpr const char* kSumName = "counters.sum";
constexpr size_t kCountersHeadBytes = 4096;
// Space is reserved by so many queue pairs at a time.
constexpr uint32_t kReservedTogether = 64;
// Of reading while others are summed up.
constexpr int kReadAttempts = 8;

struct CountersHead {
  uint64_t magic;
  uint64_t id;  // of the file: no two have the same
  int32_t pid;
  uint32_t slot;
  std::atomic<uint32_t> used;  // queue pairs below this index were there
  char name[32];
  QpCounters gone;  // of queue pairs whose place another one has
};
static_assert(sizeof(CountersHead) <= kCountersHeadBytes);

struct CounterSum {
  uint64_t magic;
  uint64_t last_id;  // of the file that was added last
  Counts counts;
};

constexpr int kLookFlagsOfCounters = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

std::string counters_name(uint32_t slot) { return fmt::format("counters.{}", slot); }

// The slot in a file's name; 0 if it is none of these.
uint32_t slot_in(const char* name) {
  uint32_t slot = 0;
  int end = 0;
  if (sscanf(name, "counters.%u%n", &slot, &end) != 1 || name[end] != '\0') return 0;
  return slot < kMaxProcesses ? slot : 0;
}

void add(Counts& sum, const Counts& more) {
  for (uint32_t i = 0; i < kCountedOpcodes; ++i) sum.requests[i] += more.requests[i];
  sum.bytes += more.bytes;
  sum.errors += more.errors;
  sum.waits += more.waits;
  sum.received += more.received;
  sum.received_bytes += more.received_bytes;
  sum.receive_errors += more.receive_errors;
  sum.dropped += more.dropped;
}

Counts counts_of(const QpCounters& from) {
  Counts counts{};
  for (uint32_t i = 0; i < kCountedOpcodes; ++i) {
    counts.requests[i] = load_relaxed(&from.requests[i]);
  }
  counts.bytes = load_relaxed(&from.bytes);
  counts.errors = load_relaxed(&from.errors);
  counts.waits = load_relaxed(&from.waits);
  counts.received = load_relaxed(&from.received);
  counts.received_bytes = load_relaxed(&from.received_bytes);
  counts.receive_errors = load_relaxed(&from.receive_errors);
  counts.dropped = load_relaxed(&from.dropped) + load_relaxed(&from.receive_dropped);
  return counts;
}

// For a queue pair that comes to have the place of a former one.
void move_counts(QpCounters& from, QpCounters& to) {
  const auto move = [](uint64_t& source, uint64_t& sum) {
    store_relaxed(&sum, sum + source);
    store_relaxed(&source, uint64_t{0});
  };
  for (uint32_t i = 0; i < kCountedOpcodes; ++i) move(from.requests[i], to.requests[i]);
  move(from.bytes, to.bytes);
  move(from.errors, to.errors);
  move(from.waits, to.waits);
  move(from.received, to.received);
  move(from.received_bytes, to.received_bytes);
  move(from.receive_errors, to.receive_errors);
  move(from.dropped, to.dropped);
  move(from.receive_dropped, to.receive_dropped);
}

std::vector<uint32_t> slots_with_counters(int directory_fd) {
  std::vector<uint32_t> slots;
  for_each_file(directory_fd, [&slots](const char* name) {
    if (const uint32_t slot = slot_in(name); slot != 0) slots.push_back(slot);
    return true;
  });
  std::sort(slots.begin(), slots.end());
  return slots;
}

// What one file has. Nothing in it is believed but that it is numbers.
struct ReadFile {
  uint64_t id = 0;
  WatchedProcess process{};
  std::vector<WatchedQueuePair> queue_pairs;
};

bool read_file(int directory_fd, uint32_t slot, ReadFile& read) {
  const FileDescriptor file(
      openat(directory_fd, counters_name(slot).c_str(), kLookFlagsOfCounters));
  alignas(CountersHead) std::byte bytes[sizeof(CountersHead)];
  if (!file.valid() || pread(file.get(), bytes, sizeof(bytes), 0) != sizeof(bytes)) return false;
  const auto& head = *reinterpret_cast<const CountersHead*>(bytes);
  if (head.magic != kCountersMagic || head.slot != slot) return false;
  read.id = head.id;
  WatchedProcess& process = read.process;
  process.pid = head.pid;
  process.slot = slot;
  std::memcpy(process.name, head.name, sizeof(process.name));
  process.name[sizeof(process.name) - 1] = '\0';
  add(process.counts, counts_of(head.gone));
  const uint32_t used = std::min(head.used.load(std::memory_order_relaxed), kMaxQueuePairs);
  auto some = std::make_unique<QpCounters[]>(kReservedTogether);
  for (uint32_t first = 0; first < used; first += kReservedTogether) {
    const uint32_t count = std::min(kReservedTogether, used - first);
    const ssize_t got =
        pread(file.get(), static_cast<void*>(some.get()), count * sizeof(QpCounters),
              static_cast<off_t>(kCountersHeadBytes + first * sizeof(QpCounters)));
    if (got != static_cast<ssize_t>(count * sizeof(QpCounters))) break;
    for (uint32_t i = 0; i < count; ++i) {
      const QpCounters& from = some[i];
      const Counts counts = counts_of(from);
      add(process.counts, counts);
      const uint32_t number = from.number.load(std::memory_order_relaxed);
      if (number == 0) continue;
      ++process.queue_pairs;
      read.queue_pairs.push_back({.pid = process.pid,
                                  .number = number,
                                  .peer = from.peer.load(std::memory_order_relaxed),
                                  .transport = from.transport.load(std::memory_order_relaxed),
                                  .state = from.state.load(std::memory_order_relaxed),
                                  .counts = counts});
    }
  }
  return true;
}

CounterSum read_sum(int directory_fd) {
  CounterSum sum{};
  const FileDescriptor file(openat(directory_fd, kSumName, kLookFlagsOfCounters));
  if (!file.valid() || pread(file.get(), &sum, sizeof(sum), 0) != sizeof(sum) ||
      sum.magic != kCountersMagic) {
    sum = {};
  }
  sum.magic = kCountersMagic;
  return sum;
}

bool write_sum(int directory_fd, const CounterSum& sum) {
  const FileDescriptor file(
      openat(directory_fd, kSumName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  return file.valid() && pwrite(file.get(), &sum, sizeof(sum), 0) == sizeof(sum);
}

bool remove(int directory_fd, uint32_t slot) {
  return unlinkat(directory_fd, counters_name(slot).c_str(), 0) == 0 || errno == ENOENT;
}

// Removes the file that was added last, if who added it ended before that. False if it stays.
bool remove_added(const Registry& registry) {
  const int directory = registry.directory_fd();
  const CounterSum sum = read_sum(directory);
  for (const uint32_t slot : slots_with_counters(directory)) {
    ReadFile ended;
    if (!registry.taken(slot) && read_file(directory, slot, ended) && ended.id == sum.last_id) {
      return remove(directory, slot);
    }
  }
  return true;
}

// As "ps" names this process.
void put_own_name(char* name, size_t size_bytes) {
  const FileDescriptor file(open("/proc/self/comm", O_RDONLY | O_CLOEXEC));
  const ssize_t got = file.valid() ? read(file.get(), name, size_bytes - 1) : 0;
  name[std::max<ssize_t>(got, 0)] = '\0';
  name[std::strcspn(name, "\n")] = '\0';
}

}  // namespace

struct CounterFile::Place {
  CountersHead head;
  std::byte rest[kCountersHeadBytes - sizeof(CountersHead)];
  QpCounters queue_pairs[kMaxQueuePairs];
};

CounterFile::CounterFile(const Registry& registry, uint32_t slot) {
  if (const Status made = make(registry, slot); !made.ok()) log_info("{}", made.message());
}

Status CounterFile::make(const Registry& registry, uint32_t slot) {
  const std::string name = counters_name(slot);
  const auto cannot = [&](const char* what) {
    const int error = errno;
    unlinkat(registry.directory_fd(), name.c_str(), 0);
    return Status(StatusCode::kUnavailable,
                  fmt::format("soft0: cannot {} {}/{}: {}; what this process does is not counted "
                              "where others see it; free some space there",
                              what, registry.path(), name, strerror(error)));
  };
  const FileDescriptor file(openat(registry.directory_fd(), name.c_str(),
                                   O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return cannot("make");
  if (ftruncate(file.get(), sizeof(Place)) != 0) return cannot("size");
  if (const int error = posix_fallocate(file.get(), 0, kCountersHeadBytes); error != 0) {
    errno = error;
    return cannot("reserve space in");
  }
  void* mapped = mmap(nullptr, sizeof(Place), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return cannot("map");
  // Space in it is still to be reserved.
  fd_ = duplicate_out_of_the_way(file.get());
  file_ = KnownFile(fd_);
  place_ = static_cast<Place*>(mapped);
  place_->head.id = machine_now_ns() << 10 | slot;
  place_->head.pid = getpid();
  place_->head.slot = slot;
  put_own_name(place_->head.name, sizeof(place_->head.name));
  store_release(&place_->head.magic, kCountersMagic);
  return {};
}

CounterFile::~CounterFile() {
  if (place_ != nullptr) munmap(static_cast<void*>(place_), sizeof(Place));
  if (file_.is_at(fd_)) close(fd_);
}

// Without its space reserved, a page of the file would end the process where memory is short.
bool CounterFile::reserve(uint32_t index) {
  if (place_ == nullptr || fd_ < 0) return false;
  if (index < reserved_) return true;
  const uint32_t up_to =
      std::min((index / kReservedTogether + 1) * kReservedTogether, kMaxQueuePairs);
  const auto offset = static_cast<off_t>(kCountersHeadBytes + reserved_ * sizeof(QpCounters));
  const auto size = static_cast<off_t>((up_to - reserved_) * sizeof(QpCounters));
  // The program may have closed it, and opened a file of its own by this number.
  if (!file_.is_at(fd_) || posix_fallocate(fd_, offset, size) != 0) return false;
  reserved_ = up_to;
  return true;
}

QpCounters& CounterFile::enter(uint32_t index, uint32_t qp_number, Transport transport) {
  VERBENA_ASSERT(index < kMaxQueuePairs);
  QpCounters* counters = nullptr;
  if (reserve(index)) {
    counters = &place_->queue_pairs[index];
    move_counts(*counters, place_->head.gone);
    if (index >= place_->head.used.load(std::memory_order_relaxed)) {
      place_->head.used.store(index + 1, std::memory_order_relaxed);
    }
  } else {
    counters = own_.emplace_back(std::make_unique<QpCounters>()).get();
  }
  counters->peer.store(0, std::memory_order_relaxed);
  counters->transport.store(static_cast<uint16_t>(transport), std::memory_order_relaxed);
  counters->state.store(0, std::memory_order_relaxed);
  counters->number.store(qp_number, std::memory_order_release);
  return *counters;
}

void sum_up_ended_counters(const Registry& registry) {
  const int directory = registry.directory_fd();
  // The sum knows only the file that was added last, so that one has to be gone before another is
  // added.
  if (!remove_added(registry)) return;
  for (const uint32_t slot : slots_with_counters(directory)) {
    if (registry.taken(slot)) continue;
    ReadFile ended;
    const bool counted = read_file(directory, slot, ended);
    if (counted) {
      CounterSum sum = read_sum(directory);
      add(sum.counts, ended.process.counts);
      sum.last_id = ended.id;
      if (!write_sum(directory, sum)) continue;
    }
    if (!remove(directory, slot) && counted) return;
  }
}

Status read_counters(const Registry& registry,
                     const std::function<void(const WatchedProcess&)>& process,
                     const std::function<void(const WatchedQueuePair&)>& queue_pair,
                     Counts& device) {
  const int directory = registry.directory_fd();
  std::vector<ReadFile> files;
  CounterSum sum{};
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    sum = read_sum(directory);
    files.clear();
    for (const uint32_t slot : slots_with_counters(directory)) {
      ReadFile file;
      if (read_file(directory, slot, file) && file.id != sum.last_id) {
        file.process.living = registry.taken(slot) ? 1 : 0;
        files.push_back(std::move(file));
      }
    }
    if (read_sum(directory).last_id == sum.last_id) break;
  }
  device = sum.counts;
  for (const ReadFile& file : files) {
    add(device, file.process.counts);
    process(file.process);
    for (const WatchedQueuePair& watched : file.queue_pairs) queue_pair(watched);
  }
  return {};
}

}  // namespace verbena::soft
