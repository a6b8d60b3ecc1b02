// Asynchronous events of a device.
#include "src/device/soft/interpose/installed.h"

using namespace verbena::soft;             // NOLINT: definitions below are global
using namespace verbena::soft::interpose;  // NOLINT

namespace {

// Whether soft0 answers for an event's object. The acknowledgement of events of a port or of the
// whole device does nothing on any device.
bool owns_object_of(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return owns(event.element.cq);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return owns(event.element.qp);
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return owns(event.element.srq);
    default:
      return false;
  }
}

}  // namespace

VERBENA_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  // Not reported: without an event there is just nothing to get.
  if (owns(context)) return control().get_async_event(checked(context), event);
  return VERBENA_INSTALLED(ibv_get_async_event, "IBVERBS_1.1")(context, event);
}

VERBENA_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  if (owns_object_of(*event)) return control().ack_async_event(event);
  VERBENA_INSTALLED(ibv_ack_async_event, "IBVERBS_1.1")(event);
}
