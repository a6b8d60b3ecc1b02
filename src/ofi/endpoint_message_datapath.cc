// The calls for messages without tags.
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "src/ofi/post_datapath.h"

namespace verbena::ofi {
namespace {

ssize_t receive_untagged(fid_ep* endpoint, const iovec* pieces, size_t count, fi_addr_t source,
                         void* context) {
  return receive(
      endpoint,
      {.pieces = {pieces, count}, .peer = source, .context = context, .kind = kMessageUntagged});
}

ssize_t receive_one_untagged(fid_ep* endpoint, void* buffer, size_t size_bytes,
                             void* /*descriptor*/, fi_addr_t source, void* context) {
  const iovec piece{buffer, size_bytes};
  return receive_untagged(endpoint, &piece, 1, source, context);
}

ssize_t receive_untagged_pieces(fid_ep* endpoint, const iovec* pieces, void** /*descriptors*/,
                                size_t count, fi_addr_t source, void* context) {
  return receive_untagged(endpoint, pieces, count, source, context);
}

ssize_t receive_untagged_message(fid_ep* endpoint, const fi_msg* message, uint64_t flags) {
  // Of tagged messages only. As a receive, it would take the message that is to be looked at.
  if ((flags & (FI_PEEK | FI_CLAIM | FI_DISCARD)) != 0) [[unlikely]]
    return -FI_EBADFLAGS;
  return receive(endpoint, {.pieces = {message->msg_iov, message->iov_count},
                            .peer = message->addr,
                            .context = message->context,
                            .flags = flags,
                            .kind = kMessageUntagged,
                            .own_flags = true});
}

ssize_t send_one_untagged(fid_ep* endpoint, const void* buffer, size_t size_bytes,
                          void* /*descriptor*/, fi_addr_t peer, void* context) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  return send(endpoint,
              {.pieces = {&piece, 1}, .peer = peer, .context = context, .kind = kMessageUntagged});
}

ssize_t send_untagged_pieces(fid_ep* endpoint, const iovec* pieces, void** /*descriptors*/,
                             size_t count, fi_addr_t peer, void* context) {
  return send(
      endpoint,
      {.pieces = {pieces, count}, .peer = peer, .context = context, .kind = kMessageUntagged});
}

ssize_t send_untagged_message(fid_ep* endpoint, const fi_msg* message, uint64_t flags) {
  return send(endpoint,
              {.pieces = {message->msg_iov, message->iov_count},
               .peer = message->addr,
               .data = message->data,
               .context = message->context,
               .flags = flags,
               .kind = kMessageUntagged | ((flags & FI_REMOTE_CQ_DATA) != 0 ? kMessageData : 0u),
               .own_flags = true});
}

ssize_t inject_untagged(fid_ep* endpoint, const void* buffer, size_t size_bytes, fi_addr_t peer) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  return send(endpoint,
              {.pieces = {&piece, 1}, .peer = peer, .kind = kMessageUntagged, .silent = true});
}

ssize_t send_untagged_data(fid_ep* endpoint, const void* buffer, size_t size_bytes,
                           void* /*descriptor*/, uint64_t data, fi_addr_t peer, void* context) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  return send(endpoint, {.pieces = {&piece, 1},
                         .peer = peer,
                         .data = data,
                         .context = context,
                         .kind = kMessageUntagged | kMessageData});
}

ssize_t inject_untagged_data(fid_ep* endpoint, const void* buffer, size_t size_bytes, uint64_t data,
                             fi_addr_t peer) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  return send(endpoint, {.pieces = {&piece, 1},
                         .peer = peer,
                         .data = data,
                         .kind = kMessageUntagged | kMessageData,
                         .silent = true});
}

}  // namespace

fi_ops_msg message_calls = {
    .size = sizeof(fi_ops_msg),
    .recv = receive_one_untagged,
    .recvv = receive_untagged_pieces,
    .recvmsg = receive_untagged_message,
    .send = send_one_untagged,
    .sendv = send_untagged_pieces,
    .sendmsg = send_untagged_message,
    .inject = inject_untagged,
    .senddata = send_untagged_data,
    .injectdata = inject_untagged_data,
};

}  // namespace verbena::ofi
