#include "src/ofi/completion_queue.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <functional>
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
  Domain& domain = queue.domain;
  delete &queue;
  --domain.users;
  return 0;
}

// Entries up to the first one that tells of an error, which only fi_cq_readerr reads.
ssize_t take_entries(CompletionQueue& queue, void* buffer, size_t count, fi_addr_t* sources) {
  auto* at = static_cast<std::byte*>(buffer);
  size_t read = 0;
  for (; read < count && queue.head != queue.tail; ++read, queue.drop_first()) {
    const CompletionEntry& entry = queue.ring[queue.head & queue.mask];
    if (entry.error != 0) return read > 0 ? static_cast<ssize_t>(read) : -FI_EAVAIL;
    memcpy(at, &entry.shown, queue.shown_bytes);
    at += queue.shown_bytes;
    if (sources != nullptr) sources[read] = entry.source;
  }
  return read > 0 ? static_cast<ssize_t>(read) : -FI_EAGAIN;
}

// Reads of this thread in a row that found nothing, of all queues. In static memory of the thread,
// which is reached without a call.
[[gnu::tls_model("initial-exec")]] constinit thread_local uint32_t empty_reads = 0;
// So many are made without a pause: what comes soon is not to wait for the end of one.
constexpr uint32_t kBusyReads = 64;

// Further ones with a pause, before each lets others run. None, where others had work before.
constexpr uint32_t kPatientReads = 4096;
// A yield that long means that another thread had the CPU.
constexpr uint64_t kYieldTookLongNs = 4'000;

struct Patience {
  uint32_t reads = 0;  // of this wait
  uint32_t most = kPatientReads;
};
constinit thread_local Patience patience;

// Never sleeps, as a Waiter does: the thread may hold a lock of the MPI's, which those need who
// have something to do.
[[gnu::noinline]] void wait_after_empty_read() {
  if (patience.reads < patience.most) {
    ++patience.reads;
    return cpu_relax();
  }
  const uint64_t before_ns = now_ns();
  sched_yield();
  if (now_ns() - before_ns > kYieldTookLongNs) {
    patience.most = 0;
  } else if (patience.most < kPatientReads) {
    ++patience.most;
  }
}
[[gnu::noinline]] void end_wait() { patience.reads = 0; }

// What comes soon is found sooner here than by way of the program's loop, which has more to ask.
// Each of the first reads that find nothing polls the rings so often: not those of a program that
// tests now and then while it computes, and none where others wait for the lock or for the CPU.
constexpr uint32_t kPollingReads = 8;
constexpr uint32_t kRingPolls = 16;

bool polls_longer(const CompletionQueue& queue) {
  return empty_reads < kPollingReads && patience.most > 0 && queue.head == queue.tail &&
         !queue.domain.lock.is_needed();
}

ssize_t read_entries(CompletionQueue& queue, void* buffer, size_t count, fi_addr_t* sources) {
  const std::lock_guard guard(queue.domain.lock);
  // Who reads no entries wants progress alone.
  if (queue.head == queue.tail || count == 0) {
    if (queue.endpoints.size() == 1 && count > 0) [[likely]] {
      Endpoint& endpoint = *queue.endpoints[0];
      auto* const to = static_cast<std::byte*>(buffer);
      size_t read = endpoint.hand_over(queue, to, count, sources);
      if (read == 0 && polls_longer(queue) && endpoint.messenger->rings_have_messages(kRingPolls))
        read = endpoint.hand_over(queue, to, count, sources);
      if (read > 0) return static_cast<ssize_t>(read);
    } else {
      for (Endpoint* endpoint : queue.endpoints) endpoint->take_completions();
    }
  }
  return take_entries(queue, buffer, count, sources);
}

