// The calls for tagged messages.
#include <rdma/fi_tagged.h>

#include "src/ofi/post_datapath.h"

namespace verbena::ofi {
namespace {

ssize_t receive_one(fid_ep* endpoint, void* buffer, size_t size_bytes, void* /*descriptor*/,
                    fi_addr_t source, uint64_t tag, uint64_t ignore, void* context) {
  const iovec piece{buffer, size_bytes};
  return receive(
      endpoint,
      {.pieces = {&piece, 1}, .peer = source, .tag = tag, .ignore = ignore, .context = context});
}

ssize_t receive_pieces(fid_ep* endpoint, const iovec* pieces, void** /*descriptors*/, size_t count,
                       fi_addr_t source, uint64_t tag, uint64_t ignore, void* context) {
  return receive(endpoint, {.pieces = {pieces, count},
                            .peer = source,
                            .tag = tag,
                            .ignore = ignore,
                            .context = context});
}

ssize_t receive_message(fid_ep* endpoint, const fi_msg_tagged* message, uint64_t flags) {
  const Posted posted{.pieces = {message->msg_iov, message->iov_count},
                      .peer = message->addr,
                      .tag = message->tag,
                      .ignore = message->ignore,
                      .context = message->context,
                      .flags = flags,
                      .own_flags = true};
  return (flags & (FI_PEEK | FI_CLAIM | FI_DISCARD)) != 0 ? look_for(endpoint, posted)
                                                          : receive(endpoint, posted);
}

ssize_t send_one(fid_ep* endpoint, const void* buffer, size_t size_bytes, void* /*descriptor*/,
                 fi_addr_t peer, uint64_t tag, void* context) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  return send(endpoint, {.pieces = {&piece, 1}, .peer = peer, .tag = tag, .context = context});
}

ssize_t send_pieces(fid_ep* endpoint, const iovec* pieces, void** /*descriptors*/, size_t count,
                    fi_addr_t peer, uint64_t tag, void* context) {
  return send(endpoint, {.pieces = {pieces, count}, .peer = peer, .tag = tag, .context = context});
}

ssize_t send_message(fid_ep* endpoint, const fi_msg_tagged* message, uint64_t flags) {
  return send(endpoint, {.pieces = {message->msg_iov, message->iov_count},
                         .peer = message->addr,
                         .tag = message->tag,
                         .data = message->data,
                         .context = message->context,
                         .flags = flags,
                         .kind = (flags & FI_REMOTE_CQ_DATA) != 0 ? kMessageData : 0u,
                         .own_flags = true});
}

ssize_t inject(fid_ep* endpoint, const void* buffer, size_t size_bytes, fi_addr_t peer,
               uint64_t tag) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  return send(endpoint, {.pieces = {&piece, 1}, .peer = peer, .tag = tag, .silent = true});
}

ssize_t send_data(fid_ep* endpoint, const void* buffer, size_t size_bytes, void* /*descriptor*/,
                  uint64_t data, fi_addr_t peer, uint64_t tag, void* context) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  return send(endpoint, {.pieces = {&piece, 1},
                         .peer = peer,
                         .tag = tag,
                         .data = data,
                         .context = context,
                         .kind = kMessageData});
}

ssize_t inject_data(fid_ep* endpoint, const void* buffer, size_t size_bytes, uint64_t data,
                    fi_addr_t peer, uint64_t tag) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  return send(endpoint, {.pieces = {&piece, 1},
                         .peer = peer,
                         .tag = tag,
                         .data = data,
                         .kind = kMessageData,
                         .silent = true});
}

}  // namespace

fi_ops_tagged tagged_calls = {
    .size = sizeof(fi_ops_tagged),
    .recv = receive_one,
    .recvv = receive_pieces,
    .recvmsg = receive_message,
    .send = send_one,
    .sendv = send_pieces,
    .sendmsg = send_message,
    .inject = inject,
    .senddata = send_data,
    .injectdata = inject_data,
};

}  // namespace verbena::ofi
