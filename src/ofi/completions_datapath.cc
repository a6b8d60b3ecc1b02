// From the messenger's completions to entries of libfabric's completion queues.
#include <algorithm>

#include "src/ofi/endpoint.h"

namespace verbena::ofi {
namespace {

constexpr size_t kAtOnce = 16;

uint64_t flags_of(const MessageCompletion& done) {
  uint64_t flags = (done.flags & kMessageUntagged) != 0 ? FI_MSG : FI_TAGGED;
  if (done.event == MessageEvent::kSent) return flags | FI_SEND;
  flags |= FI_RECV;
  if ((done.flags & kMessageData) != 0) flags |= FI_REMOTE_CQ_DATA;
  if ((done.flags & kMessageMulti) != 0) flags |= FI_MULTI_RECV;
  return flags;
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

}  // namespace

void Endpoint::put(const MessageCompletion& done) {
  const Direction& direction = done.event == MessageEvent::kSent ? sends : receives;
  const bool good = done.outcome == MessageOutcome::kOk;
  if (direction.counter != nullptr)
    ++(good ? direction.counter->completed : direction.counter->failed);
  if (direction.queue == nullptr || (good && done.context == without_entry())) return;
  CompletionEntry entry;
  entry.shown = {.op_context = done.context == without_entry() ? nullptr : done.context,
                 .flags = flags_of(done),
                 .len = done.bytes,
                 .buf = done.buffer,
                 .data = done.data,
                 .tag = done.tag};
  if (done.event == MessageEvent::kReceived && done.outcome <= MessageOutcome::kTruncated) {
    entry.source = number_of(done.peer);
  }
  entry.error = error_of(done.outcome);
  entry.lost_bytes = done.lost_bytes;
  if (done.outcome == MessageOutcome::kPeerLost) [[unlikely]]
    lost_peer = messenger->peer_status(done.peer).message();
  direction.queue->push(entry);
}

void Endpoint::take_completions() {
  MessageCompletion done[kAtOnce];
  size_t room = kAtOnce;
  for (const CompletionQueue* queue : {sends.queue, receives.queue}) {
    if (queue != nullptr) room = std::min(room, queue->room());
  }
  if (room == 0) {
    messenger->progress();
    return;
  }
  const uint32_t count = messenger->poll(std::span(done, room));
  for (uint32_t i = 0; i < count; ++i) put(done[i]);
}

}  // namespace verbena::ofi
