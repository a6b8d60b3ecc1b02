#include "src/ofi/event_queue.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

namespace verbena::ofi {
namespace {

constexpr size_t kDefaultEvents = 256;
constexpr size_t kMostEvents = 65536;

int close_event_queue(fid* handle) {
  auto& queue = object_of<EventQueue>(handle);
  if (queue.vectors > 0) return -FI_EBUSY;
  delete &queue;
  return 0;
}

ssize_t read_event(fid_eq* queue, uint32_t* event, void* buffer, size_t size_bytes,
                   uint64_t flags) {
  return static_cast<EventQueue*>(queue)->read(event, buffer, size_bytes, 0,
                                               (flags & FI_PEEK) != 0);
}

ssize_t wait_for_event(fid_eq* queue, uint32_t* event, void* buffer, size_t size_bytes,
                       int timeout_ms, uint64_t flags) {
  return static_cast<EventQueue*>(queue)->read(event, buffer, size_bytes, timeout_ms,
                                               (flags & FI_PEEK) != 0);
}

ssize_t read_event_error(fid_eq* queue, fi_eq_err_entry* entry, uint64_t flags) {
  return static_cast<EventQueue*>(queue)->read_error(entry, (flags & FI_PEEK) != 0);
}

ssize_t write_own_event(fid_eq* queue, uint32_t event, const void* entry, size_t size_bytes,
                        uint64_t /*flags*/) {
  return static_cast<EventQueue*>(queue)->write(event, entry, size_bytes);
}

const char* event_error_text(fid_eq* /*queue*/, int provider_error, const void* /*data*/,
                             char* buffer, size_t size_bytes) {
  const char* const text = strerror(provider_error);
  if (buffer != nullptr && size_bytes > 0) snprintf(buffer, size_bytes, "%s", text);
  return text;
}

int control_event_queue(fid* handle, int command, void* argument) {
  const auto& queue = object_of<EventQueue>(handle);
  if (command != FI_GETWAIT) return -FI_ENOSYS;
  if (queue.descriptor() < 0) return -FI_ENODATA;
  *static_cast<int*>(argument) = queue.descriptor();
  return 0;
}

fi_ops event_queue_object_calls =
    object_calls(close_event_queue, &unsupported, control_event_queue);
fi_ops_eq event_queue_calls = {
    .size = sizeof(fi_ops_eq),
    .read = read_event,
    .readerr = read_event_error,
    .write = write_own_event,
    .sread = wait_for_event,
    .strerror = event_error_text,
};

}  // namespace

EventQueue::EventQueue(size_t room, void* context) : fid_eq{}, room_(room) {
  fid = {.fclass = FI_CLASS_EQ, .context = context, .ops = &event_queue_object_calls};
  ops = &event_queue_calls;
}

bool EventQueue::is_empty() {
  const std::lock_guard guard(mutex_);
  return events_.empty();
}

bool EventQueue::is_full() {
  const std::lock_guard guard(mutex_);
  return events_.size() >= room_;
}

bool EventQueue::make_descriptor() {
  readable_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return readable_.valid();
}

ssize_t EventQueue::write(uint32_t event, const void* entry, size_t size_bytes) {
  {
    const std::lock_guard guard(mutex_);
    if (events_.size() >= room_) return -FI_EAGAIN;
    add(event, entry, size_bytes, /*is_error=*/false);
  }
  written_.notify_all();
  return static_cast<ssize_t>(size_bytes);
}

void EventQueue::tell_of_insertion(std::span<const fi_eq_err_entry> errors,
                                   const fi_eq_entry& over) {
  {
    const std::lock_guard guard(mutex_);
    for (const fi_eq_err_entry& error : errors)
      add(FI_AV_COMPLETE, &error, sizeof(error), /*is_error=*/true);
    add(FI_AV_COMPLETE, &over, sizeof(over), /*is_error=*/false);
  }
  written_.notify_all();
}

// With the lock.
void EventQueue::add(uint32_t event, const void* entry, size_t size_bytes, bool is_error) {
  const auto* bytes = static_cast<const std::byte*>(entry);
  events_.push_back({event, {bytes, bytes + size_bytes}, is_error});
  const uint64_t one = 1;
  if (readable_.valid()) static_cast<void>(!::write(readable_.get(), &one, sizeof(one)));
}

// With the lock.
void EventQueue::drop_first() {
  events_.pop_front();
  uint64_t count = 0;
  if (events_.empty() && readable_.valid())
    static_cast<void>(!::read(readable_.get(), &count, sizeof(count)));
}

ssize_t EventQueue::read(uint32_t* event, void* buffer, size_t size_bytes, int timeout_ms,
                         bool peek) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return !events_.empty(); };
  if (timeout_ms < 0) {
    written_.wait(lock, ready);
  } else if (!written_.wait_for(lock, static_cast<uint64_t>(timeout_ms) * kNsPerMs, ready)) {
    return -FI_EAGAIN;
  }
  const Event& first = events_.front();
  if (first.is_error) return -FI_EAVAIL;
  if (first.entry.size() > size_bytes) return -FI_ETOOSMALL;
  *event = first.event;
  std::ranges::copy(first.entry, static_cast<std::byte*>(buffer));
  const auto read_bytes = static_cast<ssize_t>(first.entry.size());
  if (!peek) drop_first();
  return read_bytes;
}

ssize_t EventQueue::read_error(fi_eq_err_entry* entry, bool peek) {
  const std::lock_guard guard(mutex_);
  if (events_.empty() || !events_.front().is_error) return -FI_EAGAIN;
  memcpy(entry, events_.front().entry.data(), sizeof(*entry));
  if (!peek) drop_first();
  return sizeof(*entry);
}

int open_event_queue(fid_fabric* /*fabric*/, fi_eq_attr* attributes, fid_eq** queue,
                     void* context) {
  const fi_wait_obj object = attributes == nullptr ? FI_WAIT_NONE : attributes->wait_obj;
  if (object != FI_WAIT_NONE && object != FI_WAIT_UNSPEC && object != FI_WAIT_FD) return -FI_ENOSYS;
  const size_t asked =
      attributes == nullptr || attributes->size == 0 ? kDefaultEvents : attributes->size;
  auto* made = new (std::nothrow) EventQueue(std::min(asked, kMostEvents), context);
  if (made == nullptr) return -FI_ENOMEM;
  if (object == FI_WAIT_FD && !made->make_descriptor()) {
    const int error = errno;
    delete made;
    return -error;
  }
  *queue = made;
  return 0;
}

}  // namespace verbena::ofi
