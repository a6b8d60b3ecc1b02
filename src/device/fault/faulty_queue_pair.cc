#include "src/device/fault/faulty_queue_pair.h"

#include <cerrno>
#include <utility>

#include "src/base/log.h"

namespace verbena::fault {
namespace {

// An injected error comes up to so much later than the work request that drew it.
constexpr uint64_t kErrorWithinNs = 100'000;

bool always_signaled(const ibv_recv_wr& /*request*/) { return true; }

int check_gather_list(int entries, uint32_t max_entries) {
  return entries >= 0 && static_cast<uint32_t>(entries) <= max_entries ? 0 : EINVAL;
}

// What every device refuses at once.
int check_send(const ibv_send_wr& request, const ibv_qp_cap& cap) {
  if (check_gather_list(request.num_sge, cap.max_send_sge) != 0) return EINVAL;
  if ((request.send_flags & IBV_SEND_INLINE) == 0) return 0;
  uint64_t size_bytes = 0;
  for (int i = 0; i < request.num_sge; ++i) size_bytes += request.sg_list[i].length;
  return size_bytes <= cap.max_inline_data ? 0 : EINVAL;
}

}  // namespace

std::shared_ptr<ReceiveDeferringQueue> make_shared_receives(DeviceParts& parts, ibv_srq* verbs,
                                                            const ibv_srq_attr& granted,
                                                            uint64_t number) {
  // The functions must not keep the queue alive, nor outlive it: the timer's calls hold it weakly.
  auto self = std::make_shared<std::weak_ptr<ReceiveDeferringQueue>>();
  ReceiveDeferringQueue::Device device;
  device.post = [&parts, verbs](ibv_recv_wr* list, ibv_recv_wr** rejected) {
    return parts.ops.post_srq_recv(verbs, list, rejected);
  };
  device.check = [max_sges = granted.max_sge](const ibv_recv_wr& request) {
    return check_gather_list(request.num_sge, max_sges);
  };
  device.signaled = always_signaled;
  device.release_at = [&parts, self](uint64_t due_ns) {
    parts.timer.call_at(due_ns, [queue = *self] {
      const std::shared_ptr<ReceiveDeferringQueue> alive = queue.lock();
      if (alive == nullptr) return;
      for (const uint64_t wr_id : alive->release()) {
        log_error("the device refuses the receive {:#x}, which was deferred by a fault", wr_id);
      }
    });
  };
  auto queue = std::make_shared<ReceiveDeferringQueue>(
      parts.plan.rnr, Dice(parts.plan.seed, Stream::kSharedReceive, number), granted.max_wr,
      std::move(device));
  *self = queue;
  queue->set_deferring(true);
  return queue;
}

std::shared_ptr<FaultyQueuePair> FaultyQueuePair::create(DeviceParts& parts, ibv_qp* verbs,
                                                         const ibv_qp_init_attr& granted,
                                                         Queues queues, uint64_t number) {
  return std::shared_ptr<FaultyQueuePair>(
      new FaultyQueuePair(parts, verbs, granted, std::move(queues), number));
}

FaultyQueuePair::FaultyQueuePair(DeviceParts& parts, ibv_qp* verbs, const ibv_qp_init_attr& granted,
                                 Queues queues, uint64_t number)
    : parts_(parts),
      verbs_(verbs),
      number_(verbs->qp_num),
      queues_(std::move(queues)),
      error_dice_(parts.plan.seed, Stream::kError, number) {
  SendDeferringQueue::Device sends;
  sends.post = [this](ibv_send_wr* list, ibv_send_wr** rejected) {
    return parts_.ops.post_send(verbs_, list, rejected);
  };
  sends.check = [cap = granted.cap](const ibv_send_wr& request) {
    return check_send(request, cap);
  };
  sends.signaled = [all = granted.sq_sig_all != 0](const ibv_send_wr& request) {
    return all || (request.send_flags & IBV_SEND_SIGNALED) != 0;
  };
  sends.release_at = [this](uint64_t due_ns) {
    parts_.timer.call_at(due_ns, [weak = weak_from_this()] {
      if (const auto alive = weak.lock()) alive->release_sends(/*everything=*/false);
    });
  };
  sends_ = std::make_unique<SendDeferringQueue>(parts.plan.delay,
                                                Dice(parts.plan.seed, Stream::kDelay, number),
                                                granted.cap.max_send_wr, std::move(sends));
  if (granted.srq != nullptr) return;

  ReceiveDeferringQueue::Device receives;
  receives.post = [this](ibv_recv_wr* list, ibv_recv_wr** rejected) {
    return parts_.ops.post_recv(verbs_, list, rejected);
  };
  receives.check = [max_sges = granted.cap.max_recv_sge](const ibv_recv_wr& request) {
    return check_gather_list(request.num_sge, max_sges);
  };
  receives.signaled = always_signaled;
  receives.release_at = [this](uint64_t due_ns) {
    parts_.timer.call_at(due_ns, [weak = weak_from_this()] {
      if (const auto alive = weak.lock()) alive->release_receives(/*everything=*/false);
    });
  };
  receives_ = std::make_unique<ReceiveDeferringQueue>(
      parts.plan.rnr, Dice(parts.plan.seed, Stream::kReceive, number), granted.cap.max_recv_wr,
      std::move(receives));
}

int FaultyQueuePair::post_send(ibv_send_wr* list, ibv_send_wr** rejected) {
  draw_error(list);
  uint64_t deferred_count = 0;
  const int error = sends_->post(list, rejected, deferred_count);
  parts_.delays += deferred_count;
  return error;
}

int FaultyQueuePair::post_receive(ibv_recv_wr* list, ibv_recv_wr** rejected) {
  if (receives_ == nullptr) return parts_.ops.post_recv(verbs_, list, rejected);
  uint64_t deferred_count = 0;
  const int error = receives_->post(list, rejected, deferred_count);
  parts_.deferred_receives += deferred_count;
  return error;
}

void FaultyQueuePair::completed(const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    // Of an error only number and queue pair are known, not which queue it belongs to.
    sends_->stop_counting();
    if (receives_ != nullptr) receives_->stop_counting();
    if (queues_.shared_receives != nullptr) queues_.shared_receives->stop_counting();
    return;
  }
  if ((completion.opcode & IBV_WC_RECV) == 0) {
    sends_->retire();
  } else if (receives_ != nullptr) {
    receives_->retire();
  } else if (queues_.shared_receives != nullptr) {
    queues_.shared_receives->retire();
  }
}

