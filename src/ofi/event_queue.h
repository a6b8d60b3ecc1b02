// Event queues: where a program reads that addresses were inserted, and what it has written itself.
#pragma once

#include <rdma/fi_eq.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/ofi/fid.h"

namespace verbena::ofi {

int open_event_queue(fid_fabric* fabric, fi_eq_attr* attributes, fid_eq** queue, void* context);

// Bounded; used by any thread.
class EventQueue : public fid_eq {
 public:
  using Handle = fid_eq;
  EventQueue(size_t room, void* context);

  // -FI_EAGAIN if it is full, else the bytes written.
  ssize_t write(uint32_t event, const void* entry, size_t size_bytes);
  bool is_empty();
  // For poll(), with FI_WAIT_FD: readable while there is an event. False: there is none left.
  bool make_descriptor();
  int descriptor() const { return readable_.get(); }
  // The oldest event, within `timeout_ms` (negative: without limit), else -FI_EAGAIN.
  ssize_t read(uint32_t* event, void* buffer, size_t size_bytes, int timeout_ms, bool peek);

 private:
  struct Event {
    uint32_t event;
    std::vector<std::byte> entry;
  };
  const size_t room_;
  std::mutex mutex_;
  Condition written_;
  std::deque<Event> events_;
  FileDescriptor readable_;
};

}  // namespace verbena::ofi
