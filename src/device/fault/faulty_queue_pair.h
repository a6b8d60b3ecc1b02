// A queue pair whose work requests are delayed, and which breaks at random moments.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "src/device/fault/deferring_queue.h"
#include "src/device/fault/dice.h"
#include "src/device/fault/faulty_completion_queue.h"
#include "src/device/fault/timer.h"
#include "src/device/verbs_control.h"
#include "verbena/fault.h"

namespace verbena::fault {

using SendDeferringQueue = DeferringQueue<ibv_send_wr>;
using ReceiveDeferringQueue = DeferringQueue<ibv_recv_wr>;

// What the objects of one device share.
struct DeviceParts {
  FaultPlan plan;
  const VerbsControl* control;  // of the device itself
  ibv_context_ops ops;          // of the device itself
  std::atomic<uint64_t> delays{0};
  std::atomic<uint64_t> deferred_receives{0};
  std::atomic<uint64_t> delayed_completions{0};
  std::atomic<uint64_t> queue_pair_errors{0};
  Timer timer;  // ends first: its calls use the rest
};

// A shared receive queue: what is deferred of it.
std::shared_ptr<ReceiveDeferringQueue> make_shared_receives(DeviceParts& parts, ibv_srq* verbs,
                                                            const ibv_srq_attr& granted,
                                                            uint64_t number);

class FaultyQueuePair : public std::enable_shared_from_this<FaultyQueuePair> {
 public:
  // The completion queues are null where they were not made through VerbsControl, `shared_receives`
  // where there are none.
  struct Queues {
    std::shared_ptr<FaultyCompletionQueue> send_completions;
    std::shared_ptr<FaultyCompletionQueue> receive_completions;
    std::shared_ptr<ReceiveDeferringQueue> shared_receives;
  };
  static std::shared_ptr<FaultyQueuePair> create(DeviceParts& parts, ibv_qp* verbs,
                                                 const ibv_qp_init_attr& granted, Queues queues,
                                                 uint64_t number);

  int post_send(ibv_send_wr* list, ibv_send_wr** rejected);
  int post_receive(ibv_recv_wr* list, ibv_recv_wr** rejected);
  // A completion of this queue pair was handed out.
  void completed(const ibv_wc& completion);

  // Around the device's own change of state.
  void before_reset();
  void after_state(ibv_qp_state state);
  // Has the device destroy it: 0, or an errno value, after which it is as it was.
  int destroy();

 private:
  FaultyQueuePair(DeviceParts& parts, ibv_qp* verbs, const ibv_qp_init_attr& granted, Queues queues,
                  uint64_t number);

  void draw_error(const ibv_send_wr* list);
  void to_error();
  // Holds error_mutex_. False where the queue pair is gone, or the device refuses.
  bool break_in_device();
  void release_sends(bool everything);
  void release_receives(bool everything);
  void drop();
  // `post_flushed` has the device flush a work request with that number in the error state.
  using PostFlushed = bool (FaultyQueuePair::*)(uint64_t wr_id);
  void lose(FaultyCompletionQueue* completions, uint64_t wr_id, PostFlushed post_flushed);
  bool post_flushed_send(uint64_t wr_id);
  bool post_flushed_receive(uint64_t wr_id);

  DeviceParts& parts_;
  ibv_qp* verbs_;
  uint32_t number_;
  Queues queues_;
  std::unique_ptr<SendDeferringQueue> sends_;
  std::unique_ptr<ReceiveDeferringQueue> receives_;  // null with a shared receive queue

  std::mutex error_mutex_;  // guards the dice, and the queue pair's life against to_error()
  Dice error_dice_;
  bool breakable_ = false;  // it is in RTS, and no error was drawn yet
  bool destroyed_ = false;
};

}  // namespace verbena::fault
