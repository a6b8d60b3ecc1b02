#include "src/ofi/counter.h"

#include <mutex>
#include <new>

#include "src/base/runtime.h"
#include "src/ofi/endpoint.h"

namespace verbena::ofi {
namespace {

Counter& counter_of(fid_cntr* handle) { return *static_cast<Counter*>(handle); }

void let_progress(Counter& counter) {
  for (Endpoint* endpoint : counter.endpoints) endpoint->take_completions();
}

int close_counter(fid* handle) {
  auto& counter = object_of<Counter>(handle);
  {
    const std::lock_guard guard(counter.domain.lock);
    if (!counter.endpoints.empty()) return -FI_EBUSY;
  }
  --counter.domain.users;
  delete &counter;
  return 0;
}

uint64_t read_completed(fid_cntr* handle) {
  Counter& counter = counter_of(handle);
  const std::lock_guard guard(counter.domain.lock);
  let_progress(counter);
  return counter.completed;
}

uint64_t read_failed(fid_cntr* handle) {
  Counter& counter = counter_of(handle);
  const std::lock_guard guard(counter.domain.lock);
  let_progress(counter);
  return counter.failed;
}

template <uint64_t Counter::*kValue>
int add(fid_cntr* handle, uint64_t value) {
  Counter& counter = counter_of(handle);
  const std::lock_guard guard(counter.domain.lock);
  counter.*kValue += value;
  return 0;
}

template <uint64_t Counter::*kValue>
int set(fid_cntr* handle, uint64_t value) {
  Counter& counter = counter_of(handle);
  const std::lock_guard guard(counter.domain.lock);
  counter.*kValue = value;
  return 0;
}

// Ends early, with -FI_EAVAIL, when an operation fails meanwhile.
int wait_for_count(fid_cntr* handle, uint64_t threshold, int timeout_ms) {
  Counter& counter = counter_of(handle);
  const uint64_t failed_before = read_failed(handle);
  const uint64_t start_ns = now_ns();
  Waiter waiter;
  for (;;) {
    if (read_completed(handle) >= threshold) return 0;
    {
      const std::lock_guard guard(counter.domain.lock);
      if (counter.failed != failed_before) return -FI_EAVAIL;
    }
    if (timeout_ms >= 0 && now_ns() - start_ns >= static_cast<uint64_t>(timeout_ms) * kNsPerMs)
      return -FI_ETIMEDOUT;
    waiter.idle();
  }
}

fi_ops counter_object_calls = object_calls(close_counter);
fi_ops_cntr counter_calls = {
    .size = sizeof(fi_ops_cntr),
    .read = read_completed,
    .readerr = read_failed,
    .add = add<&Counter::completed>,
    .set = set<&Counter::completed>,
    .wait = wait_for_count,
    .adderr = add<&Counter::failed>,
    .seterr = set<&Counter::failed>,
};

}  // namespace

Counter::Counter(Domain& of, void* context) : fid_cntr{}, domain(of) {
  fid = {.fclass = FI_CLASS_CNTR, .context = context, .ops = &counter_object_calls};
  ops = &counter_calls;
}

int open_counter(fid_domain* domain, fi_cntr_attr* attributes, fid_cntr** counter, void* context) {
  if (attributes != nullptr && attributes->wait_obj != FI_WAIT_NONE &&
      attributes->wait_obj != FI_WAIT_UNSPEC && attributes->wait_obj != FI_WAIT_YIELD)
    return -FI_ENOSYS;
  auto& of = static_cast<Domain&>(*domain);
  auto* made = new (std::nothrow) Counter(of, context);
  if (made == nullptr) return -FI_ENOMEM;
  ++of.users;
  *counter = made;
  return 0;
}

}  // namespace verbena::ofi
