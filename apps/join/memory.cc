#include "join/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "verbena/data_path.h"

namespace verbena::join_app {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// The value of a line "Name:  123 kB" in a file of /proc; `otherwise` if there is none.
uint64_t proc_bytes(const char* path, const std::string& name, uint64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  uint64_t kib = 0;
  while (file >> word) {
    if (word == name && file >> kib) return kib * 1024;
  }
  return otherwise;
}

// A number in a file of a control group; "max" and no file at all are no limit.
uint64_t group_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : UINT64_MAX;
}

// What the control groups of the process (version 2) have left, from its own up to the root.
uint64_t group_bytes() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  uint64_t left = UINT64_MAX;
  while (std::getline(file, line)) {
    if (!line.starts_with("0::/")) continue;
    for (std::string group = line.substr(3);;) {
      const std::string folder = "/sys/fs/cgroup" + group;
      const uint64_t most = group_number(folder + "/memory.max");
      const uint64_t used = group_number(folder + "/memory.current");
      if (most != UINT64_MAX && used != UINT64_MAX)
        left = std::min(left, most - std::min(used, most));
      if (group.empty() || group == "/") break;
      group.resize(group.find_last_of('/'));
    }
  }
  return left;
}

// Large blocks that were freed, for those that come next: zeroing the pages of a join's memory
// takes the system up to as long as the join. Until a page is written again, the system may have
// it.
class KeptBlocks {
 public:
  static KeptBlocks& instance() {
    static KeptBlocks* const kept = new KeptBlocks;  // blocks may be freed at the very end
    return *kept;
  }

  // The smallest block of that size or up to an eighth more; null if there is none.
  void* take(uint64_t size_bytes, uint64_t* capacity_bytes) {
    const std::lock_guard guard(mutex_);
    auto best = blocks_.end();
    for (auto one = blocks_.begin(); one != blocks_.end(); ++one) {
      if (one->bytes < size_bytes || one->bytes > size_bytes + size_bytes / 8) continue;
      if (best == blocks_.end() || one->bytes < best->bytes) best = one;
    }
    if (best == blocks_.end()) return nullptr;
    const Kept found = *best;
    *best = blocks_.back();
    blocks_.pop_back();
    bytes_ -= found.bytes;
    *capacity_bytes = found.bytes;
    return found.data;
  }
  // False: there is no room.
  bool keep(void* data, uint64_t bytes) {
    const std::lock_guard guard(mutex_);
    if (blocks_.size() == kMostBlocks || bytes > kMostKeptBytes - bytes_ ||
        ::madvise(data, bytes, MADV_FREE) != 0) {
      return false;
    }
    blocks_.push_back({data, bytes});
    bytes_ += bytes;
    return true;
  }
  void drop() {
    const std::lock_guard guard(mutex_);
    for (const Kept& one : blocks_) ::munmap(one.data, one.bytes);
    blocks_.clear();
    bytes_ = 0;
  }
  uint64_t bytes() {
    const std::lock_guard guard(mutex_);
    return bytes_;
  }

 private:
  static constexpr size_t kMostBlocks = 1024;
  struct Kept {
    void* data;
    uint64_t bytes;
  };

  KeptBlocks() { blocks_.reserve(kMostBlocks); }

  std::mutex mutex_;
  std::vector<Kept> blocks_;
  uint64_t bytes_ = 0;
};

uint64_t plus(uint64_t bytes, uint64_t more) {
  return bytes > UINT64_MAX - more ? UINT64_MAX : bytes + more;
}

uint64_t address_space_bytes() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
  const uint64_t used = proc_bytes("/proc/self/status", "VmSize:", 0);
  return limit.rlim_cur - std::min<uint64_t>(used, limit.rlim_cur);
}

}  // namespace

uint64_t available_memory_bytes() {
  // What is kept can be had again; the machine's number has it already.
  const uint64_t kept_bytes = kept_memory_bytes();
  return std::min({proc_bytes("/proc/meminfo", "MemAvailable:", UINT64_MAX),
                   plus(group_bytes(), kept_bytes), plus(address_space_bytes(), kept_bytes)});
}

