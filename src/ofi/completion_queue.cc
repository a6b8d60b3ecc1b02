#include "src/ofi/completion_queue.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/ofi/endpoint.h"

namespace verbena::ofi {
namespace {

constexpr size_t kDefaultEntries = 4096;
constexpr size_t kMostEntries = 65536;

CompletionQueue& queue_of(fid_cq* handle) { return *static_cast<CompletionQueue*>(handle); }

size_t bytes_of(fi_cq_format format) {
  switch (format) {
    case FI_CQ_FORMAT_UNSPEC:
    case FI_CQ_FORMAT_CONTEXT:
      return sizeof(fi_cq_entry);
    case FI_CQ_FORMAT_MSG:
      return sizeof(fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA:
      return sizeof(fi_cq_data_entry);
    case FI_CQ_FORMAT_TAGGED:
      return sizeof(fi_cq_tagged_entry);
  }
  return 0;
}

int close_queue(fid* handle) {
  auto& queue = object_of<CompletionQueue>(handle);
  {
    const std::lock_guard guard(queue.domain.lock);
    if (!queue.endpoints.empty()) return -FI_EBUSY;
  }
  --queue.domain.users;
  delete &queue;
  return 0;
}

// Entries up to the first one that tells of an error, which only fi_cq_readerr reads.
ssize_t read_entries(CompletionQueue& queue, void* buffer, size_t count, fi_addr_t* sources) {
  const std::lock_guard guard(queue.domain.lock);
  // Who reads no entries wants progress alone.
  if (queue.head == queue.tail || count == 0) {
    for (Endpoint* endpoint : queue.endpoints) endpoint->take_completions();
  }
  auto* at = static_cast<std::byte*>(buffer);
  size_t read = 0;
  for (; read < count && queue.head != queue.tail; ++read, ++queue.head) {
    const CompletionEntry& entry = queue.ring[queue.head & queue.mask];
    if (entry.error != 0) return read > 0 ? static_cast<ssize_t>(read) : -FI_EAVAIL;
    memcpy(at, &entry.shown, queue.shown_bytes);
    at += queue.shown_bytes;
    if (sources != nullptr) sources[read] = entry.source;
  }
  return read > 0 ? static_cast<ssize_t>(read) : -FI_EAGAIN;
}

// MPIs poll without end. Where more of them poll than there are cores, whoever finds nothing lets
// others run.
ssize_t read_from(fid_cq* handle, void* buffer, size_t count, fi_addr_t* sources) {
  static thread_local Waiter waiter;
  const ssize_t got = read_entries(queue_of(handle), buffer, count, sources);
  // Who reads no entries is about to do something else.
  if (count == 0) return got;
  if (got == -FI_EAGAIN) {
    waiter.idle();
  } else {
    waiter.progress();
  }
  return got;
}

ssize_t read(fid_cq* handle, void* buffer, size_t count) {
  return read_from(handle, buffer, count, nullptr);
}

ssize_t read_error(fid_cq* handle, fi_cq_err_entry* into, uint64_t /*flags*/) {
  CompletionQueue& queue = queue_of(handle);
  const std::lock_guard guard(queue.domain.lock);
  if (queue.head == queue.tail || queue.ring[queue.head & queue.mask].error == 0) return -FI_EAGAIN;
  const CompletionEntry& entry = queue.ring[queue.head & queue.mask];
  into->op_context = entry.shown.op_context;
  into->flags = entry.shown.flags;
  into->len = entry.shown.len;
  into->buf = entry.shown.buf;
  into->data = entry.shown.data;
  into->tag = entry.shown.tag;
  into->olen = entry.lost_bytes;
  into->err = entry.error;
  into->prov_errno = entry.error;
  into->err_data_size = 0;
  // What follows since 2.0 a caller of an older version has no room for.
  ++queue.head;
  return 1;
}

ssize_t wait_from(fid_cq* handle, void* buffer, size_t count, fi_addr_t* sources,
                  const void* /*condition*/, int timeout_ms) {
  CompletionQueue& queue = queue_of(handle);
  const uint64_t start_ns = now_ns();
  for (;;) {
    const ssize_t got = read_from(handle, buffer, count, sources);
    if (got != -FI_EAGAIN) return got;
    if (queue.signalled.exchange(false)) return -FI_EAGAIN;
    if (timeout_ms >= 0 && now_ns() - start_ns >= static_cast<uint64_t>(timeout_ms) * kNsPerMs)
      return -FI_EAGAIN;
  }
}

ssize_t wait(fid_cq* handle, void* buffer, size_t count, const void* condition, int timeout_ms) {
  return wait_from(handle, buffer, count, nullptr, condition, timeout_ms);
}

int wake(fid_cq* handle) {
  queue_of(handle).signalled.store(true);
  return 0;
}

const char* error_text(fid_cq* handle, int error, const void* /*data*/, char* buffer,
                       size_t size_bytes) {
  CompletionQueue& queue = queue_of(handle);
  const std::lock_guard guard(queue.domain.lock);
  queue.error_text = strerror(error);
  for (const Endpoint* endpoint : queue.endpoints) {
    if (!endpoint->lost_peer.empty() && error == kPeerLostError)
      queue.error_text = endpoint->lost_peer;
  }
  if (buffer != nullptr) snprintf(buffer, size_bytes, "%s", queue.error_text.c_str());
  return queue.error_text.c_str();
}

fi_ops queue_object_calls = object_calls(close_queue);
fi_ops_cq queue_calls = {
    .size = sizeof(fi_ops_cq),
    .read = read,
    .readfrom = read_from,
    .readerr = read_error,
    .sread = wait,
    .sreadfrom = wait_from,
    .signal = wake,
    .strerror = error_text,
};

}  // namespace

CompletionQueue::CompletionQueue(Domain& of, size_t entries, size_t entry_bytes, void* context)
    : fid_cq{},
      domain(of),
      shown_bytes(entry_bytes),
      mask(std::bit_ceil(entries) - 1),
      ring(std::make_unique<CompletionEntry[]>(mask + 1)) {
  fid = {.fclass = FI_CLASS_CQ, .context = context, .ops = &queue_object_calls};
  ops = &queue_calls;
}

void CompletionQueue::push(const CompletionEntry& entry) {
  VERBENA_ASSERT(room() > 0);
  ring[tail & mask] = entry;
  ++tail;
}

int open_completion_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** queue,
                          void* context) {
  const size_t entry_bytes = bytes_of(attributes->format);
  if (entry_bytes == 0) return -FI_EINVAL;
  // There is nothing of the kernel to wait at: fi_cq_sread polls, then yields.
  if (attributes->wait_obj != FI_WAIT_NONE && attributes->wait_obj != FI_WAIT_UNSPEC &&
      attributes->wait_obj != FI_WAIT_YIELD)
    return -FI_ENOSYS;
  const size_t entries = attributes->size == 0
                             ? kDefaultEntries
                             : std::clamp(attributes->size, size_t{64}, kMostEntries);
  auto& of = static_cast<Domain&>(*domain);
  auto* made = new (std::nothrow) CompletionQueue(of, entries, entry_bytes, context);
  if (made == nullptr) return -FI_ENOMEM;
  if (attributes->format == FI_CQ_FORMAT_UNSPEC) attributes->format = FI_CQ_FORMAT_CONTEXT;
  attributes->size = made->mask + 1;
  ++of.users;
  *queue = made;
  return 0;
}

}  // namespace verbena::ofi
