// Calls that move data, or wait for others, and that no replay makes: they are counted, so that
// reports name them. All their arguments are numbers and addresses; the words behind the last one,
// which a function with fewer does not read, are whatever lies there. None has more than the 13 of
// MPI_Rget_accumulate.
#include "src/trace/pmpi/tracer.h"

namespace verbena::trace {

using Word = uintptr_t;

#define VERBENA_TRACE_COUNTED(NAME)                                                             \
  VERBENA_TRACE_EXPORT int NAME(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, \
                                Word i, Word j, Word k, Word l, Word m) {                       \
    VERBENA_PMPI(NAME);                                                                         \
    TracedCall call(#NAME);                                                                     \
    const int result = real(a, b, c, d, e, f, g, h, i, j, k, l, m);                             \
    if (call.recorded(result)) Tracer::get().not_replayed(#NAME);                               \
    return result;                                                                              \
  }
#define VERBENA_TRACE_COUNTED_BOTH(NAME) \
  VERBENA_TRACE_COUNTED(NAME)            \
  VERBENA_TRACE_LARGE(VERBENA_TRACE_COUNTED(NAME##_c))

// One-sided.
VERBENA_TRACE_COUNTED_BOTH(MPI_Put)
VERBENA_TRACE_COUNTED_BOTH(MPI_Get)
VERBENA_TRACE_COUNTED_BOTH(MPI_Accumulate)
VERBENA_TRACE_COUNTED_BOTH(MPI_Get_accumulate)
VERBENA_TRACE_COUNTED_BOTH(MPI_Rput)
VERBENA_TRACE_COUNTED_BOTH(MPI_Rget)
VERBENA_TRACE_COUNTED_BOTH(MPI_Raccumulate)
VERBENA_TRACE_COUNTED_BOTH(MPI_Rget_accumulate)
VERBENA_TRACE_COUNTED(MPI_Fetch_and_op)
VERBENA_TRACE_COUNTED(MPI_Compare_and_swap)
VERBENA_TRACE_COUNTED_BOTH(MPI_Win_create)
VERBENA_TRACE_COUNTED_BOTH(MPI_Win_allocate)
VERBENA_TRACE_COUNTED_BOTH(MPI_Win_allocate_shared)
VERBENA_TRACE_COUNTED(MPI_Win_create_dynamic)
VERBENA_TRACE_COUNTED(MPI_Win_free)
VERBENA_TRACE_COUNTED(MPI_Win_fence)
VERBENA_TRACE_COUNTED(MPI_Win_start)
VERBENA_TRACE_COUNTED(MPI_Win_complete)
VERBENA_TRACE_COUNTED(MPI_Win_post)
VERBENA_TRACE_COUNTED(MPI_Win_wait)
VERBENA_TRACE_COUNTED(MPI_Win_test)
VERBENA_TRACE_COUNTED(MPI_Win_lock)
VERBENA_TRACE_COUNTED(MPI_Win_lock_all)
VERBENA_TRACE_COUNTED(MPI_Win_unlock)
VERBENA_TRACE_COUNTED(MPI_Win_unlock_all)
VERBENA_TRACE_COUNTED(MPI_Win_flush)
VERBENA_TRACE_COUNTED(MPI_Win_flush_all)
VERBENA_TRACE_COUNTED(MPI_Win_flush_local)
VERBENA_TRACE_COUNTED(MPI_Win_flush_local_all)

// Of neighbours in a topology.
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_allgather)
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_allgatherv)
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_alltoall)
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_alltoallv)
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_alltoallw)
VERBENA_TRACE_COUNTED_BOTH(MPI_Ineighbor_allgather)
VERBENA_TRACE_COUNTED_BOTH(MPI_Ineighbor_allgatherv)
VERBENA_TRACE_COUNTED_BOTH(MPI_Ineighbor_alltoall)
VERBENA_TRACE_COUNTED_BOTH(MPI_Ineighbor_alltoallv)
VERBENA_TRACE_COUNTED_BOTH(MPI_Ineighbor_alltoallw)
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_allgather_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_allgatherv_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_alltoall_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_alltoallv_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Neighbor_alltoallw_init)

// Persistent collective operations, and partitioned messages.
VERBENA_TRACE_COUNTED(MPI_Barrier_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Bcast_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Reduce_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Allreduce_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Scan_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Exscan_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Gather_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Gatherv_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Scatter_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Scatterv_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Allgather_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Allgatherv_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Alltoall_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Alltoallv_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Alltoallw_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Reduce_scatter_init)
VERBENA_TRACE_COUNTED_BOTH(MPI_Reduce_scatter_block_init)
VERBENA_TRACE_COUNTED(MPI_Psend_init)
VERBENA_TRACE_COUNTED(MPI_Precv_init)
VERBENA_TRACE_COUNTED(MPI_Pready)
VERBENA_TRACE_COUNTED(MPI_Pready_range)
VERBENA_TRACE_COUNTED(MPI_Pready_list)
VERBENA_TRACE_COUNTED(MPI_Parrived)

// Nonblocking exchanges of MPI 4.
VERBENA_TRACE_COUNTED_BOTH(MPI_Isendrecv)
VERBENA_TRACE_COUNTED_BOTH(MPI_Isendrecv_replace)

// Files, and other jobs.
VERBENA_TRACE_COUNTED_BOTH(MPI_File_read)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_write)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_read_all)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_write_all)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_read_at)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_write_at)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_read_at_all)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_write_at_all)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_read_shared)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_write_shared)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_read_ordered)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_write_ordered)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iread)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iwrite)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iread_all)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iwrite_all)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iread_at)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iwrite_at)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iread_at_all)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iwrite_at_all)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iread_shared)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_iwrite_shared)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_read_all_begin)
VERBENA_TRACE_COUNTED(MPI_File_read_all_end)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_write_all_begin)
VERBENA_TRACE_COUNTED(MPI_File_write_all_end)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_read_at_all_begin)
VERBENA_TRACE_COUNTED(MPI_File_read_at_all_end)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_write_at_all_begin)
VERBENA_TRACE_COUNTED(MPI_File_write_at_all_end)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_read_ordered_begin)
VERBENA_TRACE_COUNTED(MPI_File_read_ordered_end)
VERBENA_TRACE_COUNTED_BOTH(MPI_File_write_ordered_begin)
VERBENA_TRACE_COUNTED(MPI_File_write_ordered_end)
VERBENA_TRACE_COUNTED(MPI_File_sync)
VERBENA_TRACE_COUNTED(MPI_File_set_view)
VERBENA_TRACE_COUNTED(MPI_File_open)
VERBENA_TRACE_COUNTED(MPI_File_close)
VERBENA_TRACE_COUNTED(MPI_Comm_spawn)
VERBENA_TRACE_COUNTED(MPI_Comm_spawn_multiple)
VERBENA_TRACE_COUNTED(MPI_Comm_accept)
VERBENA_TRACE_COUNTED(MPI_Comm_connect)
VERBENA_TRACE_COUNTED(MPI_Comm_join)

}  // namespace verbena::trace
