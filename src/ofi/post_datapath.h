// What the calls for messages and those for tagged messages have in common.
#pragma once

#include <rdma/fi_endpoint.h>

#include <cstdint>
#include <mutex>
#include <span>

#include "src/ofi/endpoint.h"
#include "src/ofi/info.h"
#include "verbena/message.h"

namespace verbena::ofi {

inline Endpoint& endpoint_of(fid_ep* handle) { return *static_cast<Endpoint*>(handle); }

struct Posted {
  std::span<const iovec> pieces;
  fi_addr_t peer;
  uint64_t tag = 0;
  uint64_t ignore = 0;
  uint64_t data = 0;
  void* context = nullptr;
  uint64_t flags = 0;      // of libfabric
  uint32_t kind = 0;       // kMessageUntagged, kMessageData
  bool own_flags = false;  // not those of the endpoint
  bool silent = false;     // fi_inject: no entry, whatever the flags say
};

namespace internal {

inline constexpr uint64_t kDeliveredFlags =
    FI_DELIVERY_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MATCH_COMPLETE;

inline ssize_t answer(Endpoint& endpoint, PeerNumber peer, PostResult result) {
  if (result == PostResult::kPosted) [[likely]]
    return 0;
  return result == PostResult::kWouldBlock ? -FI_EAGAIN : endpoint.refusal(peer);
}

inline bool wants_entry(const Direction& direction, const Posted& posted) {
  const uint64_t flags = posted.own_flags ? posted.flags : direction.flags;
  return !direction.selective || (flags & FI_COMPLETION) != 0;
}

inline ReceiveRequest request_of(Endpoint& endpoint, const Posted& posted, PeerNumber source) {
  return {.source = source,
          .tag = posted.tag,
          .ignore = posted.ignore,
          .pieces = posted.pieces,
          .context = posted.context,
          .flags = posted.kind | (wants_entry(endpoint.receives, posted) ? 0u : kWithoutEntry)};
}

// The source that a receive is bound to, or an error.
inline int64_t source_of(Endpoint& endpoint, fi_addr_t peer) {
  return !endpoint.directed || peer == FI_ADDR_UNSPEC ? int64_t{kAnyPeer} : endpoint.peer_of(peer);
}

}  // namespace internal

// Errors of libfabric, or 0. Compiled into each call, of which most leave most of it out.
[[gnu::always_inline]] inline ssize_t send(fid_ep* handle, const Posted& posted) {
  Endpoint& endpoint = endpoint_of(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  WaitPoint::notify_all(endpoint.domain);
  if (posted.pieces.size() > kPieces) [[unlikely]]
    return -FI_EINVAL;
  const int64_t peer = endpoint.peer_of(posted.peer);
  if (peer < 0) [[unlikely]]
    return peer;
  const Direction& direction = endpoint.sends;
  const uint64_t flags = posted.own_flags ? posted.flags : direction.flags;
  const bool injected = posted.silent || (flags & FI_INJECT) != 0;
  const size_t bytes = bytes_in(posted.pieces);
  if (bytes > (injected ? kInjectBytes : kMaxMessageBytes)) [[unlikely]]
    return endpoint.too_long(bytes, injected);
  if ((flags & FI_FENCE) != 0 && (endpoint.deferred.has(static_cast<PeerNumber>(peer)) ||
                                  endpoint.messenger->awaits_peer(static_cast<PeerNumber>(peer))))
      [[unlikely]]
    return -FI_EAGAIN;
  SendRequest request{.peer = static_cast<PeerNumber>(peer),
                      .tag = posted.tag,
                      .pieces = posted.pieces,
                      .context = posted.context,
                      .data = posted.data,
                      .flags = posted.kind};
  if ((flags & internal::kDeliveredFlags) != 0 && !posted.silent)
    request.flags |= kMessageDelivered;
  // Also of one that is deferred: the copy is another message's once it has been posted.
  if (injected) request.flags |= kMessageCopied;
  if (posted.silent || !internal::wants_entry(direction, posted)) {
    // A counter counts it all the same.
    request.flags |= direction.counter == nullptr ? kMessageSilent : kWithoutEntry;
  }
  // What had to wait goes first.
  if (endpoint.deferred.empty() || !endpoint.deferred.has(request.peer)) [[likely]] {
    const PostResult result = endpoint.messenger->send(request);
    if (result != PostResult::kWouldBlock) [[likely]]
      return internal::answer(endpoint, request.peer, result);
  }
  return endpoint.deferred.add(request, injected) ? 0 : -FI_EAGAIN;
}

[[gnu::always_inline]] inline ssize_t receive(fid_ep* handle, const Posted& posted) {
  Endpoint& endpoint = endpoint_of(handle);
  const std::lock_guard guard(endpoint.domain.lock);
  WaitPoint::notify_all(endpoint.domain);
  if (posted.pieces.size() > kPieces) [[unlikely]]
    return -FI_EINVAL;
  const int64_t source = internal::source_of(endpoint, posted.peer);
  if (source < 0) [[unlikely]]
    return source;
  ReceiveRequest request = internal::request_of(endpoint, posted, static_cast<PeerNumber>(source));
  const uint64_t flags = posted.own_flags ? posted.flags : endpoint.receives.flags;
  if ((flags & FI_MULTI_RECV) != 0 && (posted.kind & kMessageUntagged) != 0) {
    request.flags |= kMessageMulti;
    request.least_bytes = endpoint.least_multi_bytes;
  }
  return internal::answer(endpoint, request.source, endpoint.messenger->receive(request));
}

// With FI_PEEK, FI_CLAIM or FI_DISCARD.
ssize_t look_for(fid_ep* handle, const Posted& posted);

}  // namespace verbena::ofi
