// What is posted to send queues.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "src/device/soft/atomic_write.h"
#include "src/device/soft/check/access.h"
#include "src/device/soft/check/buffer_sum.h"
#include "src/device/soft/check/caller.h"
#include "src/device/soft/check/check_records.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/ud.h"

namespace verbena::soft::check {
namespace {

// A program that drains its queues posts a marker or two to a failed queue pair.
constexpr uint32_t kPostsToFailed = 3;

std::string describe_request(const QpRecord& qp, const ibv_send_wr& wr) {
  return fmt::format("{}, {}, wr_id {:#x}", describe(qp), opcode_text(wr.opcode), wr.wr_id);
}

uint64_t size_of(const ibv_send_wr& wr) {
  uint64_t size_bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) size_bytes += wr.sg_list[i].length;
  return size_bytes;
}

bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
         opcode == kAtomicWrite;
}

// Whether the buffer's contents are this process's alone, so that a change is a change by it.
bool is_compared(State& all, const Piece& piece) {
  if (all.reports.options().buffers == CheckedBuffers::kOff ||
      !all.reports.wants(CheckKind::kBufferChanged)) {
    return false;
  }
  const auto found = all.regions.find(piece.lkey);
  if (found == all.regions.end()) return false;
  const RegionRecord& region = found->second;
  if (piece.begin < region.begin || piece.end() > region.end) return false;
  constexpr unsigned kOthers =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
  return all.reports.options().buffers == CheckedBuffers::kAll || (region.access & kOthers) == 0;
}

// Whether the queue takes so many pieces; it looks at no list of others.
bool fits_pieces(const QpRecord& qp, const ibv_send_wr& wr) {
  const uint32_t limit = std::max(as_qp(qp.verbs).init.cap.max_send_sge, 1u);
  return wr.num_sge >= 0 && static_cast<uint32_t>(wr.num_sge) <= limit;
}

void check_form(State& all, const QpRecord& qp, const ibv_send_wr& wr, const void* place) {
  if (!fits_pieces(qp, wr)) return;
  if (is_atomic(wr.opcode)) {
    // The value of an ATOMIC WRITE is in the request.
    const uint64_t size_bytes = wr.opcode == kAtomicWrite ? kAtomicWriteBytes : size_of(wr);
    if (wr.wr.atomic.remote_addr % 8 != 0 || size_bytes != 8) {
      all.report(
          {.kind = CheckKind::kAtomicForm,
           .place = place,
           .what = wr.wr.atomic.remote_addr % 8 != 0
                       ? fmt::format("the remote address {:#x} of an atomic is not a "
                                     "multiple of 8",
                                     wr.wr.atomic.remote_addr)
                       : fmt::format("an atomic with a buffer of {} bytes; it has 8", size_bytes),
           .object = describe_request(qp, wr),
           .hardware = "IBV_WC_REM_INV_REQ_ERR or IBV_WC_LOC_LEN_ERR, and the queue pair "
                       "fails",
           .remedy = "align the target and use 8 bytes"});
    }
  }
  const Qp& device_qp = as_qp(qp.verbs);
  if (fills_own_buffers(wr.opcode) && qp.type == IBV_QPT_RC &&
      device_qp.state.load(std::memory_order_relaxed) == IBV_QPS_RTS &&
      device_qp.attributes.max_rd_atomic == 0) {
    all.report({.kind = CheckKind::kReadDepth,
                .place = place,
                .what = "a READ or atomic on a queue pair that may have none (max_rd_atomic 0)",
                .object = describe_request(qp, wr),
                .hardware = "the request never leaves, or fails",
                .remedy = "set max_rd_atomic in the step to RTS, and max_dest_rd_atomic of the "
                          "peer in its step to RTR"});
  }
}

// What the request uses, as long as it is under way. Holds State::mutex.
void note_pieces(State& all, const Qp& device_qp, SendRecord& send, const ibv_send_wr& wr) {
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) return;
  const bool fills = fills_own_buffers(wr.opcode);
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length == 0 || is_null_key(device_qp.regions, sge.lkey, device_qp.domain)) continue;
    Piece piece{.address = sge.addr,
                .length_bytes = sge.length,
                .lkey = sge.lkey,
                .begin = program_address(device_qp.regions, sge.addr, sge.lkey)};
    RangeUse& use = all.ranges_of(send).add(piece.begin, piece.end(), send.place);
    piece.written_before = use.written;
    if (!fills && is_compared(all, piece)) piece.sum = sum_buffer(piece.begin, sge.length);
    send.pieces.push_back(piece);
  }
}

