// From the messenger's completions to entries of libfabric's completion queues.
#include <algorithm>
#include <cstring>
#include <utility>

#include "src/ofi/endpoint.h"
#include "src/ofi/memory_region.h"

namespace verbena::ofi {
namespace {

constexpr size_t kAtOnce = 16;

inline bool is_of_message(MessageEvent event) {
  return event == MessageEvent::kSent || event == MessageEvent::kReceived;
}

uint64_t one_sided_flags_of(MessageEvent event) {
  switch (event) {
    case MessageEvent::kPut:
      return FI_RMA | FI_WRITE;
    case MessageEvent::kGot:
      return FI_RMA | FI_READ;
    case MessageEvent::kAtomic:
      return FI_ATOMIC | FI_WRITE;
    case MessageEvent::kFetched:
      return FI_ATOMIC | FI_READ;
    case MessageEvent::kWritten:
      return FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
    case MessageEvent::kSent:
    case MessageEvent::kReceived:
      break;
  }
  return 0;
}

inline uint64_t flags_of(const MessageCompletion& done) {
  if (!is_of_message(done.event)) [[unlikely]]
    return one_sided_flags_of(done.event);
  uint64_t flags = (done.flags & kMessageUntagged) != 0 ? FI_MSG : FI_TAGGED;
  if (done.event == MessageEvent::kSent) return flags | FI_SEND;
  flags |= FI_RECV;
  if ((done.flags & kMessageData) != 0) flags |= FI_REMOTE_CQ_DATA;
  if ((done.flags & kMessageMulti) != 0) flags |= FI_MULTI_RECV;
  return flags;
}

void fill_entry(const MessageCompletion& done, fi_cq_tagged_entry& entry) {
  entry.op_context = done.context;
  entry.flags = flags_of(done);
  entry.len = done.bytes;
  entry.buf = done.buffer;
  entry.data = done.data;
  entry.tag = done.tag;
}

int error_of(MessageOutcome outcome) {
  switch (outcome) {
    case MessageOutcome::kOk:
      return 0;
    case MessageOutcome::kTruncated:
      return FI_ETRUNC;
    case MessageOutcome::kCancelled:
      return FI_ECANCELED;
    case MessageOutcome::kPeerLost:
      return kPeerLostError;
    case MessageOutcome::kFailed:
      return FI_ENOMEM;
    case MessageOutcome::kUnknownKey:
      return FI_EKEYREJECTED;
    case MessageOutcome::kOutOfRange:
      return FI_EINVAL;
    case MessageOutcome::kNotPermitted:
      return FI_EACCES;
  }
  return FI_EOTHER;
}

// Of a good one.
inline bool leaves_entry(const MessageCompletion& done) {
  return (done.flags & (kWithoutEntry | kMessageMulti)) != kWithoutEntry;
}

Counter* counter_of_one_sided(const Endpoint& endpoint, MessageEvent event) {
  switch (event) {
    case MessageEvent::kPut:
    case MessageEvent::kAtomic:
      return endpoint.writes;
    case MessageEvent::kGot:
    case MessageEvent::kFetched:
      return endpoint.reads;
    case MessageEvent::kWritten:  // count_remote()
    case MessageEvent::kSent:
    case MessageEvent::kReceived:
      break;
  }
  return nullptr;
}

inline Counter* counter_of_completion(const Endpoint& endpoint, const Direction& direction,
                                      MessageEvent event) {
  return is_of_message(event) ? direction.counter : counter_of_one_sided(endpoint, event);
}

}  // namespace

void Endpoint::put(const MessageCompletion& done) {
  const Direction& direction = direction_of(done);
  const bool good = done.outcome == MessageOutcome::kOk;
  if (Counter* const counter = counter_of_completion(*this, direction, done.event);
      counter != nullptr) {
    ++(good ? counter->completed : counter->failed);
    counter->waiters.notify();
  }
  if (direction.queue == nullptr || (good && !leaves_entry(done))) return;
  CompletionEntry entry;
  entry.shown = {.op_context = done.context,
                 .flags = flags_of(done),
                 .len = done.bytes,
                 .buf = done.buffer,
                 .data = done.data,
                 .tag = done.tag};
  if (came_here(done.event) && done.outcome <= MessageOutcome::kTruncated) {
    entry.source = number_of(done.peer);
  }
  entry.error = error_of(done.outcome);
  entry.lost_bytes = done.lost_bytes;
  if (!good) [[unlikely]] {
    // fi_endpoint(3): the endpoint's where the operation has none, as what was injected.
    if (done.context == nullptr) entry.shown.op_context = fid.context;
    note_failure(done);
  }
  direction.queue->push(entry);
}

size_t Endpoint::hand_over(const CompletionQueue& queue, std::byte* at, size_t count,
                           fi_addr_t* sources) {
  if (!deferred.empty()) [[unlikely]]
    post_deferred();
  const std::span<const MessageCompletion> found = messenger->poll_in_place();
  if (counts_remote()) [[unlikely]]
    count_remote();
  if (found.empty()) return 0;
  size_t written = 0;
  uint32_t taken = 0;
  for (; taken < found.size() && written < count; ++taken) {
    const MessageCompletion& done = found[taken];
    const Direction& direction = direction_of(done);
    if (done.outcome != MessageOutcome::kOk || direction.queue != &queue) [[unlikely]]
      break;
    if (Counter* const counter = counter_of_completion(*this, direction, done.event);
        counter != nullptr) {
      ++counter->completed;
      counter->waiters.notify();
    }
    if (!leaves_entry(done)) continue;
    // In place if it can be: what is put together elsewhere first takes its time to be copied.
    if (queue.shown_bytes == sizeof(fi_cq_tagged_entry)) [[likely]] {
      fill_entry(done, *reinterpret_cast<fi_cq_tagged_entry*>(at));
    } else {
      fi_cq_tagged_entry entry;
      fill_entry(done, entry);
      memcpy(at, &entry, queue.shown_bytes);
    }
    at += queue.shown_bytes;
    if (sources != nullptr) {
      sources[written] = came_here(done.event) ? number_of(done.peer) : fi_addr_t{FI_ADDR_NOTAVAIL};
    }
    ++written;
  }
  const bool stopped = taken < found.size() && written < count;
  messenger->drop_completions(taken);
  if (stopped) take_completions();
  return written;
}

void Endpoint::post_deferred() {
  const size_t room = sends.queue == nullptr ? kAtOnce : sends.queue->room();
  deferred.post(*messenger, room, [this](const SendRequest& request) {
    MessageCompletion done;
    done.context = request.context;
    done.outcome = messenger->peer_status(request.peer).ok() ? MessageOutcome::kFailed
                                                             : MessageOutcome::kPeerLost;
    done.flags = request.flags & kMessageUntagged;
    done.peer = request.peer;
    done.tag = request.tag;
    put(done);
  });
}

void Endpoint::take_completions() {
  MessageCompletion done[kAtOnce];
  size_t room = kAtOnce;
  for (const CompletionQueue* queue : {sends.queue, receives.queue}) {
    if (queue != nullptr) room = std::min(room, queue->room());
  }
  if (room == 0) {
    messenger->progress();
  } else {
    const uint32_t count = messenger->poll(std::span(done, room));
    for (uint32_t i = 0; i < count; ++i) put(done[i]);
  }
  // After progress: nobody sleeps while one of them could go.
  if (!deferred.empty()) [[unlikely]]
    post_deferred();
  if (counts_remote()) [[unlikely]]
    count_remote();
}

void Endpoint::count_remote() {
  const MessengerStatistics& now = messenger->statistics();
  const auto count = [](Counter* counter, uint64_t& counted, uint64_t all) {
    if (counter == nullptr || counted == all) return;
    counter->add(all - std::exchange(counted, all));
  };
  count(remote_reads, counted_reads_, now.remote_reads);
  count(remote_writes, counted_writes_, now.remote_writes);
  ofi::count_remote(domain);
}

}  // namespace verbena::ofi
