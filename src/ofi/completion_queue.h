// Completion queues of libfabric: where completions of the bound endpoints are read.
#pragma once

#include <rdma/fi_eq.h>

#include <cstddef>
#include <cstdint>
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

// A ring; endpoints put their completions into it when it is read. Under the domain's lock.
struct CompletionQueue : fid_cq {
  using Handle = fid_cq;
  CompletionQueue(Domain& of, size_t entries, size_t entry_bytes, void* context);

  size_t room() const { return mask + 1 - (tail - head); }
  // There is room.
  void push(const CompletionEntry& entry);

  Domain& domain;
  const size_t shown_bytes;  // of an entry in this queue's format
  const size_t mask;
  const std::unique_ptr<CompletionEntry[]> ring;
  size_t head = 0;  // the oldest entry; counts never wrap
  size_t tail = 0;
  std::vector<Endpoint*> endpoints;  // once each
  const WaitPoint::Sources sources = [this]() -> const std::vector<Endpoint*>& {
    return endpoints;
  };
  std::string error_text;            // of the last entry that fi_cq_readerr read
  bool waits_at_descriptor = false;  // FI_WAIT_FD
  WaitPoint waiters;
};

int open_completion_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** queue,
                          void* context);

}  // namespace verbena::ofi
