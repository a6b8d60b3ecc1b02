#include <algorithm>

#include "src/base/runtime.h"
#include "src/remote/connected_region.h"
#include "src/remote/vector_copy.h"
#include "verbena/data_path.h"

namespace verbena::remote {
namespace {

void copy(char* to, const char* from, uint64_t bytes) {
  if (bytes > 0) copy_bytes(to, from, bytes);
}

}  // namespace
}  // namespace verbena::remote

namespace verbena {

uint32_t RemoteRegion::wait() {
  Waiter waiter;
  while (outstanding() > 0 && status().ok()) {
    const uint32_t done = collect();
    if (done > 0) return done;
    waiter.idle();
  }
  return 0;
}

}  // namespace verbena

namespace verbena::remote {

// --- work requests ---

ibv_send_wr& ConnectedRegion::add_request(ibv_wr_opcode opcode, unsigned flags,
                                          uint64_t offset_bytes, uint32_t bytes, uint32_t pieces) {
  ibv_send_wr& request = queue_.add(opcode, flags, pieces);
  request.wr.rdma.remote_addr = region_.address + offset_bytes;
  request.wr.rdma.rkey = region_.rkey;
  if (opcode == IBV_WR_RDMA_READ) {
    ++statistics_.reads;
    statistics_.read_bytes += bytes;
  } else {
    ++statistics_.writes;
    statistics_.written_bytes += bytes;
  }
  return request;
}

void ConnectedRegion::add_transfer(ibv_wr_opcode opcode, unsigned flags, uint64_t offset_bytes,
                                   const Local& local) {
  // Some devices take a gather entry of length 0 for 2^31 bytes.
  const uint32_t pieces = local.size_bytes != 0 ? 1 : 0;
  ibv_send_wr& request = add_request(opcode, flags, offset_bytes, local.size_bytes, pieces);
  if (pieces != 0) {
    request.sg_list[0] = {.addr = reinterpret_cast<uint64_t>(local.data),
                          .length = local.size_bytes,
                          .lkey = local.lkey};
  }
}

void ConnectedRegion::add_atomic(const Atomic& atomic, unsigned flags, uint64_t offset_bytes,
                                 const Local& result) {
  ibv_send_wr& request = queue_.add(atomic.opcode, flags, 1);
  request.sg_list[0] = {.addr = reinterpret_cast<uint64_t>(result.data),
                        .length = sizeof(uint64_t),
                        .lkey = result.lkey};
  request.wr.atomic.remote_addr = region_.address + offset_bytes;
  request.wr.atomic.compare_add = atomic.compare_add;
  request.wr.atomic.swap = atomic.swap;
  request.wr.atomic.rkey = region_.rkey;
  ++statistics_.atomics;
}

// --- many at once ---

PostResult ConnectedRegion::post_transfer(ibv_wr_opcode opcode, unsigned flags,
                                          uint64_t offset_bytes, const Local& local,
                                          uint64_t token) {
  add_transfer(opcode, flags, offset_bytes, local);
  const uint32_t result_bytes = opcode == IBV_WR_RDMA_READ ? local.size_bytes : 0;
  return committed(
      queue_.commit({.token = token, .bytes = local.data, .size_bytes = result_bytes}));
}

PostResult ConnectedRegion::post_read(uint64_t offset_bytes, uint32_t size_bytes, uint64_t token,
                                      Order order) {
  if (!status_.ok() || !may(Access::kRead, offset_bytes, size_bytes)) return PostResult::kFailed;
  if (size_bytes > options_.value_bytes) [[unlikely]] {
    refuse_value(size_bytes);
    return PostResult::kFailed;
  }
  if (!queue_.has_room()) return would_block();
  return post_transfer(IBV_WR_RDMA_READ, fence(order), offset_bytes, next_value(size_bytes), token);
}

PostResult ConnectedRegion::post_write(uint64_t offset_bytes, std::span<const char> from,
                                       uint64_t token, Order order) {
  if (!status_.ok() || !may(Access::kWrite, offset_bytes, from.size())) return PostResult::kFailed;
  if (from.size() > options_.value_bytes) [[unlikely]] {
    refuse_value(from.size());
    return PostResult::kFailed;
  }
  if (!queue_.has_room()) return would_block();
  const Local value = next_value(static_cast<uint32_t>(from.size()));
  copy(value.data, from.data(), from.size());
  return post_transfer(IBV_WR_RDMA_WRITE, fence(order) | write_flags(from.size()), offset_bytes,
                       value, token);
}

PostResult ConnectedRegion::post_read(uint64_t offset_bytes, const LocalSlice& to, uint64_t token,
                                      Order order) {
  if (!status_.ok() || !may(Access::kRead, offset_bytes, to.size_bytes)) return PostResult::kFailed;
  const Local memory = local(to);
  if (memory.data == nullptr) return PostResult::kFailed;
  if (!queue_.has_room()) return would_block();
  return post_transfer(IBV_WR_RDMA_READ, fence(order), offset_bytes, memory, token);
}

PostResult ConnectedRegion::post_write(uint64_t offset_bytes, const LocalSlice& from,
                                       uint64_t token, Order order) {
  if (!status_.ok() || !may(Access::kWrite, offset_bytes, from.size_bytes)) {
    return PostResult::kFailed;
  }
  const Local memory = local(from);
  if (memory.data == nullptr) return PostResult::kFailed;
  if (!queue_.has_room()) return would_block();
  return post_transfer(IBV_WR_RDMA_WRITE, fence(order) | write_flags(memory.size_bytes),
                       offset_bytes, memory, token);
}

PostResult ConnectedRegion::post_atomic(const Atomic& atomic, RemotePointer<uint64_t> word,
                                        uint64_t token, Order order) {
  if (!status_.ok() || !may(Access::kAtomic, word.offset_bytes, sizeof(uint64_t))) {
    return PostResult::kFailed;
  }
  if (!queue_.has_room()) return would_block();
  const Local result = next_value(sizeof(uint64_t));
  add_atomic(atomic, fence(order), word.offset_bytes, result);
  return committed(
      queue_.commit({.token = token, .bytes = result.data, .size_bytes = sizeof(uint64_t)}));
}

PostResult ConnectedRegion::post_compare_and_swap(RemotePointer<uint64_t> word, uint64_t expected,
                                                  uint64_t desired, uint64_t token, Order order) {
  return post_atomic({IBV_WR_ATOMIC_CMP_AND_SWP, expected, desired}, word, token, order);
}

PostResult ConnectedRegion::post_fetch_and_add(RemotePointer<uint64_t> word, uint64_t addend,
                                               uint64_t token, Order order) {
  return post_atomic({IBV_WR_ATOMIC_FETCH_AND_ADD, addend, 0}, word, token, order);
}

bool ConnectedRegion::flush() {
  if (status_.ok() && !queue_.flush()) [[unlikely]]
    fail(queue_.error());
  return status_.ok();
}

uint32_t ConnectedRegion::collect() {
  if (!flush()) return 0;
  bool works = true;
  if (queue_.done() == 0) {
    works = queue_.reap();
    if (works && queue_.done() == 0 && queue_.is_silent()) [[unlikely]]
      works = queue_.ask(region_.address, region_.rkey);
  }
  if (!works) [[unlikely]] {
    fail(queue_.error());
    return 0;
  }
  const uint32_t done = queue_.done();
  answered_ += done;
  if (watch_.due(done)) [[unlikely]]
    check_peer();
  return status_.ok() ? done : 0;
}

RemoteCompletion ConnectedRegion::take() {
  const Operation& operation = queue_.take();
  if (!operation.scatter.empty()) scatter(operation.bytes, operation.scatter);
  return {operation.token, {operation.bytes, operation.size_bytes}};
}

// --- one at a time ---

Status ConnectedRegion::finish_alone() {
  if (!queue_.commit_alone()) {
    fail(queue_.error());
    return status_;
  }
  Waiter waiter;
  for (;;) {
    if (!queue_.reap()) [[unlikely]]
      fail(queue_.error());
    if (queue_.alone_is_done()) break;
    if (watch_.due(0)) [[unlikely]]
      check_peer();
    if (!status_.ok()) return status_;
    waiter.idle();
  }
  ++answered_;
  return Status::ok_status();
}

Status ConnectedRegion::transfer_alone(ibv_wr_opcode opcode, unsigned flags, uint64_t offset_bytes,
                                       const Local& local) {
  add_transfer(opcode, flags, offset_bytes, local);
  return finish_alone();
}

Status ConnectedRegion::read(uint64_t offset_bytes, std::span<char> to) {
  if (!status_.ok() || !may(Access::kRead, offset_bytes, to.size())) return error();
  for (uint64_t done = 0; done < to.size();) {
    const auto part =
        static_cast<uint32_t>(std::min<uint64_t>(to.size() - done, options_.copy_bytes));
    VERBENA_RETURN_IF_ERROR(transfer_alone(IBV_WR_RDMA_READ, 0, offset_bytes + done,
                                           {copy_buffer_, part, endpoint_->arena.lkey()}));
    copy(to.data() + done, copy_buffer_, part);
    done += part;
  }
  return Status::ok_status();
}

Status ConnectedRegion::write(uint64_t offset_bytes, std::span<const char> from) {
  if (!status_.ok() || !may(Access::kWrite, offset_bytes, from.size())) return error();
  for (uint64_t done = 0; done < from.size();) {
    const auto part =
        static_cast<uint32_t>(std::min<uint64_t>(from.size() - done, options_.copy_bytes));
    copy(copy_buffer_, from.data() + done, part);
    VERBENA_RETURN_IF_ERROR(transfer_alone(IBV_WR_RDMA_WRITE, write_flags(part),
                                           offset_bytes + done,
                                           {copy_buffer_, part, endpoint_->arena.lkey()}));
    done += part;
  }
  return Status::ok_status();
}

Status ConnectedRegion::read(uint64_t offset_bytes, const LocalSlice& to) {
  if (!status_.ok() || !may(Access::kRead, offset_bytes, to.size_bytes)) return error();
  const Local memory = local(to);
  if (memory.data == nullptr) return error();
  return transfer_alone(IBV_WR_RDMA_READ, 0, offset_bytes, memory);
}

Status ConnectedRegion::write(uint64_t offset_bytes, const LocalSlice& from) {
  if (!status_.ok() || !may(Access::kWrite, offset_bytes, from.size_bytes)) return error();
  const Local memory = local(from);
  if (memory.data == nullptr) return error();
  return transfer_alone(IBV_WR_RDMA_WRITE, write_flags(memory.size_bytes), offset_bytes, memory);
}

Result<uint64_t> ConnectedRegion::atomic_alone(const Atomic& atomic, RemotePointer<uint64_t> word) {
  if (!status_.ok() || !may(Access::kAtomic, word.offset_bytes, sizeof(uint64_t))) return error();
  add_atomic(atomic, 0, word.offset_bytes,
             {copy_buffer_, sizeof(uint64_t), endpoint_->arena.lkey()});
  VERBENA_RETURN_IF_ERROR(finish_alone());
  uint64_t before = 0;
  copy_bytes(&before, copy_buffer_, sizeof(before));
  return before;
}

Result<uint64_t> ConnectedRegion::compare_and_swap(RemotePointer<uint64_t> word, uint64_t expected,
                                                   uint64_t desired) {
  return atomic_alone({IBV_WR_ATOMIC_CMP_AND_SWP, expected, desired}, word);
}

Result<uint64_t> ConnectedRegion::fetch_and_add(RemotePointer<uint64_t> word, uint64_t addend) {
  return atomic_alone({IBV_WR_ATOMIC_FETCH_AND_ADD, addend, 0}, word);
}

}  // namespace verbena::remote
