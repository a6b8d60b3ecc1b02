// Vector IO of the system, readv() and writev(), on memory of this machine: what vector IO on
// remote memory is compared with ("memsem" III-A, figure 4). Each call enters the kernel.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <utility>

#include "src/base/file_descriptor.h"
#include "verbena/status.h"

namespace verbena::remote {

class LocalVectorFile {
 public:
  // A file of zeros in memory. kLimitExceeded: the system has no memory or descriptor for it.
  static Result<LocalVectorFile> create(uint64_t size_bytes);

  // All pieces, one behind the other from `offset_bytes` on. kInvalidArgument: they are not all
  // inside, or more than the system takes at once (IOV_MAX, 1024).
  Status readv(uint64_t offset_bytes, std::span<const iovec> to) const;
  Status writev(uint64_t offset_bytes, std::span<const iovec> from);

 private:
  LocalVectorFile(FileDescriptor file, uint64_t size_bytes)
      : file_(std::move(file)), size_bytes_(size_bytes) {}
  Status check(uint64_t offset_bytes, std::span<const iovec> pieces, uint64_t* total_bytes) const;

  FileDescriptor file_;
  uint64_t size_bytes_;
};

}  // namespace verbena::remote
