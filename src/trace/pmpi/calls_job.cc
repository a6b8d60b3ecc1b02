// Begin and end of a rank, and its communicators.
#include "src/trace/pmpi/tracer.h"

namespace verbena::trace {

VERBENA_TRACE_EXPORT int MPI_Init(int* argc, char*** argv) {
  VERBENA_PMPI(MPI_Init);
  TracedCall call("MPI_Init");
  const int result = real(argc, argv);
  if (result == 0 && call.is_outer()) Tracer::get().begin();
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  VERBENA_PMPI(MPI_Init_thread);
  TracedCall call("MPI_Init_thread");
  const int result = real(argc, argv, required, provided);
  if (result == 0 && call.is_outer()) Tracer::get().begin();
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Finalize() {
  VERBENA_PMPI(MPI_Finalize);
  TracedCall call("MPI_Finalize");
  Tracer::get().end();
  return real();
}

#define VERBENA_TRACE_COMMUNICATOR(NAME, RESULT, PARAMETERS, ...)            \
  VERBENA_TRACE_EXPORT int NAME PARAMETERS {                                 \
    VERBENA_PMPI(NAME);                                                      \
    TracedCall call(#NAME);                                                  \
    const int result = real(__VA_ARGS__);                                    \
    if (call.recorded(result)) Tracer::get().define(mpi_abi().load(RESULT)); \
    return result;                                                           \
  }
VERBENA_TRACE_COMMUNICATOR(MPI_Comm_dup, made, (Handle comm, void* made), comm, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Comm_dup_with_info, made, (Handle comm, Handle info, void* made),
                           comm, info, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Comm_create, made, (Handle comm, Handle group, void* made), comm,
                           group, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Comm_create_group, made,
                           (Handle comm, Handle group, int tag, void* made), comm, group, tag, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Comm_split, made, (Handle comm, int color, int key, void* made),
                           comm, color, key, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Comm_split_type, made,
                           (Handle comm, int type, int key, Handle info, void* made), comm, type,
                           key, info, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Cart_create, made,
                           (Handle comm, int dimensions, const int* sizes, const int* periods,
                            int reorder, void* made),
                           comm, dimensions, sizes, periods, reorder, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Cart_sub, made, (Handle comm, const int* remain, void* made), comm,
                           remain, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Graph_create, made,
                           (Handle comm, int nodes, const int* index, const int* edges, int reorder,
                            void* made),
                           comm, nodes, index, edges, reorder, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Dist_graph_create, made,
                           (Handle comm, int nodes, const int* sources, const int* degrees,
                            const int* targets, const int* weights, Handle info, int reorder,
                            void* made),
                           comm, nodes, sources, degrees, targets, weights, info, reorder, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Dist_graph_create_adjacent, made,
                           (Handle comm, int indegree, const int* sources,
                            const int* source_weights, int outdegree, const int* targets,
                            const int* target_weights, Handle info, int reorder, void* made),
                           comm, indegree, sources, source_weights, outdegree, targets,
                           target_weights, info, reorder, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Intercomm_create, made,
                           (Handle comm, int leader, Handle peer, int remote, int tag, void* made),
                           comm, leader, peer, remote, tag, made)
VERBENA_TRACE_COMMUNICATOR(MPI_Intercomm_merge, made, (Handle comm, int high, void* made), comm,
                           high, made)

VERBENA_TRACE_EXPORT int MPI_Comm_idup(Handle comm, void* made, void* request) {
  VERBENA_PMPI(MPI_Comm_idup);
  TracedCall call("MPI_Comm_idup");
  const int result = real(comm, made, request);
  if (call.recorded(result)) Tracer::get().duplicate(comm, made, mpi_abi().load(request));
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Comm_idup_with_info(Handle comm, Handle info, void* made,
                                                 void* request) {
  VERBENA_PMPI(MPI_Comm_idup_with_info);
  TracedCall call("MPI_Comm_idup_with_info");
  const int result = real(comm, info, made, request);
  if (call.recorded(result)) Tracer::get().duplicate(comm, made, mpi_abi().load(request));
  return result;
}

#define VERBENA_TRACE_FREE(NAME)                            \
  VERBENA_TRACE_EXPORT int NAME(void* comm) {               \
    VERBENA_PMPI(NAME);                                     \
    TracedCall call(#NAME);                                 \
    const Handle freed = mpi_abi().load(comm);              \
    const int result = real(comm);                          \
    if (call.recorded(result)) Tracer::get().forget(freed); \
    return result;                                          \
  }
VERBENA_TRACE_FREE(MPI_Comm_free)
VERBENA_TRACE_FREE(MPI_Comm_disconnect)

}  // namespace verbena::trace
