#include "src/remote/local_vector_file.h"

#include <fmt/format.h>
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace verbena::remote {
namespace {

// `moved` of the call, which moves all or says why not.
Status outcome(ssize_t moved, uint64_t total_bytes) {
  if (moved >= 0 && static_cast<uint64_t>(moved) == total_bytes) return Status::ok_status();
  return Status(StatusCode::kLimitExceeded,
                fmt::format("the system moved {} of {} bytes ({}); is there memory left?",
                            moved < 0 ? 0 : moved, total_bytes, std::strerror(errno)));
}

}  // namespace

Result<LocalVectorFile> LocalVectorFile::create(uint64_t size_bytes) {
  FileDescriptor file(memfd_create("verbena-vector", MFD_CLOEXEC));
  if (file.get() < 0 || ftruncate(file.get(), static_cast<off_t>(size_bytes)) != 0) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("no file of {} bytes in memory ({}); ask for less", size_bytes,
                              std::strerror(errno)));
  }
  return LocalVectorFile(std::move(file), size_bytes);
}

Status LocalVectorFile::check(uint64_t offset_bytes, std::span<const iovec> pieces,
                              uint64_t* total_bytes) const {
  *total_bytes = 0;
  for (const iovec& piece : pieces) *total_bytes += piece.iov_len;
  if (*total_bytes > size_bytes_ || offset_bytes > size_bytes_ - *total_bytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} bytes at offset {} are not all inside of the {} bytes; choose a "
                              "smaller offset or size",
                              *total_bytes, offset_bytes, size_bytes_));
  }
  if (pieces.size() > IOV_MAX) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} pieces are more than the system takes at once, {}; use fewer",
                              pieces.size(), IOV_MAX));
  }
  return Status::ok_status();
}

Status LocalVectorFile::readv(uint64_t offset_bytes, std::span<const iovec> to) const {
  uint64_t total_bytes = 0;
  VERBENA_RETURN_IF_ERROR(check(offset_bytes, to, &total_bytes));
  return outcome(
      preadv(file_.get(), to.data(), static_cast<int>(to.size()), static_cast<off_t>(offset_bytes)),
      total_bytes);
}

Status LocalVectorFile::writev(uint64_t offset_bytes, std::span<const iovec> from) {
  uint64_t total_bytes = 0;
  VERBENA_RETURN_IF_ERROR(check(offset_bytes, from, &total_bytes));
  return outcome(pwritev(file_.get(), from.data(), static_cast<int>(from.size()),
                         static_cast<off_t>(offset_bytes)),
                 total_bytes);
}

}  // namespace verbena::remote
