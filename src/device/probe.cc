#include "src/device/probe.h"

#include <cerrno>

#include "src/device/explain.h"
#include "src/device/verbs_control.h"

namespace verbena {

namespace {

// No device takes more: it is larger than any send queue entry.
constexpr uint32_t kInlineSearchBytes = 64 * 1024;

using QueuePairHandle = internal::VerbsHandle<ibv_qp>;

QueuePairHandle make_queue_pair(const ProtectionDomain& domain, ibv_cq* cq, uint32_t inline_bytes,
                                uint32_t* granted_inline_bytes) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = cq;
  attributes.recv_cq = cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {.max_send_wr = 1,
                    .max_recv_wr = 1,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = inline_bytes};
  const VerbsControl& control = domain.control();
  ibv_qp* queue_pair = control.create_qp(domain.get(), &attributes);
  *granted_inline_bytes = attributes.cap.max_inline_data;
  return {queue_pair, control};
}

bool writes_in_order(const VerbsControl& control, ibv_qp* queue_pair) {
  // The software RNIC stores the last bytes of a WRITE last; see its data path.
  if (&control != &hardware_control()) return true;
  return ibv_query_qp_data_in_order(queue_pair, IBV_WR_RDMA_WRITE, 0) == 1;
}

}  // namespace

Result<QueuePairProbe> probe_queue_pair(const ProtectionDomain& domain) {
  const VerbsControl& control = domain.control();
  internal::VerbsHandle<ibv_cq> cq(control.create_cq(domain.get()->context, 2, nullptr, nullptr, 0),
                                   control);
  if (cq.get() == nullptr) {
    return verbs_error(control, "cannot create a completion queue to probe the device", errno);
  }
  QueuePairProbe probe;
  uint32_t granted_bytes = 0;
  {
    QueuePairHandle queue_pair = make_queue_pair(domain, cq.get(), 0, &granted_bytes);
    if (queue_pair.get() == nullptr) {
      return verbs_error(control, "cannot create a queue pair to probe the device", errno);
    }
    probe.writes_in_order = writes_in_order(control, queue_pair.get());
  }
  // `accepted` can be had; `refused` cannot. Devices may grant more than was asked, but only what
  // can be asked for is promised.
  uint32_t accepted = 0;
  uint32_t refused = kInlineSearchBytes + 1;
  while (refused - accepted > 1) {
    // Halve from above: most devices end at some hundred bytes.
    const uint32_t asked = accepted + (refused - accepted) / 2;
    if (make_queue_pair(domain, cq.get(), asked, &granted_bytes).get() != nullptr) {
      accepted = asked;
    } else {
      refused = asked;
    }
  }
  probe.max_inline_bytes = accepted;
  return probe;
}

}  // namespace verbena
