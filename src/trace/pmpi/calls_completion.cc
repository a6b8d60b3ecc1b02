// Waits and tests: which requests are done, and what came for receives.
#include <vector>

#include "src/trace/pmpi/tracer.h"

namespace verbena::trace {
namespace {

// The requests before the call, which takes their handles away, and room for what is known behind
// it where the caller wants to know nothing.
class Awaited {
 public:
  Awaited(int count, const void* requests, void* statuses) {
    const MpiAbi& abi = mpi_abi();
    for (int i = 0; i < count; ++i) {
      handles_.push_back(abi.load(requests, static_cast<size_t>(i)));
    }
    statuses_ = statuses;
    if (reinterpret_cast<Handle>(statuses) == abi.status_ignore) {
      own_.resize(static_cast<size_t>(count) + 1);
      statuses_ = own_.data();
    }
  }
  void* statuses() { return statuses_; }

  // Request number `request` is done, and status number `status` is its.
  void done(int request, int status) {
    Tracer::get().complete(handles_[static_cast<size_t>(request)],
                           mpi_abi().status(statuses_, static_cast<size_t>(status)));
  }
  void all_done() {
    for (int i = 0; i < static_cast<int>(handles_.size()); ++i) done(i, i);
    Tracer::get().flush_completions();
  }
  // Of an index that a call returned, which may be MPI_UNDEFINED.
  void one_done(int index) {
    if (index < 0) return;
    done(index, 0);
    Tracer::get().flush_completions();
  }
  void some_done(int count, const int* indices) {
    for (int i = 0; i < count; ++i) done(indices[i], i);
    Tracer::get().flush_completions();
  }

 private:
  std::vector<Handle> handles_;
  std::vector<AnyStatus> own_;
  void* statuses_ = nullptr;
};

}  // namespace

VERBENA_TRACE_EXPORT int MPI_Wait(void* request, void* status) {
  VERBENA_PMPI(MPI_Wait);
  TracedCall call("MPI_Wait");
  Awaited awaited(1, request, status);
  const int result = real(request, awaited.statuses());
  if (call.recorded(result)) awaited.all_done();
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Waitall(int count, void* requests, void* statuses) {
  VERBENA_PMPI(MPI_Waitall);
  TracedCall call("MPI_Waitall");
  Awaited awaited(count, requests, statuses);
  const int result = real(count, requests, awaited.statuses());
  if (call.recorded(result)) awaited.all_done();
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Waitany(int count, void* requests, int* index, void* status) {
  VERBENA_PMPI(MPI_Waitany);
  TracedCall call("MPI_Waitany");
  Awaited awaited(count, requests, status);
  const int result = real(count, requests, index, awaited.statuses());
  if (call.recorded(result)) awaited.one_done(*index);
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Waitsome(int count, void* requests, int* done, int* indices,
                                      void* statuses) {
  VERBENA_PMPI(MPI_Waitsome);
  TracedCall call("MPI_Waitsome");
  Awaited awaited(count, requests, statuses);
  const int result = real(count, requests, done, indices, awaited.statuses());
  if (call.recorded(result)) awaited.some_done(*done, indices);
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Test(void* request, int* flag, void* status) {
  VERBENA_PMPI(MPI_Test);
  TracedCall call("MPI_Test");
  Awaited awaited(1, request, status);
  const int result = real(request, flag, awaited.statuses());
  if (call.recorded(result)) *flag != 0 ? awaited.all_done() : Tracer::get().found_nothing();
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Testall(int count, void* requests, int* flag, void* statuses) {
  VERBENA_PMPI(MPI_Testall);
  TracedCall call("MPI_Testall");
  Awaited awaited(count, requests, statuses);
  const int result = real(count, requests, flag, awaited.statuses());
  if (call.recorded(result)) *flag != 0 ? awaited.all_done() : Tracer::get().found_nothing();
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Testany(int count, void* requests, int* index, int* flag,
                                     void* status) {
  VERBENA_PMPI(MPI_Testany);
  TracedCall call("MPI_Testany");
  Awaited awaited(count, requests, status);
  const int result = real(count, requests, index, flag, awaited.statuses());
  if (call.recorded(result)) {
    *flag != 0 ? awaited.one_done(*index) : Tracer::get().found_nothing();
  }
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Testsome(int count, void* requests, int* done, int* indices,
                                      void* statuses) {
  VERBENA_PMPI(MPI_Testsome);
  TracedCall call("MPI_Testsome");
  Awaited awaited(count, requests, statuses);
  const int result = real(count, requests, done, indices, awaited.statuses());
  if (call.recorded(result)) {
    *done != 0 ? awaited.some_done(*done, indices) : Tracer::get().found_nothing();
  }
  return result;
}

VERBENA_TRACE_EXPORT int MPI_Request_free(void* request) {
  VERBENA_PMPI(MPI_Request_free);
  TracedCall call("MPI_Request_free");
  const Handle freed = mpi_abi().load(request);
  const int result = real(request);
  if (call.recorded(result)) Tracer::get().free_request(freed);
  return result;
}

}  // namespace verbena::trace
