// What completes, and what that tells; and who goes to sleep.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "src/device/soft/atomic_write.h"
#include "src/device/soft/check/access.h"
#include "src/device/soft/check/buffer_sum.h"
#include "src/device/soft/check/caller.h"
#include "src/device/soft/check/check_records.h"
#include "src/device/soft/objects.h"

namespace verbena::soft::check {
namespace {

// soft0 gives all completions their opcode, those with an error too.
bool fits(ibv_wc_opcode completed, ibv_wr_opcode posted) {
  if (posted == kAtomicWrite) return completed == kAtomicWriteDone;
  switch (posted) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return completed == IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return completed == IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return completed == IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return completed == IBV_WC_FETCH_ADD;
    case IBV_WR_BIND_MW:
      return completed == IBV_WC_BIND_MW;
    case IBV_WR_LOCAL_INV:
      return completed == IBV_WC_LOCAL_INV;
    default:
      return completed == IBV_WC_SEND;
  }
}

// Work of this process's own has written into the pieces, perhaps over sources of sends.
void note_written(State& all, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    all.sources.for_overlaps(piece.begin, piece.end(), [](uint64_t, uint64_t, RangeUse& use) {
      ++use.written;
      return true;
    });
  }
}

// Whether a change of the piece would be the program's own doing.
bool is_programs_own(State& all, const Piece& piece) {
  const RangeUse* use = all.sources.find(piece.begin, piece.end());
  if (use == nullptr || use->written != piece.written_before) return false;
  bool filled = false;
  const auto stop = [&filled](uint64_t, uint64_t, RangeUse&) {
    filled = true;
    return false;
  };
  all.receives.for_overlaps(piece.begin, piece.end(), stop);
  all.targets.for_overlaps(piece.begin, piece.end(), stop);
  return !filled;
}

struct CompletedSend {
  std::shared_ptr<QpRecord> qp;
  SendRecord send;
  ibv_wc_status status;
};

// Takes the send that completed, and those before it, which it covers.
void take_sends(State& all, const std::shared_ptr<QpRecord>& qp, const ibv_wc& wc,
                std::vector<CompletedSend>& completed) {
  size_t last = 0;
  for (; last < qp->sends.size(); ++last) {
    const SendRecord& send = qp->sends[last];
    if (send.wr_id == wc.wr_id && fits(wc.opcode, send.opcode) &&
        (send.signaled || wc.status != IBV_WC_SUCCESS)) {
      break;
    }
  }
  if (last == qp->sends.size()) return;  // of a request that is not noted: a window's
  for (size_t i = 0; i <= last; ++i) {
    SendRecord& send = qp->sends.front();
    for (Piece& piece : send.pieces) {
      if (piece.sum.has_value() && !is_programs_own(all, piece)) piece.sum.reset();
    }
    if (fills_own_buffers(send.opcode)) note_written(all, send.pieces);
    all.forget_send(*qp, send);
    const bool is_it = i == last;
    completed.push_back({qp, std::move(send), is_it ? wc.status : IBV_WC_SUCCESS});
    qp->sends.pop_front();
  }
}

template <typename Queue>
bool take_receive(State& all, Queue& receives, const ibv_wc& wc) {
  for (auto at = receives.begin(); at != receives.end(); ++at) {
    if (at->wr_id != wc.wr_id) continue;
    all.forget_pieces(all.receives, at->pieces);
    note_written(all, at->pieces);
    receives.erase(at);
    return true;
  }
  return false;
}

// What has arrived by XRC completes at the queue's own completion queue; the queue pair may be of
// another process.
void take_xrc_receive(State& all, const CqRecord& cq, const ibv_wc& wc) {
  for (const auto& [verbs, srq] : all.srqs) {
    if (srq->cq.get() == &cq && take_receive(all, srq->receives, wc)) return;
  }
}

void take_completion(State& all, const CqRecord& cq, const ibv_wc& wc,
                     std::vector<CompletedSend>& completed) {
  const auto found = all.qps_by_number.find(wc.qp_num);
  if (found == all.qps_by_number.end()) {
    if ((wc.opcode & IBV_WC_RECV) != 0) take_xrc_receive(all, cq, wc);
    return;
  }
  const std::shared_ptr<QpRecord>& qp = found->second;
  if ((wc.opcode & IBV_WC_RECV) == 0) {
    take_sends(all, qp, wc, completed);
  } else if (qp->srq != nullptr) {
    take_receive(all, qp->srq->receives, wc);
  } else if (take_receive(all, qp->receives, wc)) {
    --qp->recv_cq->receives;
  }
  if (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR && !qp->failed) {
    qp->failed = true;
    qp->posts_since_failure = 0;
  }
}