// MPIs poll without end. Where more of them poll than there are cores, whoever finds nothing lets
// others run.
ssize_t read_from(fid_cq* handle, void* buffer, size_t count, fi_addr_t* sources) {
  const ssize_t got = read_entries(queue_of(handle), buffer, count, sources);
  // Who reads no entries is about to do something else.
  if (count == 0) return got;
  if (got == -FI_EAGAIN) {
    if (empty_reads < kBusyReads) {
      ++empty_reads;
    } else {
      wait_after_empty_read();
    }
  } else {
    if (empty_reads == kBusyReads) end_wait();
    empty_reads = 0;
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
  queue.drop_first();
  return 1;
}

ssize_t wait_from(fid_cq* handle, void* buffer, size_t count, fi_addr_t* sources,
                  const void* /*condition*/, int timeout_ms) {
  CompletionQueue& queue = queue_of(handle);
  ssize_t got = -FI_EAGAIN;
  const auto ready = [&] {
    got = take_entries(queue, buffer, count, sources);
    return got != -FI_EAGAIN;
  };
  queue.waiters.wait(queue.sources, timeout_ms, std::ref(ready));
  return got;
}

ssize_t wait(fid_cq* handle, void* buffer, size_t count, const void* condition, int timeout_ms) {
  return wait_from(handle, buffer, count, nullptr, condition, timeout_ms);
}

int wake(fid_cq* handle) {
  queue_of(handle).waiters.signal();
  return 0;
}

const char* error_text(fid_cq* handle, int error, const void* /*data*/, char* buffer,
                       size_t size_bytes) {
  CompletionQueue& queue = queue_of(handle);
  const std::lock_guard guard(queue.domain.lock);
  // The only one of those here that is libfabric's own.
  queue.error_text =
      error == FI_ETRUNC ? "the message is longer than its receive has room for" : strerror(error);
  for (const Endpoint* endpoint : queue.endpoints) {
    if (!endpoint->failure.empty() && (error == kPeerLostError || error == FI_ENOMEM))
      queue.error_text = endpoint->failure;
  }
  if (buffer != nullptr) snprintf(buffer, size_bytes, "%s", queue.error_text.c_str());
  return queue.error_text.c_str();
}

int control_queue(fid* handle, int command, void* argument) {
  auto& queue = object_of<CompletionQueue>(handle);
  if (command != FI_GETWAIT) return -FI_ENOSYS;
  const std::lock_guard guard(queue.domain.lock);
  return queue.waits_at_descriptor ? get_descriptor(queue.waiters, argument) : -FI_ENODATA;
}

fi_ops queue_object_calls = object_calls(close_queue, &unsupported, control_queue);
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
      ring(std::make_unique<CompletionEntry[]>(mask + 1)),
      waiters(of) {
  fid = {.fclass = FI_CLASS_CQ, .context = context, .ops = &queue_object_calls};
  ops = &queue_calls;
}

void CompletionQueue::push(const CompletionEntry& entry) {
  VERBENA_ASSERT(room() > 0);
  if (is_full()) [[unlikely]] {
    behind.push_back(entry);
  } else {
    ring[tail & mask] = entry;
    ++tail;
  }
  waiters.notify();
}

void CompletionQueue::catch_up() {
  ring[tail & mask] = behind.front();
  ++tail;
  behind.pop_front();
}

int open_completion_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** queue,
                          void* context) {
  const size_t entry_bytes = bytes_of(attributes->format);
  if (entry_bytes == 0) return -FI_EINVAL;
  if (!can_wait_at(attributes->wait_obj)) return -FI_ENOSYS;
  const size_t entries = attributes->size == 0
                             ? kDefaultEntries
                             : std::clamp(attributes->size, size_t{64}, kMostEntries);
  auto& of = static_cast<Domain&>(*domain);
  auto* made = new (std::nothrow) CompletionQueue(of, entries, entry_bytes, context);
  if (made == nullptr) return -FI_ENOMEM;
  made->waits_at_descriptor = attributes->wait_obj == FI_WAIT_FD;
  ++(attributes->wait_obj == FI_WAIT_FD || attributes->wait_obj == FI_WAIT_UNSPEC
         ? of.sleeping_queues
         : of.polled_queues);
  if (attributes->format == FI_CQ_FORMAT_UNSPEC) attributes->format = FI_CQ_FORMAT_CONTEXT;
  attributes->size = made->mask + 1;
  ++of.users;
  *queue = made;
  return 0;
}

}  // namespace verbena::ofi
