#include "src/ofi/fabric.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include <new>

#include "src/ofi/domain.h"
#include "src/ofi/event_queue.h"
#include "src/ofi/fid.h"

namespace verbena::ofi {
namespace {

int close_fabric(fid* handle) {
  delete reinterpret_cast<fid_fabric*>(handle);
  return 0;
}

// Nothing sleeps on an object of the kernel here, so that waiting on one would be an error of the
// program.
int try_wait(fid_fabric* /*fabric*/, fid** /*fids*/, int /*count*/) { return -FI_EINVAL; }

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
