// What all objects of the provider have in common: libfabric calls them by tables of functions that
// begin with a `fid`.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace verbena::ofi {

// libfabric's time-outs are in milliseconds.
inline constexpr uint64_t kNsPerMs = 1'000'000;

// Fills any place of a table whose call this provider has not.
template <typename Returned, typename... Arguments>
Returned unsupported(Arguments... /*arguments*/) {
  return static_cast<Returned>(-FI_ENOSYS);
}

// The object behind what libfabric knows: each is derived from the structure that begins with its
// fid.
template <typename Object>
Object& object_of(fid* handle) {
  return static_cast<Object&>(*reinterpret_cast<typename Object::Handle*>(handle));
}

// What is common to the `fi_ops` of all objects.
inline constexpr fi_ops object_calls(int (*close)(fid*),
                                     int (*bind)(fid*, fid*, uint64_t) = &unsupported,
                                     int (*control)(fid*, int, void*) = &unsupported) {
  return {.size = sizeof(fi_ops),
          .close = close,
          .bind = bind,
          .control = control,
          .ops_open = &unsupported,
          .tostr = &unsupported,
          .ops_set = &unsupported};
}

// Held by each call on an object of a domain, unless the program has promised to call from one
// thread at a time.
class DomainLock {
 public:
  explicit DomainLock(bool needed) : needed_(needed) {}
  bool is_needed() const { return needed_; }
  void lock() {
    if (needed_) mutex_.lock();
  }
  void unlock() {
    if (needed_) mutex_.unlock();
  }

 private:
  bool needed_;
  std::mutex mutex_;
};

}  // namespace verbena::ofi
