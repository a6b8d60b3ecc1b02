#include "src/base/assert.h"
#include "src/remote/socket_region.h"

namespace verbena::remote {
namespace {

uint64_t total_bytes(std::span<const LocalSlice> slices) {
  uint64_t total = 0;
  for (const LocalSlice& slice : slices) total += slice.size_bytes;
  return total;
}

constexpr uint64_t kWordBytes = sizeof(uint64_t);

}  // namespace

bool SocketRegion::has_room(const Part& part, Order order) const {
  if (outstanding() >= options_.pending) return false;
  // The fence of a connection knows nothing of the others.
  return order != Order::kAfterReads || outstanding(part) == outstanding();
}

template <typename PostOwn, typename PostProxied>
PostResult SocketRegion::post(uint64_t offset_bytes, uint64_t bytes, Order order, PostOwn&& own,
                              PostProxied&& proxied) {
  if (!status_.ok()) return PostResult::kFailed;
  Part* const part = part_of(offset_bytes, bytes);
  if (part == nullptr) return PostResult::kFailed;
  if (!has_room(*part, order)) {
    ++would_block_;
    return PostResult::kWouldBlock;
  }
  const uint64_t inner_bytes = offset_bytes - part->begin_bytes;
  if (part->proxied != nullptr) {
    if (!proxied(*part->proxied, inner_bytes)) [[unlikely]] {
      refusal_ = part->proxied->refusal();
      return PostResult::kFailed;
    }
  } else {
    const PostResult result = own(*own_.region, inner_bytes);
    if (result == PostResult::kFailed) [[unlikely]] {
      refusal_ = own_.region->error();
      take_over_failure(*part);
    }
    if (result != PostResult::kPosted) return result;
  }
  routes_[tail_++ & (routes_.size() - 1)] = static_cast<uint8_t>(part - parts_.data());
  return PostResult::kPosted;
}

template <typename Outcome, typename CallOwn, typename CallProxied>
Outcome SocketRegion::call(uint64_t offset_bytes, uint64_t bytes, CallOwn&& own,
                           CallProxied&& proxied) {
  if (!status_.ok()) return status_;
  Part* const part = part_of(offset_bytes, bytes);
  if (part == nullptr) return refusal_;
  const uint64_t inner_bytes = offset_bytes - part->begin_bytes;
  Outcome outcome = part->proxied != nullptr ? proxied(*part->proxied, inner_bytes)
                                             : own(*own_.region, inner_bytes);
  take_over_failure(*part);
  return outcome;
}

// --- many at once ---

PostResult SocketRegion::post_read(uint64_t offset_bytes, uint32_t size_bytes, uint64_t token,
                                   Order order) {
  return post(
      offset_bytes, size_bytes, order,
      [&](ConnectedRegion& own, uint64_t at) {
        return own.post_read(at, size_bytes, token, order);
      },
      [&](ProxiedPart& part, uint64_t at) { return part.post_read(at, size_bytes, token, order); });
}

PostResult SocketRegion::post_write(uint64_t offset_bytes, std::span<const char> from,
                                    uint64_t token, Order order) {
  return post(
      offset_bytes, from.size(), order,
      [&](ConnectedRegion& own, uint64_t at) { return own.post_write(at, from, token, order); },
      [&](ProxiedPart& part, uint64_t at) { return part.post_write(at, from, token, order); });
}

PostResult SocketRegion::post_read(uint64_t offset_bytes, const LocalSlice& to, uint64_t token,
                                   Order order) {
  return post(
      offset_bytes, to.size_bytes, order,
      [&](ConnectedRegion& own, uint64_t at) { return own.post_read(at, to, token, order); },
      [&](ProxiedPart& part, uint64_t at) {
        return part.post_slices(/*reads=*/true, at, {&to, 1}, token, order);
      });
}

PostResult SocketRegion::post_write(uint64_t offset_bytes, const LocalSlice& from, uint64_t token,
                                    Order order) {
  return post(
      offset_bytes, from.size_bytes, order,
      [&](ConnectedRegion& own, uint64_t at) { return own.post_write(at, from, token, order); },
      [&](ProxiedPart& part, uint64_t at) {
        return part.post_slices(/*reads=*/false, at, {&from, 1}, token, order);
      });
}

PostResult SocketRegion::post_compare_and_swap(RemotePointer<uint64_t> word, uint64_t expected,
                                               uint64_t desired, uint64_t token, Order order) {
  return post(
      word.offset_bytes, kWordBytes, order,
      [&](ConnectedRegion& own, uint64_t at) {
        return own.post_compare_and_swap({at}, expected, desired, token, order);
      },
      [&](ProxiedPart& part, uint64_t at) {
        return part.post_atomic(RequestKind::kCompareAndSwap, at, expected, desired, token, order);
      });
}

PostResult SocketRegion::post_fetch_and_add(RemotePointer<uint64_t> word, uint64_t addend,
                                            uint64_t token, Order order) {
  return post(
      word.offset_bytes, kWordBytes, order,
      [&](ConnectedRegion& own, uint64_t at) {
        return own.post_fetch_and_add({at}, addend, token, order);
      },
      [&](ProxiedPart& part, uint64_t at) {
        return part.post_atomic(RequestKind::kFetchAndAdd, at, addend, 0, token, order);
      });
}

PostResult SocketRegion::post_readv(uint64_t offset_bytes, std::span<const LocalSlice> to,
                                    uint64_t token, VectorMethod method, Order order) {
  return post(
      offset_bytes, total_bytes(to), order,
      [&](ConnectedRegion& own, uint64_t at) {
        return own.post_readv(at, to, token, method, order);
      },
      [&](ProxiedPart& part, uint64_t at) {
        return part.post_slices(/*reads=*/true, at, to, token, order);
      });
}

PostResult SocketRegion::post_writev(uint64_t offset_bytes, std::span<const LocalSlice> from,
                                     uint64_t token, VectorMethod method, Order order) {
  return post(
      offset_bytes, total_bytes(from), order,
      [&](ConnectedRegion& own, uint64_t at) {
        return own.post_writev(at, from, token, method, order);
      },
      [&](ProxiedPart& part, uint64_t at) {
        return part.post_slices(/*reads=*/false, at, from, token, order);
      });
}

bool SocketRegion::flush() {
  if (status_.ok() && own_.region != nullptr && !own_.region->flush()) [[unlikely]]
    status_ = own_.region->status();
  return status_.ok();
}

uint32_t SocketRegion::collect(Part& part) {
  if (part.proxied == nullptr) return own_.region->collect();  // also checks the peer
  return part.proxied->outstanding() > 0 ? part.proxied->collect() : 0;
}

uint32_t SocketRegion::collect() {
  if (!status_.ok()) return 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    done_[i] = collect(parts_[i]);
    take_over_failure(parts_[i]);
  }
  if (!status_.ok()) return 0;
  uint32_t count = 0;
  while (count < outstanding()) {
    uint32_t& left = done_[routes_[(head_ + count) & (routes_.size() - 1)]];
    if (left == 0) break;
    --left;
    ++count;
  }
  return count;
}

