// Posts raw verbs to several peers in turn, and over any transport: as VerbsRequester does to one
// peer over a reliable connection, but with work requests that are single, signaled and posted by
// themselves. All of a thread's queue pairs complete into one queue. Of datagrams it sends by one
// queue pair, whoever the peer is.
//
// Data path: after the constructor nothing is allocated.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/verbs/place_sequence.h"
#include "src/bench/verbs/verbs_connection.h"
#include "src/bench/verbs/verbs_settings.h"
#include "verbena/data_path.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// Of a thread. The queue pairs go before the queue that they complete into.
struct PeerConnections {
  std::unique_ptr<CompletionQueue> completions;
  std::vector<VerbsConnection> connections;
};

class PeersRequester {
 public:
  // `seed`: of random addresses.
  PeersRequester(const Point& point, PeerConnections peers, uint64_t seed);
  PeersRequester(const PeersRequester&) = delete;
  PeersRequester& operator=(const PeersRequester&) = delete;

  // Posts the slot's next operation, to the next peer.
  PostResult try_post(uint32_t slot, uint32_t bytes);

  // Calls take(slot, {}) for each operation that is done; returns how many.
  template <typename Take>
  uint32_t poll(Take&& take) {
    ibv_wc completions[kPolledAtOnce];
    const int polled = poll_completions(peers_.completions->get(), kPolledAtOnce, completions);
    for (int i = 0; i < polled; ++i) {
      if (completions[i].status != IBV_WC_SUCCESS) [[unlikely]] {
        fail(completions[i].status);
        return static_cast<uint32_t>(i);
      }
      take(static_cast<uint32_t>(completions[i].wr_id), std::span<const char>());
    }
    if (polled < 0) [[unlikely]]
      fail(IBV_WC_GENERAL_ERR);
    return polled > 0 ? static_cast<uint32_t>(polled) : 0;
  }

  char* request_buffer(uint32_t slot) { return reinterpret_cast<char*>(pieces_[slot].addr); }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return status_; }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }
  // Operations so far.
  uint64_t posted() const { return posted_; }

 private:
  static constexpr int kPolledAtOnce = 16;

  void fail(ibv_wc_status status);

  const bool datagrams_;
  PeerConnections peers_;
  PlaceSequence local_places_;
  PlaceSequence remote_places_;
  std::vector<ibv_send_wr> work_;  // by slot
  std::vector<ibv_sge> pieces_;    // by slot
  uint32_t next_peer_ = 0;
  uint64_t posted_ = 0;
  Status status_;
};

}  // namespace verbena::bench
