// What is posted to receive queues, own and shared ones.
#include <fmt/format.h>

#include <cerrno>

#include "src/device/soft/check/access.h"
#include "src/device/soft/check/check_records.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/rnic.h"

namespace verbena::soft::check {
namespace {

// The memory that a receive gives away, against what is given away already. Holds State::mutex by a
// StateLock.
void check_overlaps(State& all, const Piece& piece, const std::string& object, const void* place) {
  all.receives.for_overlaps(
      piece.begin, piece.end(), [&](uint64_t begin, uint64_t end, RangeUse& use) {
        const bool same = begin == piece.begin && end == piece.end();
        all.report_later(
            {.kind = same ? CheckKind::kReceiveSameBuffer : CheckKind::kReceiveOverlap,
             .place = place,
             .other_place = use.place,
             .what = same ? "a receive is posted into the buffer of another posted receive"
                          : "a receive's buffer overlaps that of another posted receive",
             .object = fmt::format("{}, [{:#x}, {:#x}) and [{:#x}, {:#x})", object, piece.begin,
                                   piece.end(), begin, end),
             .other = "other one",
             .hardware = "two messages that arrive before the first is taken overwrite each "
                         "other",
             .remedy = "give each posted receive memory of its own; look at the stride"});
        return same;  // those of other extents are still to come
      });
  all.sources.for_overlaps(
      piece.begin, piece.end(), [&](uint64_t begin, uint64_t end, RangeUse& use) {
        all.report_later({.kind = CheckKind::kReceiveOverSend,
                          .place = place,
                          .other_place = use.place,
                          .what = "a receive's buffer overlaps that of a send which is under way",
                          .object = fmt::format("{}, [{:#x}, {:#x}) and [{:#x}, {:#x})", object,
                                                piece.begin, piece.end(), begin, end),
                          .other = "send",
                          .hardware = "a message that arrives changes what is sent, or sent again",
                          .remedy = "give receives memory of their own"});
        return false;
      });
}

// With more pieces than the queue takes it is refused, and its list is not looked at.
ReceiveRecord make_record(const ibv_recv_wr& wr, uint32_t max_pieces, const RegionEntry* regions,
                          uint32_t domain, const void* place) {
  ReceiveRecord receive{.wr_id = wr.wr_id, .place = place, .pieces = {}};
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > max_pieces) return receive;
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length == 0 || is_null_key(regions, sge.lkey, domain)) continue;
    Piece piece;
    piece.address = sge.addr;
    piece.length_bytes = sge.length;
    piece.lkey = sge.lkey;
    piece.begin = program_address(regions, sge.addr, sge.lkey);
    receive.pieces.push_back(piece);
  }
  return receive;
}

void note_buffers(State& all, const ReceiveRecord& receive, const std::string& object) {
  check_released(all, receive.pieces, object, receive.place);
  for (const Piece& piece : receive.pieces) {
    check_overlaps(all, piece, object, receive.place);
    all.receives.add(piece.begin, piece.end(), receive.place);
  }
}

void check_access(State& all, const RegionEntry* regions, uint32_t domain,
                  const ReceiveRecord& receive, const std::string& object) {
  const std::string wrong = explain_local(regions, receive.pieces, IBV_ACCESS_LOCAL_WRITE, domain);
  if (wrong.empty()) return;
  all.report({.kind = CheckKind::kReceiveAccess,
              .place = receive.place,
              .what = "a receive is posted that no message can be placed into",
              .object = fmt::format("{}, wr_id {:#x}, {}", object, receive.wr_id, wrong),
              .hardware = "the message that meets it fails with IBV_WC_LOC_PROT_ERR, and the queue "
                          "pair with it",
              .remedy = "register receive buffers with IBV_ACCESS_LOCAL_WRITE, and post what lies "
                        "within the region, with its lkey"});
}

void check_grh_room(State& all, const QpRecord& qp, const ibv_recv_wr& wr, const void* place) {
  if (qp.type != IBV_QPT_UD) return;
  uint64_t size_bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) size_bytes += wr.sg_list[i].length;
  if (size_bytes >= kGrhBytes) return;
  all.report({.kind = CheckKind::kGrhRoom,
              .place = place,
              .what = fmt::format("a receive of {} bytes for datagrams: their first 40 bytes are "
                                  "for the GRH",
                                  size_bytes),
              .object = fmt::format("{}, wr_id {:#x}", describe(qp), wr.wr_id),
              .hardware = "every datagram is dropped, or fails with IBV_WC_LOC_LEN_ERR",
              .remedy = "post 40 bytes more than the longest datagram"});
}

void explain_refused_receive(State& all, const QpRecord& qp, const ibv_recv_wr& wr,
                             const void* place) {
  const Qp& device_qp = as_qp(qp.verbs);
  const ibv_qp_state state = device_qp.state.load(std::memory_order_relaxed);
  const uint32_t limit = device_qp.init.cap.max_recv_sge;
  if (state == IBV_QPS_RESET) {
    all.report({.kind = CheckKind::kWrongState,
                .place = place,
                .what = "a receive posted to a queue pair in state RESET",
                .object = fmt::format("{}, wr_id {:#x}", describe(qp), wr.wr_id),
                .hardware = "some refuse it, others forget it in the step to INIT",
                .remedy = "modify the queue pair to INIT before"});
  } else if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > limit) {
    all.report({.kind = CheckKind::kTooManySges,
                .place = place,
                .what = fmt::format("a receive of {} pieces; the queue pair was made for {} "
                                    "(max_recv_sge)",
                                    wr.num_sge, limit),
                .object = fmt::format("{}, wr_id {:#x}", describe(qp), wr.wr_id),
                .hardware = "refuses it, or has rounded the limit up and takes it",
                .remedy = "ask for as many in ibv_qp_init_attr::cap"});
  }
}