RemoteCompletion SocketRegion::take() {
  VERBENA_DEBUG_ASSERT(head_ < tail_);
  Part& part = parts_[routes_[head_++ & (routes_.size() - 1)]];
  return part.proxied != nullptr ? part.proxied->take() : own_.region->take();
}

// --- one at a time ---

Status SocketRegion::read(uint64_t offset_bytes, std::span<char> to) {
  return call<Status>(
      offset_bytes, to.size(), [&](ConnectedRegion& own, uint64_t at) { return own.read(at, to); },
      [&](ProxiedPart& part, uint64_t at) { return part.read(at, to); });
}

Status SocketRegion::write(uint64_t offset_bytes, std::span<const char> from) {
  return call<Status>(
      offset_bytes, from.size(),
      [&](ConnectedRegion& own, uint64_t at) { return own.write(at, from); },
      [&](ProxiedPart& part, uint64_t at) { return part.write(at, from); });
}

Status SocketRegion::read(uint64_t offset_bytes, const LocalSlice& to) {
  return call<Status>(
      offset_bytes, to.size_bytes,
      [&](ConnectedRegion& own, uint64_t at) { return own.read(at, to); },
      [&](ProxiedPart& part, uint64_t at) {
        return part.slices_alone(/*reads=*/true, at, {&to, 1});
      });
}

Status SocketRegion::write(uint64_t offset_bytes, const LocalSlice& from) {
  return call<Status>(
      offset_bytes, from.size_bytes,
      [&](ConnectedRegion& own, uint64_t at) { return own.write(at, from); },
      [&](ProxiedPart& part, uint64_t at) {
        return part.slices_alone(/*reads=*/false, at, {&from, 1});
      });
}

Status SocketRegion::readv(uint64_t offset_bytes, std::span<const LocalSlice> to,
                           VectorMethod method) {
  return call<Status>(
      offset_bytes, total_bytes(to),
      [&](ConnectedRegion& own, uint64_t at) { return own.readv(at, to, method); },
      [&](ProxiedPart& part, uint64_t at) { return part.slices_alone(/*reads=*/true, at, to); });
}

Status SocketRegion::writev(uint64_t offset_bytes, std::span<const LocalSlice> from,
                            VectorMethod method) {
  return call<Status>(
      offset_bytes, total_bytes(from),
      [&](ConnectedRegion& own, uint64_t at) { return own.writev(at, from, method); },
      [&](ProxiedPart& part, uint64_t at) { return part.slices_alone(/*reads=*/false, at, from); });
}

Result<uint64_t> SocketRegion::compare_and_swap(RemotePointer<uint64_t> word, uint64_t expected,
                                                uint64_t desired) {
  return call<Result<uint64_t>>(
      word.offset_bytes, kWordBytes,
      [&](ConnectedRegion& own, uint64_t at) {
        return own.compare_and_swap({at}, expected, desired);
      },
      [&](ProxiedPart& part, uint64_t at) {
        return part.atomic_alone(RequestKind::kCompareAndSwap, at, expected, desired);
      });
}

Result<uint64_t> SocketRegion::fetch_and_add(RemotePointer<uint64_t> word, uint64_t addend) {
  return call<Result<uint64_t>>(
      word.offset_bytes, kWordBytes,
      [&](ConnectedRegion& own, uint64_t at) { return own.fetch_and_add({at}, addend); },
      [&](ProxiedPart& part, uint64_t at) {
        return part.atomic_alone(RequestKind::kFetchAndAdd, at, addend, 0);
      });
}

}  // namespace verbena::remote
