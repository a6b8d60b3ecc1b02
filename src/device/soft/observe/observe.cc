#include "src/device/soft/observe/observe.h"

#include <atomic>
#include <cstring>

#include "src/device/soft/observe/observer.h"

namespace verbena::soft::observe {
namespace {

// What was there before. Atomic, since devices are opened while other threads post.
template <typename Function>
class NextCall {
 public:
  void set(Function function) { function_.store(function, std::memory_order_relaxed); }
  template <typename... Arguments>
  auto operator()(Arguments... arguments) const {
    return function_.load(std::memory_order_relaxed)(arguments...);
  }

 private:
  std::atomic<Function> function_{nullptr};
};
struct Next {
  NextCall<decltype(ibv_context_ops::post_send)> post_send;
  NextCall<decltype(ibv_context_ops::post_recv)> post_recv;
  NextCall<decltype(ibv_context_ops::poll_cq)> poll_cq;
  NextCall<decltype(ibv_qp_ex::wr_complete)> wr_complete;
  NextCall<decltype(ibv_cq_ex::start_poll)> start_poll;
  NextCall<decltype(ibv_cq_ex::next_poll)> next_poll;
};

// The same for all objects of the contexts in a network, and for all of those without one.
Next& next_layer(ibv_context* context) {
  static constinit Next next_layers[2];
  return next_layers[as_context(context).opened_in_network ? 1 : 0];
}
template <typename Object>
Next& next_layer_of(const Object& object) {
  return next_layer(context_of(object));
}

// A request that has more SGEs than it can have will be refused; nobody knows what its list is.
uint32_t length_of(const Qp& qp, const ibv_send_wr& wr) {
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.init.cap.max_send_sge) return 0;
  uint64_t length_bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) length_bytes += wr.sg_list[i].length;
  return static_cast<uint32_t>(length_bytes);
}

void add_slice(Observer& observer, const TraceRecord& record) {
  ThreadRings* rings = observer.rings();
  if (rings == nullptr) return observer.count_dropped();
  if (rings->trace == nullptr) return;
  if (std::byte* to = rings->trace->reserve(sizeof(record))) {
    std::memcpy(to, &record, sizeof(record));
    rings->trace->publish();
  }
}

void add_send_slice(Observer& observer, uint32_t number, const Posted& posted, uint8_t status,
                    uint64_t now_ns) {
  add_slice(observer, {.start_ns = posted.time_ns,
                       .end_ns = now_ns,
                       .wr_id = posted.wr_id,
                       .qp_number = number,
                       .bytes = posted.length_bytes,
                       .opcode = posted.opcode,
                       .status = status,
                       .receive = false});
}

// Requests that are about to be posted: noted before, so that whoever polls their completions finds
// them, and taken back if they are refused. Holds the queue pair's mutex meanwhile, so that their
// order is that of soft0.
class SendNotes {
 public:
  SendNotes(Observer& observer, Qp& qp)
      : observer_(observer),
        qp_(qp),
        queue_pair_(observer.tracked(qp)),
        lock_(queue_pair_.mutex),
        now_ns_(machine_now_ns()) {
    if (queue_pair_.generation != qp.generation) begin_anew();
    if (observer.captures()) {
      ThreadRings* rings = observer.rings();
      if (rings != nullptr) ring_ = rings->packets.get();
    }
    psn_before_ = queue_pair_.next_psn;
  }

  void add(const ibv_send_wr& wr) {
    if (queue_pair_.sends.full()) return observer_.count_dropped();
    Posted posted{.time_ns = now_ns_,
                  .wr_id = wr.wr_id,
                  .length_bytes = length_of(qp_, wr),
                  .first_psn = 0,
                  .last_psn = 0,
                  .opcode = static_cast<uint8_t>(wr.opcode),
                  .signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0 || qp_.init.sq_sig_all != 0,
                  .on_wire = false,
                  .sge_count = 0};
    if (ring_ != nullptr) {
      capture_request(queue_pair_, qp_, wr, now_ns_, observer_.snap(), *ring_, posted);
    }
    queue_pair_.sends.push(posted);
    ++count_;
  }
  void keep() {
    if (ring_ != nullptr) ring_->publish();
  }
  void take_back() {
    queue_pair_.sends.take_back(count_);
    count_ = 0;
    queue_pair_.next_psn = psn_before_;
    if (ring_ != nullptr) ring_->take_back();
  }

