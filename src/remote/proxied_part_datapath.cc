#include <algorithm>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/remote/proxied_part.h"
#include "src/remote/vector_copy.h"
#include "verbena/data_path.h"

namespace verbena::remote {
namespace {

RequestKind transfer(bool reads) { return reads ? RequestKind::kRead : RequestKind::kWrite; }

}  // namespace

void ProxiedPart::push(const ProxyRequest& request) {
  if (request.kind == RequestKind::kRead) {
    ++statistics_.reads;
    statistics_.read_bytes += request.local.size_bytes;
  } else if (request.kind == RequestKind::kWrite) {
    ++statistics_.writes;
    statistics_.written_bytes += request.local.size_bytes;
  } else {
    ++statistics_.atomics;
  }
  lane_->push(request);
}

void ProxiedPart::post(const ProxyRequest& request, const Operation& operation) {
  VERBENA_DEBUG_ASSERT(outstanding() < options_.pending);
  operations_[next_place()] = operation;
  ++tail_;
  push(request);
}

// --- many at once ---

bool ProxiedPart::post_read(uint64_t offset_bytes, uint32_t size_bytes, uint64_t token,
                            Order order) {
  if (!may(Access::kRead, offset_bytes, size_bytes) || !fits_value(size_bytes)) return false;
  const LocalSlice local = value(next_place(), size_bytes);
  post({.kind = RequestKind::kRead, .order = order, .offset_bytes = offset_bytes, .local = local},
       {.token = token, .bytes = address(local), .size_bytes = size_bytes});
  return true;
}

bool ProxiedPart::post_write(uint64_t offset_bytes, std::span<const char> from, uint64_t token,
                             Order order) {
  if (!may(Access::kWrite, offset_bytes, from.size()) || !fits_value(from.size())) return false;
  const LocalSlice local = value(next_place(), static_cast<uint32_t>(from.size()));
  if (!from.empty()) copy_bytes(address(local), from.data(), from.size());
  post({.kind = RequestKind::kWrite, .order = order, .offset_bytes = offset_bytes, .local = local},
       {.token = token});
  return true;
}

bool ProxiedPart::make_pieces(bool reads, uint64_t offset_bytes, std::span<const LocalSlice> slices,
                              size_t place, uint32_t staging_bytes, std::span<ibv_sge>* pieces,
                              uint32_t* total_bytes) {
  const std::span<ibv_sge> room = pieces_of(place);
  if (slices.size() > room.size()) [[unlikely]] {
    refuse_entries(slices.size());
    return false;
  }
  uint64_t total = 0;
  size_t count = 0;
  for (const LocalSlice& slice : slices) {
    if (!ConnectedRegion::is_valid(slice)) [[unlikely]] {
      refusal_ = ConnectedRegion::refusal(slice);
      return false;
    }
    if (slice.size_bytes == 0) continue;
    room[count++] = {
        .addr = reinterpret_cast<uint64_t>(slice.memory->address()) + slice.offset_bytes,
        .length = slice.size_bytes,
        .lkey = 0};
    total += slice.size_bytes;
  }
  if (!may(reads ? Access::kRead : Access::kWrite, offset_bytes, total)) return false;
  if (total > staging_bytes && !(slices.size() == 1 && is_reachable(slices[0]))) [[unlikely]] {
    refuse_copy(total, staging_bytes);
    return false;
  }
  *pieces = room.first(count);
  *total_bytes = static_cast<uint32_t>(total);
  return true;
}

bool ProxiedPart::post_slices(bool reads, uint64_t offset_bytes, std::span<const LocalSlice> slices,
                              uint64_t token, Order order) {
  std::span<ibv_sge> pieces;
  uint32_t total_bytes = 0;
  const size_t place = next_place();
  if (!make_pieces(reads, offset_bytes, slices, place, options_.value_bytes, &pieces,
                   &total_bytes)) {
    return false;
  }
  ProxyRequest request{.kind = transfer(reads), .order = order, .offset_bytes = offset_bytes};
  Operation operation{.token = token};
  if (slices.size() == 1 && is_reachable(slices[0])) {
    request.local = slices[0];
    if (reads && !pieces.empty()) {
      operation.bytes = reinterpret_cast<const char*>(pieces[0].addr);
      operation.size_bytes = total_bytes;
    }
  } else {
    request.local = value(place, total_bytes);
    if (!reads) gather(pieces, address(request.local));
    if (reads) operation.bytes = address(request.local);
    if (reads) operation.scatter = pieces;
  }
  post(request, operation);
  return true;
}

bool ProxiedPart::post_atomic(RequestKind kind, uint64_t offset_bytes, uint64_t operand,
                              uint64_t desired, uint64_t token, Order order) {
  if (!may(Access::kAtomic, offset_bytes, sizeof(uint64_t))) return false;
  Operation operation{.token = token, .size_bytes = sizeof(uint64_t)};
  operation.bytes = reinterpret_cast<const char*>(&operations_[next_place()].before);
  post({.kind = kind,
        .order = order,
        .offset_bytes = offset_bytes,
        .operand = operand,
        .desired = desired},
       operation);
  return true;
}

uint32_t ProxiedPart::collect() {
  while (done_ < tail_) {
    const ProxyResult result = lane_->pull();
    if (result.outcome == Outcome::kNone) break;
    if (result.outcome == Outcome::kBroken) [[unlikely]] {
      broken_ = true;
      return 0;
    }
    operations_[done_++ & (operations_.size() - 1)].before = result.before;
  }
  return static_cast<uint32_t>(done_ - head_);
}

RemoteCompletion ProxiedPart::take() {
  VERBENA_DEBUG_ASSERT(head_ < done_);
  const Operation& operation = operations_[head_++ & (operations_.size() - 1)];
  if (!operation.scatter.empty()) scatter(operation.bytes, operation.scatter);
  return {operation.token, {operation.bytes, operation.size_bytes}};
}

// --- one at a time ---

Status ProxiedPart::finish_alone(const ProxyRequest& request, uint64_t* before) {
  push(request);
  Waiter waiter;
  for (;;) {
    // Those that were posted come first.
    if (collect(); broken_) return failure();
    if (done_ == tail_) {
      const ProxyResult result = lane_->pull();
      if (result.outcome == Outcome::kBroken) {
        broken_ = true;
        return failure();
      }
      if (result.outcome == Outcome::kDone) {
        *before = result.before;
        return Status::ok_status();
      }
    }
    waiter.idle();
  }
}

Status ProxiedPart::read(uint64_t offset_bytes, std::span<char> to) {
  if (!may(Access::kRead, offset_bytes, to.size())) return refusal_;
  for (uint64_t done = 0; done < to.size();) {
    const auto part =
        static_cast<uint32_t>(std::min<uint64_t>(to.size() - done, options_.copy_bytes));
    const LocalSlice local = copy_buffer(part);
    uint64_t before = 0;
    VERBENA_RETURN_IF_ERROR(finish_alone(
        {.kind = RequestKind::kRead, .offset_bytes = offset_bytes + done, .local = local},
        &before));
    copy_bytes(to.data() + done, address(local), part);
    done += part;
  }
  return Status::ok_status();
}

Status ProxiedPart::write(uint64_t offset_bytes, std::span<const char> from) {
  if (!may(Access::kWrite, offset_bytes, from.size())) return refusal_;
  for (uint64_t done = 0; done < from.size();) {
    const auto part =
        static_cast<uint32_t>(std::min<uint64_t>(from.size() - done, options_.copy_bytes));
    const LocalSlice local = copy_buffer(part);
    copy_bytes(address(local), from.data() + done, part);
    uint64_t before = 0;
    VERBENA_RETURN_IF_ERROR(finish_alone(
        {.kind = RequestKind::kWrite, .offset_bytes = offset_bytes + done, .local = local},
        &before));
    done += part;
  }
  return Status::ok_status();
}

Status ProxiedPart::slices_alone(bool reads, uint64_t offset_bytes,
                                 std::span<const LocalSlice> slices) {
  std::span<ibv_sge> pieces;
  uint32_t total_bytes = 0;
  if (!make_pieces(reads, offset_bytes, slices, operations_.size(), options_.copy_bytes, &pieces,
                   &total_bytes)) {
    return refusal_;
  }
  const bool copied = slices.size() != 1 || !is_reachable(slices[0]);
  const LocalSlice local = copied ? copy_buffer(total_bytes) : slices[0];
  if (copied && !reads) gather(pieces, address(local));
  uint64_t before = 0;
  VERBENA_RETURN_IF_ERROR(finish_alone(
      {.kind = transfer(reads), .offset_bytes = offset_bytes, .local = local}, &before));
  if (copied && reads) scatter(address(local), pieces);
  return Status::ok_status();
}

Result<uint64_t> ProxiedPart::atomic_alone(RequestKind kind, uint64_t offset_bytes,
                                           uint64_t operand, uint64_t desired) {
  if (!may(Access::kAtomic, offset_bytes, sizeof(uint64_t))) return refusal_;
  uint64_t before = 0;
  VERBENA_RETURN_IF_ERROR(finish_alone(
      {.kind = kind, .offset_bytes = offset_bytes, .operand = operand, .desired = desired},
      &before));
  return before;
}

}  // namespace verbena::remote