// The latest `count` were not posted.
template <typename Queue>
void forget_latest_receives(State& all, Queue& receives, size_t count) {
  for (; count > 0 && !receives.empty(); --count) {
    all.forget_pieces(all.receives, receives.back().pieces);
    receives.pop_back();
  }
}

size_t count_from(const ibv_recv_wr* wr) {
  size_t count = 0;
  for (; wr != nullptr; wr = wr->next) ++count;
  return count;
}

}  // namespace

[[gnu::noinline]] int post_recv(ibv_qp* verbs, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const void* const place = __builtin_return_address(0);
  State& all = *state();
  const std::shared_ptr<QpRecord> qp = all.find(all.qps, static_cast<const ibv_qp*>(verbs));
  if (qp == nullptr) {
    report_gone(all, verbs, "ibv_post_recv", place);
    return next_of(verbs).operations.post_recv(verbs, wr, bad);
  }
  if (refused_after_fork(all, qp->process, "ibv_post_recv", place)) {
    *bad = wr;
    return EPERM;
  }
  const Qp& device_qp = as_qp(verbs);
  const uint32_t max_pieces = device_qp.init.cap.max_recv_sge;
  const std::lock_guard order(qp->receive_order);
  const std::string object = describe(*qp);
  size_t posted = count_from(wr);
  {
    const StateLock guard(all);
    take_releases(all);
    for (const ibv_recv_wr* at = wr; at != nullptr; at = at->next) {
      qp->receives.push_back(
          make_record(*at, max_pieces, device_qp.regions, device_qp.domain, place));
      note_buffers(all, qp->receives.back(), object);
    }
  }
  const int error = next_of(verbs).operations.post_recv(verbs, wr, bad);
  if (error != 0) {
    const size_t refused = count_from(*bad);
    posted -= std::min(refused, posted);
    {
      const std::lock_guard guard(all.mutex);
      forget_latest_receives(all, qp->receives, refused);
    }
    if (error == EINVAL && *bad != nullptr) explain_refused_receive(all, *qp, **bad, place);
  }
  if (qp->recv_cq == nullptr) return error;  // it only sends: all were refused
  count_at_cq(all, *qp->recv_cq, 0, static_cast<int64_t>(posted), object, place);
  for (const ibv_recv_wr* at = wr; posted > 0; at = at->next, --posted) {
    check_access(all, device_qp.regions, device_qp.domain,
                 make_record(*at, max_pieces, device_qp.regions, device_qp.domain, place), object);
    check_grh_room(all, *qp, *at, place);
  }
  return error;
}

[[gnu::noinline]] int post_srq_recv(ibv_srq* verbs, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const void* const place = __builtin_return_address(0);
  State& all = *state();
  const std::shared_ptr<SrqRecord> srq = all.find(all.srqs, static_cast<const ibv_srq*>(verbs));
  if (srq == nullptr) {
    report_gone(all, verbs, "ibv_post_srq_recv", place);
    return next_of(verbs).operations.post_srq_recv(verbs, wr, bad);
  }
  if (refused_after_fork(all, srq->process, "ibv_post_srq_recv", place)) {
    *bad = wr;
    return EPERM;
  }
  const Srq& device_srq = as_srq(verbs);
  const RegionEntry* const regions = device_srq.rnic->own_regions();
  const std::lock_guard order(srq->order);
  const std::string object = fmt::format("shared receive queue {}", static_cast<void*>(verbs));
  size_t posted = count_from(wr);
  {
    const StateLock guard(all);
    take_releases(all);
    for (const ibv_recv_wr* at = wr; at != nullptr; at = at->next) {
      srq->receives.push_back(
          make_record(*at, device_srq.max_sges, regions, device_srq.domain, place));
      note_buffers(all, srq->receives.back(), object);
    }
  }
  const int error = next_of(verbs).operations.post_srq_recv(verbs, wr, bad);
  if (error != 0) {
    const size_t refused = count_from(*bad);
    posted -= std::min(refused, posted);
    if (error == EINVAL && *bad != nullptr) {
      all.report({.kind = CheckKind::kTooManySges,
                  .place = place,
                  .what = fmt::format("a receive of {} pieces; the queue was made for {} (max_sge)",
                                      (*bad)->num_sge, device_srq.max_sges),
                  .object = object,
                  .hardware = "refuses it, or has rounded the limit up and takes it",
                  .remedy = "ask for as many in ibv_srq_init_attr"});
    }
    const std::lock_guard guard(all.mutex);
    forget_latest_receives(all, srq->receives, refused);
  }
  for (const ibv_recv_wr* at = wr; posted > 0; at = at->next, --posted) {
    check_access(all, regions, device_srq.domain,
                 make_record(*at, device_srq.max_sges, regions, device_srq.domain, place), object);
  }
  return error;
}

}  // namespace verbena::soft::check
