#include "src/device/soft/check/check_layer.h"

#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "src/base/log.h"
#include "src/device/soft/check/check_records.h"
#include "src/device/soft/objects.h"

namespace verbena::soft::check {
namespace {

State* make_state() {
  const char* text = std::getenv(kCheckVariable);
  if (text == nullptr || *text == '\0') return nullptr;
  CheckOptions options;
  if (const std::string wrong = parse_check_options(text, options); !wrong.empty()) {
    log_error("{}: {}; nothing is checked", kCheckVariable, wrong);
    return nullptr;
  }
  return new State(options);
}

void before_fork() {
  state()->mutex.lock();
  state()->reports.mutex().lock();
}
void after_fork() {
  state()->reports.mutex().unlock();
  state()->mutex.unlock();
}
void after_fork_in_child() {
  state()->reports.start_anew();
  after_fork();
}

}  // namespace

State* state() {
  static State* const one = make_state();
  return one;
}

Next& next() {
  static Next* const one = new Next;
  return *one;
}

namespace {

using OperationsOfBoth = std::array<NextOperations, 2>;
OperationsOfBoth& operations_of_both() {
  static auto* const both = new OperationsOfBoth;
  return *both;
}

size_t layers_of(ibv_context* context) { return as_context(context).opened_in_network ? 1 : 0; }

// The first one's: those of others with the same layers are the same.
template <typename Part>
void keep_part(Part NextOperations::*part, ibv_context* context, const Part& what) {
  static std::mutex mutex;
  static std::array<bool, 2> kept;
  const size_t layers = layers_of(context);
  const std::lock_guard guard(mutex);
  if (std::exchange(kept[layers], true)) return;
  operations_of_both()[layers].*part = what;
}

}  // namespace

NextOperations& next_operations(ibv_context* context) {
  return operations_of_both()[layers_of(context)];
}
NextOperations& next_of(ibv_qp* verbs) { return next_operations(context_of(as_qp(verbs))); }
NextOperations& next_of(ibv_cq* verbs) { return next_operations(context_of(as_cq(verbs))); }
NextOperations& next_of(ibv_srq* verbs) { return next_operations(context_of(as_srq(verbs))); }

void add(ibv_context& verbs) {
  if (state() == nullptr) return;
  auto& whole = *reinterpret_cast<verbs_context*>(reinterpret_cast<std::byte*>(&verbs) -
                                                  offsetof(verbs_context, context));
  keep_part(&NextOperations::operations, &verbs, verbs.ops);
  // The same with any layers.
  static std::once_flag kept;
  std::call_once(kept, [&] {
    next().create_qp_ex = whole.create_qp_ex;
    next().create_cq_ex = whole.create_cq_ex;
    next().create_srq_ex = whole.create_srq_ex;
    next().open_xrcd = whole.open_xrcd;
    next().close_xrcd = whole.close_xrcd;
    next().alloc_parent_domain = whole.alloc_parent_domain;
    next().alloc_td = whole.alloc_td;
    next().dealloc_td = whole.dealloc_td;
    next().alloc_dm = whole.alloc_dm;
    next().free_dm = whole.free_dm;
    next().reg_dm_mr = whole.reg_dm_mr;
    next().alloc_null_mr = whole.alloc_null_mr;
  });
  verbs.ops.post_send = post_send;
  verbs.ops.post_recv = post_recv;
  verbs.ops.post_srq_recv = post_srq_recv;
  verbs.ops.poll_cq = poll_cq;
  verbs.ops.req_notify_cq = req_notify_cq;
  replace_objects(whole);
}

void add(ibv_qp_ex& qp) {
  if (state() == nullptr) return;
  keep_part(&NextOperations::batches, qp.qp_base.context, qp);
  replace_batches(qp);
}

void add(ibv_cq_ex& cq) {
  if (state() == nullptr) return;
  keep_part(&NextOperations::polls, cq.context, cq);
  replace_polls(cq);
}

void add(SoftRnic& rnic) {
  if (state() == nullptr) return;
  next().rnic = rnic;
  next().control = *rnic.control;
  next().extended = *rnic.extended;
  next().datagrams = *rnic.datagrams;
  replace_control(rnic);
  pthread_atfork(before_fork, after_fork, after_fork_in_child);
  watch_exit();
}

}  // namespace verbena::soft::check
