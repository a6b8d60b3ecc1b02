// Sends for which the messenger has no room yet, or no connection: MPIs do not expect a send to
// wait for its receiver before there are as many as tx_attr->size.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/ofi/info.h"
#include "verbena/message.h"

namespace verbena::ofi {

// Sends of one peer stay in order. Under the domain's lock.
class DeferredSends {
 public:
  // For as many sends.
  explicit DeferredSends(uint32_t capacity);

  bool empty() const { return count_ == 0; }
  // Whether later sends to this peer have to queue up.
  bool has(PeerNumber peer) const { return peer < lines_.size() && lines_[peer].first != 0; }
  // Behind the others of its peer. `copied`: its memory, of kInjectBytes at most, may change at
  // once. False: there is no room.
  bool add(const SendRequest& request, bool copied);
  // Posts what the messenger takes by now. What it refuses is given to `refused`, at most as often
  // as `most_refused`.
  template <typename Refused>
  void post(Messenger& messenger, size_t most_refused, Refused&& refused);

 private:
  // Numbers of sends are stored plus 1; 0: none.
  struct Send {
    uint64_t tag;
    uint64_t data;
    void* context;
    iovec pieces[kPieces];
    uint32_t piece_count;
    uint32_t flags;
    uint32_t next;  // to the same peer, or of those that are free
  };
  struct Line {
    uint32_t first = 0;
    uint32_t last = 0;
  };

  SendRequest first_of(PeerNumber peer) const;
  void drop_first(PeerNumber peer);

  const uint32_t capacity_;
  // Memory that is never touched takes none.
  const std::unique_ptr<Send[]> sends_;
  const std::unique_ptr<char[]> copies_;  // kInjectBytes for each
  uint32_t count_ = 0;
  uint32_t used_ever_ = 0;
  uint32_t free_ = 0;
  std::vector<Line> lines_;          // by peer
  std::vector<PeerNumber> waiting_;  // peers that have sends
};

template <typename Refused>
void DeferredSends::post(Messenger& messenger, size_t most_refused, Refused&& refused) {
  for (size_t i = 0; i < waiting_.size();) {
    const PeerNumber peer = waiting_[i];
    while (has(peer)) {
      const SendRequest request = first_of(peer);
      const PostResult result = messenger.send(request);
      if (result == PostResult::kWouldBlock) break;
      if (result == PostResult::kFailed) {
        if (most_refused == 0) break;
        --most_refused;
        refused(request);
      }
      drop_first(peer);
    }
    if (has(peer)) {
      ++i;
    } else {
      waiting_[i] = waiting_.back();
      waiting_.pop_back();
    }
  }
}

}  // namespace verbena::ofi