void check_unchanged(State& all, const CompletedSend& done) {
  for (const Piece& piece : done.send.pieces) {
    if (!piece.sum.has_value()) continue;
    const std::optional<uint64_t> now = sum_buffer(piece.begin, piece.length_bytes);
    if (!now.has_value() || *now == *piece.sum) continue;
    all.report(
        {.kind = CheckKind::kBufferChanged,
         .place = done.send.place,
         .what = "a send buffer was changed between the post and the completion that covers it",
         .object = fmt::format("{}, {}, wr_id {:#x}{}, {} bytes at {:#x}", describe(*done.qp),
                               opcode_text(done.send.opcode), done.send.wr_id,
                               done.send.signaled ? "" : " (unsignaled)", piece.length_bytes,
                               piece.address),
         .hardware = "sends the old bytes, the new ones, or some of each",
         .remedy = "change a buffer after its completion was polled; that of an unsignaled request "
                   "after a later signaled one's"});
  }
}

uint64_t remote_size_of(const SendRecord& send) {
  uint64_t size_bytes = send.opcode == kAtomicWrite ? kAtomicWriteBytes : 0;
  for (const Piece& piece : send.pieces) size_bytes += piece.length_bytes;
  return size_bytes;
}

// Why memory refused an access; empty if nothing is known.
std::string find_reason(const CompletedSend& done) {
  const SendRecord& send = done.send;
  const std::lock_guard guard(done.qp->use);
  if (done.qp->gone) return "";
  if (done.status == IBV_WC_REM_ACCESS_ERR) {
    return explain_remote(done.qp->verbs, send, remote_size_of(send));
  }
  if (done.status != IBV_WC_LOC_PROT_ERR) return "";
  const Qp& device_qp = as_qp(done.qp->verbs);
  const uint32_t access = fills_own_buffers(send.opcode) ? IBV_ACCESS_LOCAL_WRITE : 0;
  return explain_local(device_qp.regions, send.pieces, access, device_qp.domain);
}

void explain_error(State& all, const CompletedSend& done) {
  const SendRecord& send = done.send;
  const std::string object =
      fmt::format("{}, {}, wr_id {:#x}", describe(*done.qp), opcode_text(send.opcode), send.wr_id);
  const std::string wrong = find_reason(done);
  if (wrong.empty()) return;
  if (done.status == IBV_WC_REM_ACCESS_ERR) {
    all.report(
        {.kind = CheckKind::kRemoteAccess,
         .place = send.place,
         .what = "the peer's memory refused the access (IBV_WC_REM_ACCESS_ERR)",
         .object = fmt::format("{}, {} bytes at remote address {:#x}, rkey {:#x}: {}", object,
                               remote_size_of(send), send.remote_address, send.rkey, wrong),
         .hardware = "the same, without the reason",
         .remedy = "register the region at the peer (the target) with what is missing, or "
                   "address what lies within it"});
  } else if (done.status == IBV_WC_LOC_PROT_ERR) {
    all.report({.kind = CheckKind::kLocalAccess,
                .place = send.place,
                .what = "the request's own memory refused the access (IBV_WC_LOC_PROT_ERR)",
                .object = object + ", " + wrong,
                .hardware = "the same, without the reason",
                .remedy = "register the region at this side with what is missing, or post what "
                          "lies within it, with its lkey"});
  }
}

void take_completions(State& all, CqRecord& cq, const ibv_wc* wc, int count) {
  std::vector<CompletedSend> completed;
  {
    const std::lock_guard guard(all.mutex);
    cq.polled_since = true;
    const uint64_t self = this_thread_token();
    if (cq.polled_by != 0 && cq.polled_by != self) cq.polled_by_several = true;
    cq.polled_by = self;
    for (int i = 0; i < count; ++i) take_completion(all, cq, wc[i], completed);
  }
  for (const CompletedSend& done : completed) {
    if (done.status == IBV_WC_SUCCESS) {
      check_unchanged(all, done);
    } else {
      explain_error(all, done);
    }
  }
}

}  // namespace

