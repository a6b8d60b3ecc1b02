// The layer that writes what a process does into files: VERBENA_TRACE=FILE, VERBENA_PCAP=FILE
// (`verbena run --trace`, `--pcap`).
//
//   record_ring.h     from the threads that post and poll to the one that writes
//   tracked_queue_pair.h  the requests of a queue pair that have not completed
//   observer.h        what is on, the rings and the thread that writes
//   trace_file.h      slices for Perfetto and Chrome
//   capture.h         requests as packets; roce_packet.h has their form, pcap_file.h the file's
#pragma once

#include <infiniband/verbs.h>

namespace verbena::soft::observe {

// Nothing where neither variable is set.
void add_layer(ibv_context& verbs);
void add_layer(ibv_qp_ex& qp);
void add_layer(ibv_cq_ex& cq);

// Returns when nothing is being copied into a packet that was before the call. Whoever takes memory
// away calls it after the region's key has ceased to be valid.
void wait_for_captures();

}  // namespace verbena::soft::observe
