#include "src/device/soft/cm/user_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace verbena::soft::cm {
namespace {

using Copy = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                         unsigned long);

int copy_checked(Copy copy, void* local, uint64_t address, size_t size_bytes, bool to_program) {
  if (size_bytes == 0) return 0;
  auto* remote = reinterpret_cast<void*>(address);
  const iovec here{local, size_bytes};
  const iovec there{remote, size_bytes};
  const ssize_t copied = copy(getpid(), &here, 1, &there, 1, 0);
  if (copied == static_cast<ssize_t>(size_bytes)) return 0;
  if (copied >= 0 || errno == EFAULT) return EFAULT;
  // A sandbox without these calls.
  std::memcpy(to_program ? remote : local, to_program ? local : remote, size_bytes);
  return 0;
}

}  // namespace

int copy_to_program(uint64_t address, const void* from, size_t size_bytes) {
  return copy_checked(process_vm_writev, const_cast<void*>(from), address, size_bytes, true);
}

int copy_from_program(uint64_t address, void* to, size_t size_bytes) {
  return copy_checked(process_vm_readv, to, address, size_bytes, false);
}

}  // namespace verbena::soft::cm
