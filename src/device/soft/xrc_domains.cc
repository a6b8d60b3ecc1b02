// XRC domains. Processes share one by a file: it is the domain of the file's inode. That it is open
// is a lock on a small file of soft0's registry, which the kernel drops when the process ends.
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/device/soft/control.h"
#include "src/device/soft/xrc.h"

namespace verbena::soft {
namespace {

// Somebody is just making or closing the same domain, which takes some microseconds.
constexpr uint64_t kLockPatienceNs = 10'000'000'000;

bool lock_domain(int fd, short type) {
  struct flock record {};
  record.l_type = type;
  record.l_whence = SEEK_SET;
  record.l_len = 1;
  return fcntl(fd, F_OFD_SETLK, &record) == 0;
}

// The files of domains that are open, or are being opened. A lock belongs to the open file, which a
// forked child shares, and it would keep its parent's domains open: so the child closes these, and
// the parent unlocks what it closes, for a child that has not come to that yet.
class DomainFiles {
 public:
  static DomainFiles& get() {
    static auto* files = new DomainFiles;
    return *files;
  }
  // As openat(); -1 and errno.
  int open(int directory_fd, const char* name) {
    const std::lock_guard guard(mutex_);
    const int fd = openat(directory_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) fds_.push_back(fd);
    return fd;
  }
  void close(int fd) {
    const std::lock_guard guard(mutex_);
    std::erase(fds_, fd);
    lock_domain(fd, F_UNLCK);
    ::close(fd);
  }

 private:
  DomainFiles() {
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                   [] {
                     for (const int fd : get().fds_) ::close(fd);
                     get().fds_.clear();
                     get().mutex_.unlock();
                   });
  }

  std::mutex mutex_;
  std::vector<int> fds_;
};

std::string domain_file_name(const XrcDomainId& id) {
  return fmt::format("{}{:x}.{:x}", kXrcDomainPrefix, id.device, id.file);
}

// Whether the file is still the one of this name: who closes a domain last removes it.
bool is_linked(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && status.st_nlink != 0;
}

// Two that close at once may each see the other: the file is removed after the own lock is gone.
void close_lock(const Registry& registry, const XrcDomainId& id, int fd) {
  DomainFiles::get().close(fd);
  registry.remove_closed_domain(domain_file_name(id).c_str());
}

// The descriptor that says that the domain is open, or -1 and last_error().
int open_lock(const Registry& registry, const XrcDomainId& id, int flags) {
  const std::string name = domain_file_name(id);
  const uint64_t limit_ns = now_ns() + kLockPatienceNs;
  for (Waiter waiter; now_ns() < limit_ns; waiter.idle()) {
    const int file = DomainFiles::get().open(registry.directory_fd(), name.c_str());
    if (file < 0) {
      fail(errno,
           fmt::format("soft0: cannot make {}/{}: {}", registry.path(), name, strerror(errno)));
      return -1;
    }
    if (lock_domain(file, F_WRLCK)) {
      if (is_linked(file) && (flags & O_CREAT) == 0) {
        unlinkat(registry.directory_fd(), name.c_str(), 0);
        DomainFiles::get().close(file);
        fail(EAGAIN,
             "soft0: no process has the XRC domain of this file open; O_CREAT (oflags) "
             "makes it");
        return -1;
      }
      // From the one lock to the other in one step.
      if (is_linked(file) && lock_domain(file, F_RDLCK)) return file;
    } else if (lock_domain(file, F_RDLCK) && is_linked(file)) {
      if ((flags & O_EXCL) == 0) return file;
      // Its other holders may have closed it meanwhile, and left the file to this one.
      close_lock(registry, id, file);
      fail(EINVAL,
           "soft0: the XRC domain of this file is open already, and O_EXCL (oflags) asks "
           "for a new one");
      return -1;
    }
    DomainFiles::get().close(file);
  }
  fail(EAGAIN, "soft0: the XRC domain of this file is locked by a process that is stopped");
  return -1;
}

// Of an open file; false with last_error().
bool find_id(int fd, XrcDomainId& id) {
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    fail(EBADF, fmt::format("soft0: {} is no open file for an XRC domain; -1 asks for one that no "
                            "other process can open",
                            fd));
    return false;
  }
  id = {status.st_dev, status.st_ino};
  return true;
}

}  // namespace

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* init) {
  if (check_valid_context(context) != 0) return nullptr;
  constexpr uint32_t kFields = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if (init->comp_mask != kFields) {
    fail((init->comp_mask & ~kFields) != 0 ? EOPNOTSUPP : EINVAL,
         fmt::format("soft0: an XRC domain takes the fields {:#x} (comp_mask), given were {:#x}",
                     kFields, init->comp_mask));
    return nullptr;
  }
  Rnic& rnic = *as_context(context).rnic;
  auto domain = std::make_unique<XrcDomain>();
  if (init->fd == -1) {
    domain->id = {kXrcWithoutFile, uint64_t{rnic.slot()} << 32 | rnic.next_generation()};
  } else {
    if (!find_id(init->fd, domain->id)) return nullptr;
    FileDescriptor file(fcntl(init->fd, F_DUPFD_CLOEXEC, 0));
    if (!file.valid()) {
      fail(errno, fmt::format("soft0: cannot keep the file of an XRC domain open: {}; raise the "
                              "limit of open files (ulimit -n)",
                              strerror(errno)));
      return nullptr;
    }
    domain->lock_fd = open_lock(rnic.registry(), domain->id, init->oflags);
    if (domain->lock_fd < 0) return nullptr;
    domain->file_fd = file.release();
  }
  domain->verbs.context = context;
  as_context(context).users.fetch_add(1);
  make_valid(*domain, context);
  return &domain.release()->verbs;
}

int close_xrcd(ibv_xrcd* verbs) {
  if (const int error = check_valid<XrcDomain>(verbs); error != 0) return error;
  XrcDomain& domain = as_xrc_domain(verbs);
  if (domain.users.load() != 0) {
    return fail(EBUSY,
                "soft0: the XRC domain still has queue pairs or shared receive queues; "
                "destroy them first");
  }
  if (domain.lock_fd >= 0) {
    close_lock(as_context(verbs->context).rnic->registry(), domain.id, domain.lock_fd);
    close(domain.file_fd);
  }
  end_use(as_context(verbs->context).users);
  retire(&domain);
  return 0;
}

int get_srq_num(ibv_srq* verbs, uint32_t* number) {
  if (const int error = check_valid<Srq>(verbs); error != 0) return error;
  const Srq& srq = as_srq(verbs);
  if (srq.xrc == nullptr) {
    return fail(EOPNOTSUPP, "soft0: only shared receive queues of XRC have numbers");
  }
  *number = srq.xrc->number;
  return 0;
}

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr*) {
  if (check_valid_context(context) != 0) return nullptr;
  fail(EOPNOTSUPP,
       "soft0: a queue pair is of the process that made it, and ends with it; make one "
       "of type XRC_RECV in this process instead of opening another's (ibv_open_qp)");
  return nullptr;
}

}  // namespace verbena::soft
