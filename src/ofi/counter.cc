#include "src/ofi/counter.h"

#include <functional>
#include <mutex>
#include <new>

#include "src/ofi/endpoint.h"
#include "src/ofi/memory_region.h"

namespace verbena::ofi {
namespace {

Counter& counter_of(fid_cntr* handle) { return *static_cast<Counter*>(handle); }

void let_progress(Counter& counter) {
  for (Endpoint* endpoint : counter.sources()) endpoint->take_completions();
  // What an endpoint carried out that is closed now.
  if (counter.memories > 0) count_remote(counter.domain);
  counter.shown = counter.completed + counter.failed;
}

int close_counter(fid* handle) {
  auto& counter = object_of<Counter>(handle);
  {
    const std::lock_guard guard(counter.domain.lock);
    if (!counter.endpoints.empty() || counter.memories > 0) return -FI_EBUSY;
  }
  Domain& domain = counter.domain;
  delete &counter;
  --domain.users;
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
  counter.waiters.notify();
  return 0;
}

template <uint64_t Counter::*kValue>
int set(fid_cntr* handle, uint64_t value) {
  Counter& counter = counter_of(handle);
  const std::lock_guard guard(counter.domain.lock);
  counter.*kValue = value;
  counter.waiters.notify();
  return 0;
}

// Ends early, with -FI_EAVAIL, when an operation fails meanwhile.
int wait_for_count(fid_cntr* handle, uint64_t threshold, int timeout_ms) {
  Counter& counter = counter_of(handle);
  uint64_t failed_before = 0;
  {
    const std::lock_guard guard(counter.domain.lock);
    failed_before = counter.failed;  // before any progress, which may already take an error
    let_progress(counter);
  }
  int result = -FI_ETIMEDOUT;
  const auto ready = [&] {
    if (counter.completed >= threshold) {
      result = 0;
    } else if (counter.failed != failed_before) {
      result = -FI_EAVAIL;
    }
    return result != -FI_ETIMEDOUT;
  };
  counter.waiters.wait(counter.sources, timeout_ms, std::ref(ready));
  return result;
}

int control_counter(fid* handle, int command, void* argument) {
  auto& counter = object_of<Counter>(handle);
  if (command != FI_GETWAIT) return -FI_ENOSYS;
  const std::lock_guard guard(counter.domain.lock);
  return counter.waits_at_descriptor ? get_descriptor(counter.waiters, argument) : -FI_ENODATA;
}

fi_ops counter_object_calls = object_calls(close_counter, &unsupported, control_counter);
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

Counter::Counter(Domain& of, void* context) : fid_cntr{}, domain(of), waiters(of) {
  fid = {.fclass = FI_CLASS_CNTR, .context = context, .ops = &counter_object_calls};
  ops = &counter_calls;
}

int open_counter(fid_domain* domain, fi_cntr_attr* attributes, fid_cntr** counter, void* context) {
  // Completions alone: libfabric 2 can ask for bytes, too.
  if (attributes != nullptr &&
      (!can_wait_at(attributes->wait_obj) || attributes->events != FI_CNTR_EVENTS_COMP))
    return -FI_ENOSYS;
  auto& of = static_cast<Domain&>(*domain);
  auto* made = new (std::nothrow) Counter(of, context);
  if (made == nullptr) return -FI_ENOMEM;
  made->waits_at_descriptor = attributes != nullptr && attributes->wait_obj == FI_WAIT_FD;
  if (made->waits_at_descriptor) ++of.sleeping_queues;
  ++of.users;
  *counter = made;
  return 0;
}

}  // namespace verbena::ofi
