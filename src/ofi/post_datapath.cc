#include "src/ofi/post_datapath.h"

#include <cstring>
#include <mutex>

#include "src/ofi/info.h"

namespace verbena::ofi {
namespace {

constexpr uint64_t kDeliveredFlags =
    FI_DELIVERY_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MATCH_COMPLETE;

ssize_t answer(PostResult result) {
  switch (result) {
    case PostResult::kPosted:
      return 0;
    case PostResult::kWouldBlock:
      return -FI_EAGAIN;
    default:
      return -kPeerLostError;
  }
}

bool wants_entry(const Direction& direction, const Posted& posted) {
  const uint64_t flags = posted.own_flags ? posted.flags : direction.flags;
  return !direction.selective || (flags & FI_COMPLETION) != 0;
}

bool too_long(std::span<const iovec> pieces, size_t most_bytes) {
  size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes > most_bytes;
}

ReceiveRequest request_of(Endpoint& endpoint, const Posted& posted, PeerNumber source) {
  return {.source = source,
          .tag = posted.tag,
          .ignore = posted.ignore,
          .pieces = posted.pieces,
          .context = wants_entry(endpoint.receives, posted) ? posted.context : without_entry(),
          .flags = posted.kind};
}

// The source that a receive is bound to, or an error.
int64_t source_of(Endpoint& endpoint, fi_addr_t peer) {
  return !endpoint.directed || peer == FI_ADDR_UNSPEC ? int64_t{kAnyPeer} : endpoint.peer_of(peer);
}

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

ssize_t send(fid_ep* handle, const Posted& posted) {
  Endpoint& endpoint = endpoint_of(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  if (posted.pieces.size() > kPieces) [[unlikely]]
    return -FI_EINVAL;
  const int64_t peer = endpoint.peer_of(posted.peer);
  if (peer < 0) [[unlikely]]
    return peer;
  const Direction& direction = endpoint.sends;
  const uint64_t flags = posted.own_flags ? posted.flags : direction.flags;
  const bool injected = posted.silent || (flags & FI_INJECT) != 0;
  if (too_long(posted.pieces, injected ? kInjectBytes : kMaxMessageBytes)) [[unlikely]]
    return -FI_EMSGSIZE;
  if ((flags & FI_FENCE) != 0 && endpoint.messenger->awaits_peer(static_cast<PeerNumber>(peer)))
      [[unlikely]]
    return -FI_EAGAIN;
  SendRequest request{.peer = static_cast<PeerNumber>(peer),
                      .tag = posted.tag,
                      .pieces = posted.pieces,
                      .context = posted.context,
                      .data = posted.data,
                      .flags = posted.kind};
  if ((flags & kDeliveredFlags) != 0 && !posted.silent) request.flags |= kMessageDelivered;
  if (posted.silent || !wants_entry(direction, posted)) {
    // A counter counts it all the same.
    if (direction.counter == nullptr) {
      request.flags |= kMessageSilent;
    } else {
      request.context = without_entry();
    }
  }
  return answer(endpoint.messenger->send(request));
}

ssize_t receive(fid_ep* handle, const Posted& posted) {
  Endpoint& endpoint = endpoint_of(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  if (posted.pieces.size() > kPieces) [[unlikely]]
    return -FI_EINVAL;
  const int64_t source = source_of(endpoint, posted.peer);
  if (source < 0) [[unlikely]]
    return source;
  ReceiveRequest request = request_of(endpoint, posted, static_cast<PeerNumber>(source));
  const uint64_t flags = posted.own_flags ? posted.flags : endpoint.receives.flags;
  if ((flags & FI_MULTI_RECV) != 0 && (posted.kind & kMessageUntagged) != 0) {
    request.flags |= kMessageMulti;
    request.least_bytes = endpoint.least_multi_bytes;
  }
  return answer(endpoint.messenger->receive(request));
}

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
  const int64_t source = source_of(endpoint, posted.peer);
  if (source < 0) return source;
  const ReceiveRequest request = request_of(endpoint, posted, static_cast<PeerNumber>(source));
  if (!peeks) {
    const uint32_t claim = kept_claim(posted.context);
    if (!discards) return answer(messenger.receive_claimed(claim, request));
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