void note_send(State& all, QpRecord& qp, const ibv_send_wr& wr, const void* place) {
  check_form(all, qp, wr, place);
  SendRecord send;
  send.wr_id = wr.wr_id;
  send.opcode = wr.opcode;
  send.signaled = qp.all_signaled || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  send.place = place;
  if (is_atomic(wr.opcode)) {
    send.remote_address = wr.wr.atomic.remote_addr;
    send.rkey = wr.wr.atomic.rkey;
  } else if (remote_access_of(wr.opcode) != 0) {
    send.remote_address = wr.wr.rdma.remote_addr;
    send.rkey = wr.wr.rdma.rkey;
  }
  const StateLock guard(all);
  take_releases(all);
  if (fits_pieces(qp, wr)) note_pieces(all, as_qp(qp.verbs), send, wr);
  check_released(all, send.pieces, describe(qp), place);
  qp.sends.push_back(std::move(send));
}

// The latest ones were not posted.
void forget_latest_sends(State& all, QpRecord& qp, size_t count) {
  const std::lock_guard guard(all.mutex);
  for (; count > 0 && !qp.sends.empty(); --count) {
    all.forget_pieces(all.ranges_of(qp.sends.back()), qp.sends.back().pieces);
    qp.sends.pop_back();
  }
}

// The queue was refused a request: why, if the program is at fault.
void explain_refused_send(State& all, QpRecord& qp, const ibv_send_wr& wr, int error,
                          const void* place) {
  const Qp& device_qp = as_qp(qp.verbs);
  const ibv_qp_cap& cap = device_qp.init.cap;
  const ibv_qp_state state = device_qp.state.load(std::memory_order_relaxed);
  if (error == ENOMEM) {
    const StateLock guard(all);
    if (qp.sends.size() < device_qp.send_depth) return;
    for (const SendRecord& send : qp.sends) {
      if (send.signaled) return;
    }
    all.report_later(
        {.kind = CheckKind::kSendQueueStuck,
         .place = place,
         .other_place = qp.sends.front().place,
         .what = fmt::format("the send queue is full of {} unsignaled requests, and nothing "
                             "will ever free it",
                             qp.sends.size()),
         .object = describe_request(qp, wr),
         .other = "first one",
         .hardware = "the same: a place is free when a later signaled request was polled",
         .remedy = "signal one request in each queue's length (IBV_SEND_SIGNALED), and poll "
                   "its completion"});
    return;
  }
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR && state != IBV_QPS_SQE) {
    all.report({.kind = CheckKind::kWrongState,
                .place = place,
                .what = fmt::format("a send posted to a queue pair in state {}", state_text(state)),
                .object = describe_request(qp, wr),
                .hardware = "some refuse it, others drop it without a word",
                .remedy = "modify the queue pair to RTS before"});
  } else if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > cap.max_send_sge) {
    all.report({.kind = CheckKind::kTooManySges,
                .place = place,
                .what = fmt::format("a send of {} pieces; the queue pair was made for {} "
                                    "(max_send_sge)",
                                    wr.num_sge, cap.max_send_sge),
                .object = describe_request(qp, wr),
                .hardware = "refuses it, or has rounded the limit up and takes it",
                .remedy = "ask for as many in ibv_qp_init_attr::cap"});
  } else if ((wr.send_flags & IBV_SEND_INLINE) != 0 && size_of(wr) > cap.max_inline_data) {
    all.report({.kind = CheckKind::kInlineSize,
                .place = place,
                .what = fmt::format("{} bytes inline; the queue pair was made for {} "
                                    "(max_inline_data)",
                                    size_of(wr), cap.max_inline_data),
                .object = describe_request(qp, wr),
                .hardware = "refuses it, or has rounded the limit up and takes it",
                .remedy = "ask for as many in ibv_qp_init_attr::cap, or send without "
                          "IBV_SEND_INLINE"});
  }
}

void check_failed(State& all, QpRecord& qp, const ibv_send_wr& wr, const void* place) {
  {
    const std::lock_guard guard(all.mutex);
    const ibv_qp_state state = as_qp(qp.verbs).state.load(std::memory_order_relaxed);
    if (!qp.failed || (state != IBV_QPS_ERR && state != IBV_QPS_SQE)) return;
    if (++qp.posts_since_failure != kPostsToFailed) return;
  }
  all.report({.kind = CheckKind::kIgnoredError,
              .place = place,
              .what = "the program polled an error of this queue pair and goes on posting to it",
              .object = describe_request(qp, wr),
              .hardware = "all of it is flushed: nothing is sent",
              .remedy = "look at ibv_wc::status; reset the queue pair, or destroy it"});
}

