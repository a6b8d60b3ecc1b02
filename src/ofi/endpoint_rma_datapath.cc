// The calls for remote memory.
#include <rdma/fi_rma.h>

#include "src/ofi/post_one_sided_datapath.h"

namespace verbena::ofi {
namespace {

ssize_t read_one(fid_ep* endpoint, void* buffer, size_t size_bytes, void* /*descriptor*/,
                 fi_addr_t peer, uint64_t address, uint64_t key, void* context) {
  const iovec piece{buffer, size_bytes};
  const RemoteRange remote{.address = address, .bytes = size_bytes, .key = key};
  return transfer(endpoint, {.pieces = {&piece, 1},
                             .remote = {&remote, 1},
                             .peer = peer,
                             .context = context,
                             .reads = true});
}

ssize_t read_pieces(fid_ep* endpoint, const iovec* pieces, void** /*descriptors*/, size_t count,
                    fi_addr_t peer, uint64_t address, uint64_t key, void* context) {
  const RemoteRange remote{.address = address, .bytes = bytes_in({pieces, count}), .key = key};
  return transfer(endpoint, {.pieces = {pieces, count},
                             .remote = {&remote, 1},
                             .peer = peer,
                             .context = context,
                             .reads = true});
}

ssize_t transfer_message(fid_ep* endpoint, const fi_msg_rma* message, uint64_t flags, bool reads) {
  if (message->rma_iov_count > kPieces) return -FI_EINVAL;
  RemoteRange remote[kPieces];
  for (size_t i = 0; i < message->rma_iov_count; ++i) {
    const fi_rma_iov& range = message->rma_iov[i];
    remote[i] = {.address = range.addr, .bytes = range.len, .key = range.key};
  }
  return transfer(endpoint, {.pieces = {message->msg_iov, message->iov_count},
                             .remote = {remote, message->rma_iov_count},
                             .peer = message->addr,
                             .context = message->context,
                             .data = message->data,
                             .flags = flags,
                             .reads = reads,
                             .has_data = !reads && (flags & FI_REMOTE_CQ_DATA) != 0,
                             .own_flags = true});
}

ssize_t read_message(fid_ep* endpoint, const fi_msg_rma* message, uint64_t flags) {
  return transfer_message(endpoint, message, flags, true);
}

ssize_t write_one(fid_ep* endpoint, const void* buffer, size_t size_bytes, void* /*descriptor*/,
                  fi_addr_t peer, uint64_t address, uint64_t key, void* context) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  const RemoteRange remote{.address = address, .bytes = size_bytes, .key = key};
  return transfer(
      endpoint, {.pieces = {&piece, 1}, .remote = {&remote, 1}, .peer = peer, .context = context});
}

ssize_t write_pieces(fid_ep* endpoint, const iovec* pieces, void** /*descriptors*/, size_t count,
                     fi_addr_t peer, uint64_t address, uint64_t key, void* context) {
  const RemoteRange remote{.address = address, .bytes = bytes_in({pieces, count}), .key = key};
  return transfer(
      endpoint,
      {.pieces = {pieces, count}, .remote = {&remote, 1}, .peer = peer, .context = context});
}

ssize_t write_message(fid_ep* endpoint, const fi_msg_rma* message, uint64_t flags) {
  return transfer_message(endpoint, message, flags, false);
}

ssize_t inject_write(fid_ep* endpoint, const void* buffer, size_t size_bytes, fi_addr_t peer,
                     uint64_t address, uint64_t key) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  const RemoteRange remote{.address = address, .bytes = size_bytes, .key = key};
  return transfer(endpoint,
                  {.pieces = {&piece, 1}, .remote = {&remote, 1}, .peer = peer, .silent = true});
}

ssize_t write_data(fid_ep* endpoint, const void* buffer, size_t size_bytes, void* /*descriptor*/,
                   uint64_t data, fi_addr_t peer, uint64_t address, uint64_t key, void* context) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  const RemoteRange remote{.address = address, .bytes = size_bytes, .key = key};
  return transfer(endpoint, {.pieces = {&piece, 1},
                             .remote = {&remote, 1},
                             .peer = peer,
                             .context = context,
                             .data = data,
                             .has_data = true});
}

ssize_t inject_write_data(fid_ep* endpoint, const void* buffer, size_t size_bytes, uint64_t data,
                          fi_addr_t peer, uint64_t address, uint64_t key) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  const RemoteRange remote{.address = address, .bytes = size_bytes, .key = key};
  return transfer(endpoint, {.pieces = {&piece, 1},
                             .remote = {&remote, 1},
                             .peer = peer,
                             .data = data,
                             .has_data = true,
                             .silent = true});
}

}  // namespace

fi_ops_rma rma_calls = {
    .size = sizeof(fi_ops_rma),
    .read = read_one,
    .readv = read_pieces,
    .readmsg = read_message,
    .write = write_one,
    .writev = write_pieces,
    .writemsg = write_message,
    .inject = inject_write,
    .writedata = write_data,
    .injectdata = inject_write_data,
};

}  // namespace verbena::ofi
