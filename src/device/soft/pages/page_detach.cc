#include "src/device/soft/pages/page_detach.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "src/device/soft/pages/raw_syscall.h"

// As in page_move.cc, nothing here may touch memory that could be in flight: here that includes
// the writable data of this very program or library.

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace verbena::soft {
namespace {

VERBENA_IN_FLIGHT bool fail(PageDetach& detach, long result, const char* call) {
  detach.error = static_cast<int>(-result);
  detach.failed_call = call;
  return false;
}

VERBENA_IN_FLIGHT bool populate(PageDetach& detach, std::byte* pages) {
  const long result = raw_syscall(SYS_madvise, as_argument(pages),
                                  static_cast<long>(detach.length_bytes), MADV_POPULATE_WRITE);
  return !is_error(result) || fail(detach, result, "madvise(MADV_POPULATE_WRITE)");
}

VERBENA_IN_FLIGHT bool hold_old_pages(PageDetach& detach) {
  uint64_t done = 0;
  while (done < detach.length_bytes) {
    iovec piece;
    piece.iov_base = detach.address + done;
    piece.iov_len = detach.length_bytes - done;
    const long result =
        raw_syscall(SYS_vmsplice, detach.pipe_write, as_argument(&piece), 1, SPLICE_F_NONBLOCK);
    if (result == -EINTR) continue;
    if (is_error(result)) return fail(detach, result, "vmsplice");
    done += static_cast<uint64_t>(result);
  }
  return true;
}

VERBENA_IN_FLIGHT bool read_old_pages(PageDetach& detach) {
  uint64_t done = 0;
  while (done < detach.length_bytes) {
    const long result = raw_syscall(SYS_read, detach.pipe_read, as_argument(detach.staging + done),
                                    static_cast<long>(detach.length_bytes - done));
    if (result == -EINTR) continue;
    if (is_error(result) || result == 0) {
      return fail(detach, is_error(result) ? result : -EIO, "read(pipe)");
    }
    done += static_cast<uint64_t>(result);
  }
  return true;
}

VERBENA_IN_FLIGHT long remap(PageDetach& detach, std::byte* from) {
  return remap_in_flight(from, detach.address, detach.length_bytes, 0, detach.spare);
}

VERBENA_IN_FLIGHT bool take_place(PageDetach& detach) {
  if (detach.protection != (PROT_READ | PROT_WRITE)) {
    const long result = raw_syscall(SYS_mprotect, as_argument(detach.staging),
                                    static_cast<long>(detach.length_bytes), detach.protection);
    if (is_error(result)) return fail(detach, result, "mprotect");
  }
  const long result = remap(detach, detach.staging);
  if (is_error(result)) return fail(detach, result, "mremap");
  detach.staging_gone = true;
  return true;
}

}  // namespace

VERBENA_IN_FLIGHT void detach_pages(void* page_detach) {
  PageDetach& detach = *static_cast<PageDetach*>(page_detach);
  // Every old page becomes a writable page of this process alone: from then on all threads write to
  // those pages that the pipe holds.
  if (!populate(detach, detach.address) || !populate(detach, detach.staging)) return;

  uffdio_register request;
  request.range.start = reinterpret_cast<uintptr_t>(detach.barrier);
  request.range.len = detach.length_bytes;
  request.mode = UFFDIO_REGISTER_MODE_MISSING;
  request.ioctls = 0;
  long result = raw_syscall(SYS_ioctl, detach.userfaultfd, static_cast<long>(UFFDIO_REGISTER),
                            as_argument(&request));
  if (is_error(result)) {
    fail(detach, result, "ioctl(UFFDIO_REGISTER)");
    return;
  }
  if (!hold_old_pages(detach)) return;

  result = remap(detach, detach.barrier);
  if (is_error(result)) {
    fail(detach, result, "mremap");
    return;
  }
  detach.barrier_gone = true;
  // From here on every other thread that touches the pages waits.
  detach.lost = !read_old_pages(detach) || !take_place(detach);
  uffdio_range range;
  range.start = reinterpret_cast<uintptr_t>(detach.address);
  range.len = detach.length_bytes;
  raw_syscall(SYS_ioctl, detach.userfaultfd, static_cast<long>(UFFDIO_WAKE), as_argument(&range));
}

VERBENA_IN_FLIGHT void read_events(PageDetach* detach) {
  pollfd watched[2];
  watched[0].fd = detach->userfaultfd;
  watched[0].events = POLLIN;
  watched[1].fd = detach->stop_reader;
  watched[1].events = POLLIN;
  __atomic_store_n(reinterpret_cast<uint32_t*>(&detach->reader_runs), 1u, __ATOMIC_RELEASE);
  for (;;) {
    watched[0].revents = 0;
    watched[1].revents = 0;
    raw_syscall(SYS_ppoll, as_argument(watched), 2, 0, 0, 0);
    if (watched[1].revents != 0) return;
    uffd_msg message;
    raw_syscall(SYS_read, detach->userfaultfd, as_argument(&message), sizeof(message));
  }
}

}  // namespace verbena::soft
