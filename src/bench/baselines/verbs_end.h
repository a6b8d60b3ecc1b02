// One side of a connection by plain verbs, as small as it gets.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "src/bench/baselines/process_pair.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

class VerbsEnd {
 public:
  // Connects to the other side's queue pair. `memory` is registered for remote writes; both sides
  // give the same number of bytes.
  static Result<std::unique_ptr<VerbsEnd>> connect(Side& side, char* memory, uint64_t bytes);

  ibv_qp* queue_pair() const { return queue_pair_->get(); }
  ibv_cq* send_completions() const { return send_completions_->get(); }
  ibv_cq* receive_completions() const { return receive_completions_->get(); }
  uint32_t lkey() const { return region_->lkey(); }
  uint64_t remote_address() const { return remote_address_; }
  uint32_t remote_rkey() const { return remote_rkey_; }

  static constexpr uint32_t kSendDepth = 128;
  static constexpr uint32_t kReceiveDepth = 512;

 private:
  VerbsEnd() = default;
  std::optional<Device> device_;
  std::optional<ProtectionDomain> domain_;
  std::optional<CompletionQueue> send_completions_;
  std::optional<CompletionQueue> receive_completions_;
  std::optional<MemoryRegion> region_;
  std::optional<QueuePair> queue_pair_;
  uint64_t remote_address_ = 0;
  uint32_t remote_rkey_ = 0;
};

// Waits for the next completion and takes it.
Status wait_for_completion(ibv_cq* completions);

}  // namespace verbena::bench::baselines
