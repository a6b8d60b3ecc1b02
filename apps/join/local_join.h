// The join of two tables that are here, with a budget that others share.
#pragma once

#include "join/memory.h"
#include "verbena/apps/arrow.h"
#include "verbena/apps/join.h"
#include "verbena/status.h"

namespace verbena::join_app {

// A stream that belongs to a scope, which releases it.
class Stream {
 public:
  explicit Stream(ArrowArrayStream* stream) : stream_(stream) {}
  ~Stream() {
    if (stream_->release != nullptr) stream_->release(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

 private:
  ArrowArrayStream* stream_;
};

// As verbena::join_tables(), but that it leaves the streams to the caller, and throws
// std::bad_alloc.
Result<JoinStatistics> join_here(ArrowArrayStream* left, ArrowArrayStream* right,
                                 const JoinOptions& options, MemoryBudget& budget,
                                 ArrowArrayStream* result);

// What bad_alloc becomes.
Status refused_by_system();
// That a stream was released already.
Status used_twice();

}  // namespace verbena::join_app
