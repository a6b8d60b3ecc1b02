#include "src/device/fault/injector.h"

#include <utility>

#include "src/base/assert.h"

namespace verbena::fault {
namespace {

// All injectors of this process. Never destroyed: devices may be closed at its very end.
struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const ibv_context*, std::unique_ptr<Injector>> injectors;
};
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

Injector& injector_of(const ibv_context* context) {
  Injector* injector = Injector::of(context);
  VERBENA_ASSERT(injector != nullptr);
  return *injector;
}

}  // namespace

// Each has the signature of the ibv_ function that it stands for.
struct Injector::Verbs {
  // --- data path ---

  static int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** rejected) {
    Injector& injector = injector_of(qp->context);
    const auto known = injector.queue_pairs_.find(qp);
    return known != nullptr ? known->post_send(list, rejected)
                            : injector.parts_.ops.post_send(qp, list, rejected);
  }

  static int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** rejected) {
    Injector& injector = injector_of(qp->context);
    const auto known = injector.queue_pairs_.find(qp);
    return known != nullptr ? known->post_receive(list, rejected)
                            : injector.parts_.ops.post_recv(qp, list, rejected);
  }

  static int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** rejected) {
    Injector& injector = injector_of(srq->context);
    const auto known = injector.shared_receives_.find(srq);
    if (known == nullptr) return injector.parts_.ops.post_srq_recv(srq, list, rejected);
    uint64_t deferred_count = 0;
    const int error = known->post(list, rejected, deferred_count);
    injector.parts_.deferred_receives += deferred_count;
    return error;
  }

  static int poll_cq(ibv_cq* cq, int count, ibv_wc* completions) {
    Injector& injector = injector_of(cq->context);
    const auto known = injector.completion_queues_.find(cq);
    if (known == nullptr) return injector.parts_.ops.poll_cq(cq, count, completions);
    uint64_t delayed_count = 0;
    const int taken = known->poll(count, completions, delayed_count);
    injector.parts_.delayed_completions += delayed_count;
    for (int i = 0; i < taken; ++i) {
      const auto queue_pair = injector.queue_pair_of(completions[i]);
      if (queue_pair != nullptr) queue_pair->completed(completions[i]);
    }
    return taken;
  }

  static int req_notify_cq(ibv_cq* cq, int solicited_only) {
    Injector& injector = injector_of(cq->context);
    const auto known = injector.completion_queues_.find(cq);
    if (known != nullptr) known->arm();
    return injector.parts_.ops.req_notify_cq(cq, solicited_only);
  }

  // --- control path ---

  static ibv_cq* create_cq(ibv_context* context, int cqe, void* cq_context,
                           ibv_comp_channel* channel, int comp_vector) {
    Injector& injector = injector_of(context);
    const DeviceParts& parts = injector.parts_;
    ibv_cq* cq = parts.control->create_cq(context, cqe, cq_context, channel, comp_vector);
    if (cq == nullptr) return nullptr;
    const Dice dice(parts.plan.seed, Stream::kCompletion, injector.next_completion_queue_++);
    injector.completion_queues_.add(
        cq, std::make_shared<FaultyCompletionQueue>(cq, parts.ops.poll_cq,
                                                    parts.plan.completion_delay, dice));
    return cq;
  }

  static int destroy_cq(ibv_cq* cq) {
    Injector& injector = injector_of(cq->context);
    const auto known = injector.completion_queues_.find(cq);
    const int error = injector.parts_.control->destroy_cq(cq);
    if (error == 0 && known != nullptr) injector.completion_queues_.remove(cq, known);
    return error;
  }

  static int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
    Injector& injector = injector_of(channel->context);
    const int error = injector.parts_.control->get_cq_event(channel, cq, cq_context);
    if (error != 0) return error;
    const auto known = injector.completion_queues_.find(*cq);
    if (known != nullptr) known->event_taken();
    return 0;
  }

  static ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) {
    Injector& injector = injector_of(pd->context);
    ibv_srq* srq = injector.parts_.control->create_srq(pd, attributes);
    if (srq == nullptr) return nullptr;
    injector.shared_receives_.add(srq, make_shared_receives(injector.parts_, srq, attributes->attr,
                                                            injector.next_shared_receives_++));
    return srq;
  }

  static int destroy_srq(ibv_srq* srq) {
    Injector& injector = injector_of(srq->context);
    const auto known = injector.shared_receives_.find(srq);
    const auto in_device = [&] { return injector.parts_.control->destroy_srq(srq); };
    if (known == nullptr) return in_device();
    const int error = known->drop_if_destroyed(in_device);
    if (error == 0) injector.shared_receives_.remove(srq, known);
    return error;
  }

  static ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
    Injector& injector = injector_of(pd->context);
    const ibv_qp_init_attr asked = *attributes;
    ibv_qp* qp = injector.parts_.control->create_qp(pd, attributes);
    if (qp == nullptr) return nullptr;
    ibv_qp_init_attr granted = asked;
    granted.cap = attributes->cap;
    auto made = FaultyQueuePair::create(
        injector.parts_, qp, granted,
        {.send_completions = injector.completion_queues_.find(asked.send_cq),
         .receive_completions = injector.completion_queues_.find(asked.recv_cq),
         .shared_receives = injector.shared_receives_.find(asked.srq)},
        injector.next_queue_pair_++);
    {
      const std::unique_lock<std::shared_mutex> guard(injector.numbers_mutex_);
      injector.queue_pair_numbers_[qp->qp_num] = made;
    }
    injector.queue_pairs_.add(qp, std::move(made));
    return qp;
  }

  static int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
    Injector& injector = injector_of(qp->context);
    const bool changes_state = (mask & IBV_QP_STATE) != 0;
    const auto known = changes_state ? injector.queue_pairs_.find(qp) : nullptr;
    if (known != nullptr && attributes->qp_state == IBV_QPS_RESET) known->before_reset();
    const int error = injector.parts_.control->modify_qp(qp, attributes, mask);
    if (error == 0 && known != nullptr) known->after_state(attributes->qp_state);
    return error;
  }

  static int destroy_qp(ibv_qp* qp) {
    Injector& injector = injector_of(qp->context);
    const auto known = injector.queue_pairs_.find(qp);
    if (known == nullptr) return injector.parts_.control->destroy_qp(qp);
    const uint32_t number = qp->qp_num;
    if (const int error = known->destroy(); error != 0) return error;
    injector.queue_pairs_.remove(qp, known);
    const std::unique_lock<std::shared_mutex> guard(injector.numbers_mutex_);
    const auto found = injector.queue_pair_numbers_.find(number);
    // The device may have given the number to another one by now.
    if (found != injector.queue_pair_numbers_.end() && found->second.lock() == known) {
      injector.queue_pair_numbers_.erase(found);
    }
    return 0;
  }
};

