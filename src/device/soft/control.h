// soft0's control calls, each with the contract of the ibv_ function of its name.
#pragma once

#include <infiniband/verbs.h>

#include "src/device/verbs_control.h"

namespace verbena::soft {

int query_device(ibv_context*, ibv_device_attr*);
int query_device_ex(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex*,
                    size_t size_bytes);
int query_port(ibv_context*, uint8_t port, ibv_port_attr*);
int query_gid(ibv_context*, uint8_t port, int index, ibv_gid*);
int get_async_event(ibv_context*, ibv_async_event*);
void ack_async_event(ibv_async_event*);

ibv_pd* alloc_pd(ibv_context*);
int dealloc_pd(ibv_pd*);
ibv_mr* reg_mr(ibv_pd*, void* address, size_t length_bytes, uint64_t iova, unsigned access);
WriteNow write_now_of(const ibv_qp*);
ibv_mr* reg_mr_unasked(ibv_pd*, void* address, size_t length_bytes, uint64_t iova, unsigned access);
ibv_mr* reg_mr_in_place(ibv_pd*, void* address, size_t length_bytes, uint64_t iova,
                        unsigned access);
int dereg_mr(ibv_mr*);
RegionMemory region_memory(const ibv_mr*);

ibv_comp_channel* create_comp_channel(ibv_context*);
int destroy_comp_channel(ibv_comp_channel*);
ibv_cq* create_cq(ibv_context*, int cqe, void* cq_context, ibv_comp_channel*, int comp_vector);
int destroy_cq(ibv_cq*);
int get_cq_event(ibv_comp_channel*, ibv_cq**, void** cq_context);
void ack_cq_events(ibv_cq*, unsigned count);

ibv_srq* create_srq(ibv_pd*, ibv_srq_init_attr*);
int modify_srq(ibv_srq*, ibv_srq_attr*, int mask);
int query_srq(ibv_srq*, ibv_srq_attr*);
int destroy_srq(ibv_srq*);

ibv_qp* create_qp(ibv_pd*, ibv_qp_init_attr*);
int modify_qp(ibv_qp*, ibv_qp_attr*, int mask);
int query_qp(ibv_qp*, ibv_qp_attr*, int mask, ibv_qp_init_attr*);
int destroy_qp(ibv_qp*);

// Lets the user's other processes copy to and from this one's memory where the kernel's Yama module
// restricts that.
void allow_peers_to_copy();
// Takes the events of a destroyed object out of the context's queue.
void drop_events_of(ibv_context*, const void* object);

}  // namespace verbena::soft
