// Completion queues and their channels, shared receive queues, queue pairs.
#include <cstring>

#include "src/device/soft/interpose/installed.h"

using namespace verbena::soft;             // NOLINT: definitions below are global
using namespace verbena::soft::interpose;  // NOLINT

VERBENA_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  if (owns(context)) {
    return reported(control().create_comp_channel(checked(context)), "ibv_create_comp_channel");
  }
  return VERBENA_INSTALLED(ibv_create_comp_channel, "IBVERBS_1.0")(context);
}

VERBENA_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  if (owns(channel)) {
    return reported(control().destroy_comp_channel(channel), "ibv_destroy_comp_channel");
  }
  return VERBENA_INSTALLED(ibv_destroy_comp_channel, "IBVERBS_1.0")(channel);
}

VERBENA_EXPORT int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  // Not reported: a channel that does not block has often nothing to give.
  if (owns(channel)) return control().get_cq_event(channel, cq, cq_context);
  return VERBENA_INSTALLED(ibv_get_cq_event, "IBVERBS_1.1")(channel, cq, cq_context);
}

VERBENA_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context,
                                     ibv_comp_channel* channel, int comp_vector) {
  if (owns(context)) {
    return reported(control().create_cq(checked(context), cqe, cq_context, channel, comp_vector),
                    "ibv_create_cq");
  }
  return VERBENA_INSTALLED(ibv_create_cq, "IBVERBS_1.1")(context, cqe, cq_context, channel,
                                                         comp_vector);
}

VERBENA_EXPORT int ibv_resize_cq(ibv_cq* cq, int cqe) {
  if (owns(cq)) return reported(rnic().extended->resize_cq(cq, cqe), "ibv_resize_cq");
  return VERBENA_INSTALLED(ibv_resize_cq, "IBVERBS_1.1")(cq, cqe);
}

VERBENA_EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  if (owns(cq)) return reported(control().destroy_cq(cq), "ibv_destroy_cq");
  return VERBENA_INSTALLED(ibv_destroy_cq, "IBVERBS_1.1")(cq);
}

VERBENA_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned int count) {
  if (owns(cq)) return control().ack_cq_events(cq, count);
  VERBENA_INSTALLED(ibv_ack_cq_events, "IBVERBS_1.1")(cq, count);
}

VERBENA_EXPORT ibv_srq* ibv_create_srq(ibv_pd* domain, ibv_srq_init_attr* attributes) {
  if (owns(domain)) {
    return reported(control().create_srq(domain, attributes), "ibv_create_srq");
  }
  return VERBENA_INSTALLED(ibv_create_srq, "IBVERBS_1.1")(domain, attributes);
}

VERBENA_EXPORT int ibv_modify_srq(ibv_srq* queue, ibv_srq_attr* attributes, int mask) {
  if (owns(queue)) {
    return reported(control().modify_srq(queue, attributes, mask), "ibv_modify_srq");
  }
  return VERBENA_INSTALLED(ibv_modify_srq, "IBVERBS_1.1")(queue, attributes, mask);
}

VERBENA_EXPORT int ibv_query_srq(ibv_srq* queue, ibv_srq_attr* attributes) {
  if (owns(queue)) {
    return reported(control().query_srq(queue, attributes), "ibv_query_srq");
  }
  return VERBENA_INSTALLED(ibv_query_srq, "IBVERBS_1.1")(queue, attributes);
}

VERBENA_EXPORT int ibv_destroy_srq(ibv_srq* queue) {
  if (owns(queue)) return reported(control().destroy_srq(queue), "ibv_destroy_srq");
  return VERBENA_INSTALLED(ibv_destroy_srq, "IBVERBS_1.1")(queue);
}

VERBENA_EXPORT ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  if (owns(domain)) {
    return reported(control().create_qp(domain, attributes), "ibv_create_qp");
  }
  return VERBENA_INSTALLED(ibv_create_qp, "IBVERBS_1.1")(domain, attributes);
}

VERBENA_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  if (owns(qp)) {
    return reported(control().modify_qp(qp, attributes, mask), "ibv_modify_qp");
  }
  return VERBENA_INSTALLED(ibv_modify_qp, "IBVERBS_1.1")(qp, attributes, mask);
}

VERBENA_EXPORT int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask,
                                ibv_qp_init_attr* init_attributes) {
  if (owns(qp)) {
    return reported(control().query_qp(qp, attributes, mask, init_attributes), "ibv_query_qp");
  }
  return VERBENA_INSTALLED(ibv_query_qp, "IBVERBS_1.1")(qp, attributes, mask, init_attributes);
}

VERBENA_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  if (owns(qp)) return reported(control().destroy_qp(qp), "ibv_destroy_qp");
  return VERBENA_INSTALLED(ibv_destroy_qp, "IBVERBS_1.1")(qp);
}

VERBENA_EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  if (owns(qp)) return rnic().extended->qp_to_qp_ex(qp);
  return VERBENA_INSTALLED(ibv_qp_to_qp_ex, "IBVERBS_1.6")(qp);
}

VERBENA_EXPORT int ibv_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode opcode, uint32_t flags) {
  // The last bytes of a WRITE land last, but this verb asks for more: that all bytes land in order.
  if (owns(qp)) return 0;
  return VERBENA_INSTALLED(ibv_query_qp_data_in_order, "IBVERBS_1.14")(qp, opcode, flags);
}

VERBENA_EXPORT int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  if (owns(qp)) return reported(datagrams().attach_mcast(qp, gid, lid), "ibv_attach_mcast");
  return VERBENA_INSTALLED(ibv_attach_mcast, "IBVERBS_1.1")(qp, gid, lid);
}

VERBENA_EXPORT int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  if (owns(qp)) return reported(datagrams().detach_mcast(qp, gid, lid), "ibv_detach_mcast");
  return VERBENA_INSTALLED(ibv_detach_mcast, "IBVERBS_1.1")(qp, gid, lid);
}

VERBENA_EXPORT int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  if (owns(qp)) return not_supported();
  return VERBENA_INSTALLED(ibv_set_ece, "IBVERBS_1.10")(qp, ece);
}

VERBENA_EXPORT int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  if (owns(qp)) return not_supported();
  return VERBENA_INSTALLED(ibv_query_ece, "IBVERBS_1.10")(qp, ece);
}
