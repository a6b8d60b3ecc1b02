// Work requests gathered into one list, which costs the device one doorbell instead of many.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "src/base/assert.h"

namespace verbena::channel {

class PostList {
 public:
  PostList() = default;
  // Posts to `queue_pair` whenever `batch` requests are there; 1: each at once.
  PostList(ibv_qp* queue_pair, uint32_t batch) : queue_pair_(queue_pair), batch_(batch) {
    VERBENA_ASSERT(batch >= 1);
  }

  // Takes `request`, which must stay as it is until it is posted. 0, or an errno value.
  int push(ibv_send_wr& request) {
    request.next = nullptr;
    return batch_ == 1 ? post(&request) : keep(request);
  }

  // The same for two that go out together.
  int push(ibv_send_wr& first, ibv_send_wr& second) {
    if (batch_ == 1) {
      first.next = &second;
      second.next = nullptr;
      return post(&first);
    }
    const int error = push(first);
    return error != 0 ? error : push(second);
  }

  // Posts what there is. 0, or an errno value.
  int flush() {
    if (first_ == nullptr) return 0;
    ibv_send_wr* list = first_;
    first_ = nullptr;
    count_ = 0;
    return post(list);
  }

 private:
  int post(ibv_send_wr* list) {
    ibv_send_wr* rejected = nullptr;
    return ibv_post_send(queue_pair_, list, &rejected);
  }

  // A call: the loops that post each at once stay small.
  [[gnu::noinline]] int keep(ibv_send_wr& request) {
    VERBENA_DEBUG_ASSERT(count_ < batch_ && (count_ == 0) == (first_ == nullptr));
    VERBENA_DEBUG_ASSERT(count_ == 0 || last_ != &request);
    if (first_ == nullptr) {
      first_ = &request;
    } else {
      last_->next = &request;
    }
    last_ = &request;
    return ++count_ < batch_ ? 0 : flush();
  }

  ibv_qp* queue_pair_ = nullptr;
  uint32_t batch_ = 1;
  uint32_t count_ = 0;
  ibv_send_wr* first_ = nullptr;
  ibv_send_wr* last_ = nullptr;
};

}  // namespace verbena::channel
