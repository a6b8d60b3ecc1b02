// Messages between two ranks: what sends, receives and starts them.
#include "src/trace/pmpi/tracer.h"

namespace verbena::trace {
namespace {

// The caller's status, or one of our own where it wants none.
class StatusPlace {
 public:
  explicit StatusPlace(void* status)
      : status_(reinterpret_cast<Handle>(status) == mpi_abi().status_ignore ? own_.bytes : status) {
  }
  void* get() { return status_; }

 private:
  AnyStatus own_;
  void* status_;
};

void note_received(const void* buffer, const void* status, Handle comm) {
  const MpiAbi& abi = mpi_abi();
  Tracer::get().message(Operation::kReceive, 0, buffer, bytes_received(status),
                        abi.source_of(status), abi.tag_of(status), comm);
}

}  // namespace

// --- blocking ---

#define VERBENA_TRACE_SEND(NAME, COUNT, FLAGS)                                                 \
  VERBENA_TRACE_EXPORT int NAME(const void* buffer, COUNT count, Handle type, int to, int tag, \
                                Handle comm) {                                                 \
    VERBENA_PMPI(NAME);                                                                        \
    TracedCall call(#NAME);                                                                    \
    const int result = real(buffer, count, type, to, tag, comm);                               \
    if (call.recorded(result)) {                                                               \
      Tracer::get().message(Operation::kSend, FLAGS, buffer, bytes_of(count, type), to, tag,   \
                            comm);                                                             \
    }                                                                                          \
    return result;                                                                             \
  }
VERBENA_TRACE_SEND(MPI_Send, int, 0)
VERBENA_TRACE_LARGE(VERBENA_TRACE_SEND(MPI_Send_c, MpiCount, 0))
VERBENA_TRACE_SEND(MPI_Bsend, int, 0)
VERBENA_TRACE_LARGE(VERBENA_TRACE_SEND(MPI_Bsend_c, MpiCount, 0))
VERBENA_TRACE_SEND(MPI_Rsend, int, 0)
VERBENA_TRACE_LARGE(VERBENA_TRACE_SEND(MPI_Rsend_c, MpiCount, 0))
VERBENA_TRACE_SEND(MPI_Ssend, int, kSynchronous)
VERBENA_TRACE_LARGE(VERBENA_TRACE_SEND(MPI_Ssend_c, MpiCount, kSynchronous))

#define VERBENA_TRACE_RECEIVE(NAME, COUNT)                                                 \
  VERBENA_TRACE_EXPORT int NAME(void* buffer, COUNT count, Handle type, int from, int tag, \
                                Handle comm, void* status) {                               \
    VERBENA_PMPI(NAME);                                                                    \
    TracedCall call(#NAME);                                                                \
    StatusPlace place(status);                                                             \
    const int result = real(buffer, count, type, from, tag, comm, place.get());            \
    if (call.recorded(result)) note_received(buffer, place.get(), comm);                   \
    return result;                                                                         \
  }
VERBENA_TRACE_RECEIVE(MPI_Recv, int)
VERBENA_TRACE_LARGE(VERBENA_TRACE_RECEIVE(MPI_Recv_c, MpiCount))

// A receive and a send, both at once, and the wait for them.
#define VERBENA_TRACE_EXCHANGE(NAME, COUNT)                                                       \
  VERBENA_TRACE_EXPORT int NAME(const void* sent, COUNT sent_count, Handle sent_type, int to,     \
                                int sent_tag, void* received, COUNT received_count,               \
                                Handle received_type, int from, int received_tag, Handle comm,    \
                                void* status) {                                                   \
    VERBENA_PMPI(NAME);                                                                           \
    TracedCall call(#NAME);                                                                       \
    StatusPlace place(status);                                                                    \
    const int result = real(sent, sent_count, sent_type, to, sent_tag, received, received_count,  \
                            received_type, from, received_tag, comm, place.get());                \
    if (call.recorded(result)) {                                                                  \
      Tracer::get().exchange(sent, bytes_of(sent_count, sent_type), to, sent_tag, received, from, \
                             place.get(), comm);                                                  \
    }                                                                                             \
    return result;                                                                                \
  }
VERBENA_TRACE_EXCHANGE(MPI_Sendrecv, int)
VERBENA_TRACE_LARGE(VERBENA_TRACE_EXCHANGE(MPI_Sendrecv_c, MpiCount))

#define VERBENA_TRACE_REPLACE(NAME, COUNT)                                                    \
  VERBENA_TRACE_EXPORT int NAME(void* buffer, COUNT count, Handle type, int to, int sent_tag, \
                                int from, int received_tag, Handle comm, void* status) {      \
    VERBENA_PMPI(NAME);                                                                       \
    TracedCall call(#NAME);                                                                   \
    StatusPlace place(status);                                                                \
    const int result =                                                                        \
        real(buffer, count, type, to, sent_tag, from, received_tag, comm, place.get());       \
    if (call.recorded(result)) {                                                              \
      Tracer::get().exchange(buffer, bytes_of(count, type), to, sent_tag, buffer, from,       \
                             place.get(), comm);                                              \
    }                                                                                         \
    return result;                                                                            \
  }
VERBENA_TRACE_REPLACE(MPI_Sendrecv_replace, int)
VERBENA_TRACE_LARGE(VERBENA_TRACE_REPLACE(MPI_Sendrecv_replace_c, MpiCount))

// --- nonblocking, and persistent ---

#define VERBENA_TRACE_START(NAME, COUNT, BUFFER, NOTE, OPERATION, FLAGS)                    \
  VERBENA_TRACE_EXPORT int NAME(BUFFER buffer, COUNT count, Handle type, int peer, int tag, \
                                Handle comm, void* request) {                               \
    VERBENA_PMPI(NAME);                                                                     \
    TracedCall call(#NAME);                                                                 \
    const int result = real(buffer, count, type, peer, tag, comm, request);                 \
    if (call.recorded(result)) {                                                            \
      Tracer::get().NOTE(OPERATION, FLAGS, buffer, bytes_of(count, type), peer, tag, comm,  \
                         mpi_abi().load(request));                                          \
    }                                                                                       \
    return result;                                                                          \
  }
#define VERBENA_TRACE_STARTS(NAME, BUFFER, NOTE, OPERATION, FLAGS) \
  VERBENA_TRACE_START(NAME, int, BUFFER, NOTE, OPERATION, FLAGS)   \
  VERBENA_TRACE_LARGE(VERBENA_TRACE_START(NAME##_c, MpiCount, BUFFER, NOTE, OPERATION, FLAGS))
VERBENA_TRACE_STARTS(MPI_Isend, const void*, start, Operation::kStartSend, 0)
VERBENA_TRACE_STARTS(MPI_Ibsend, const void*, start, Operation::kStartSend, 0)
VERBENA_TRACE_STARTS(MPI_Irsend, const void*, start, Operation::kStartSend, 0)
VERBENA_TRACE_STARTS(MPI_Issend, const void*, start, Operation::kStartSend, kSynchronous)
VERBENA_TRACE_STARTS(MPI_Irecv, void*, start, Operation::kStartReceive, 0)
VERBENA_TRACE_STARTS(MPI_Send_init, const void*, persistent, Operation::kStartSend, 0)
VERBENA_TRACE_STARTS(MPI_Bsend_init, const void*, persistent, Operation::kStartSend, 0)
VERBENA_TRACE_STARTS(MPI_Rsend_init, const void*, persistent, Operation::kStartSend, 0)
VERBENA_TRACE_STARTS(MPI_Ssend_init, const void*, persistent, Operation::kStartSend, kSynchronous)
VERBENA_TRACE_STARTS(MPI_Recv_init, void*, persistent, Operation::kStartReceive, 0)

VERBENA_TRACE_EXPORT int MPI_Start(void* request) {
  VERBENA_PMPI(MPI_Start);
  TracedCall call("MPI_Start");
  const int result = real(request);
  if (call.recorded(result)) Tracer::get().start_persistent(mpi_abi().load(request));
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Startall(int count, void* requests) {
  VERBENA_PMPI(MPI_Startall);
  TracedCall call("MPI_Startall");
  const int result = real(count, requests);
  if (call.recorded(result)) {
    for (int i = 0; i < count; ++i) {
      Tracer::get().start_persistent(mpi_abi().load(requests, static_cast<size_t>(i)));
    }
  }
  return result;
}

// --- probes: those that take the message out receive it ---

VERBENA_TRACE_EXPORT int MPI_Probe(int from, int tag, Handle comm, void* status) {
  VERBENA_PMPI(MPI_Probe);
  TracedCall call("MPI_Probe");
  const int result = real(from, tag, comm, status);
  call.recorded(result);
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Iprobe(int from, int tag, Handle comm, int* flag, void* status) {
  VERBENA_PMPI(MPI_Iprobe);
  TracedCall call("MPI_Iprobe");
  const int result = real(from, tag, comm, flag, status);
  if (call.recorded(result) && *flag == 0) Tracer::get().found_nothing();
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Mprobe(int from, int tag, Handle comm, void* message, void* status) {
  VERBENA_PMPI(MPI_Mprobe);
  TracedCall call("MPI_Mprobe");
  StatusPlace place(status);
  const int result = real(from, tag, comm, message, place.get());
  if (call.recorded(result)) {
    Tracer::get().take_message(mpi_abi().load(message), place.get(), comm);
  }
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Improbe(int from, int tag, Handle comm, int* flag, void* message,
                                     void* status) {
  VERBENA_PMPI(MPI_Improbe);
  TracedCall call("MPI_Improbe");
  StatusPlace place(status);
  const int result = real(from, tag, comm, flag, message, place.get());
  if (call.recorded(result)) {
    if (*flag != 0) {
      Tracer::get().take_message(mpi_abi().load(message), place.get(), comm);
    } else {
      Tracer::get().found_nothing();
    }
  }
  return result;
}

#define VERBENA_TRACE_TAKEN(NAME, COUNT)                                               \
  VERBENA_TRACE_EXPORT int NAME(void* buffer, COUNT count, Handle type, void* message, \
                                void* status) {                                        \
    VERBENA_PMPI(NAME);                                                                \
    const Handle taken = mpi_abi().load(message);                                      \
    TracedCall call(#NAME);                                                            \
    const int result = real(buffer, count, type, message, status);                     \
    if (call.recorded(result)) Tracer::get().receive_taken(taken, buffer, 0);          \
    return result;                                                                     \
  }
VERBENA_TRACE_TAKEN(MPI_Mrecv, int)
VERBENA_TRACE_LARGE(VERBENA_TRACE_TAKEN(MPI_Mrecv_c, MpiCount))

#define VERBENA_TRACE_START_TAKEN(NAME, COUNT)                                         \
  VERBENA_TRACE_EXPORT int NAME(void* buffer, COUNT count, Handle type, void* message, \
                                void* request) {                                       \
    VERBENA_PMPI(NAME);                                                                \
    const Handle taken = mpi_abi().load(message);                                      \
    TracedCall call(#NAME);                                                            \
    const int result = real(buffer, count, type, message, request);                    \
    if (call.recorded(result)) {                                                       \
      Tracer::get().receive_taken(taken, buffer, mpi_abi().load(request));             \
    }                                                                                  \
    return result;                                                                     \
  }
VERBENA_TRACE_START_TAKEN(MPI_Imrecv, int)
VERBENA_TRACE_LARGE(VERBENA_TRACE_START_TAKEN(MPI_Imrecv_c, MpiCount))

}  // namespace verbena::trace
