#include "src/device/soft/check/check_layer.h"

#include <pthread.h>

#include <cstddef>
#include <cstdlib>
#include <mutex>

#include "src/base/log.h"
#include "src/device/soft/check/check_records.h"

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

void add(ibv_context& verbs) {
  if (state() == nullptr) return;
  auto& whole = *reinterpret_cast<verbs_context*>(reinterpret_cast<std::byte*>(&verbs) -
                                                  offsetof(verbs_context, context));
  // All contexts have the same functions, so the first one's are kept.
  static std::once_flag kept;
  std::call_once(kept, [&] {
    next().operations = verbs.ops;
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
  static std::once_flag kept;
  std::call_once(kept, [&] { next().batches = qp; });
  replace_batches(qp);
}

void add(ibv_cq_ex& cq) {
  if (state() == nullptr) return;
  static std::once_flag kept;
  std::call_once(kept, [&] { next().polls = cq; });
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
