#include "src/device/soft/faults/faults_layer.h"

#include <atomic>
#include <cerrno>

#include "src/device/soft/faults/network_thread.h"
#include "src/device/soft/faults/send_faults.h"
#include "src/device/soft/poll_pause.h"
#include "src/device/soft/refusal.h"

namespace verbena::soft::faults {
namespace {

// What soft0 has itself, the same for all of its queues.
std::atomic<int (*)(ibv_cq_ex*, ibv_poll_cq_attr*)> start_poll_below{nullptr};
std::atomic<int (*)(ibv_cq_ex*)> next_poll_below{nullptr};

// Null for a queue pair that was destroyed, or is the parent's of this process.
SendFaults* faults_of(Qp& qp) {
  SendFaults* const faults = qp.faults.get();
  return faults != nullptr && faults->progress().is_own() ? faults : nullptr;
}

PollSleeper* poller_of_sends(const Qp& qp) {
  return qp.send_cq->poller.load(std::memory_order_relaxed);
}

void wake_if_asleep(PollSleeper* poller) {
  if (poller != nullptr) wake_poller(*poller);
}

int post_send_into_network(ibv_qp* verbs, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp& qp = as_qp(verbs);
  if (faults_of(qp) == nullptr) return post_send(verbs, wr, bad);
  int error = 0;
  PollSleeper* poller = nullptr;
  {
    const OwnerLock::Guard guard(qp.send_lock);
    for (; wr != nullptr; wr = wr->next) {
      error = check_sends(qp, wr, 1);
      if (error != 0) {
        *bad = wr;
        log_refused_send(qp, *wr, error);
        break;
      }
      qp.faults->post(*wr);
    }
    poller = poller_of_sends(qp);
  }
  wake_if_asleep(poller);
  return error;
}

int post_batch_into_network(Qp& qp, const ibv_send_wr* requests, uint32_t count) {
  if (faults_of(qp) == nullptr) return post_batch(qp, requests, count);
  int error = 0;
  PollSleeper* poller = nullptr;
  {
    const OwnerLock::Guard guard(qp.send_lock);
    error = check_sends(qp, requests, count);
    for (uint32_t i = 0; error == 0 && i < count; ++i) qp.faults->post(requests[i]);
    poller = poller_of_sends(qp);
  }
  wake_if_asleep(poller);
  return error;
}

// As soft0's own.
int wr_complete_into_network(ibv_qp_ex* verbs) {
  Qp& qp = as_qp(&verbs->qp_base);
  SendBatch& batch = *qp.batch;
  if (!batch.started()) return EINVAL;
  int error = batch.error();
  if (error == 0) error = post_batch_into_network(qp, batch.requests(), batch.count());
  batch.end();
  if (error != 0) log_refused_batch(qp, error);
  return error;
}

void run_what_is_due() {
  if (Progress* const progress = Progress::existing()) progress->run_if_due();
}

int poll_cq_of_network(ibv_cq* cq, int count, ibv_wc* wc) {
  run_what_is_due();
  return poll_cq(cq, count, wc);
}

int start_poll_of_network(ibv_cq_ex* cq, ibv_poll_cq_attr* attributes) {
  run_what_is_due();
  return start_poll_below.load(std::memory_order_relaxed)(cq, attributes);
}

int next_poll_of_network(ibv_cq_ex* cq) {
  run_what_is_due();
  return next_poll_below.load(std::memory_order_relaxed)(cq);
}

}  // namespace

void add_layer(ibv_context& verbs) {
  const Network* const network = as_context(&verbs).network.get();
  if (network == nullptr) return;
  verbs.ops.post_send = post_send_into_network;
  verbs.ops.poll_cq = poll_cq_of_network;
  if (const uint64_t after_ns = network->settings.kill_after_ns; after_ns != 0) {
    Progress::get().kill_at(add_ns(now_ns(), after_ns));
  }
}

void add_layer(ibv_qp_ex& qp) {
  if (as_qp(&qp.qp_base).faults == nullptr) return;
  qp.wr_complete = wr_complete_into_network;
}

void add_layer(ibv_cq_ex& cq) {
  if (as_context(cq.context).network == nullptr) return;
  start_poll_below.store(cq.start_poll, std::memory_order_relaxed);
  next_poll_below.store(cq.next_poll, std::memory_order_relaxed);
  cq.start_poll = start_poll_of_network;
  cq.next_poll = next_poll_of_network;
}

}  // namespace verbena::soft::faults
