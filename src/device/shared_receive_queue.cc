#include <cerrno>

#include "src/device/explain.h"
#include "src/device/verbs_control.h"
#include "verbena/device.h"

namespace verbena {

Result<SharedReceiveQueue> SharedReceiveQueue::create(const ProtectionDomain& domain,
                                                      const SharedReceiveQueueOptions& options) {
  const VerbsControl& control = domain.control();
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = options.depth_wrs;
  attributes.attr.max_sge = options.max_sges;
  ibv_srq* queue = control.create_srq(domain.get(), &attributes);
  if (queue == nullptr) return explain_shared_receive_queue_error(domain, options, errno);
  return SharedReceiveQueue({queue, control});
}

}  // namespace verbena
