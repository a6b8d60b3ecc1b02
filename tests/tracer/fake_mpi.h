// An MPI of one process, as far as the tracer asks: rank 0 of two, whose requests complete when
// they are waited for. Its binary interface is MPICH's.
#pragma once

#include <cstdint>
#include <functional>

namespace verbena::test {

// As a program sees it: the tracer's functions, which call those of this MPI.
extern "C" {
int MPI_Init(int* argc, char*** argv);
int MPI_Finalize();
int MPI_Isend(const void* buffer, int count, uintptr_t type, int to, int tag, uintptr_t comm,
              void* request);
int MPI_Irecv(void* buffer, int count, uintptr_t type, int from, int tag, uintptr_t comm,
              void* request);
int MPI_Wait(void* request, void* status);
int MPI_Comm_idup(uintptr_t comm, void* made, void* request);
}

inline constexpr int kNobody = -1;  // MPI_PROC_NULL
inline constexpr uintptr_t kWorld = 0x44000000;
inline constexpr uintptr_t kByte = 0x4c00010d;

struct FakeStatus {
  int count[2] = {};
  int source = 0;
  int tag = 0;
  int error = 0;
};

// What PMPI_Wait() does once the request is done, and before it returns: `status` is what it says.
void set_wait(std::function<void(FakeStatus& status)> wait);

}  // namespace verbena::test