 private:
  void begin_anew() {
    // A reset drops what was posted.
    for (; !queue_pair_.sends.empty(); queue_pair_.sends.pop()) {
      add_send_slice(observer_, queue_pair_.number, queue_pair_.sends.at(0), TraceRecord::kUnpolled,
                     now_ns_);
    }
    queue_pair_.generation = qp_.generation;
    queue_pair_.sends.configure(qp_.send_depth);
    queue_pair_.next_psn = qp_.attributes.sq_psn & 0xffffff;
    queue_pair_.message_number = 0;
    if (observer_.captures()) {
      queue_pair_.sges =
          std::make_unique<ibv_sge[]>(size_t{queue_pair_.sends.capacity()} * kMaxSges);
    }
  }

  Observer& observer_;
  Qp& qp_;
  TrackedQueuePair& queue_pair_;
  std::unique_lock<std::mutex> lock_;
  const uint64_t now_ns_;
  RecordRing* ring_ = nullptr;
  uint32_t psn_before_ = 0;
  uint32_t count_ = 0;
};

// Whether something may be accepted: a destroyed queue pair has no depth, and before RTS all is
// refused, and the first sequence number not known.
bool may_accept(const Qp& qp) {
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  return qp.send_depth != 0 && state != IBV_QPS_RESET && state != IBV_QPS_INIT &&
         state != IBV_QPS_RTR;
}

int observe_post_send(ibv_qp* verbs, ibv_send_wr* wr, ibv_send_wr** bad) {
  Observer* observer = Observer::current();
  Qp& qp = as_qp(verbs);
  if (observer == nullptr || !may_accept(qp)) return next_layer_of(qp).post_send(verbs, wr, bad);
  SendNotes notes(*observer, qp);
  for (const ibv_send_wr* at = wr; at != nullptr; at = at->next) notes.add(*at);
  const int error = next_layer_of(qp).post_send(verbs, wr, bad);
  if (error != 0) {
    notes.take_back();
    for (const ibv_send_wr* at = wr; at != nullptr && at != *bad; at = at->next) notes.add(*at);
  }
  notes.keep();
  return error;
}

int observe_wr_complete(ibv_qp_ex* verbs) {
  Observer* observer = Observer::current();
  Qp& qp = as_qp(&verbs->qp_base);
  if (observer == nullptr || qp.batch == nullptr || !qp.batch->started() ||
      qp.batch->error() != 0 || qp.batch->count() == 0 || !may_accept(qp)) {
    return next_layer_of(qp).wr_complete(verbs);
  }
  SendNotes notes(*observer, qp);
  for (uint32_t i = 0; i < qp.batch->count(); ++i) notes.add(qp.batch->requests()[i]);
  const int error = next_layer_of(qp).wr_complete(verbs);
  if (error != 0) notes.take_back();
  notes.keep();
  return error;
}

int observe_post_recv(ibv_qp* verbs, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Observer* observer = Observer::current();
  Qp& qp = as_qp(verbs);
  if (observer == nullptr || !observer->traces() || qp.send_depth == 0) {
    return next_layer_of(qp).post_recv(verbs, wr, bad);
  }
  TrackedQueuePair& queue_pair = observer->tracked(qp);
  const std::lock_guard guard(queue_pair.mutex);
  if (queue_pair.receiving_generation != qp.generation) {
    queue_pair.receiving_generation = qp.generation;
    queue_pair.receives.configure(qp.init.cap.max_recv_wr);
  }
  const uint64_t now_ns = machine_now_ns();
  const int error = next_layer_of(qp).post_recv(verbs, wr, bad);
  const ibv_recv_wr* end = error != 0 ? *bad : nullptr;
  for (const ibv_recv_wr* at = wr; at != end; at = at->next) {
    if (!queue_pair.receives.full()) queue_pair.receives.push({now_ns, at->wr_id});
  }
  return error;
}

struct Completed {
  uint64_t wr_id;
  ibv_wc_status status;
  ibv_wc_opcode opcode;
  uint32_t qp_number;
  uint32_t bytes;
};

void see_receive(Observer& observer, const Completed& completed, uint64_t now_ns) {
  if (!observer.traces()) return;
  uint64_t start_ns = now_ns;
  if (TrackedQueuePair* queue_pair = observer.find(completed.qp_number)) {
    const std::lock_guard guard(queue_pair->mutex);
    // What a shared receive queue has is not known.
    if (!queue_pair->receives.empty() && queue_pair->receives.at(0).wr_id == completed.wr_id) {
      start_ns = queue_pair->receives.at(0).time_ns;
      queue_pair->receives.pop();
    }
  }
  add_slice(observer, {.start_ns = start_ns,
                       .end_ns = now_ns,
                       .wr_id = completed.wr_id,
                       .qp_number = completed.qp_number,
                       .bytes = completed.bytes,
                       .opcode = static_cast<uint8_t>(completed.opcode),
                       .status = static_cast<uint8_t>(completed.status),
                       .receive = true});
}