uint64_t kept_memory_bytes() { return KeptBlocks::instance().bytes(); }
void drop_kept_memory() { KeptBlocks::instance().drop(); }

MemoryBudget::MemoryBudget(uint64_t limit_bytes)
    : measured_(limit_bytes == 0),
      limit_bytes_(measured_ ? available_memory_bytes() / 5 * 4 : limit_bytes) {}

Status MemoryBudget::take_input(uint64_t bytes, const std::string& what) {
  // It is allocated already; what matters is what is left beside it.
  if (measured_) {
    limit_bytes_ = used_bytes_ + bytes + available_memory_bytes() / 5 * 4;
    // A stream that goes on needs at least as much as its last batch.
    if (limit_bytes_ - used_bytes_ - bytes < bytes) return refusal(2 * bytes, what);
  }
  return take(bytes, what);
}

bool MemoryBudget::take(uint64_t bytes) {
  const uint64_t before = fetch_and_add_word(&used_bytes_, bytes);
  if (bytes > limit_bytes_ || before > limit_bytes_ - bytes) {
    give_back(bytes);
    return false;
  }
  uint64_t peak = compare_and_swap_word(&peak_bytes_, uint64_t{0}, before + bytes);
  while (peak < before + bytes) {
    const uint64_t found = compare_and_swap_word(&peak_bytes_, peak, before + bytes);
    if (found == peak) break;
    peak = found;
  }
  return true;
}

Status MemoryBudget::take(uint64_t bytes, const std::string& what) {
  return take(bytes) ? Status::ok_status() : refusal(bytes, what);
}

void MemoryBudget::give_back(uint64_t bytes) { fetch_and_add_word(&used_bytes_, 0 - bytes); }

bool MemoryBudget::has(uint64_t bytes) const {
  return bytes <= limit_bytes_ && used_bytes() <= limit_bytes_ - bytes;
}

Status MemoryBudget::refusal(uint64_t bytes, const std::string& what) const {
  return Status(
      StatusCode::kLimitExceeded,
      what + " takes " + std::to_string(bytes) + " bytes more than the " +
          std::to_string(used_bytes()) + " in use, and the limit is " +
          std::to_string(limit_bytes_) +
          (measured_ ? " (four fifths of the available memory)" : " (memory_limit_bytes)") +
          "; join fewer rows or columns at once, share them among more executors, or " +
          (measured_ ? "free memory" : "raise the limit"));
}

uint64_t MemoryBudget::used_bytes() const { return poll_word(&used_bytes_); }
uint64_t MemoryBudget::peak_bytes() const { return poll_word(&peak_bytes_); }

namespace {

// Null: the system refuses.
void* map(uint64_t size_bytes) {
  void* const data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  ::madvise(data, size_bytes, MADV_HUGEPAGE);
  return data;
}

}  // namespace

// Not by malloc(), which keeps its notes beside a block: there they would touch, and so clear, huge
// pages of nothing else.
Block::Block(uint64_t size_bytes) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  if (size_bytes < kHugePageBytes) {
    if (::posix_memalign(&data_, 64, size_bytes) != 0) throw std::bad_alloc();
    return;
  }
  data_ = KeptBlocks::instance().take(size_bytes, &capacity_bytes_);
  if (data_ != nullptr) return;
  data_ = map(size_bytes);
  if (data_ == nullptr) {
    drop_kept_memory();
    data_ = map(size_bytes);
  }
  if (data_ == nullptr) throw std::bad_alloc();
  capacity_bytes_ = size_bytes;
}
Block::Block(Block&& other) noexcept { *this = std::move(other); }
Block& Block::operator=(Block&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(capacity_bytes_, other.capacity_bytes_);
  return *this;
}
Block::~Block() {
  if (capacity_bytes_ == 0) {
    std::free(data_);
  } else if (!KeptBlocks::instance().keep(data_, capacity_bytes_)) {
    ::munmap(data_, capacity_bytes_);
  }
}

}  // namespace verbena::join_app
