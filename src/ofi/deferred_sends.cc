#include "src/ofi/deferred_sends.h"

#include <algorithm>
#include <cstring>

#include "src/base/assert.h"

namespace verbena::ofi {

DeferredSends::DeferredSends(uint32_t capacity)
    : capacity_(capacity),
      sends_(std::make_unique_for_overwrite<Send[]>(capacity)),
      copies_(std::make_unique_for_overwrite<char[]>(size_t{capacity} * kInjectBytes)) {}

bool DeferredSends::add(const SendRequest& request, bool copied) {
  if (count_ == capacity_) return false;
  uint32_t number = free_;
  if (number != 0) {
    free_ = sends_[number - 1].next;
  } else {
    number = ++used_ever_;
  }
  ++count_;
  Send& send = sends_[number - 1];
  send = {.tag = request.tag,
          .data = request.data,
          .context = request.context,
          .pieces = {},
          .piece_count = static_cast<uint32_t>(request.pieces.size()),
          .flags = request.flags,
          .next = 0};
  std::ranges::copy(request.pieces, send.pieces);
  if (copied) {
    char* const copy = copies_.get() + size_t{number - 1} * kInjectBytes;
    size_t bytes = 0;
    for (const iovec& piece : request.pieces) {
      if (piece.iov_len == 0) continue;
      VERBENA_ASSERT(piece.iov_len <= kInjectBytes - bytes);
      memcpy(copy + bytes, piece.iov_base, piece.iov_len);
      bytes += piece.iov_len;
    }
    send.pieces[0] = {copy, bytes};
    send.piece_count = 1;
  }
  if (request.peer >= lines_.size()) lines_.resize(request.peer + 1);
  Line& line = lines_[request.peer];
  if (line.first == 0) waiting_.push_back(request.peer);
  (line.first == 0 ? line.first : sends_[line.last - 1].next) = number;
  line.last = number;
  return true;
}

SendRequest DeferredSends::first_of(PeerNumber peer) const {
  const Send& send = sends_[lines_[peer].first - 1];
  return {.peer = peer,
          .tag = send.tag,
          .pieces = {send.pieces, send.piece_count},
          .context = send.context,
          .data = send.data,
          .flags = send.flags};
}

void DeferredSends::drop_first(PeerNumber peer) {
  Line& line = lines_[peer];
  const uint32_t number = line.first;
  Send& send = sends_[number - 1];
  line.first = send.next;
  send.next = free_;
  free_ = number;
  --count_;
}

}  // namespace verbena::ofi
