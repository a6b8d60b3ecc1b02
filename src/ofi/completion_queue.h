// Completion queues of libfabric: where completions of the bound endpoints are read.
#pragma once

#include <rdma/fi_eq.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "src/ofi/domain.h"
#include "src/ofi/wait_point.h"

namespace verbena::ofi {

struct Endpoint;

struct CompletionEntry {
  fi_cq_tagged_entry shown{};  // each format is a beginning of this one
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  int error = 0;          // FI_ETRUNC and so on: read by fi_cq_readerr
  size_t lost_bytes = 0;  // of a truncated message
};

// A ring; endpoints put their completions into it when it is read. Behind it is a list of those for
// which it has no room: an endpoint's other queue and its counters do not wait for this one's
// reader. Under the domain's lock.
struct CompletionQueue : fid_cq {
  using Handle = fid_cq;
  CompletionQueue(Domain& of, size_t entries, size_t entry_bytes, void* context);

  // Of the list: about as many as an endpoint has operations. Further ones stay in the messengers.
  static constexpr size_t kMostBehind = 1u << 18;

  // Of the ring alone.
  bool is_full() const { return tail - head > mask; }
  size_t room() const { return mask + 1 - (tail - head) + kMostBehind - behind.size(); }
  // There is room.
  void push(const CompletionEntry& entry);
  // There is one.
  void drop_first() {
    ++head;
    if (!behind.empty()) [[unlikely]]
      catch_up();
  }

  Domain& domain;
  const size_t shown_bytes;  // of an entry in this queue's format
  const size_t mask;
  const std::unique_ptr<CompletionEntry[]> ring;
  size_t head = 0;  // the oldest entry; counts never wrap
  size_t tail = 0;
  std::deque<CompletionEntry> behind;  // empty unless the ring is full
  std::vector<Endpoint*> endpoints;    // once each
  const WaitPoint::Sources sources = [this]() -> const std::vector<Endpoint*>& {
    return endpoints;
  };
  std::string error_text;            // of the last entry that fi_cq_readerr read
  bool waits_at_descriptor = false;  // FI_WAIT_FD
  WaitPoint waiters;

 private:
  void catch_up();
};

int open_completion_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** queue,
                          void* context);

}  // namespace verbena::ofi
