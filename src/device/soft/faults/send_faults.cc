#include "src/device/soft/faults/send_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "src/base/log.h"
#include "src/device/soft/faults/network_thread.h"
#include "src/device/soft/gather_list.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/windows.h"

namespace verbena::soft::faults {
namespace {

// Until the requests behind one that waits for its peer are looked at again.
constexpr uint64_t kLookAgainNs = 50'000;

bool asks_for_data(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
         opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool takes_receive(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
         opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

uint64_t size_of_request(const ibv_send_wr& wr) {
  uint64_t size_bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) size_bytes += wr.sg_list[i].length;
  return size_bytes;
}

uint64_t packets_of(const Qp& qp, uint64_t size_bytes) {
  const uint64_t mtu_bytes = 128ull << std::clamp<int>(qp.attributes.path_mtu, 1, 5);
  return has_datagrams(qp.transport)
             ? 1
             : std::max<uint64_t>(1, (size_bytes + mtu_bytes - 1) / mtu_bytes);
}

std::string describe_fate(const Fate& fate) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (fate.lost_packets != 0) add(fmt::format("{} packets lost", fate.lost_packets));
  if (fate.rnr_naks != 0) add(fmt::format("the receiver {} times not ready", fate.rnr_naks));
  if (fate.delay_ns != 0) add(fmt::format("delayed by {} ns", fate.delay_ns));
  if (fate.extra_ns == kNever) add("never sent again");
  switch (fate.ending) {
    case Ending::kLost:
      add("the message is lost");
      break;
    case Ending::kRetriesExceeded:
    case Ending::kRnrRetriesExceeded:
      add("retries exceeded");
      break;
    case Ending::kQueuePairError:
      add("the queue pair goes to the error state");
      break;
    default:
      break;
  }
  return text;
}

}  // namespace

SendFaults::SendFaults(Qp& qp, std::shared_ptr<Network> network, Progress& progress)
    : qp_(qp),
      network_(std::move(network)),
      progress_(progress),
      ordinal_(network_->queue_pairs.fetch_add(1, std::memory_order_relaxed)),
      draws_(network_->settings, ordinal_),
      sends_(qp.send_depth, std::max(qp.init.cap.max_send_sge, 1u), qp.init.cap.max_inline_data,
             qp.transport == Transport::kDatagram) {}

// ---- posting ----

void SendFaults::post(const ibv_send_wr& wr) {
  const uint64_t last = network_->settings.kill_after_requests;
  if (last != 0 && network_->requests.fetch_add(1, std::memory_order_relaxed) + 1 >= last) {
    end_process("its work requests are posted");
  }
  const uint32_t position = ++qp_.send_posted;
  ++qp_.counters->requests[wr.opcode];
  if (qp_.state.load(std::memory_order_relaxed) != IBV_QPS_RTS) {
    ++qp_.counters->errors;
    complete_send(qp_, wr, position, std::exchange(qp_.next_flush, IBV_WC_WR_FLUSH_ERR), 0);
  } else if (is_window_request(wr.opcode)) {
    // As without a network: carried out now, completed in its turn.
    const ibv_wc_status status =
        check_window_request(wr) ? carry_out_window_request(qp_, wr) : IBV_WC_MW_BIND_ERR;
    post_carried_out(make_carried_out(wr, status), position);
  } else {
    post_request(wr, position);
  }
}

void SendFaults::post_carried_out(const ibv_send_wr& wr, uint32_t position) {
  if (sends_.empty()) return rc_post(qp_, wr, position);
  DeferredSend& send = sends_.push(wr, position);
  send.ending = Ending::kDelivered;
  send.due_ns = last_due_ns_;
  send.complete_ns = last_due_ns_;
  note_due();
}

void SendFaults::post_request(const ibv_send_wr& wr, uint32_t position) {
  const Fate fate = draw(wr, size_of_request(wr));
  if (!fate.harmless() || fate.rnr_naks != 0) log_fate(fate);
  if (fate.harmless() && sends_.empty() && !network_->link.any()) {
    return carry_out(qp_, wr, position);
  }
  defer(wr, position, fate);
}

Fate SendFaults::draw(const ibv_send_wr& wr, uint64_t size_bytes) {
  ++requests_;
  const ibv_qp_attr& attributes = qp_.attributes;
  const bool reliable = is_reliable(qp_.transport);
  return draws_.draw({.reliable = reliable,
                      .takes_receive = takes_receive(wr.opcode),
                      .packets = packets_of(qp_, size_bytes),
                      .timeout_ns = reliable ? retransmission_time_ns(qp_) : 0,
                      .retry_count = attributes.retry_cnt,
                      .rnr_timer_ns = reliable ? rnr_timer_ns(qp_) : 0,
                      .rnr_retry = attributes.rnr_retry});
}

void SendFaults::log_fate(const Fate& fate) {
  ++faults_;
  log_info("soft0: fault {} of queue pair {} ({:#x}), request {}: {}", faults_, ordinal_,
           qp_.number, requests_, describe_fate(fate));
}

void SendFaults::defer(const ibv_send_wr& wr, uint32_t position, const Fate& fate) {
  const uint64_t now = now_ns();
  const LinkSettings& link = network_->link;
  const bool answered = is_reliable(qp_.transport);
  const bool asks = asks_for_data(wr.opcode);
  const uint64_t size_bytes = size_of_request(wr);
  const uint64_t sent_ns = network_->port.send(now, asks ? 0 : size_bytes);
  const uint64_t due_ns =
      std::max(last_due_ns_, add_ns(add_ns(sent_ns, link.latency_ns), fate.extra_ns));
  uint64_t answered_ns = due_ns;
  if (asks && due_ns != kNever) answered_ns = network_->port.receive(due_ns, size_bytes);
  DeferredSend& send = sends_.push(wr, position);
  send.ending = fate.ending;
  send.due_ns = due_ns;
  send.complete_ns = answered ? add_ns(answered_ns, link.latency_ns) : due_ns;
  last_due_ns_ = due_ns;
  if (due_ns <= now) carry_out_due(now);
  note_due();
}

// ---- on their way ----

PollSleeper* SendFaults::run(uint64_t now) {
  const OwnerLock::Guard guard(qp_.send_lock);
  carry_out_due(now);
  note_due();
  return qp_.send_cq->poller.load(std::memory_order_relaxed);
}

void SendFaults::wait() { const OwnerLock::Guard guard(qp_.send_lock); }

void SendFaults::carry_out_due(uint64_t now) {
  for (bool moved = true; moved && !sends_.empty();) {
    const ibv_qp_state state = qp_.state.load(std::memory_order_relaxed);
    if (state != IBV_QPS_RTS) {
      flush(IBV_WC_WR_FLUSH_ERR);
      return;
    }
    moved = complete_due(now);
    moved = execute_due(now) || moved;
  }
}

bool SendFaults::complete_due(uint64_t now) {
  bool moved = false;
  while (sends_.executed() != 0 && sends_.front().complete_ns <= now) {
    const DeferredSend done = sends_.front();
    sends_.pop();
    moved = true;
    finish_send(qp_, done.wr, done.position, done.execution);
  }
  return moved;
}

bool SendFaults::execute_due(uint64_t now) {
  bool moved = false;
  while (sends_.has_next() && sends_.next().due_ns <= now && qp_.waiting.empty() &&
         qp_.state.load(std::memory_order_relaxed) == IBV_QPS_RTS) {
    const bool failed =
        sends_.executed() != 0 && sends_.last_executed().execution.outcome() == Outcome::kError;
    if (failed || !execute_next(sends_.next())) break;
    moved = true;
  }
  return moved;
}

bool SendFaults::execute_next(DeferredSend& send) {
  switch (send.ending) {
    case Ending::kRetriesExceeded:
    case Ending::kRnrRetriesExceeded:
      // The initiator finds out by itself.
      send.complete_ns = send.due_ns;
      sends_.set_executed({Outcome::kError, send.ending == Ending::kRetriesExceeded
                                                ? IBV_WC_RETRY_EXC_ERR
                                                : IBV_WC_RNR_RETRY_EXC_ERR});
      return true;
    case Ending::kQueuePairError:
      fail_queue_pair_locked(qp_, IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
      return true;
    default:
      if (is_reliable(qp_.transport)) return execute_reliable(send);
      execute_unreliable(send);
      return true;
  }
}

// False if it cannot be carried out before others have completed.
bool SendFaults::execute_reliable(DeferredSend& send) {
  const Execution execution = execute(qp_, send.wr);
  if (execution.outcome() == Outcome::kDone || execution.outcome() == Outcome::kError) {
    sends_.set_executed(execution);
    return true;
  }
  if (sends_.executed() != 0) return false;
  // No receive, or the peer is not ready: from here on as without a network.
  sends_.pop();
  enqueue_waiting(qp_, send.wr, send.position, execution.outcome());
  return true;
}

void SendFaults::execute_unreliable(DeferredSend& send) {
  const ibv_send_wr wr = send.wr;  // its lists stay in the ring until the next push
  const uint32_t position = send.position;
  const bool lost = send.ending == Ending::kLost;
  sends_.pop();
  if (!lost) return carry_out(qp_, wr, position);
  if (qp_.transport == Transport::kDatagram) {
    as_ah(wr.wr.ud.ah).route = Ah::Route::kNowhere;
    return carry_out(qp_, wr, position);
  }
  Pieces pieces;
  if (!collect(qp_, wr, 0, pieces)) {
    fail_send_queue_locked(qp_);
    ++qp_.counters->errors;
    return complete_send(qp_, wr, position, IBV_WC_LOC_PROT_ERR, 0);
  }
  qp_.counters->bytes += pieces.size_bytes;
  complete_send(qp_, wr, position, IBV_WC_SUCCESS, pieces.size_bytes);
}

// ---- when to look again ----

void SendFaults::note_due() {
  const uint64_t due_ns = find_due();
  const uint64_t before_ns = due_ns_.exchange(due_ns, std::memory_order_relaxed);
  if (due_ns == kNever) return;
  if (due_ns < before_ns || !listed.load(std::memory_order_relaxed)) progress_.add(*this, due_ns);
}

uint64_t SendFaults::find_due() {
  if (sends_.empty()) return kNever;
  if (!qp_.waiting.empty()) return add_ns(now_ns(), kLookAgainNs);
  if (sends_.executed() == 0) return sends_.next().due_ns;
  const uint64_t complete_ns = sends_.front().complete_ns;
  // One that is due already waits for those before it.
  if (!sends_.has_next() || sends_.next().due_ns <= now_ns()) return complete_ns;
  return std::min(complete_ns, sends_.next().due_ns);
}

// ---- the end ----

bool SendFaults::flush(ibv_wc_status first) {
  bool told = false;
  while (!sends_.empty()) {
    const bool executed = sends_.executed() != 0;
    const DeferredSend send = sends_.front();
    sends_.pop();
    if (executed) {
      qp_.counters->bytes += send.execution.size_bytes();
      if (send.execution.outcome() == Outcome::kError) {
        ++qp_.counters->errors;
        // Which tells why already.
        first = IBV_WC_WR_FLUSH_ERR;
        told = true;
      }
      complete_send(qp_, send.wr, send.position, send.execution.status(),
                    send.execution.size_bytes());
      continue;
    }
    told = true;
    ++qp_.counters->errors;
    complete_send(qp_, send.wr, send.position, std::exchange(first, IBV_WC_WR_FLUSH_ERR), 0);
  }
  last_due_ns_ = 0;
  note_due();
  return told;
}

void SendFaults::drop() {
  sends_.clear();
  last_due_ns_ = 0;
  note_due();
}

}  // namespace verbena::soft::faults
