// Posts raw verbs and takes their completions: what the closed loop (closed_loop.h) drives in the
// place of a protocol's requester. An operation is a slot's request, its completion the response.
//
// Data path: after the constructor nothing is allocated.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/verbs/place_sequence.h"
#include "src/bench/verbs/verbs_connection.h"
#include "src/bench/verbs/verbs_settings.h"
#include "src/channel/post_list.h"
#include "src/remote/vector_copy.h"
#include "verbena/data_path.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

class VerbsRequester {
 public:
  // `seed`: of random addresses.
  VerbsRequester(const Point& point, VerbsConnection connection, uint64_t seed);
  // Work requests point to each other and to gather lists.
  VerbsRequester(const VerbsRequester&) = delete;
  VerbsRequester& operator=(const VerbsRequester&) = delete;

  // Posts the slot's next operation, or keeps it until the batch is full or poll() is called.
  PostResult try_post(uint32_t slot, uint32_t bytes);

  // Calls take(slot, {}) for each operation that is done; returns how many.
  template <typename Take>
  uint32_t poll(Take&& take) {
    flush();
    ibv_wc completions[kPolledAtOnce];
    const int polled =
        poll_completions(connection_.endpoint.send_completions.get(), kPolledAtOnce, completions);
    uint32_t found = 0;
    for (int i = 0; i < polled; ++i) {
      if (completions[i].status != IBV_WC_SUCCESS) [[unlikely]] {
        fail(completions[i].status);
        return found;
      }
      // Work requests complete in order: those before it are done too.
      for (; done_ < completions[i].wr_id; ++found) {
        const uint32_t slot = order_[done_ % order_.size()];
        ++done_;
        if (scatters_) {
          remote::scatter(reinterpret_cast<const char*>(staged_[slot].addr), pieces_of(slot));
        }
        take(slot, std::span<const char>());
      }
    }
    if (polled < 0) [[unlikely]]
      fail(IBV_WC_GENERAL_ERR);
    if (found > 0) {
      flush();
    } else if (signaled_ <= done_ && done_ < posted_) {
      ask();
    }
    return found;
  }

  char* request_buffer(uint32_t slot);
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return status_; }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }

 private:
  static constexpr int kPolledAtOnce = 16;

  VerbsRequester(const Point& point, const VerbsSettings& verbs, VerbsConnection connection,
                 uint64_t seed);
  void fill_constant_parts();
  // Asks for a completion of what was posted last, where all that is pending is unsignaled: at the
  // end of a run.
  void ask();
  void flush() { note(list_.flush()); }
  void note(int post_error);
  void fail(ibv_wc_status status);
  std::span<ibv_sge> pieces_of(uint32_t slot) {
    return {&pieces_[size_t{slot} * entries_], entries_};
  }

  const Operation operation_;
  const uint32_t entries_;
  const uint32_t requests_;  // per operation
  const uint32_t signal_interval_;
  const bool gathers_;   // the CPU copies entries together before the post
  const bool scatters_;  // ... or apart after the completion
  VerbsConnection connection_;
  PlaceSequence local_places_;
  PlaceSequence remote_places_;
  channel::PostList list_;
  std::vector<ibv_send_wr> work_;  // by slot, requests_ each
  std::vector<ibv_sge> pieces_;    // by slot, entries_ each
  std::vector<ibv_sge> staged_;    // by slot, where the CPU copies
  std::vector<uint32_t> order_;    // ring of the slots that were posted
  uint64_t posted_ = 0;            // operations so far
  uint64_t signaled_ = 0;          // the last of them that asks for a completion
  uint64_t done_ = 0;              // of these, known to be done
  Status status_;
};

}  // namespace verbena::bench
