#include "src/ofi/post_datapath.h"

#include <cstring>
#include <mutex>

#include "src/ofi/info.h"

namespace verbena::ofi {
namespace {

// A claimed message is remembered in the context that the program gives for it.
void keep_claim(void* context, uint32_t claim) {
  memcpy(static_cast<fi_context*>(context)->internal, &claim, sizeof(claim));
}

uint32_t kept_claim(const void* context) {
  uint32_t claim = 0;
  memcpy(&claim, static_cast<const fi_context*>(context)->internal, sizeof(claim));
  return claim;
}

void show(Endpoint& endpoint, const Posted& posted, const MessageInfo* info) {
  CompletionEntry entry;
  entry.shown.op_context = posted.context;
  entry.shown.flags = FI_TAGGED | FI_RECV;
  entry.shown.tag = posted.tag;
  if (info == nullptr) {
    entry.error = FI_ENOMSG;
  } else {
    entry.shown.len = info->bytes;
    entry.shown.data = info->data;
    entry.shown.tag = info->tag;
    if ((info->flags & kMessageData) != 0) entry.shown.flags |= FI_REMOTE_CQ_DATA;
    entry.source = endpoint.number_of(info->peer);
  }
  endpoint.receives.queue->push(entry);
}

}  // namespace

ssize_t look_for(fid_ep* handle, const Posted& posted) {
  Endpoint& endpoint = endpoint_of(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  Messenger& messenger = *endpoint.messenger;
  const bool claims = (posted.flags & FI_CLAIM) != 0;
  const bool discards = (posted.flags & FI_DISCARD) != 0;
  const bool peeks = (posted.flags & FI_PEEK) != 0;
  // What is no peek is of a claimed message; one that is discarded at once is not claimed.
  if (endpoint.receives.queue == nullptr || (claims && posted.context == nullptr) ||
      (peeks ? claims && discards : !claims)) {
    return -FI_EINVAL;
  }
  if (endpoint.receives.queue->room() == 0) return -FI_EAGAIN;
  const int64_t source = internal::source_of(endpoint, posted.peer);
  if (source < 0) return source;
  const ReceiveRequest request =
      internal::request_of(endpoint, posted, static_cast<PeerNumber>(source));
  if (!peeks) {
    const uint32_t claim = kept_claim(posted.context);
    if (!discards)
      return internal::answer(endpoint, request.source, messenger.receive_claimed(claim, request));
    messenger.discard_claimed(claim);
    const MessageInfo discarded{.tag = posted.tag};
    show(endpoint, posted, &discarded);
    return 0;
  }
  MessageInfo info;
  const bool found =
      claims || discards ? messenger.claim(request, &info) : messenger.peek(request, &info);
  if (found && claims) keep_claim(posted.context, info.claim);
  if (found && discards) messenger.discard_claimed(info.claim);
  show(endpoint, posted, found ? &info : nullptr);
  return 0;
}

}  // namespace verbena::ofi
