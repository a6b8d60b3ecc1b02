// The MPIs' binary interfaces, as far as a tracer needs them: so that one library serves all MPIs,
// without any mpi.h. Which one a program uses shows the library that it has loaded:
//
//   libmpi.so.12      MPICH and those that agreed with it (the MPICH ABI): Intel MPI, MVAPICH, ...,
//                     also as libmpich.so or libmpi_cray.so; handles are 32-bit numbers
//   libmpi.so.40      Open MPI; handles are pointers, the predefined ones to its variables
//   libmpi_abi.so     the interface of MPI 5.0, of any MPI; handles are pointers or small numbers
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::trace {

// A handle by value, whatever its type: 32-bit ones arrive in the lower half of the register, with
// anything in the other.
using Handle = uintptr_t;
using MpiCount = int64_t;

// Large enough for any MPI_Status.
struct alignas(16) AnyStatus {
  char bytes[64] = {};
};

struct MpiAbi {
  void* library = nullptr;  // of dlopen()
  size_t handle_bytes = 0;
  size_t status_bytes = 0;
  size_t source_offset = 0;
  size_t tag_offset = 0;
  int any_source = 0;
  int any_tag = 0;
  int process_null = 0;
  int root = 0;
  Handle status_ignore = 0;  // and that of several
  Handle in_place = 0;
  Handle world = 0;
  Handle self = 0;
  Handle comm_null = 0;
  Handle request_null = 0;
  Handle no_message = 0;
  Handle byte = 0;

  Handle normal(Handle handle) const { return handle_bytes == 4 ? handle & 0xffffffffu : handle; }
  Handle load(const void* handles, size_t number = 0) const;
  char* status(void* statuses, size_t number) const {
    return static_cast<char*>(statuses) + number * status_bytes;
  }
  int source_of(const void* status) const;
  int tag_of(const void* status) const;
};

// Of the MPI that this process has loaded. Ends the process, with a line, where it is none of the
// above: it called MPI, and nobody could carry that out.
const MpiAbi& mpi_abi();

// The MPI's own function, by its name "PMPI_Send"; null where it has none.
void* find_pmpi(const char* name);

// The same, which has to be there, as it is for who calls the function without the P.
void* pmpi_or_exit(const char* name);

}  // namespace verbena::trace
