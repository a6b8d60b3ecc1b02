// Endpoints (FI_EP_RDM): one messenger each.
#pragma once

#include <rdma/fi_atomic.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/ofi/address_vector.h"
#include "src/ofi/completion_queue.h"
#include "src/ofi/counter.h"
#include "src/ofi/deferred_sends.h"
#include "src/ofi/domain.h"
#include "verbena/message.h"

namespace verbena::ofi {

inline constexpr int kPeerLostError = FI_ECONNABORTED;

// One direction: where its completions go, and which of them.
struct Direction {
  CompletionQueue* queue = nullptr;
  Counter* counter = nullptr;
  bool selective = false;  // entries only for operations with FI_COMPLETION
  uint64_t flags = 0;      // of operations that have none of their own
};

// Under the domain's lock.
// Whether a peer's operation completed here, not one of this side.
inline bool came_here(MessageEvent event) {
  return event == MessageEvent::kReceived || event == MessageEvent::kWritten;
}

struct Endpoint : fid_ep {
  using Handle = fid_ep;
  Endpoint(Domain& of, const fi_info& info, std::unique_ptr<Messenger> opened, void* context);

  // Lets messages come and go, and puts completions into their queues, as far as there is room.
  void take_completions();
  // Writes completions of `queue`, which has no entries, to its reader, as `count` entries at most.
  // What has to go through the queue (errors, completions of another one) is in it then. How many
  // were written.
  size_t hand_over(const CompletionQueue& queue, std::byte* at, size_t count, fi_addr_t* sources);
  // The error of a post that the messenger refuses, which it also says: of a lost peer once.
  int refusal(PeerNumber peer);
  // The error of a message beyond the limit, which it also says.
  static int too_long(size_t bytes, bool injected);
  // The messenger's number of an address of the vector, or an error of libfabric.
  int64_t peer_of(fi_addr_t number) {
    if (number < peers_.size() && peers_[number] != kAnyPeer) [[likely]]
      return peers_[number];
    return add_peer(number);
  }
  // The vector's number of a peer; FI_ADDR_NOTAVAIL if it has none.
  fi_addr_t number_of(PeerNumber peer) {
    if (peer < numbers_.size() && numbers_[peer] != FI_ADDR_NOTAVAIL) [[likely]]
      return numbers_[peer];
    return find_number(peer);
  }

  // Posts sends that had to wait; errors go to their queue, as far as there is room.
  void post_deferred();
  // Waits until all sends have been posted, within `patience_ns`. False: some never were.
  bool drain(uint64_t patience_ns);
  // Waits until its peers know what it has received, within `patience_ns`. Nothing may use it any
  // more.
  bool wind_down(uint64_t patience_ns);
  // The vector has removed this number.
  void forget(fi_addr_t number);

  Domain& domain;
  const std::unique_ptr<Messenger> messenger;
  AddressVector* vector = nullptr;
  Direction sends;
  Direction receives;
  // Of one-sided operations; atomics that fetch count as reads. Those of peers are counted here.
  Counter* reads = nullptr;
  Counter* writes = nullptr;
  Counter* remote_reads = nullptr;
  Counter* remote_writes = nullptr;
  const bool directed;  // a receive's source counts (FI_DIRECTED_RECV)
  // Directions that need a place for their completions: operations of its own, messages of others.
  const bool sending;
  const bool receiving;
  bool enabled = false;
  DeferredSends deferred{kQueueOperations};
  size_t least_multi_bytes = 64;  // FI_OPT_MIN_MULTI_RECV
  std::string failure;            // why the last operation failed, for fi_cq_strerror

 private:
  template <typename Step>
  bool step_until(uint64_t patience_ns, Step&& step);
  int64_t add_peer(fi_addr_t number);
  fi_addr_t find_number(PeerNumber peer);
  void put(const MessageCompletion& done);
  const Direction& direction_of(const MessageCompletion& done) const {
    return came_here(done.event) ? receives : sends;
  }
  void note_failure(const MessageCompletion& done);
  void note_lost(PeerNumber peer);
  bool counts_remote() const {
    return remote_reads != nullptr || remote_writes != nullptr || !domain.counted.empty();
  }
  void count_remote();

  std::vector<PeerNumber> peers_;   // by fi_addr_t; kAnyPeer: not asked for yet
  std::vector<fi_addr_t> numbers_;  // by PeerNumber; FI_ADDR_NOTAVAIL: not known
  bool has_told_of_loss_ = false;
  // Of the messenger's statistics, what was counted.
  uint64_t counted_reads_ = 0;
  uint64_t counted_writes_ = 0;
};

// The most that can be counted where they have more.
inline uint64_t bytes_in(std::span<const iovec> pieces) {
  uint64_t total = 0;
  for (const iovec& piece : pieces) {
    if (__builtin_add_overflow(total, piece.iov_len, &total)) [[unlikely]]
      return ~uint64_t{0};
  }
  return total;
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context);

// Of operations that count and leave no entry, unless they fail or release a buffer of
// FI_MULTI_RECV: then it has their context.
inline constexpr uint32_t kWithoutEntry = kMessageMarked;

extern fi_ops_msg message_calls;    // endpoint_message_datapath.cc
extern fi_ops_tagged tagged_calls;  // endpoint_tagged_datapath.cc
extern fi_ops_rma rma_calls;        // endpoint_rma_datapath.cc
extern fi_ops_atomic atomic_calls;  // endpoint_atomic_datapath.cc
int query_atomic(fid_domain* domain, fi_datatype type, fi_op operation, fi_atomic_attr* attributes,
                 uint64_t flags);

}  // namespace verbena::ofi
