// The control path of a device as a table of verbs: what makes and destroys objects.
//
// Verbena has one fabric interface, verbs. Devices differ only in how objects are made; work
// requests and completions go through the function table in ibv_context, as in rdma-core, so
// posting and polling is the same code for every device. Each entry has the signature, ownership
// and error convention (null with errno, or an errno value) of the ibv_ function it stands for.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace verbena {

// What a region is of, after whatever the program has done to its mappings since the registration.
enum class RegionMemory {
  kFollows,  // what the program has at the address, always: the device uses the address itself
  kSame,     // the pages of the registration, which the program still has at the address
  kOther,    // the pages of the registration; the program has others at the address, or none
  kLeft,     // as kSame, of memory left in place: each access by a peer costs more
};

// Carries out a WRITE of `size_bytes` before it returns, behind all that was posted: whole words at
// addresses that are multiples of 8, the last one last. It takes no place of the send queue and has
// no completion. Somewhere near `next_address` the program will write soon, so that the device asks
// for its cache lines. False: nothing has happened, and the WRITE is to be posted.
using WriteNow = bool (*)(ibv_qp*, const void* bytes, uint32_t size_bytes, uint64_t remote_address,
                          uint32_t rkey, uint64_t next_address);

struct VerbsControl {
  int (*query_device)(ibv_context*, ibv_device_attr*);
  int (*query_port)(ibv_context*, uint8_t port, ibv_port_attr*);
  int (*query_gid)(ibv_context*, uint8_t port, int index, ibv_gid*);
  ibv_pd* (*alloc_pd)(ibv_context*);
  int (*dealloc_pd)(ibv_pd*);
  ibv_mr* (*reg_mr)(ibv_pd*, void* address, size_t length_bytes, uint64_t iova, unsigned access);
  int (*dereg_mr)(ibv_mr*);
  ibv_comp_channel* (*create_comp_channel)(ibv_context*);
  int (*destroy_comp_channel)(ibv_comp_channel*);
  ibv_cq* (*create_cq)(ibv_context*, int cqe, void* cq_context, ibv_comp_channel*, int comp_vector);
  int (*destroy_cq)(ibv_cq*);
  int (*get_cq_event)(ibv_comp_channel*, ibv_cq**, void** cq_context);
  void (*ack_cq_events)(ibv_cq*, unsigned count);
  ibv_srq* (*create_srq)(ibv_pd*, ibv_srq_init_attr*);
  int (*modify_srq)(ibv_srq*, ibv_srq_attr*, int mask);
  int (*query_srq)(ibv_srq*, ibv_srq_attr*);
  int (*destroy_srq)(ibv_srq*);
  ibv_qp* (*create_qp)(ibv_pd*, ibv_qp_init_attr*);
  int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int mask);
  int (*query_qp)(ibv_qp*, ibv_qp_attr*, int mask, ibv_qp_init_attr*);
  int (*destroy_qp)(ibv_qp*);
  ibv_ah* (*create_ah)(ibv_pd*, ibv_ah_attr*);
  int (*destroy_ah)(ibv_ah*);
  int (*get_async_event)(ibv_context*, ibv_async_event*);
  void (*ack_async_event)(ibv_async_event*);
  // One line on why this thread's latest call failed (cause, limit, remedy); "" where it did not,
  // or where errno says it all.
  const char* (*last_error)();
  // Null: the device has pinned the pages, and cannot tell what became of the address. kFollows is
  // for as long as the region lives, the others are of this moment. Takes no lock.
  RegionMemory (*region_memory)(const ibv_mr*) = nullptr;
  // As reg_mr(), but leaves the pages as they are, which makes the registration cheap. `access` is
  // IBV_ACCESS_REMOTE_READ: peers READ it, at a higher price for each (StepCosts), as long as
  // region_memory() says kLeft; it says kOther where they cannot any more. Or `access` is
  // IBV_ACCESS_LOCAL_WRITE: this side's own requests fill it, and nothing else does; a receive into
  // it fails. Where that cannot be, or with another access, as reg_mr_unasked(). Null: all regions
  // are alike.
  ibv_mr* (*reg_mr_in_place)(ibv_pd*, void* address, size_t length_bytes, uint64_t iova,
                             unsigned access) = nullptr;
  // Regions may share a page: the device neither pins nor maps pages.
  bool shares_pages = false;
  // As reg_mr(), of memory whose program does not know of the registration, as those of a cache:
  // what it discards (MADV_DONTNEED) is zero afterwards, or the kernel refuses that. Null: so are
  // all regions.
  ibv_mr* (*reg_mr_unasked)(ibv_pd*, void* address, size_t length_bytes, uint64_t iova,
                            unsigned access) = nullptr;
  // Of a connected queue pair of a device whose WRITEs are the caller's own stores. Null, also as
  // its answer: all are posted.
  WriteNow (*write_now)(const ibv_qp*) = nullptr;
};

const VerbsControl& hardware_control();

}  // namespace verbena
