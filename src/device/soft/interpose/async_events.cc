// Asynchronous events of a device.
#include "src/device/soft/interpose/installed.h"

using namespace verbena::soft;             // NOLINT: definitions below are global
using namespace verbena::soft::interpose;  // NOLINT

namespace {

// The device that an event's object belongs to; null for events of a port or of the whole device,
// whose acknowledgement does nothing on any device.
ibv_context* context_of(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return event.element.cq->context;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return event.element.qp->context;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return event.element.srq->context;
    default:
      return nullptr;
  }
}

}  // namespace

VERBENA_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  // Not reported: without an event there is just nothing to get.
  if (owns(context)) return control().get_async_event(context, event);
  return VERBENA_INSTALLED(ibv_get_async_event, "IBVERBS_1.1")(context, event);
}

VERBENA_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  const ibv_context* context = context_of(*event);
  if (context != nullptr && owns(context)) return control().ack_async_event(event);
  VERBENA_INSTALLED(ibv_ack_async_event, "IBVERBS_1.1")(event);
}