// What is wrong with the key of a datagram for its receiver. Before the post: once it has
// completed, the address handle may be destroyed.
std::optional<Finding> check_queue_key(const QpRecord& qp, const ibv_send_wr& wr,
                                       const void* place) {
  if (qp.type != IBV_QPT_UD || wr.wr.ud.ah == nullptr) return {};
  Qp& device_qp = as_qp(qp.verbs);
  if (device_qp.state.load(std::memory_order_relaxed) != IBV_QPS_RTS) return {};
  const auto& handle = *reinterpret_cast<const Ah*>(wr.wr.ud.ah);
  if (handle.self != &handle || handle.route != Ah::Route::kPort) return {};
  uint32_t sent = wr.wr.ud.remote_qkey;
  uint32_t wanted = 0;
  {
    const OwnerLock::Guard guard(device_qp.send_lock);
    if (sent >> 31 != 0) sent = device_qp.attributes.qkey;
    const Destination* destination =
        device_qp.destinations->find(*device_qp.rnic, wr.wr.ud.remote_qpn & 0xffffff);
    if (destination == nullptr) return {};
    wanted = destination->shared->datagram.qkey.load(std::memory_order_relaxed);
  }
  if (sent == wanted) return {};
  return Finding{
      .kind = CheckKind::kQueueKey,
      .place = place,
      .what = fmt::format("a datagram with the queue key {:#x} for queue pair {:#x}, which "
                          "has {:#x}",
                          sent, wr.wr.ud.remote_qpn, wanted),
      .object = describe_request(qp, wr),
      .hardware = "the receiver drops it, and counts it at most",
      .remedy =
          "set remote_qkey to the receiver's (a key with its highest bit set means "
          "the sender's own)"};
}

// Notes what is to be posted, posts it by `post`, which says how many it took, and notes what came
// of it.
template <typename Post>
int checked_post(State& all, QpRecord& qp, const ibv_send_wr* first, uint32_t count,
                 const void* place, Post&& post) {
  const std::lock_guard order(qp.send_order);
  const ibv_send_wr* wr = first;
  const auto following = [first, count](const ibv_send_wr* at) {
    if (count == 0) return static_cast<const ibv_send_wr*>(at->next);
    return at + 1 < first + count ? at + 1 : nullptr;
  };
  struct Noted {
    bool signaled;
    std::optional<Finding> wrong_key;
  };
  std::vector<Noted> noted;
  for (; wr != nullptr; wr = following(wr)) {
    check_failed(all, qp, *wr, place);
    noted.push_back({qp.all_signaled || (wr->send_flags & IBV_SEND_SIGNALED) != 0,
                     check_queue_key(qp, *wr, place)});
    note_send(all, qp, *wr, place);
  }
  const ibv_send_wr* refused = nullptr;
  const int error = post(refused);
  size_t taken = noted.size();
  if (error != 0) {
    taken = 0;
    for (wr = first; wr != nullptr && wr != refused; wr = following(wr)) ++taken;
    taken = std::min(taken, noted.size());
    forget_latest_sends(all, qp, noted.size() - taken);
    if (refused != nullptr) explain_refused_send(all, qp, *refused, error, place);
  }
  int64_t signaled = 0;
  for (size_t i = 0; i < taken; ++i) {
    if (noted[i].wrong_key.has_value()) all.report(*noted[i].wrong_key);
    if (noted[i].signaled) ++signaled;
  }
  count_at_cq(all, *qp.send_cq, signaled, 0, describe(qp), place);
  return error;
}

}  // namespace

[[gnu::noinline]] int post_send(ibv_qp* verbs, ibv_send_wr* wr, ibv_send_wr** bad) {
  const void* const place = __builtin_return_address(0);
  State& all = *state();
  const std::shared_ptr<QpRecord> qp = all.find(all.qps, static_cast<const ibv_qp*>(verbs));
  if (qp == nullptr || wr == nullptr) {
    report_gone(all, verbs, "ibv_post_send", place);
    return next_of(verbs).operations.post_send(verbs, wr, bad);
  }
  if (refused_after_fork(all, qp->process, "ibv_post_send", place)) {
    *bad = wr;
    return EPERM;
  }
  return checked_post(all, *qp, wr, 0, place, [&](const ibv_send_wr*& refused) {
    const int error = next_of(verbs).operations.post_send(verbs, wr, bad);
    if (error != 0) refused = *bad;
    return error;
  });
}

