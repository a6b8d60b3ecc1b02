// Event queues: where a program reads that addresses were inserted, and what it has written itself.
#pragma once

#include <rdma/fi_eq.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/ofi/fid.h"

namespace verbena::ofi {

int open_event_queue(fid_fabric* fabric, fi_eq_attr* attributes, fid_eq** queue, void* context);

// Used by any thread. Bounded, but for what the insertions write that are let in while there is
// room.
class EventQueue : public fid_eq {
 public:
  using Handle = fid_eq;
  EventQueue(size_t room, void* context);

  // -FI_EAGAIN if it is full, else the bytes written.
  ssize_t write(uint32_t event, const void* entry, size_t size_bytes);
  // What became of one insertion of addresses: errors before the event that it is over.
  void tell_of_insertion(std::span<const fi_eq_err_entry> errors, const fi_eq_entry& over);
  bool is_empty();
  bool is_full();
  // For poll(), with FI_WAIT_FD: readable while there is an event. False: there is none left.
  bool make_descriptor();
  int descriptor() const { return readable_.get(); }
  // The oldest event, within `timeout_ms` (negative: without limit), else -FI_EAGAIN. -FI_EAVAIL:
  // it is an error, for read_error().
  ssize_t read(uint32_t* event, void* buffer, size_t size_bytes, int timeout_ms, bool peek);
  ssize_t read_error(fi_eq_err_entry* entry, bool peek);

  std::atomic<uint32_t> vectors{0};  // that it is bound to

 private:
  struct Event {
    uint32_t event;
    std::vector<std::byte> entry;
    bool is_error = false;  // then it is a fi_eq_err_entry
  };
  void add(uint32_t event, const void* entry, size_t size_bytes, bool is_error);
  void drop_first();

  const size_t room_;
  std::mutex mutex_;
  Condition written_;
  std::deque<Event> events_;
  FileDescriptor readable_;
};

}  // namespace verbena::ofi