// Which of the posted requests a completion is of; their number if of none. Those before it were
// not signaled, and have succeeded.
uint32_t find_posted(TrackedQueuePair& queue_pair, const Completed& completed) {
  const uint32_t count = queue_pair.sends.size();
  for (uint32_t i = 0; i < count; ++i) {
    const Posted& posted = queue_pair.sends.at(i);
    if (posted.wr_id == completed.wr_id &&
        (posted.signaled || completed.status != IBV_WC_SUCCESS)) {
      return i;
    }
  }
  return count;
}

void see_send(Observer& observer, const Completed& completed, uint64_t now_ns) {
  TrackedQueuePair* queue_pair = observer.find(completed.qp_number);
  if (queue_pair == nullptr) return;
  const std::lock_guard guard(queue_pair->mutex);
  const uint32_t at = find_posted(*queue_pair, completed);
  if (at == queue_pair->sends.size()) return;
  ThreadRings* rings = observer.rings();
  RecordRing* ring = rings != nullptr ? rings->packets.get() : nullptr;
  for (uint32_t i = 0; i <= at; ++i) {
    const Posted& posted = queue_pair->sends.at(0);
    const ibv_wc_status status = i == at ? completed.status : IBV_WC_SUCCESS;
    if (observer.traces()) {
      add_send_slice(observer, queue_pair->number, posted, static_cast<uint8_t>(status), now_ns);
    }
    // One acknowledgement stands for those before it, too.
    if (ring != nullptr) {
      capture_answer(*queue_pair, posted, status, i == at, now_ns, observer.snap(), *ring);
    }
    queue_pair->sends.pop();
  }
  if (ring != nullptr) ring->publish();
}

void see(Observer& observer, const Completed& completed, uint64_t now_ns) {
  if ((completed.opcode & IBV_WC_RECV) != 0) {
    see_receive(observer, completed, now_ns);
  } else {
    see_send(observer, completed, now_ns);
  }
}

int observe_poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
  const int taken = next_layer_of(as_cq(cq)).poll_cq(cq, count, wc);
  Observer* observer = taken > 0 ? Observer::current() : nullptr;
  if (observer == nullptr) return taken;
  const uint64_t now_ns = machine_now_ns();
  for (int i = 0; i < taken; ++i) {
    see(*observer, {wc[i].wr_id, wc[i].status, wc[i].opcode, wc[i].qp_num, wc[i].byte_len}, now_ns);
  }
  return taken;
}

// The completion that an extended poll stands at.
void see_current(ibv_cq_ex* cq) {
  Observer* observer = Observer::current();
  if (observer == nullptr) return;
  const ibv_wc& wc = as_cq(ibv_cq_ex_to_cq(cq)).poll.wc;
  see(*observer, {cq->wr_id, cq->status, wc.opcode, wc.qp_num, wc.byte_len}, machine_now_ns());
}

int observe_start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attributes) {
  const int error = next_layer_of(as_cq(ibv_cq_ex_to_cq(cq))).start_poll(cq, attributes);
  if (error == 0) see_current(cq);
  return error;
}

int observe_next_poll(ibv_cq_ex* cq) {
  const int error = next_layer_of(as_cq(ibv_cq_ex_to_cq(cq))).next_poll(cq);
  if (error == 0) see_current(cq);
  return error;
}

}  // namespace

void add_layer(ibv_context& verbs) {
  if (Observer::start() == nullptr) return;
  next_layer(&verbs).post_send.set(verbs.ops.post_send);
  next_layer(&verbs).post_recv.set(verbs.ops.post_recv);
  next_layer(&verbs).poll_cq.set(verbs.ops.poll_cq);
  verbs.ops.post_send = observe_post_send;
  verbs.ops.post_recv = observe_post_recv;
  verbs.ops.poll_cq = observe_poll_cq;
}

void wait_for_captures() {
  Observer* observer = Observer::current();
  if (observer != nullptr && observer->captures()) observer->wait_for_captures();
}

void add_layer(ibv_qp_ex& qp) {
  if (Observer::current() == nullptr) return;
  next_layer(qp.qp_base.context).wr_complete.set(qp.wr_complete);
  qp.wr_complete = observe_wr_complete;
}

void add_layer(ibv_cq_ex& cq) {
  if (Observer::current() == nullptr) return;
  next_layer(cq.context).start_poll.set(cq.start_poll);
  next_layer(cq.context).next_poll.set(cq.next_poll);
  cq.start_poll = observe_start_poll;
  cq.next_poll = observe_next_poll;
}

}  // namespace verbena::soft::observe
