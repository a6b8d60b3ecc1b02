// The control path of real devices: the functions of the installed libibverbs.
#include "src/device/verbs_control.h"

namespace verbena {

const VerbsControl& hardware_control() {
  // ibv_query_port and ibv_reg_mr are macros; the wrappers give them an address.
  static constexpr VerbsControl kControl = {
      .query_device = ibv_query_device,
      .query_port =
          [](ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
            return ibv_query_port(context, port, attributes);
          },
      .query_gid = ibv_query_gid,
      .alloc_pd = ibv_alloc_pd,
      .dealloc_pd = ibv_dealloc_pd,
      .reg_mr =
          [](ibv_pd* domain, void* address, size_t length_bytes, uint64_t iova, unsigned access) {
            return ibv_reg_mr_iova(domain, address, length_bytes, iova, access);
          },
      .dereg_mr = ibv_dereg_mr,
      .create_comp_channel = ibv_create_comp_channel,
      .destroy_comp_channel = ibv_destroy_comp_channel,
      .create_cq = ibv_create_cq,
      .destroy_cq = ibv_destroy_cq,
      .get_cq_event = ibv_get_cq_event,
      .ack_cq_events = ibv_ack_cq_events,
      .create_srq = ibv_create_srq,
      .modify_srq = ibv_modify_srq,
      .query_srq = ibv_query_srq,
      .destroy_srq = ibv_destroy_srq,
      .create_qp = ibv_create_qp,
      .modify_qp = ibv_modify_qp,
      .query_qp = ibv_query_qp,
      .destroy_qp = ibv_destroy_qp,
      .create_ah = ibv_create_ah,
      .destroy_ah = ibv_destroy_ah,
      .get_async_event = ibv_get_async_event,
      .ack_async_event = ibv_ack_async_event,
      .last_error = [] { return ""; },
  };
  return kControl;
}

}  // namespace verbena