// --- the error state ---

void FaultyQueuePair::draw_error(const ibv_send_wr* list) {
  if (parts_.plan.queue_pair_error == 0) return;
  const std::lock_guard<std::mutex> guard(error_mutex_);
  if (!breakable_) return;
  bool hit = false;
  for (const ibv_send_wr* request = list; request != nullptr; request = request->next) {
    hit = error_dice_.hit(parts_.plan.queue_pair_error) || hit;
  }
  if (!hit) return;
  breakable_ = false;
  parts_.timer.call_at(now_ns() + error_dice_.below(kErrorWithinNs), [weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->to_error();
  });
}

void FaultyQueuePair::to_error() {
  {
    const std::lock_guard<std::mutex> guard(error_mutex_);
    if (!break_in_device()) return;
  }
  after_state(IBV_QPS_ERR);
}

bool FaultyQueuePair::break_in_device() {
  if (destroyed_) return false;
  // First, so that whoever meets the error finds it counted.
  ++parts_.queue_pair_errors;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  if (parts_.control->modify_qp(verbs_, &attributes, IBV_QP_STATE) == 0) return true;
  --parts_.queue_pair_errors;
  return false;
}

void FaultyQueuePair::before_reset() {
  {
    const std::lock_guard<std::mutex> guard(error_mutex_);
    breakable_ = false;
  }
  drop();
}

