// The work requests of a queue pair that are on their way, in their order: those that have taken
// effect and wait for their answer, then those that have not.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "src/base/assert.h"
#include "src/device/soft/faults/fate.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/ud.h"

namespace verbena::soft::faults {

// With copies of what it points to.
struct DeferredSend {
  ibv_send_wr wr;
  uint32_t position;
  Ending ending;
  uint64_t due_ns;       // when it takes effect
  uint64_t complete_ns;  // when its completion can come
  Execution execution{Outcome::kDone};
  ibv_sge* sges;  // own array
  std::byte* inline_data;
  Ah* address;  // of datagrams: the program may destroy its handle
};

// A ring as deep as the send queue. Under send_lock.
class DeferredSends {
 public:
  DeferredSends(uint32_t depth, uint32_t max_sges, uint32_t max_inline_bytes, bool datagrams)
      : depth_(depth),
        sends_(std::make_unique<DeferredSend[]>(depth)),
        sges_(std::make_unique<ibv_sge[]>(size_t{depth} * max_sges + 1)),
        inline_data_(new std::byte[size_t{depth} * max_inline_bytes + 1]),
        addresses_(datagrams ? std::make_unique<Ah[]>(depth) : nullptr) {
    for (uint32_t i = 0; i < depth; ++i) {
      sends_[i].sges = &sges_[size_t{i} * max_sges];
      sends_[i].inline_data = &inline_data_[size_t{i} * max_inline_bytes];
      sends_[i].address = datagrams ? &addresses_[i] : nullptr;
    }
  }

  bool empty() const { return count_ == 0; }
  uint32_t count() const { return count_; }
  // How many of them have taken effect.
  uint32_t executed() const { return executed_; }

  DeferredSend& push(const ibv_send_wr& wr, uint32_t position) {
    VERBENA_ASSERT(count_ < depth_);
    DeferredSend& kept = at(count_++);
    kept.wr = wr;
    kept.wr.next = nullptr;
    kept.wr.sg_list = kept.sges;
    kept.position = position;
    kept.execution = Outcome::kDone;
    std::byte* inline_at = kept.inline_data;
    for (int i = 0; i < wr.num_sge; ++i) {
      kept.sges[i] = wr.sg_list[i];
      if ((wr.send_flags & IBV_SEND_INLINE) != 0 && wr.sg_list[i].length > 0) {
        memcpy(inline_at, reinterpret_cast<const void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
        kept.sges[i].addr = reinterpret_cast<uint64_t>(inline_at);
        inline_at += wr.sg_list[i].length;
      }
    }
    if (kept.address != nullptr) {
      *kept.address = *reinterpret_cast<const Ah*>(wr.wr.ud.ah);
      kept.wr.wr.ud.ah = &kept.address->verbs;
    }
    return kept;
  }
  DeferredSend& front() {
    VERBENA_ASSERT(count_ > 0);
    return at(0);
  }
  void pop() {
    VERBENA_ASSERT(count_ > 0);
    head_ = (head_ + 1) % depth_;
    --count_;
    if (executed_ > 0) --executed_;
  }

  bool has_next() const { return executed_ < count_; }
  // The first that has not taken effect.
  DeferredSend& next() {
    VERBENA_ASSERT(has_next());
    return at(executed_);
  }
  DeferredSend& last_executed() {
    VERBENA_ASSERT(executed_ > 0);
    return at(executed_ - 1);
  }
  void set_executed(Execution execution) {
    next().execution = execution;
    ++executed_;
  }
  void clear() {
    count_ = 0;
    executed_ = 0;
  }

 private:
  DeferredSend& at(uint32_t index) { return sends_[(head_ + index) % depth_]; }

  const uint32_t depth_;
  std::unique_ptr<DeferredSend[]> sends_;
  std::unique_ptr<ibv_sge[]> sges_;
  std::unique_ptr<std::byte[]> inline_data_;
  std::unique_ptr<Ah[]> addresses_;
  uint32_t head_ = 0;
  uint32_t count_ = 0;
  uint32_t executed_ = 0;
};

}  // namespace verbena::soft::faults