[[gnu::noinline]] int poll_cq(ibv_cq* verbs, int count, ibv_wc* wc) {
  const void* const place = __builtin_return_address(0);
  State& all = *state();
  const std::shared_ptr<CqRecord> cq = all.find(all.cqs, static_cast<const ibv_cq*>(verbs));
  if (cq == nullptr) {
    report_gone(all, verbs, "ibv_poll_cq", place);
    return next_of(verbs).operations.poll_cq(verbs, count, wc);
  }
  if (refused_after_fork(all, cq->process, "ibv_poll_cq", place)) return -1;
  const std::lock_guard order(cq->order);
  const int taken = next_of(verbs).operations.poll_cq(verbs, count, wc);
  take_completions(all, *cq, wc, taken);
  return taken;
}

namespace {

// Whether a completion may come, or have come, that the program does not know of: sends, and
// receives of what is connected. Holds State::mutex.
bool has_work(const State& all, const CqRecord& cq) {
  if (cq.sends > 0) return true;
  for (const auto& [verbs, srq] : all.srqs) {
    if (srq->cq.get() == &cq && !srq->receives.empty()) return true;
  }
  for (const auto& [verbs, qp] : all.qps) {
    if (qp->recv_cq.get() != &cq) continue;
    const ibv_qp_state state = as_qp(qp->verbs).state.load(std::memory_order_relaxed);
    const bool receives = state == IBV_QPS_RTR || state == IBV_QPS_RTS;
    const bool posted = qp->srq != nullptr ? !qp->srq->receives.empty() : !qp->receives.empty();
    if (receives && posted) return true;
  }
  return false;
}

// Whether a completion lies there to be polled.
bool has_completion(ibv_cq* verbs) {
  Cq& cq = as_cq(verbs);
  const OwnerLock::Guard guard(cq.lock);
  if (!cq.completions.empty()) return true;
  for (const Srq* srq : cq.xrc_queues) {
    if (srq->xrc->arrived(srq->ring_mask)) return true;
  }
  for (uint32_t i = 0; i < cq.scanned_count; ++i) {
    const Qp& qp = *cq.scanned[i];
    if (!has_datagrams(qp.transport) && !qp.arrivals.closed && qp.arrivals.arrived()) {
      return true;
    }
  }
  return false;
}

}  // namespace

[[gnu::noinline]] int req_notify_cq(ibv_cq* verbs, int solicited_only) {
  const void* const place = __builtin_return_address(0);
  State& all = *state();
  const std::shared_ptr<CqRecord> cq = all.find(all.cqs, static_cast<const ibv_cq*>(verbs));
  if (cq == nullptr) {
    report_gone(all, verbs, "ibv_req_notify_cq", place);
    return next_of(verbs).operations.req_notify_cq(verbs, solicited_only);
  }
  if (refused_after_fork(all, cq->process, "ibv_req_notify_cq", place)) return EPERM;
  // Before the arming: of this one no event will come.
  const bool lies_there = has_completion(verbs);
  {
    const std::lock_guard guard(all.mutex);
    const uint64_t self = this_thread_token();
    if (cq->armed_by != 0 && cq->armed_by != self) cq->armed_by_several = true;
    cq->armed_by = self;
    cq->arms = std::min(cq->arms + 1, 2u);
    cq->lay_before = lies_there;
    cq->polled_since = false;
    cq->work_since = has_work(all, *cq);
  }
  return next_of(verbs).operations.req_notify_cq(verbs, solicited_only);
}

