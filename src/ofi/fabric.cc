#include "src/ofi/fabric.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include <new>

#include "src/ofi/completion_queue.h"
#include "src/ofi/counter.h"
#include "src/ofi/domain.h"
#include "src/ofi/event_queue.h"
#include "src/ofi/fid.h"

namespace verbena::ofi {
namespace {

int close_fabric(fid* handle) {
  delete reinterpret_cast<fid_fabric*>(handle);
  return 0;
}

int try_wait_at(fid* handle) {
  switch (handle->fclass) {
    case FI_CLASS_CQ: {
      auto& queue = object_of<CompletionQueue>(handle);
      const auto ready = [&queue] { return queue.head != queue.tail; };
      return queue.waiters.prepare(queue.sources, ready) ? 0 : -FI_EAGAIN;
    }
    case FI_CLASS_CNTR: {
      // Which count is waited for only the program knows: what has changed since it read one is
      // news.
      auto& counter = object_of<Counter>(handle);
      const auto ready = [&counter] { return counter.completed + counter.failed != counter.shown; };
      return counter.waiters.prepare(counter.sources, ready) ? 0 : -FI_EAGAIN;
    }
    case FI_CLASS_EQ:
      return object_of<EventQueue>(handle).is_empty() ? 0 : -FI_EAGAIN;
    default:
      return -FI_EINVAL;
  }
}

// Whether a thread may sleep in poll() at the descriptors of all of them.
int try_wait(fid_fabric* /*fabric*/, fid** fids, int count) {
  for (int i = 0; i < count; ++i) {
    if (const int result = try_wait_at(fids[i]); result != 0) return result;
  }
  return 0;
}

fi_ops fabric_object_calls = object_calls(close_fabric);

fi_ops_fabric fabric_calls = {
    .size = sizeof(fi_ops_fabric),
    .domain = open_domain,
    .passive_ep = &unsupported,
    .eq_open = open_event_queue,
    .wait_open = &unsupported,
    .trywait = try_wait,
    .domain2 = &unsupported,
};

}  // namespace

int open_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  auto* made = new (std::nothrow) fid_fabric{};
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {.fclass = FI_CLASS_FABRIC, .context = context, .ops = &fabric_object_calls};
  made->ops = &fabric_calls;
  made->api_version = attributes->api_version;
  *fabric = made;
  return 0;
}

}  // namespace verbena::ofi
