#include "tests/tracer/fake_mpi.h"

#include <cstring>
#include <utility>

namespace verbena::test {

namespace {

using Handle = uintptr_t;

// The one handle that requests have, one after the other.
constexpr uint32_t kRequest = 0x98000001;
constexpr uint32_t kRequestNull = 0x2c000000;
constexpr uint32_t kCommNull = 0x04000000;
constexpr Handle kSelf = 0x44000001;

std::function<void(FakeStatus& status)>& wait() {
  static std::function<void(FakeStatus & status)> wait;
  return wait;
}

void put(void* place, uint32_t handle) { std::memcpy(place, &handle, sizeof(handle)); }

}  // namespace

void set_wait(std::function<void(FakeStatus& status)> done) { wait() = std::move(done); }

extern "C" {

int PMPI_Init(int* /*argc*/, char*** /*argv*/) { return 0; }
int PMPI_Finalize() { return 0; }

int PMPI_Comm_get_parent(void* parent) {
  put(parent, kCommNull);
  return 0;
}
int PMPI_Comm_rank(Handle /*comm*/, int* rank) {
  *rank = 0;
  return 0;
}
int PMPI_Comm_size(Handle /*comm*/, int* size) {
  *size = 2;
  return 0;
}
int PMPI_Comm_idup(Handle /*comm*/, void* /*made*/, void* request) {
  put(request, kRequest);
  return 0;
}
int PMPI_Comm_test_inter(Handle /*comm*/, int* between) {
  *between = 0;
  return 0;
}

// A group is the communicator that it is of.
int PMPI_Comm_group(Handle comm, void* group) {
  put(group, static_cast<uint32_t>(comm));
  return 0;
}
int PMPI_Group_size(Handle group, int* size) {
  *size = group == kSelf ? 1 : 2;
  return 0;
}
int PMPI_Group_translate_ranks(Handle /*group*/, int count, const int* ranks, Handle /*other*/,
                               int* translated) {
  for (int i = 0; i < count; ++i) translated[i] = ranks[i];
  return 0;
}
int PMPI_Group_free(void* /*group*/) { return 0; }

int PMPI_Type_size(Handle /*type*/, int* size) {
  *size = 1;
  return 0;
}
int PMPI_Get_count(const void* status, Handle /*type*/, int* count) {
  *count = static_cast<const FakeStatus*>(status)->count[0];
  return 0;
}
int PMPI_Test_cancelled(const void* /*status*/, int* cancelled) {
  *cancelled = 0;
  return 0;
}

int PMPI_Isend(const void* /*buffer*/, int /*count*/, Handle /*type*/, int /*to*/, int /*tag*/,
               Handle /*comm*/, void* request) {
  put(request, kRequest);
  return 0;
}
int PMPI_Irecv(void* /*buffer*/, int /*count*/, Handle /*type*/, int /*from*/, int /*tag*/,
               Handle /*comm*/, void* request) {
  put(request, kRequest);
  return 0;
}
int PMPI_Wait(void* request, void* status) {
  wait()(*static_cast<FakeStatus*>(status));
  put(request, kRequestNull);
  return 0;
}
}

}  // namespace verbena::test
