// Collective operations: blocking ones, nonblocking ones, and each with large counts (MPI 4).
#include <vector>

#include "src/trace/pmpi/tracer.h"

namespace verbena::trace {
namespace {

const std::vector<uint64_t> kNoList;

// Of a list of counts, one for each member. Between two groups some calls have one for each member
// of this rank's own group, which is not known here and not recorded.
template <typename Count>
std::vector<uint64_t> list_of(const Count* counts, Handle type, Handle comm) {
  std::vector<uint64_t> list;
  const auto known = Tracer::get().comm(comm);
  if (known->between) return list;
  const size_t members = known->members.size();
  for (size_t i = 0; i < members; ++i) list.push_back(bytes_of(counts[i], type));
  return list;
}

bool is_root(int root, Handle comm) {
  const auto known = Tracer::get().comm(comm);
  return !known->between && root >= 0 && static_cast<uint32_t>(root) == known->self;
}

void note(Operation operation, const void* buffer, uint64_t bytes, int root, Handle comm,
          Handle request) {
  Tracer::get().collective(operation, buffer, bytes, static_cast<uint32_t>(root), kNoList, false,
                           comm, request);
}
void note_list(Operation operation, const void* buffer, const std::vector<uint64_t>& list, int root,
               Handle comm, Handle request) {
  Tracer::get().collective(operation, buffer, 0, static_cast<uint32_t>(root), list, true, comm,
                           request);
}

template <typename Count>
void note_alltoallv(const void* sent, const Count* sent_counts, Handle sent_type,
                    const void* received, const Count* received_counts, Handle received_type,
                    Handle comm, Handle request) {
  const bool in_place = reinterpret_cast<Handle>(sent) == mpi_abi().in_place;
  std::vector<uint64_t> list = in_place ? list_of(received_counts, received_type, comm)
                                        : list_of(sent_counts, sent_type, comm);
  const std::vector<uint64_t> back = list_of(received_counts, received_type, comm);
  list.insert(list.end(), back.begin(), back.end());
  note_list(Operation::kAlltoall, received, list, 0, comm, request);
}

template <typename Count>
void note_alltoallw(const void* sent, const Count* sent_counts, const void* sent_types,
                    const void* received, const Count* received_counts, const void* received_types,
                    Handle comm, Handle request) {
  const bool in_place = reinterpret_cast<Handle>(sent) == mpi_abi().in_place;
  std::vector<uint64_t> list;
  const size_t members = Tracer::get().comm(comm)->members.size();
  for (int back = 0; back < 2; ++back) {
    const bool receives = in_place || back == 1;
    for (size_t i = 0; i < members; ++i) {
      list.push_back(receives ? bytes_of(received_counts[i], mpi_abi().load(received_types, i))
                              : bytes_of(sent_counts[i], mpi_abi().load(sent_types, i)));
    }
  }
  note_list(Operation::kAlltoall, received, list, 0, comm, request);
}

}  // namespace

#define VERBENA_EXPAND(...) __VA_ARGS__
#define VERBENA_BLOCKING(NAME, PARAMETERS, ARGUMENTS, NOTE) \
  VERBENA_TRACE_EXPORT int NAME(PARAMETERS) {               \
    VERBENA_PMPI(NAME);                                     \
    TracedCall call(#NAME);                                 \
    const int result = real(VERBENA_EXPAND ARGUMENTS);      \
    if (call.recorded(result)) {                            \
      constexpr Handle request = 0;                         \
      NOTE;                                                 \
    }                                                       \
    return result;                                          \
  }
#define VERBENA_NONBLOCKING(NAME, PARAMETERS, ARGUMENTS, NOTE)        \
  VERBENA_TRACE_EXPORT int NAME(PARAMETERS, void* request_place) {    \
    VERBENA_PMPI(NAME);                                               \
    TracedCall call(#NAME);                                           \
    const int result = real(VERBENA_EXPAND ARGUMENTS, request_place); \
    if (call.recorded(result)) {                                      \
      const Handle request = mpi_abi().load(request_place);           \
      NOTE;                                                           \
    }                                                                 \
    return result;                                                    \
  }
#define VERBENA_COLLECTIVE(NAME, INAME, PARAMETERS, ARGUMENTS, NOTE)                     \
  VERBENA_BLOCKING(NAME, PARAMETERS(int), ARGUMENTS, NOTE)                               \
  VERBENA_TRACE_LARGE(VERBENA_BLOCKING(NAME##_c, PARAMETERS(MpiCount), ARGUMENTS, NOTE)) \
  VERBENA_NONBLOCKING(INAME, PARAMETERS(int), ARGUMENTS, NOTE)                           \
  VERBENA_TRACE_LARGE(VERBENA_NONBLOCKING(INAME##_c, PARAMETERS(MpiCount), ARGUMENTS, NOTE))

VERBENA_BLOCKING(MPI_Barrier, Handle comm, (comm),
                 note(Operation::kBarrier, nullptr, 0, 0, comm, request))
VERBENA_NONBLOCKING(MPI_Ibarrier, Handle comm, (comm),
                    note(Operation::kBarrier, nullptr, 0, 0, comm, request))

#define VERBENA_BROADCAST(COUNT) void *buffer, COUNT count, Handle type, int root, Handle comm
VERBENA_COLLECTIVE(MPI_Bcast, MPI_Ibcast, VERBENA_BROADCAST, (buffer, count, type, root, comm),
                   note(Operation::kBroadcast, buffer, bytes_of(count, type), root, comm, request))

#define VERBENA_REDUCE(COUNT)                                                             \
  const void *sent, void *received, COUNT count, Handle type, Handle operation, int root, \
      Handle comm
VERBENA_COLLECTIVE(MPI_Reduce, MPI_Ireduce, VERBENA_REDUCE,
                   (sent, received, count, type, operation, root, comm),
                   note(Operation::kReduce, sent, bytes_of(count, type), root, comm, request))

#define VERBENA_SUM(COUNT) \
  const void *sent, void *received, COUNT count, Handle type, Handle operation, Handle comm
#define VERBENA_SUM_NAMES (sent, received, count, type, operation, comm)
VERBENA_COLLECTIVE(MPI_Allreduce, MPI_Iallreduce, VERBENA_SUM, VERBENA_SUM_NAMES,
                   note(Operation::kAllreduce, received, bytes_of(count, type), 0, comm, request))
VERBENA_COLLECTIVE(MPI_Scan, MPI_Iscan, VERBENA_SUM, VERBENA_SUM_NAMES,
                   note(Operation::kScan, received, bytes_of(count, type), 0, comm, request))
VERBENA_COLLECTIVE(MPI_Exscan, MPI_Iexscan, VERBENA_SUM, VERBENA_SUM_NAMES,
                   note(Operation::kScan, received, bytes_of(count, type), 0, comm, request))
VERBENA_COLLECTIVE(MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, VERBENA_SUM,
                   VERBENA_SUM_NAMES,
                   note(Operation::kReduceScatter, received, bytes_of(count, type), 0, comm,
                        request))

#define VERBENA_REDUCE_SCATTER(COUNT) \
  const void *sent, void *received, const COUNT *counts, Handle type, Handle operation, Handle comm
VERBENA_COLLECTIVE(MPI_Reduce_scatter, MPI_Ireduce_scatter, VERBENA_REDUCE_SCATTER,
                   (sent, received, counts, type, operation, comm),
                   note_list(Operation::kReduceScatter, received, list_of(counts, type, comm), 0,
                             comm, request))

#define VERBENA_ROOTED(COUNT)                                                                 \
  const void *sent, COUNT sent_count, Handle sent_type, void *received, COUNT received_count, \
      Handle received_type, int root, Handle comm
#define VERBENA_ROOTED_NAMES \
  (sent, sent_count, sent_type, received, received_count, received_type, root, comm)
VERBENA_COLLECTIVE(MPI_Gather, MPI_Igather, VERBENA_ROOTED, VERBENA_ROOTED_NAMES,
                   note(Operation::kGather, sent,
                        is_root(root, comm) ? bytes_of(received_count, received_type)
                                            : bytes_of(sent_count, sent_type),
                        root, comm, request))
VERBENA_COLLECTIVE(MPI_Scatter, MPI_Iscatter, VERBENA_ROOTED, VERBENA_ROOTED_NAMES,
                   note(Operation::kScatter, received,
                        is_root(root, comm) ? bytes_of(sent_count, sent_type)
                                            : bytes_of(received_count, received_type),
                        root, comm, request))

#define VERBENA_GATHERV(COUNT)                                                               \
  const void *sent, COUNT sent_count, Handle sent_type, void *received, const COUNT *counts, \
      const void *places, Handle received_type, int root, Handle comm
VERBENA_COLLECTIVE(
    MPI_Gatherv, MPI_Igatherv, VERBENA_GATHERV,
    (sent, sent_count, sent_type, received, counts, places, received_type, root, comm),
    if (is_root(root, comm)) {
      note_list(Operation::kGather, received, list_of(counts, received_type, comm), root, comm,
                request);
    } else {
      note(Operation::kGather, sent, bytes_of(sent_count, sent_type), root, comm, request);
    })

#define VERBENA_SCATTERV(COUNT)                                                                \
  const void *sent, const COUNT *counts, const void *places, Handle sent_type, void *received, \
      COUNT received_count, Handle received_type, int root, Handle comm
VERBENA_COLLECTIVE(
    MPI_Scatterv, MPI_Iscatterv, VERBENA_SCATTERV,
    (sent, counts, places, sent_type, received, received_count, received_type, root, comm),
    if (is_root(root, comm)) {
      note_list(Operation::kScatter, sent, list_of(counts, sent_type, comm), root, comm, request);
    } else {
      note(Operation::kScatter, received, bytes_of(received_count, received_type), root, comm,
           request);
    })

#define VERBENA_ALL(COUNT)                                                                    \
  const void *sent, COUNT sent_count, Handle sent_type, void *received, COUNT received_count, \
      Handle received_type, Handle comm
#define VERBENA_ALL_NAMES \
  (sent, sent_count, sent_type, received, received_count, received_type, comm)
VERBENA_COLLECTIVE(MPI_Allgather, MPI_Iallgather, VERBENA_ALL, VERBENA_ALL_NAMES,
                   note(Operation::kAllgather, received, bytes_of(received_count, received_type), 0,
                        comm, request))
VERBENA_COLLECTIVE(MPI_Alltoall, MPI_Ialltoall, VERBENA_ALL, VERBENA_ALL_NAMES,
                   note(Operation::kAlltoall, received, bytes_of(received_count, received_type), 0,
                        comm, request))

#define VERBENA_ALLGATHERV(COUNT)                                                            \
  const void *sent, COUNT sent_count, Handle sent_type, void *received, const COUNT *counts, \
      const void *places, Handle received_type, Handle comm
VERBENA_COLLECTIVE(MPI_Allgatherv, MPI_Iallgatherv, VERBENA_ALLGATHERV,
                   (sent, sent_count, sent_type, received, counts, places, received_type, comm),
                   note_list(Operation::kAllgather, received, list_of(counts, received_type, comm),
                             0, comm, request))

#define VERBENA_ALLTOALLV(COUNT)                                                         \
  const void *sent, const COUNT *sent_counts, const void *sent_places, Handle sent_type, \
      void *received, const COUNT *received_counts, const void *received_places,         \
      Handle received_type, Handle comm
VERBENA_COLLECTIVE(MPI_Alltoallv, MPI_Ialltoallv, VERBENA_ALLTOALLV,
                   (sent, sent_counts, sent_places, sent_type, received, received_counts,
                    received_places, received_type, comm),
                   note_alltoallv(sent, sent_counts, sent_type, received, received_counts,
                                  received_type, comm, request))

#define VERBENA_ALLTOALLW(COUNT)                                                               \
  const void *sent, const COUNT *sent_counts, const void *sent_places, const void *sent_types, \
      void *received, const COUNT *received_counts, const void *received_places,               \
      const void *received_types, Handle comm
VERBENA_COLLECTIVE(MPI_Alltoallw, MPI_Ialltoallw, VERBENA_ALLTOALLW,
                   (sent, sent_counts, sent_places, sent_types, received, received_counts,
                    received_places, received_types, comm),
                   note_alltoallw(sent, sent_counts, sent_types, received, received_counts,
                                  received_types, comm, request))

}  // namespace verbena::trace
