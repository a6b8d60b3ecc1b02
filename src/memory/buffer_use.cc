#include "src/memory/buffer_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "src/base/assert.h"
#include "src/base/virtual_time.h"
#include "verbena/data_path.h"

namespace verbena {

namespace {

constexpr uint32_t kNoPlace = UINT32_MAX;
constexpr unsigned kMostBucketBits = 28;
constexpr uint32_t kMostBuffers = 1u << 28;
// A node of std::map: four words besides what it contains.
constexpr size_t kTreeNodeBytes = 64;

uint32_t saturating_double(uint32_t count) {
  return count > UINT32_MAX / 2 ? UINT32_MAX : std::max(2 * count, 1u);
}

}  // namespace

BufferUseTable::TreeMemory::TreeMemory(uint32_t buffers)
    : bytes(new (std::nothrow) std::byte[buffers * kTreeNodeBytes]),
      resource(bytes.get(), buffers * kTreeNodeBytes, std::pmr::null_memory_resource()),
      tree(&resource) {}

BufferUseTable::BufferUseTable(const ReuseThresholds& thresholds, const BufferUseOptions& options)
    : thresholds_(thresholds), options_(options) {}

Result<BufferUseTable> BufferUseTable::create(const ReuseThresholds& thresholds,
                                              const BufferUseOptions& options) {
  if (options.bucket_bits == 0 || options.bucket_bits > kMostBucketBits ||
      options.max_buffers == 0 || options.max_buffers > kMostBuffers ||
      !(options.speculation > 0 && options.speculation <= 1) ||
      !(options.least_registered_share >= 0 && options.least_registered_share <= 1)) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("a buffer-use table needs 1 to {} bucket bits, not {}; 1 to {} "
                    "buffers, not {}; a speculation above 0 and up to 1, not {}; and a "
                    "share of 0 to 1, not {}",
                    kMostBucketBits, options.bucket_bits, kMostBuffers, options.max_buffers,
                    options.speculation, options.least_registered_share));
  }
  if (options.starts_anew && options.index == BufferUseIndex::kTree) {
    return Status(StatusCode::kInvalidArgument,
                  "a buffer-use table that starts anew has a hash table, no tree");
  }
  BufferUseTable table(thresholds, options);
  bool enough = true;
  try {
    table.buffers_.reserve(options.max_buffers);
    if (options.index == BufferUseIndex::kTree) {
      table.tree_ = std::make_unique<TreeMemory>(options.max_buffers);
      enough = table.tree_->bytes != nullptr;
    } else {
      // Zero without being touched.
      table.buckets_.reset(
          static_cast<uint32_t*>(std::calloc(size_t{1} << options.bucket_bits, sizeof(uint32_t))));
      enough = table.buckets_ != nullptr;
    }
  } catch (const std::bad_alloc&) {
    enough = false;
  }
  if (enough) return table;
  return Status(StatusCode::kLimitExceeded,
                fmt::format("no memory for a buffer-use table of {} buffers and {} buckets; make "
                            "it smaller",
                            options.max_buffers, uint64_t{1} << options.bucket_bits));
}

uint32_t BufferUseTable::bucket_of(uint64_t address) const {
  // Knuth's multiplicative method, with 2^64 divided by the golden ratio.
  return static_cast<uint32_t>((address * 0x9e3779b97f4a7c15u) >> (64 - options_.bucket_bits));
}

// Counted as if each buffer had a bucket of its own: which of them meet depends on addresses, on
// which no simulation may depend.
uint32_t BufferUseTable::find_in_list(uint32_t bucket, uint64_t address) {
  uint32_t next = buckets_[bucket];
  while (next != 0 && buffers_[next - 1].address != address) next = buffers_[next - 1].next;
  internal::count_poll(next != 0);
  if (next == 0) return kNoPlace;
  internal::count_poll(true);
  return next - 1;
}

