// The work requests between ibv_wr_start() and ibv_wr_complete(), before any of them is posted.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/base/assert.h"
#include "src/device/soft/copy.h"
#include "src/device/soft/owner_lock.h"

namespace verbena::soft {

// Has room for as many as the send queue. The requests lie as ibv_post_send() takes them, so
// posting copies nothing. A mistake is kept until the end, which then posts nothing.
class SendBatch {
 public:
  SendBatch(uint32_t depth, uint32_t max_sges, uint32_t max_inline_bytes, uint64_t operations)
      : operations_(operations),
        depth_(depth),
        max_sges_(max_sges),
        max_inline_bytes_(max_inline_bytes),
        // The last one is for what has no room, or belongs to no request.
        requests_(std::make_unique<ibv_send_wr[]>(depth + 1)),
        sges_(std::make_unique<ibv_sge[]>(size_t{depth} * max_sges + 1)),
        inline_data_(new std::byte[size_t{depth} * max_inline_bytes + 1]) {
    for (uint32_t i = 0; i <= depth; ++i) requests_[i].sg_list = &sges_[size_t{i} * max_sges];
    next_ = requests_.get();
    nowhere_ = &requests_[depth];
    current_ = nowhere_;
  }

  // Takes the lock, which other threads that build wait for. A batch of this thread that was not
  // ended is dropped.
  void start() {
    if (!started()) {
      as_owner_ = lock_.lock();
      builder_.store(this_thread_token(), std::memory_order_relaxed);
    }
    next_ = requests_.get();
    error_ = 0;
    current_ = nowhere_;
  }
  // By this thread.
  bool started() const { return builder_.load(std::memory_order_relaxed) == this_thread_token(); }
  void end() {
    builder_.store(0, std::memory_order_relaxed);
    lock_.unlock(as_owner_);
  }

  int error() const { return error_; }
  const ibv_send_wr* requests() const { return requests_.get(); }
  uint32_t count() const { return static_cast<uint32_t>(next_ - requests_.get()); }

  // The next request.
  ibv_send_wr& begin(const ibv_qp_ex& qp, ibv_wr_opcode opcode, uint64_t operation) {
    if (next_ == nowhere_ || (operations_ & operation) == 0) [[unlikely]] {
      set_error(next_ == nowhere_ ? ENOMEM : EINVAL);
      current_ = nowhere_;
    } else {
      current_ = next_++;
    }
    current_->wr_id = qp.wr_id;
    current_->num_sge = 0;
    current_->qp_type.xrc.remote_srqn = 0;  // not that of a former request
    current_->opcode = opcode;
    current_->send_flags = qp.wr_flags & ~unsigned{IBV_SEND_INLINE};
    return *current_;
  }
  // The request that setters are for; null, and a mistake, if there is none.
  ibv_send_wr* current() {
    if (current_ != nowhere_) [[likely]]
      return current_;
    set_error(EINVAL);
    return nullptr;
  }
  void set_error(int error) {
    if (error_ == 0) error_ = error;
  }

  void set_sge(const ibv_sge& sge) {
    ibv_send_wr* wr = current();
    if (wr == nullptr) return;
    wr->sg_list[0] = sge;
    wr->num_sge = 1;
    wr->send_flags &= ~unsigned{IBV_SEND_INLINE};
  }
  void set_sges(size_t count, const ibv_sge* list) {
    ibv_send_wr* wr = current();
    if (wr == nullptr) return;
    if (count > max_sges_) [[unlikely]]
      return set_error(EINVAL);
    for (size_t i = 0; i < count; ++i) wr->sg_list[i] = list[i];
    wr->num_sge = static_cast<int>(count);
    wr->send_flags &= ~unsigned{IBV_SEND_INLINE};
  }
  // Copies the data: the buffers may be used again at once.
  void set_inline_data(size_t count, const ibv_data_buf* buffers) {
    ibv_send_wr* wr = current();
    if (wr == nullptr) return;
    const auto index = static_cast<size_t>(wr - requests_.get());
    VERBENA_DEBUG_ASSERT(index < depth_);
    std::byte* const data = &inline_data_[index * max_inline_bytes_];
    size_t size_bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      if (buffers[i].length > max_inline_bytes_ - size_bytes) [[unlikely]]
        return set_error(EINVAL);
      copy_small(data + size_bytes, static_cast<const std::byte*>(buffers[i].addr),
                 static_cast<uint32_t>(buffers[i].length));
      size_bytes += buffers[i].length;
    }
    wr->sg_list[0] = {reinterpret_cast<uint64_t>(data), static_cast<uint32_t>(size_bytes), 0};
    wr->num_sge = 1;
    wr->send_flags |= IBV_SEND_INLINE;
  }

 private:
  OwnerLock lock_;
  bool as_owner_ = false;
  std::atomic<uint64_t> builder_{0};  // the thread that holds the lock
  const uint64_t operations_;         // ibv_qp_create_send_ops_flags
  const uint32_t depth_;
  const uint32_t max_sges_;
  const uint32_t max_inline_bytes_;
  int error_ = 0;
  // Of requests_: the next free one, the one behind the last, the one that setters are for.
  ibv_send_wr* next_ = nullptr;
  ibv_send_wr* nowhere_ = nullptr;
  ibv_send_wr* current_ = nullptr;
  std::unique_ptr<ibv_send_wr[]> requests_;
  std::unique_ptr<ibv_sge[]> sges_;
  std::unique_ptr<std::byte[]> inline_data_;
};

}  // namespace verbena::soft