namespace {

void wr_start(ibv_qp_ex* verbs) {
  State& all = *state();
  const std::shared_ptr<QpRecord> qp =
      all.find(all.qps, static_cast<const ibv_qp*>(&verbs->qp_base));
  if (qp == nullptr) report_gone(all, verbs, "ibv_wr_start", __builtin_return_address(0));
  next_of(&verbs->qp_base).batches.wr_start(verbs);
}

[[gnu::noinline]] int wr_complete(ibv_qp_ex* verbs) {
  const void* const place = __builtin_return_address(0);
  State& all = *state();
  const std::shared_ptr<QpRecord> qp =
      all.find(all.qps, static_cast<const ibv_qp*>(&verbs->qp_base));
  if (qp == nullptr) return next_of(&verbs->qp_base).batches.wr_complete(verbs);
  if (refused_after_fork(all, qp->process, "ibv_wr_complete", place)) return EPERM;
  const SendBatch& batch = *as_qp(&verbs->qp_base).batch;
  if (!batch.started() || batch.error() != 0 || batch.count() == 0) {
    return next_of(&verbs->qp_base).batches.wr_complete(verbs);
  }
  // Copies: when the batch has ended, another thread may be building the next one there.
  std::vector<ibv_send_wr> requests(batch.requests(), batch.requests() + batch.count());
  std::vector<std::vector<ibv_sge>> pieces;
  for (ibv_send_wr& wr : requests) {
    pieces.emplace_back(wr.sg_list, wr.sg_list + wr.num_sge);
    wr.sg_list = pieces.back().data();
  }
  return checked_post(all, *qp, requests.data(), batch.count(), place,
                      [&](const ibv_send_wr*& refused) {
                        const int error = next_of(&verbs->qp_base).batches.wr_complete(verbs);
                        if (error != 0) refused = requests.data();
                        return error;
                      });
}

void check_inline(ibv_qp_ex* verbs, size_t count, const ibv_data_buf* list, const void* place) {
  uint64_t size_bytes = 0;
  for (size_t i = 0; i < count; ++i) size_bytes += list[i].length;
  const uint32_t limit = as_qp(&verbs->qp_base).init.cap.max_inline_data;
  if (size_bytes <= limit) return;
  state()->report({.kind = CheckKind::kInlineSize,
                   .place = place,
                   .what = fmt::format("{} bytes inline; the queue pair was made for {} "
                                       "(max_inline_data)",
                                       size_bytes, limit),
                   .object = fmt::format("queue pair {:#x}", verbs->qp_base.qp_num),
                   .hardware = "refuses it, or has rounded the limit up and takes it",
                   .remedy = "ask for as many in ibv_qp_init_attr::cap, or use ibv_wr_set_sge()"});
}

void wr_set_inline_data(ibv_qp_ex* verbs, void* address, size_t length_bytes) {
  const ibv_data_buf buffer{.addr = address, .length = length_bytes};
  check_inline(verbs, 1, &buffer, __builtin_return_address(0));
  next_of(&verbs->qp_base).batches.wr_set_inline_data(verbs, address, length_bytes);
}

void wr_set_inline_data_list(ibv_qp_ex* verbs, size_t count, const ibv_data_buf* list) {
  check_inline(verbs, count, list, __builtin_return_address(0));
  next_of(&verbs->qp_base).batches.wr_set_inline_data_list(verbs, count, list);
}

void wr_set_sge_list(ibv_qp_ex* verbs, size_t count, const ibv_sge* list) {
  const uint32_t limit = as_qp(&verbs->qp_base).init.cap.max_send_sge;
  if (count > limit) {
    state()->report({.kind = CheckKind::kTooManySges,
                     .place = __builtin_return_address(0),
                     .what = fmt::format("a send of {} pieces; the queue pair was made for {} "
                                         "(max_send_sge)",
                                         count, limit),
                     .object = fmt::format("queue pair {:#x}", verbs->qp_base.qp_num),
                     .hardware = "refuses it, or has rounded the limit up and takes it",
                     .remedy = "ask for as many in ibv_qp_init_attr::cap"});
  }
  next_of(&verbs->qp_base).batches.wr_set_sge_list(verbs, count, list);
}

}  // namespace

void replace_batches(ibv_qp_ex& qp) {
  qp.wr_start = wr_start;
  qp.wr_complete = wr_complete;
  qp.wr_set_inline_data = wr_set_inline_data;
  qp.wr_set_inline_data_list = wr_set_inline_data_list;
  qp.wr_set_sge_list = wr_set_sge_list;
}

}  // namespace verbena::soft::check