uint32_t BufferUseTable::find(uint64_t address) {
  if (tree_ == nullptr) return find_in_list(bucket_of(address), address);
  const auto found = tree_->tree.find(address);
  // Of a balanced tree, about as many nodes as its size has bits are looked at.
  for (size_t nodes = tree_->tree.size(); nodes != 0; nodes /= 2) internal::count_poll(true);
  return found == tree_->tree.end() ? kNoPlace : found->second;
}

// Of buffers that are not in the table.
bool BufferUseTable::closed() const {
  return options_.adapts && in_lists_ > 0 &&
         registered_ < options_.least_registered_share * static_cast<double>(buffers_.size());
}

uint32_t BufferUseTable::add(uint64_t address) {
  const auto place = static_cast<uint32_t>(buffers_.size());
  VERBENA_DEBUG_ASSERT(place < options_.max_buffers);
  uint32_t next = 0;
  if (tree_ != nullptr) {
    tree_->tree.emplace(address, place);
  } else {
    next = std::exchange(buckets_[bucket_of(address)], place + 1);
    // Nor may what becomes of a simulated program.
    if (next != 0 && VirtualTime::current() == nullptr) ++in_lists_;
  }
  ++added_;
  buffers_.push_back({.address = address,
                      .uses = 0,
                      .counted_from = 1,
                      .next = next,
                      .not_before = 0,
                      .bytes = 0,
                      .registered_bytes = 0});
  return place;
}

void BufferUseTable::start_anew() {
  clear_bytes(buckets_.get(), (size_t{1} << options_.bucket_bits) * sizeof(uint32_t));
  buffers_.clear();
  registered_ = in_lists_ = 0;
}

// Of a buffer that is not in the table.
BufferUse::Reason BufferUseTable::why_not_added() const {
  if (buffers_.size() == options_.max_buffers && !options_.starts_anew)
    return BufferUse::Reason::kFull;
  return closed() ? BufferUse::Reason::kClosed : BufferUse::Reason::kSeldomUsed;
}

// At least one: a buffer that is used once is copied.
uint32_t BufferUseTable::due_after(uint32_t least_reuses, const Buffer& buffer) const {
  return std::max<uint32_t>({1,
                             static_cast<uint32_t>(std::ceil(least_reuses * options_.speculation)),
                             buffer.not_before});
}

void BufferUseTable::decide(const Buffer& buffer, BufferUse* use) const {
  using Way = BufferUse::Way;
  using Reason = BufferUse::Reason;
  use->reuses = buffer.uses - buffer.counted_from;
  if (use->least_reuses == kNeverPays) return;
  if (use->bytes <= buffer.registered_bytes) {
    use->way = Way::kInPlace;
    use->reason = Reason::kRegistered;
    return;
  }
  use->due = due_after(use->least_reuses, buffer);
  const bool often = use->reuses >= use->due;
  use->way = often ? Way::kRegister : Way::kCopy;
  use->reason = often                    ? Reason::kOftenUsed
                : buffer.not_before != 0 ? Reason::kRefused
                                         : Reason::kSeldomUsed;
}

BufferUse BufferUseTable::count(const void* buffer, uint32_t bytes,
                                const ReuseThresholds& thresholds) {
  using Reason = BufferUse::Reason;
  BufferUse use;
  use.address = reinterpret_cast<uint64_t>(buffer);
  use.bytes = bytes;
  use.least_reuses = thresholds.least_reuses(bytes);
  const bool pays = use.least_reuses != kNeverPays;
  if (!pays && !options_.counts_all_sizes) return use;

  use.place = find(use.address);
  if (use.place == kNoPlace) {
    if (options_.starts_anew && buffers_.size() == options_.max_buffers) start_anew();
    const Reason why_not = why_not_added();
    if (why_not != Reason::kSeldomUsed) {
      ++not_added_;
      use.reason = pays ? why_not : Reason::kNeverPays;
      return use;
    }
    use.place = add(use.address);
  }
  ++uses_;
  Buffer& found = buffers_[use.place];
  if (found.uses != UINT32_MAX) ++found.uses;
  found.bytes = bytes;
  decide(found, &use);
  return use;
}

