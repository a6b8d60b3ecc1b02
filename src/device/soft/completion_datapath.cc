// Polling a completion queue: own completed sends, then what has arrived at its queue pairs.
//
// An arrival is a packet in the ring of a queue pair. The poll that finds it takes the receive it
// belongs to, puts an inline payload into the receive buffer, and makes the completion; there is no
// second queue in between.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "src/base/shared_memory.h"
#include "src/device/soft/arrivals.h"
#include "src/device/soft/poll_pause.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/refusal.h"
#include "src/device/soft/xrc.h"

namespace verbena::soft {
namespace {

// So many empty polls in a row: who has more to do polls less often in vain.
constexpr uint32_t kPollsBeforeDrain = 3;

// Frees the places of the send queue up to `position`.
void retire_sends(Qp& qp, uint32_t position) {
  VERBENA_DEBUG_ASSERT(position - qp.send_retired.load(std::memory_order_relaxed) - 1 <
                       qp.send_depth);
  // Release: the poster may use the places again.
  qp.send_retired.store(position, std::memory_order_release);
}

int take_own(Cq& cq, int count, ibv_wc* wc) {
  int taken = 0;
  while (taken < count && !cq.completions.empty()) {
    const Completion& completion = cq.completions.front();
    fill_completion(*completion.qp, completion.wr_id, completion.status, wc[taken]);
    wc[taken].opcode = completion.opcode;
    wc[taken].byte_len = completion.byte_count;
    retire_sends(*completion.qp, completion.send_position);
    cq.completions.pop();
    ++taken;
  }
  return taken;
}

// Flushed receives of queue pairs in error, once all that had arrived is taken. The packet of a
// sender that was in flight may come after the first of them. Its receive is flushed by then, and
// it must not meet a later one.
int take_flushed(Cq& cq, int count, ibv_wc* wc, Broken& broken) {
  int taken = 0;
  for (Qp* qp : cq.flushing) {
    while (taken < count && take_packet(*qp, wc[taken], broken)) ++taken;
    if (qp->srq != nullptr || qp->flush_ticket != 0) continue;
    for (const PostedReceive* receive;
         taken < count && (receive = qp->receives.oldest()) != nullptr;) {
      qp->arrivals.close();
      fill_completion(*qp, receive->wr_id, IBV_WC_WR_FLUSH_ERR, wc[taken++]);
      qp->receives.pop();
    }
  }
  return taken;
}

int take_scanned(Cq& cq, int count, ibv_wc* wc, Broken& broken) {
  int taken = 0;
  for (uint32_t step = 0; step < cq.scanned_count && taken < count && broken.qp == nullptr;
       ++step) {
    VERBENA_DEBUG_ASSERT(cq.next_scanned < cq.scanned_count && cq.scanned_count <= Cq::kScanned);
    Qp& qp = *cq.scanned[cq.next_scanned];
    while (taken < count && broken.qp == nullptr && take_packet(qp, wc[taken], broken)) ++taken;
    cq.next_scanned = cq.next_scanned + 1 == cq.scanned_count ? 0 : cq.next_scanned + 1;
  }
  return taken;
}

int take_recent(Cq& cq, int count, ibv_wc* wc, Broken& broken) {
  Qp& qp = *cq.recent;
  int taken = 0;
  while (taken < count && broken.qp == nullptr && take_packet(qp, wc[taken], broken)) ++taken;
  return taken;
}

// The bits of a word of the ready bitmap that polls leave as they are.
uint64_t kept_bits(const Cq& cq, uint32_t word) {
  if (cq.recent == nullptr || cq.recent->ready_bit / 64 != word) return 0;
  return 1ull << (cq.recent->ready_bit % 64);
}

// Whether no queue pair but the recent one has anything: what most polls of a queue with many of
// them ask, in one pass over a few lines that only senders change.
bool is_quiet(const Cq& cq) {
  if (!cq.flushing.empty() || !cq.xrc_queues.empty()) return false;
  for (uint32_t i = 0; i < cq.scanned_count; ++i) {
    const Qp& qp = *cq.scanned[i];
    if (qp.datagrams != nullptr || qp.arrivals.arrived()) return false;
  }
  const auto words = static_cast<uint32_t>((cq.with_ready_bit.size() + 63) / 64);
  const uint32_t kept_word = cq.recent == nullptr ? words : cq.recent->ready_bit / 64;
  uint64_t ready = 0;
  for (uint32_t word = 0; word < words; ++word) {
    const uint64_t bits = cq.shared->ready_bits[word].load(std::memory_order_relaxed);
    ready |= word == kept_word ? bits & ~kept_bits(cq, word) : bits;
  }
  return ready == 0;
}

// Goes once around the ready bitmap, from the bit behind the last that was served: however busy one
// queue pair is, each is served. The word in which it begins comes last again, for the bits before
// that one.
int take_ready(Cq& cq, int count, ibv_wc* wc, Broken& broken) {
  int taken = 0;
  const auto words = static_cast<uint32_t>((cq.with_ready_bit.size() + 63) / 64);
  for (uint32_t step = 0; step <= words; ++step) {
    const uint32_t word = cq.next_ready_bit / 64;
    const uint64_t polled = ~0ull << (cq.next_ready_bit % 64) & ~kept_bits(cq, word);
    std::atomic<uint64_t>& bits = cq.shared->ready_bits[word];
    uint64_t ready = bits.load(std::memory_order_relaxed) & polled;
    // Acquire: the packets of these queue pairs are visible. A later packet sets its bit again; its
    // sender either sees the bit clear, or this poll sees the packet (set_ready_bit()).
    if (ready != 0) ready = bits.fetch_and(~polled, std::memory_order_acq_rel) & polled;
    for (; ready != 0; ready &= ready - 1) {
      const uint32_t index = word * 64 + static_cast<uint32_t>(std::countr_zero(ready));
      Qp* qp = index < cq.with_ready_bit.size() ? cq.with_ready_bit[index] : nullptr;
      const int before = taken;
      while (qp != nullptr && taken < count && broken.qp == nullptr &&
             take_packet(*qp, wc[taken], broken))
        ++taken;
      if (taken > before && qp->datagrams == nullptr) cq.recent = qp;
      if (taken == count || broken.qp != nullptr) {
        bits.fetch_or(ready,
                      std::memory_order_relaxed);  // for the next poll; this one may have more too
        cq.next_ready_bit = (index + 1) % (words * 64);
        return taken;
      }
    }
    cq.next_ready_bit = (word + 1) % words * 64;
  }
  return taken;
}

// The kinds of arrivals take turns in being first.
int take_in_turns(Cq& cq, int count, ibv_wc* wc, Broken& broken) {
  using Take = int (*)(Cq&, int, ibv_wc*, Broken&);
  constexpr Take kTakes[] = {
      take_scanned, take_ready, take_flushed,
      [](Cq& queue, int most, ibv_wc* to, Broken&) { return take_xrc(queue, most, to); }};
  cq.next_kind = (cq.next_kind + 1) % std::size(kTakes);
  int taken = 0;
  for (uint32_t step = 0; step < std::size(kTakes) && taken < count && broken.qp == nullptr;
       ++step) {
    const uint32_t kind = (cq.next_kind + step) % std::size(kTakes);
    if (kTakes[kind] == take_ready && cq.with_ready_bit.empty()) continue;
    taken += kTakes[kind](cq, count - taken, wc + taken, broken);
  }
  return taken;
}

int take_arrivals(Cq& cq, int count, ibv_wc* wc, Broken& broken) {
  if (cq.with_ready_bit.empty() && cq.flushing.empty() && cq.xrc_queues.empty()) [[likely]]
    return take_scanned(cq, count, wc, broken);
  int taken = 0;
  if (cq.recent != nullptr && cq.recent_row < cq.recent_limit) {
    taken = take_recent(cq, count, wc, broken);
    cq.recent_row += static_cast<uint32_t>(taken);
    // Else the others, too: who gets fewer completions than it asked for waits for an event.
    if (taken == count || broken.qp != nullptr) return taken;
  }
  cq.recent_row = 0;
  const int before = taken;
  if (!is_quiet(cq)) taken += take_in_turns(cq, count - taken, wc + taken, broken);
  if (taken > before) cq.recent_limit = 1;
  if (cq.recent != nullptr && taken < count && broken.qp == nullptr) {
    const int more = take_recent(cq, count - taken, wc + taken, broken);
    if (more > 0 && taken == 0) cq.recent_limit = std::min(2 * cq.recent_limit, Cq::kMostInRow);
    taken += more;
  }
  return taken;
}

// Of own completions and arrivals. Where one of the two fills a poll, the other comes first in the
// next one, so that neither starves the other.
[[gnu::noinline]] int take_all(Cq& cq, int count, ibv_wc* wc, Broken& broken) {
  const bool arrivals_first = cq.served_own;
  int taken = arrivals_first ? take_arrivals(cq, count, wc, broken) : 0;
  const int own = take_own(cq, count - taken, wc + taken);
  taken += own;
  cq.served_own = own > 0 && taken == count;
  if (taken < count && !arrivals_first)
    taken += take_arrivals(cq, count - taken, wc + taken, broken);
  return taken;
}

// The short way of take_all() for one completion, of a queue that has the arrivals of one connected
// queue pair at most: how many it took, or kGeneralWay.
constexpr int kGeneralWay = -1;
inline int take_at_once(Cq& cq, ibv_wc& wc) {
  if (cq.scanned_count > 1 || !cq.with_ready_bit.empty() || !cq.flushing.empty() ||
      !cq.xrc_queues.empty()) {
    return kGeneralWay;
  }
  Qp* const qp = cq.scanned_count == 1 ? cq.scanned[0] : nullptr;
  if (qp != nullptr && qp->datagrams != nullptr) return kGeneralWay;
  const bool arrived = qp != nullptr && qp->arrivals.arrived();
  if (!cq.completions.empty() && !(cq.served_own && arrived)) {
    cq.served_own = true;
    return take_own(cq, 1, &wc);
  }
  // Whose turn it is changes only with what is decided here: the general way asks again.
  if (arrived && !complete_at_once(*qp, wc)) return kGeneralWay;
  cq.served_own = false;
  return arrived ? 1 : 0;
}

}  // namespace

int poll_cq(ibv_cq* verbs, int count, ibv_wc* wc) {
  Cq& cq = as_cq(verbs);
  if (count <= 0) return 0;
  if (cq.waiting.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    retry_waiting_of(cq);
    cq.rnic->wait_to_flush(cq);
  }
  Broken broken;
  int taken = 0;
  uint32_t empty_polls = 0;
  {
    const OwnerLock::Guard guard(cq.lock);
    taken = count == 1 ? take_at_once(cq, *wc) : kGeneralWay;
    if (taken == kGeneralWay) taken = take_all(cq, count, wc, broken);
    cq.empty_polls = taken > 0 ? 0 : cq.empty_polls + 1;
    empty_polls = cq.empty_polls;
    // Who waits lets what it has sent reach the cache first: a round trip of one SEND is a tenth
    // shorter. Nothing relies on the order.
    if (cq.empty_polls == kPollsBeforeDrain) std::atomic_thread_fence(std::memory_order_seq_cst);
    if (cq.overrun && taken == 0) [[unlikely]]
      taken = -1;
  }
  if (taken < 0) [[unlikely]]
    log_overrun(cq);
  if (broken.qp != nullptr) [[unlikely]]
    fail_queue_pair(*broken.qp, IBV_WC_WR_FLUSH_ERR, broken.event);
  if ((taken == 0 && empty_polls % kPollsPerPause == 0) ||
      cq.poller.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
    pause_in_poll(cq, empty_polls);
  }
  return taken;
}

int req_notify_cq(ibv_cq* verbs, int solicited_only) {
  Cq& cq = as_cq(verbs);
  if (cq.channel == nullptr) [[unlikely]] {
    fail(EINVAL,
         "soft0: the completion queue has no completion channel; create it with one to get events");
    log_refused_notification(last_error());
    return EINVAL;
  }
  const OwnerLock::Guard guard(cq.lock);
  const uint32_t wanted = solicited_only != 0 ? kArmedSolicited : kArmedAny;
  const uint32_t armed = cq.shared->armed.load(std::memory_order_relaxed);
  if (armed < wanted || is_ringing(armed)) {
    cq.shared->armed.store(wanted, std::memory_order_relaxed);
  }
  // Store-load: pairs with the sender's fence between its packet and its load of `armed`.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return 0;
}

void ring_peer_channel(Peer& process, CqShared& cq, bool solicited) {
  uint32_t armed = cq.armed.load(std::memory_order_relaxed);
  const bool due =
      is_ringing(armed) || armed == kArmedAny || (armed == kArmedSolicited && solicited);
  uint32_t ringing = make_ringing(now_ns());
  if (!due || !cq.armed.compare_exchange_strong(armed, ringing)) return;
  const bool rung = process.notify(cq.channel_fd, cq.channel_id, &cq.cookie, sizeof(cq.cookie));
  // Without a descriptor for the channel, the owner's service thread finds who was about to ring.
  if (!rung && process.wake_service()) return;
  // Fails if the owner, whom the event woke, has armed the queue again.
  cq.armed.compare_exchange_strong(ringing, rung ? 0 : armed);
}

void forget_completions(Cq& cq, const Qp& qp) {
  const OwnerLock::Guard guard(cq.lock);
  cq.completions.forget(qp);
}

uint32_t attach_receiver(Cq& cq, Qp& qp) {
  const OwnerLock::Guard guard(cq.lock);
  if (cq.scanned_count < Cq::kScanned) {
    cq.scanned[cq.scanned_count++] = &qp;
    return kNoReadyBit;
  }
  auto place = std::find(cq.with_ready_bit.begin(), cq.with_ready_bit.end(), nullptr);
  if (place == cq.with_ready_bit.end()) place = cq.with_ready_bit.insert(place, nullptr);
  VERBENA_ASSERT(cq.with_ready_bit.size() <= kMaxQueuePairs);
  *place = &qp;
  return static_cast<uint32_t>(place - cq.with_ready_bit.begin());
}

void detach_receiver(Cq& cq, Qp& qp) {
  const OwnerLock::Guard guard(cq.lock);
  cq.scanned_count = static_cast<uint32_t>(
      std::remove(cq.scanned, cq.scanned + cq.scanned_count, &qp) - cq.scanned);
  cq.next_scanned = 0;
  std::replace(cq.with_ready_bit.begin(), cq.with_ready_bit.end(), &qp, static_cast<Qp*>(nullptr));
  if (cq.recent == &qp) cq.recent = nullptr;
  std::erase(cq.flushing, &qp);
}

void start_flushing(Qp& qp) {
  {
    Cq& cq = *qp.recv_cq;
    const OwnerLock::Guard guard(cq.lock);
    if (std::find(cq.flushing.begin(), cq.flushing.end(), &qp) == cq.flushing.end()) {
      cq.flushing.push_back(&qp);
      // Who sends datagrams touches no receives, and those of a shared queue are not flushed.
      if (qp.srq == nullptr && !has_datagrams(qp.transport) && !is_xrc(qp.transport)) {
        qp.flush_ticket = ++cq.flush_tickets;
        cq.waiting.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }
  ring_own_channel(*qp.recv_cq, true);
}

void end_flush_wait(Qp& qp) {
  if (std::exchange(qp.flush_ticket, 0) != 0) end_use(qp.recv_cq->waiting);
}

void reclaim_shared_receives(Qp& qp, bool all) {
  const OwnerLock::Guard cq_guard(qp.recv_cq->lock);
  Srq& srq = *qp.srq;
  const OwnerLock::Guard srq_guard(srq.lock);
  std::vector<bool> delivered(srq.depth, false);
  const uint32_t next = qp.arrivals.next;
  for (uint32_t at = next; !all && at - next <= qp.arrivals.mask; ++at) {
    const Packet& packet = qp.arrivals.packet(at);
    if (packet.mark.load(std::memory_order_acquire) != at + 1) break;
    const uint16_t index = load_relaxed(&packet.receive_index);
    if (index < srq.depth) delivered[index] = true;
  }
  for (uint32_t index = 0; index < srq.depth; ++index) {
    const uint64_t claim = srq.shared_receive(index).claim.load(std::memory_order_acquire);
    if (srq.receives[index].posted.load(std::memory_order_relaxed) && !delivered[index] &&
        marked_number(claim) == qp.number) {
      // A taker that died before it moved the head on: its place in the ring is about to be reused.
      uint64_t position = claim >> 24;
      srq.shared->head.compare_exchange_strong(position, position + 1, std::memory_order_acq_rel);
      publish_shared_receive(srq, static_cast<uint16_t>(index));
    }
  }
}

}  // namespace verbena::soft
