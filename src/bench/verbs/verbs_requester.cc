#include "src/bench/verbs/verbs_requester.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "src/remote/vector_copy.h"

namespace verbena::bench {

namespace {

ibv_wr_opcode opcode_of(Operation operation) {
  switch (operation) {
    case Operation::kRead:
      return IBV_WR_RDMA_READ;
    case Operation::kSend:
      return IBV_WR_SEND;
    case Operation::kFetchAdd:
      return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case Operation::kCompareSwap:
      return IBV_WR_ATOMIC_CMP_AND_SWP;
    default:
      return IBV_WR_RDMA_WRITE;
  }
}

bool copies(const VerbsSettings& verbs) {
  return verbs.method == VectorMethod::kSp && has_entries(verbs.operation);
}

}  // namespace

VerbsRequester::VerbsRequester(const Point& point, VerbsConnection connection, uint64_t seed)
    : VerbsRequester(point, verbs_settings(point), std::move(connection), seed) {}

VerbsRequester::VerbsRequester(const Point& point, const VerbsSettings& verbs,
                               VerbsConnection connection, uint64_t seed)
    : operation_(verbs.operation),
      entries_(verbs.entries),
      requests_(verbs.requests_per_operation()),
      signal_interval_(std::max(point.signal_interval, 1u)),
      gathers_(copies(verbs) && verbs.operation != Operation::kRead),
      scatters_(copies(verbs) && verbs.operation == Operation::kRead),
      connection_(std::move(connection)),
      local_places_(verbs.local, verbs.region_bytes, verbs.size_bytes, seed),
      remote_places_(verbs.remote, verbs.region_bytes, verbs.request_bytes(), ~seed),
      list_(connection_.endpoint.queue_pair.get(), point.post_batch * requests_),
      work_(size_t{point.pending} * requests_),
      pieces_(size_t{point.pending} * verbs.entries,
              {.addr = 0, .length = verbs.size_bytes, .lkey = connection_.endpoint.arena.lkey()}),
      staged_(copies(verbs) ? point.pending : 0),
      order_(point.pending) {
  for (uint32_t slot = 0; slot < staged_.size(); ++slot) {
    const RegisteredArena& staging = *connection_.staging;
    staged_[slot] = {
        .addr = reinterpret_cast<uint64_t>(staging.data()) + slot * verbs.operation_bytes(),
        .length = static_cast<uint32_t>(verbs.operation_bytes()),
        .lkey = staging.lkey()};
  }
  fill_constant_parts();
  const bool has_payload = operation_ == Operation::kWrite || operation_ == Operation::kSend;
  const uint64_t inline_bytes =
      std::min(point.inline_bytes, connection_.endpoint.queue_pair.max_inline_bytes());
  if (has_payload && verbs.request_bytes() <= inline_bytes) {
    for (ibv_send_wr& request : work_) request.send_flags |= IBV_SEND_INLINE;
  }
}

void VerbsRequester::fill_constant_parts() {
  const uint32_t pieces = entries_ / requests_;
  for (size_t i = 0; i < work_.size(); ++i) {
    ibv_send_wr& request = work_[i];
    request.opcode = opcode_of(operation_);
    request.sg_list = staged_.empty() ? &pieces_[i * pieces] : &staged_[i];
    request.num_sge = staged_.empty() ? static_cast<int>(pieces) : 1;
    const auto rkey = static_cast<uint32_t>(connection_.remote.rkey);
    if (is_atomic(operation_)) {
      // The compare-and-swap finds the zero that it leaves, so it always succeeds.
      request.wr.atomic.compare_add = operation_ == Operation::kFetchAdd ? 1 : 0;
      request.wr.atomic.rkey = rkey;
    } else {
      request.wr.rdma.rkey = rkey;
    }
  }
}

PostResult VerbsRequester::try_post(uint32_t slot, uint32_t /*bytes*/) {
  if (!status_.ok()) [[unlikely]]
    return PostResult::kFailed;
  order_[posted_++ % order_.size()] = slot;
  const auto region = reinterpret_cast<uint64_t>(connection_.endpoint.arena.data());
  for (ibv_sge& piece : pieces_of(slot)) piece.addr = region + local_places_.next();
  if (gathers_) {
    remote::gather(pieces_of(slot), reinterpret_cast<char*>(staged_[slot].addr));
  }
  for (uint32_t i = 0; i < requests_; ++i) {
    ibv_send_wr& request = work_[size_t{slot} * requests_ + i];
    const uint64_t address = connection_.remote.address + remote_places_.next();
    if (is_atomic(operation_)) {
      request.wr.atomic.remote_addr = address;
    } else {
      request.wr.rdma.remote_addr = address;
    }
    request.wr_id = posted_;
    request.send_flags &= ~unsigned{IBV_SEND_SIGNALED};
    if (i + 1 == requests_ && posted_ - signaled_ >= signal_interval_) {
      request.send_flags |= IBV_SEND_SIGNALED;
      signaled_ = posted_;
    }
    note(list_.push(request));
  }
  return status_.ok() ? PostResult::kPosted : PostResult::kFailed;
}

char* VerbsRequester::request_buffer(uint32_t slot) {
  return reinterpret_cast<char*>(work_[size_t{slot} * requests_].sg_list->addr);
}

void VerbsRequester::ask() {
  ibv_send_wr request{};
  request.wr_id = posted_;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = connection_.remote.address;
  request.wr.rdma.rkey = static_cast<uint32_t>(connection_.remote.rkey);
  ibv_send_wr* rejected = nullptr;
  signaled_ = posted_;
  note(ibv_post_send(connection_.endpoint.queue_pair.get(), &request, &rejected));
}

void VerbsRequester::note(int post_error) {
  if (post_error == 0 || !status_.ok()) [[likely]]
    return;
  status_ = Status(StatusCode::kInternal,
                   fmt::format("the queue pair refuses a work request: {}; lower --pending or "
                               "--entries",
                               std::strerror(post_error)));
}

void VerbsRequester::fail(ibv_wc_status status) {
  if (status_.ok()) status_ = Status(StatusCode::kUnavailable, explain_completion_error(status));
}

}  // namespace verbena::bench
