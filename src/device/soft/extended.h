// The extended verbs: what programs reach through verbs_context, ibv_qp_ex and ibv_cq_ex, and the
// verbs of libibverbs that VerbsControl does not have. Each with the contract of the ibv_ function
// of its name.
//
//   extended_context.cc   which of them a context has
//   extended_post.cc      queue pairs with ibv_wr_start()
//   extended_poll.cc      completion queues with ibv_start_poll()
//   windows.cc            memory windows
//   device_memory.cc      device memory, advice on regions
//   null_region.cc        regions of zeros that drop what is written
//   parent_domains.cc     thread domains and parent domains
#pragma once

#include <infiniband/verbs.h>

#include "src/device/soft/soft_rnic.h"

namespace verbena::soft {

// Fills in what soft0 has. What it does not have stays null, which verbs.h answers with EOPNOTSUPP.
void extend(verbs_context& context);
// As SoftRnic::report_refusal.
void report_refusal(const char* verb);
// The entry of SoftRnic.
const ExtendedControl& extended_control();

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex*);
// Of type XRC_RECV, in an XRC domain, which is all that it has.
ibv_qp* create_xrc_receiver(ibv_context*, ibv_xrcd*, ibv_qp_init_attr*);
ibv_qp_ex* qp_to_qp_ex(ibv_qp*);
// Makes ibv_wr_start() and its kind of a destroyed queue pair do nothing.
void refuse_batches(ibv_qp_ex& shell);

ibv_cq_ex* create_cq_ex(ibv_context*, ibv_cq_init_attr_ex*);
void refuse_polls(ibv_cq_ex& shell);
int resize_cq(ibv_cq*, int cqe);
int query_rt_values(ibv_context*, ibv_values_ex*);

ibv_srq* create_srq_ex(ibv_context*, ibv_srq_init_attr_ex*);
// Of XRC: with its protection domain, which is valid and of the context that is meant.
ibv_srq* create_xrc_srq(ibv_srq_init_attr_ex*);

ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type);
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*);
int dealloc_mw(ibv_mw*);

int rereg_mr(ibv_mr*, int flags, ibv_pd*, void* address, size_t length_bytes, int access);
int advise_mr(ibv_pd*, ibv_advise_mr_advice, uint32_t flags, ibv_sge* list, uint32_t count);
ibv_dm* alloc_dm(ibv_context*, ibv_alloc_dm_attr*);
int free_dm(ibv_dm*);
ibv_mr* alloc_null_mr(ibv_pd*);
ibv_mr* reg_dm_mr(ibv_pd*, ibv_dm*, uint64_t offset, size_t length_bytes, unsigned access);

ibv_td* alloc_td(ibv_context*, ibv_td_init_attr*);
int dealloc_td(ibv_td*);
ibv_pd* alloc_parent_domain(ibv_context*, ibv_parent_domain_init_attr*);

// Of device memory, of one process.
inline constexpr uint64_t kMaxDeviceMemoryBytes = 1 << 20;
// The clock of completion timestamps counts nanoseconds.
inline constexpr uint64_t kCoreClockKhz = 1'000'000;

}  // namespace verbena::soft