void FaultyQueuePair::after_state(ibv_qp_state state) {
  if (state == IBV_QPS_INIT && receives_ != nullptr) receives_->set_deferring(true);
  if (state == IBV_QPS_RTS) {
    sends_->set_deferring(true);
    const std::lock_guard<std::mutex> guard(error_mutex_);
    breakable_ = true;
  }
  if (state != IBV_QPS_ERR) return;
  {
    const std::lock_guard<std::mutex> guard(error_mutex_);
    breakable_ = false;
  }
  // What is deferred is flushed with the rest.
  sends_->set_deferring(false);
  sends_->stop_counting();
  release_sends(/*everything=*/true);
  if (receives_ == nullptr) return;
  receives_->set_deferring(false);
  receives_->stop_counting();
  release_receives(/*everything=*/true);
}

int FaultyQueuePair::destroy() {
  {
    const std::lock_guard<std::mutex> guard(error_mutex_);
    const auto in_device = [this] { return parts_.control->destroy_qp(verbs_); };
    const auto with_receives = [&] {
      return receives_ != nullptr ? receives_->drop_if_destroyed(in_device) : in_device();
    };
    if (const int error = sends_->drop_if_destroyed(with_receives); error != 0) return error;
    destroyed_ = true;
  }
  drop();
  return 0;
}

// The queue pair loses its work and the completions that were not handed out.
void FaultyQueuePair::drop() {
  sends_->drop();
  if (receives_ != nullptr) receives_->drop();
  if (queues_.shared_receives != nullptr) queues_.shared_receives->stop_counting();
  if (queues_.send_completions != nullptr) queues_.send_completions->forget(number_);
  if (queues_.receive_completions != nullptr) queues_.receive_completions->forget(number_);
}

// --- what was deferred ---

void FaultyQueuePair::release_sends(bool everything) {
  for (const uint64_t wr_id : sends_->release(everything)) {
    lose(queues_.send_completions.get(), wr_id, &FaultyQueuePair::post_flushed_send);
  }
}

void FaultyQueuePair::release_receives(bool everything) {
  for (const uint64_t wr_id : receives_->release(everything)) {
    lose(queues_.receive_completions.get(), wr_id, &FaultyQueuePair::post_flushed_receive);
  }
}

// The device refuses a work request whose poster has been told that it was taken. An RNIC that
// finds out late completes it with an error, and its queue pair goes to the error state. There the
// device flushes an empty request in its place: that wakes who sleeps on the queue's channel.
void FaultyQueuePair::lose(FaultyCompletionQueue* completions, uint64_t wr_id,
                           PostFlushed post_flushed) {
  ibv_wc completion{};
  completion.wr_id = wr_id;
  completion.status = IBV_WC_LOC_QP_OP_ERR;
  completion.qp_num = number_;
  {
    // Also so that the queue pair stays in the error state meanwhile.
    const std::lock_guard<std::mutex> guard(error_mutex_);
    if (destroyed_) return;
    const bool broken = break_in_device();
    if (completions != nullptr) completions->expect(completion);
    const bool flushed = broken && (this->*post_flushed)(wr_id);
    if (!flushed && completions != nullptr) completions->add_expected(completion);
    if (!broken) return;
  }
  after_state(IBV_QPS_ERR);
}

bool FaultyQueuePair::post_flushed_send(uint64_t wr_id) {
  // A datagram needs an address handle, also to be flushed.
  if (verbs_->qp_type == IBV_QPT_UD) return false;
  ibv_send_wr request{};
  request.wr_id = wr_id;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* rejected = nullptr;
  return parts_.ops.post_send(verbs_, &request, &rejected) == 0;
}

bool FaultyQueuePair::post_flushed_receive(uint64_t wr_id) {
  ibv_recv_wr request{};
  request.wr_id = wr_id;
  ibv_recv_wr* rejected = nullptr;
  return parts_.ops.post_recv(verbs_, &request, &rejected) == 0;
}

}  // namespace verbena::fault
