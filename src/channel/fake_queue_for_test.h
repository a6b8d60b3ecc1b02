// A queue pair and a completion queue that only write down what they are given: for unit tests of
// the building blocks, where a device would hide what was posted.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <vector>

namespace verbena::channel {

// For slots from std::aligned_alloc().
struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

class FakeQueue {
 public:
  FakeQueue() {
    context_.ops.post_send = post_send;
    context_.ops.post_recv = post_recv;
    context_.ops.post_srq_recv = post_srq_recv;
    context_.ops.poll_cq = poll_cq;
    queue_pair_.context = &context_;
    queue_pair_.qp_context = this;
    shared_receives_.context = &context_;
    shared_receives_.srq_context = this;
    completions_.context = &context_;
    completions_.cq_context = this;
  }
  FakeQueue(const FakeQueue&) = delete;
  FakeQueue& operator=(const FakeQueue&) = delete;

  ibv_qp* queue_pair() { return &queue_pair_; }
  ibv_srq* shared_receives() { return &shared_receives_; }
  ibv_cq* completions() { return &completions_; }

  // Every list posted, in order.
  std::vector<std::vector<ibv_send_wr>> sends;
  std::vector<std::vector<uint64_t>> receives;  // wr_id
  int post_result = 0;
  // What polling will yield.
  std::deque<ibv_wc> arrivals;
  uint32_t polls = 0;

  static ibv_wc completion(uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS) {
    ibv_wc completion{};
    completion.wr_id = wr_id;
    completion.status = status;
    return completion;
  }
  // Completes every signaled request posted so far.
  void complete_sends() {
    for (; completed_lists_ < sends.size(); ++completed_lists_) {
      for (const ibv_send_wr& request : sends[completed_lists_]) {
        if ((request.send_flags & IBV_SEND_SIGNALED) != 0) {
          arrivals.push_back(completion(request.wr_id));
        }
      }
    }
  }

 private:
  static int post_send(ibv_qp* queue_pair, ibv_send_wr* list, ibv_send_wr** rejected) {
    auto* self = static_cast<FakeQueue*>(queue_pair->qp_context);
    if (self->post_result != 0) {
      *rejected = list;
      return self->post_result;
    }
    self->sends.emplace_back();
    for (; list != nullptr; list = list->next) self->sends.back().push_back(*list);
    return 0;
  }
  int take_receives(ibv_recv_wr* list, ibv_recv_wr** rejected) {
    if (post_result != 0) {
      *rejected = list;
      return post_result;
    }
    receives.emplace_back();
    for (; list != nullptr; list = list->next) receives.back().push_back(list->wr_id);
    return 0;
  }
  static int post_recv(ibv_qp* queue_pair, ibv_recv_wr* list, ibv_recv_wr** rejected) {
    return static_cast<FakeQueue*>(queue_pair->qp_context)->take_receives(list, rejected);
  }
  static int post_srq_recv(ibv_srq* queue, ibv_recv_wr* list, ibv_recv_wr** rejected) {
    return static_cast<FakeQueue*>(queue->srq_context)->take_receives(list, rejected);
  }
  static int poll_cq(ibv_cq* queue, int count, ibv_wc* completions) {
    auto* self = static_cast<FakeQueue*>(queue->cq_context);
    ++self->polls;
    int taken = 0;
    for (; taken < count && !self->arrivals.empty(); ++taken) {
      completions[taken] = self->arrivals.front();
      self->arrivals.pop_front();
    }
    return taken;
  }

  ibv_context context_{};
  ibv_qp queue_pair_{};
  ibv_srq shared_receives_{};
  ibv_cq completions_{};
  size_t completed_lists_ = 0;
};

}  // namespace verbena::channel
