// One side of a connection by plain verbs, as small as it gets.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/bench/baselines/process_pair.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

class VerbsEnd {
 public:
  // Connects `count` queue pairs on the same completion queues to those of the other side, of which
  // the last is the one that queue_pair() returns. `memory` is registered for remote writes; both
  // sides give the same numbers.
  static Result<std::unique_ptr<VerbsEnd>> connect(Side& side, char* memory, uint64_t bytes,
                                                   uint32_t count = 1);

  ibv_qp* queue_pair() const { return queue_pairs_.back().get(); }
  const std::vector<QueuePair>& queue_pairs() const { return queue_pairs_; }
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
  std::vector<QueuePair> queue_pairs_;
  uint64_t remote_address_ = 0;
  uint32_t remote_rkey_ = 0;
};

// Waits for the next completion and takes it.
Status wait_for_completion(ibv_cq* completions);

// A work request of 8 inline bytes, of which every so many is signaled and waited for.
class InlineSender {
 public:
  explicit InlineSender(const VerbsEnd& end) : end_(end) {
    element_.addr = reinterpret_cast<uint64_t>(&payload_);
    element_.length = sizeof(payload_);
    request_.sg_list = &element_;
    request_.num_sge = 1;
  }
  ibv_send_wr& request() { return request_; }

  bool send(uint64_t payload) {
    constexpr uint32_t kSignalInterval = VerbsEnd::kSendDepth / 2;
    payload_ = payload;
    const bool signaled = ++posted_ % kSignalInterval == 0;
    request_.send_flags = IBV_SEND_INLINE;
    if (signaled) request_.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(end_.queue_pair(), &request_, &bad) != 0) return false;
    return !signaled || wait_for_completion(end_.send_completions()).ok();
  }

 private:
  const VerbsEnd& end_;
  uint64_t payload_ = 0;
  ibv_sge element_{};
  ibv_send_wr request_{};
  uint64_t posted_ = 0;
};

}  // namespace verbena::bench::baselines
