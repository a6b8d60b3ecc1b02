#include "src/bench/verbs/peers_requester.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace verbena::bench {

namespace {

ibv_wr_opcode opcode_to_peers(Operation operation) {
  switch (operation) {
    case Operation::kRead:
      return IBV_WR_RDMA_READ;
    case Operation::kSend:
      return IBV_WR_SEND;
    default:
      return IBV_WR_RDMA_WRITE;
  }
}

}  // namespace

PeersRequester::PeersRequester(const Point& point, PeerConnections peers, uint64_t seed)
    : datagrams_(verbs_settings(point).transport == Transport::kUd),
      peers_(std::move(peers)),
      local_places_(verbs_settings(point).local, verbs_settings(point).region_bytes,
                    verbs_settings(point).size_bytes, seed),
      remote_places_(verbs_settings(point).remote, verbs_settings(point).region_bytes,
                     verbs_settings(point).size_bytes, ~seed),
      work_(point.pending),
      pieces_(point.pending) {
  const VerbsSettings& verbs = verbs_settings(point);
  const connect::Endpoint& first = peers_.connections.front().endpoint;
  const uint32_t inline_bytes = std::min(point.inline_bytes, first.queue_pair.max_inline_bytes());
  const bool has_payload = verbs.operation != Operation::kRead;
  for (uint32_t slot = 0; slot < point.pending; ++slot) {
    pieces_[slot] = {.addr = reinterpret_cast<uint64_t>(first.arena.data()),
                     .length = verbs.size_bytes,
                     .lkey = first.arena.lkey()};
    ibv_send_wr& request = work_[slot];
    request.wr_id = slot;
    request.opcode = opcode_to_peers(verbs.operation);
    request.sg_list = &pieces_[slot];
    request.num_sge = 1;
    request.send_flags = IBV_SEND_SIGNALED;
    if (has_payload && verbs.size_bytes <= inline_bytes) request.send_flags |= IBV_SEND_INLINE;
  }
}

PostResult PeersRequester::try_post(uint32_t slot, uint32_t /*bytes*/) {
  if (!status_.ok()) [[unlikely]]
    return PostResult::kFailed;
  const VerbsConnection& first = peers_.connections.front();
  const VerbsConnection& peer = peers_.connections[next_peer_];
  next_peer_ = next_peer_ + 1 == peers_.connections.size() ? 0 : next_peer_ + 1;
  pieces_[slot].addr =
      reinterpret_cast<uint64_t>(first.endpoint.arena.data()) + local_places_.next();
  ibv_send_wr& request = work_[slot];
  if (datagrams_) {
    peer.endpoint.queue_pair.set_destination(request);
  } else {
    request.wr.rdma.remote_addr = peer.remote.address + remote_places_.next();
    request.wr.rdma.rkey = static_cast<uint32_t>(peer.remote.rkey);
  }
  const QueuePair& sender = datagrams_ ? first.endpoint.queue_pair : peer.endpoint.queue_pair;
  ibv_send_wr* rejected = nullptr;
  const int error = ibv_post_send(sender.get(), &request, &rejected);
  if (error != 0) [[unlikely]] {
    status_ = Status(StatusCode::kInternal,
                     fmt::format("the queue pair refuses a work request: {}; lower --pending",
                                 std::strerror(error)));
    return PostResult::kFailed;
  }
  ++posted_;
  return PostResult::kPosted;
}

void PeersRequester::fail(ibv_wc_status status) {
  if (status_.ok()) status_ = Status(StatusCode::kUnavailable, explain_completion_error(status));
}

}  // namespace verbena::bench