namespace {

// Holds State::mutex by a StateLock.
void report_sleep(State& all, const CqRecord& cq, const void* place) {
  const bool lies_there = cq.lay_before;
  all.report_later(
      {.kind = lies_there ? CheckKind::kLostWakeup : CheckKind::kArmThenSleep,
       .place = place,
       .what = lies_there
                   ? "the program waits for an event while a completion that came before it armed "
                     "the queue lies there"
                   : "the program armed a completion queue with work under way, and waits for an "
                     "event without a poll in between",
       .object = fmt::format("completion queue {}", static_cast<void*>(cq.verbs)),
       .hardware = "gives events for completions after the arming only: the program may sleep for "
                   "ever",
       .remedy = "ibv_req_notify_cq(), then poll until the queue is empty, then "
                 "ibv_get_cq_event()"});
}

// Before a thread waits for an event that is not there yet.
void check_sleep(State& all, ibv_comp_channel* channel, const void* place) {
  if ((fcntl(channel->fd, F_GETFL) & O_NONBLOCK) != 0) return;
  pollfd event{.fd = channel->fd, .events = POLLIN, .revents = 0};
  if (::poll(&event, 1, 0) != 0) return;
  const StateLock guard(all);
  const CqRecord* unarmed = nullptr;
  bool any_armed = false;
  for (const auto& [verbs, cq] : all.cqs) {
    if (cq->verbs->channel != channel) continue;
    // Another thread may be the one that polls it, or arms it.
    const uint64_t self = this_thread_token();
    const bool polled_elsewhere =
        cq->polled_by_several || (cq->polled_by != 0 && cq->polled_by != self);
    const bool own = cq->armed_by == self && !cq->armed_by_several && !polled_elsewhere;
    any_armed = any_armed || !own || cq->arms != 0 || cq->polled_by != self;
    if (own && cq->arms == 0) unarmed = cq.get();
    const bool asleep_over = cq->lay_before || cq->work_since;
    if (own && cq->arms != 0 && !cq->polled_since && asleep_over) report_sleep(all, *cq, place);
  }
  if (any_armed || unarmed == nullptr) return;
  all.report_later(
      {.kind = CheckKind::kLostWakeup,
       .place = place,
       .what = "the program waits for an event, and has armed no completion queue of the "
               "channel since the last one",
       .object = fmt::format("completion queue {}", static_cast<void*>(unarmed->verbs)),
       .hardware = "the same: each event needs an ibv_req_notify_cq() of its own, and the "
                   "program sleeps for ever",
       .remedy = "ibv_req_notify_cq() after each event, before the last poll"});
}

}  // namespace

int get_cq_event(ibv_comp_channel* channel, ibv_cq** verbs, void** cq_context) {
  State& all = *state();
  bool known = false;
  {
    const std::lock_guard guard(all.mutex);
    const auto found = all.objects.find(channel);
    known = found != all.objects.end() && found->second.process == this_process();
  }
  const void* const place = find_caller().place;
  if (known) {
    check_sleep(all, channel, place);
  } else {
    report_gone(all, channel, "ibv_get_cq_event", place);
  }
  const int error = next().control.get_cq_event(channel, verbs, cq_context);
  if (error != 0) return error;
  const std::lock_guard guard(all.mutex);
  const auto found = all.cqs.find(*verbs);
  // An arming before the event was taken may still be in force.
  if (found != all.cqs.end()) found->second->arms = found->second->arms > 1 ? 1 : 0;
  return error;
}

namespace {

// The completion at which an extended poll stands. Its lock is held, which keeps the order.
template <typename Poll>
int take_extended(ibv_cq_ex* verbs, Poll&& poll) {
  State& all = *state();
  const ibv_cq* const plain = ibv_cq_ex_to_cq(verbs);
  const std::shared_ptr<CqRecord> cq = all.find(all.cqs, plain);
  if (cq == nullptr) return poll();
  cq->extended_polls.fetch_add(1);
  const int error = poll();
  ibv_wc wc{};
  if (error == 0) {
    wc = as_cq(ibv_cq_ex_to_cq(verbs)).poll.wc;
    wc.wr_id = verbs->wr_id;
    wc.status = verbs->status;
  }
  take_completions(all, *cq, &wc, error == 0 ? 1 : 0);
  cq->extended_polls.fetch_sub(1);
  return error;
}

[[gnu::noinline]] int start_poll(ibv_cq_ex* verbs, ibv_poll_cq_attr* attributes) {
  const void* const place = __builtin_return_address(0);
  State& all = *state();
  const std::shared_ptr<CqRecord> cq =
      all.find(all.cqs, static_cast<const ibv_cq*>(ibv_cq_ex_to_cq(verbs)));
  if (cq == nullptr) {
    report_gone(all, verbs, "ibv_start_poll", place);
  } else if (refused_after_fork(all, cq->process, "ibv_start_poll", place)) {
    return EPERM;
  }
  return take_extended(
      verbs, [&] { return next_of(ibv_cq_ex_to_cq(verbs)).polls.start_poll(verbs, attributes); });
}

int next_poll(ibv_cq_ex* verbs) {
  return take_extended(verbs,
                       [&] { return next_of(ibv_cq_ex_to_cq(verbs)).polls.next_poll(verbs); });
}

}  // namespace

void replace_polls(ibv_cq_ex& cq) {
  cq.start_poll = start_poll;
  cq.next_poll = next_poll;
}

}  // namespace verbena::soft::check