Injector::Injector(ibv_context* context, const VerbsControl& control, const FaultPlan& plan)
    : control_(control) {
  parts_.plan = plan;
  parts_.control = &control;
  parts_.ops = context->ops;
  control_.create_cq = Verbs::create_cq;
  control_.destroy_cq = Verbs::destroy_cq;
  control_.get_cq_event = Verbs::get_cq_event;
  control_.create_srq = Verbs::create_srq;
  control_.destroy_srq = Verbs::destroy_srq;
  control_.create_qp = Verbs::create_qp;
  control_.modify_qp = Verbs::modify_qp;
  control_.destroy_qp = Verbs::destroy_qp;
}

Result<Injector*> Injector::install(ibv_context* context, const VerbsControl& control,
                                    const FaultPlan& plan) {
  std::unique_ptr<Injector> injector(new Injector(context, control, plan));
  if (!injector->parts_.timer.running()) {
    return Status(StatusCode::kLimitExceeded,
                  "fault injection needs a thread, and none can be started; raise the limit of "
                  "processes (ulimit -u)");
  }
  Injector* installed = injector.get();
  {
    const std::unique_lock<std::shared_mutex> guard(registry().mutex);
    registry().injectors[context] = std::move(injector);
  }
  context->ops.post_send = Verbs::post_send;
  context->ops.post_recv = Verbs::post_recv;
  context->ops.post_srq_recv = Verbs::post_srq_recv;
  context->ops.poll_cq = Verbs::poll_cq;
  context->ops.req_notify_cq = Verbs::req_notify_cq;
  return installed;
}

void Injector::uninstall(ibv_context* context) {
  std::unique_ptr<Injector> injector;
  {
    const std::unique_lock<std::shared_mutex> guard(registry().mutex);
    const auto node = registry().injectors.extract(context);
    VERBENA_ASSERT(!node.empty());
    injector = std::move(node.mapped());
  }
  context->ops = injector->parts_.ops;
}

Injector* Injector::of(const ibv_context* context) {
  const std::shared_lock<std::shared_mutex> guard(registry().mutex);
  const auto found = registry().injectors.find(context);
  return found == registry().injectors.end() ? nullptr : found->second.get();
}

FaultCounts Injector::counts() const {
  return {.delays = parts_.delays,
          .deferred_receives = parts_.deferred_receives,
          .delayed_completions = parts_.delayed_completions,
          .queue_pair_errors = parts_.queue_pair_errors};
}

std::shared_ptr<FaultyQueuePair> Injector::queue_pair_of(const ibv_wc& completion) const {
  const std::shared_lock<std::shared_mutex> guard(numbers_mutex_);
  const auto found = queue_pair_numbers_.find(completion.qp_num);
  return found == queue_pair_numbers_.end() ? nullptr : found->second.lock();
}

}  // namespace verbena::fault
