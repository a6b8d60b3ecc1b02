#include "src/bench/baselines/verbs_end.h"

#include <fmt/format.h>

#include <utility>

#include "src/base/assert.h"
#include "src/base/runtime.h"

namespace verbena::bench::baselines {

Result<std::unique_ptr<VerbsEnd>> VerbsEnd::connect(Side& side, char* memory, uint64_t bytes,
                                                    uint32_t count) {
  std::unique_ptr<VerbsEnd> end(new VerbsEnd);
  VERBENA_ASSIGN_OR_RETURN(end->device_, Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(end->domain_, ProtectionDomain::create(*end->device_));
  VERBENA_ASSIGN_OR_RETURN(end->send_completions_,
                           CompletionQueue::create(*end->device_, {.depth_cqes = kSendDepth}));
  VERBENA_ASSIGN_OR_RETURN(end->receive_completions_,
                           CompletionQueue::create(*end->device_, {.depth_cqes = kReceiveDepth}));
  VERBENA_ASSIGN_OR_RETURN(end->region_,
                           MemoryRegion::create(*end->domain_, memory, bytes,
                                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  QueuePairOptions options;
  options.send_cq = &*end->send_completions_;
  options.recv_cq = &*end->receive_completions_;
  options.send_depth_wrs = kSendDepth;
  options.recv_depth_wrs = kReceiveDepth;
  options.max_inline_bytes = 8;

  Board& board = side.board();
  const int mine = side.number();
  const int theirs = 1 - mine;
  // The addresses lie where copies are made otherwise.
  VERBENA_ASSERT(count > 0 && count * sizeof(QueuePairAddress) <= kSharedBytes);
  auto* const addresses = reinterpret_cast<QueuePairAddress*>(board.memory[mine]);
  for (uint32_t i = 0; i < count; ++i) {
    VERBENA_ASSIGN_OR_RETURN(QueuePair queue_pair, QueuePair::create(*end->domain_, options));
    VERBENA_ASSIGN_OR_RETURN(addresses[i], queue_pair.address());
    VERBENA_RETURN_IF_ERROR(queue_pair.init(IBV_ACCESS_REMOTE_WRITE));
    end->queue_pairs_.push_back(std::move(queue_pair));
  }
  board.memory_address[mine] = reinterpret_cast<uint64_t>(memory);
  board.memory_rkey[mine] = end->region_->rkey();
  VERBENA_RETURN_IF_ERROR(side.meet());
  const auto* const peers = reinterpret_cast<const QueuePairAddress*>(board.memory[theirs]);
  for (uint32_t i = 0; i < count; ++i)
    VERBENA_RETURN_IF_ERROR(end->queue_pairs_[i].connect(peers[i]));
  end->remote_address_ = board.memory_address[theirs];
  end->remote_rkey_ = board.memory_rkey[theirs];
  VERBENA_RETURN_IF_ERROR(side.meet());
  return end;
}

Status wait_for_completion(ibv_cq* completions) {
  ibv_wc completion;
  int found = 0;
  Waiter waiter;
  while ((found = ibv_poll_cq(completions, 1, &completion)) == 0) waiter.idle();
  if (found == 1 && completion.status == IBV_WC_SUCCESS) return Status::ok_status();
  return Status(StatusCode::kUnavailable, found < 0 ? "the completion queue failed"
                                                    : explain_completion_error(completion.status));
}

}  // namespace verbena::bench::baselines