BufferUse BufferUseTable::look(const void* buffer, uint32_t bytes,
                               const ReuseThresholds& thresholds) {
  BufferUse use;
  use.address = reinterpret_cast<uint64_t>(buffer);
  use.bytes = bytes;
  use.least_reuses = thresholds.least_reuses(bytes);
  if (use.least_reuses == kNeverPays) return use;
  use.place = find(use.address);
  Buffer next{};
  next.counted_from = 1;
  if (use.place != kNoPlace) {
    next = buffers_[use.place];
  } else if (const BufferUse::Reason why_not = why_not_added();
             why_not != BufferUse::Reason::kSeldomUsed) {
    use.reason = why_not;
    return use;
  }
  ++next.uses;
  decide(next, &use);
  return use;
}

void BufferUseTable::registered(const BufferUse& use) {
  VERBENA_ASSERT(use.way == BufferUse::Way::kRegister && use.place < buffers_.size());
  Buffer& buffer = buffers_[use.place];
  if (buffer.registered_bytes == 0) ++registered_;
  buffer.registered_bytes = std::max({1u, buffer.registered_bytes, use.bytes});
}

void BufferUseTable::refused(const BufferUse& use) {
  VERBENA_ASSERT(use.way == BufferUse::Way::kRegister && use.place < buffers_.size());
  buffers_[use.place].not_before = saturating_double(use.reuses);
}

void BufferUseTable::lost(const BufferUse& use) {
  VERBENA_ASSERT(use.way == BufferUse::Way::kInPlace && use.place < buffers_.size());
  Buffer& buffer = buffers_[use.place];
  if (buffer.registered_bytes == 0) return;
  // Who changes the memory behind its buffers again and again registers it ever more rarely.
  buffer.not_before =
      use.reuses < use.least_reuses ? saturating_double(due_after(use.least_reuses, buffer)) : 0;
  buffer.registered_bytes = 0;
  buffer.counted_from = buffer.uses;
  --registered_;
}

std::string BufferUseTable::explain(const BufferUse& use) {
  const std::string buffer = fmt::format("{} bytes at {:#x}", use.bytes, use.address);
  switch (use.reason) {
    case BufferUse::Reason::kNeverPays:
      return fmt::format(
          "{}: copied; at this size a copy costs no more than looking for the "
          "registration, or the message is posted inline",
          buffer);
    case BufferUse::Reason::kSeldomUsed:
      return fmt::format("{}: copied; used again {} times so far, registered after {} ({} pay)",
                         buffer, use.reuses, use.due, use.least_reuses);
    case BufferUse::Reason::kClosed:
      return fmt::format(
          "{}: copied; not counted, because few of the buffers in the table are used "
          "often enough, and its buckets fill up",
          buffer);
    case BufferUse::Reason::kFull:
      return fmt::format("{}: copied; not counted, because the buffer-use table is full", buffer);
    case BufferUse::Reason::kRefused:
      return fmt::format(
          "{}: copied; it could not be registered, or not for long, which is tried again after {} "
          "reuses ({} so far)",
          buffer, use.due, use.reuses);
    case BufferUse::Reason::kOftenUsed:
      return fmt::format(
          "{}: registered and sent from its place; used again {} times, {} were "
          "enough ({} pay)",
          buffer, use.reuses, use.due, use.least_reuses);
    case BufferUse::Reason::kRegistered:
      return fmt::format("{}: sent from its place, for which it is registered; used again {} times",
                         buffer, use.reuses);
  }
  return buffer;
}

BufferUseStatistics BufferUseTable::statistics() const {
  BufferUseStatistics now;
  now.uses = uses_;
  now.reuses = uses_ - added_;
  now.not_added = not_added_;
  now.buffers = static_cast<uint32_t>(buffers_.size());
  now.registered = registered_;
  now.in_lists = in_lists_;
  const auto most =
      std::max_element(buffers_.begin(), buffers_.end(),
                       [](const Buffer& a, const Buffer& b) { return a.uses < b.uses; });
  if (most != buffers_.end()) {
    now.most_reuses = most->uses - 1;
    now.most_used_bytes = most->bytes;
  }
  return now;
}

}  // namespace verbena
