// Waiting for what verbs objects of soft0 do in tests; src/device/verbs_for_test.h makes them and
// posts to them.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/device/verbs_for_test.h"
#include "verbena/device.h"

namespace verbena::soft_test {

using test::Buffer;
using test::connect;
using test::End;
using test::EndOptions;
using test::fill_pattern;
using test::has_pattern;
using test::kAllAccess;
using test::must;
using test::Node;
using test::post;
using test::post_receive;
using test::SendRequest;
using test::to_wr;

// No wait of a test that passes comes near this.
inline constexpr uint64_t kPatienceNs = 300'000'000'000;
// Shortest timers, for tests that wait for them to run out: 8 us, 10 us.
inline constexpr ReliabilityOptions kImpatient = {.retry_count = 1,
                                                  .rnr_retry_count = 1,
                                                  .ack_timeout = 1,
                                                  .min_rnr_timer = 1,
                                                  .max_outstanding_reads = 16};

inline unsigned signaled_if(bool signaled) { return signaled ? unsigned{IBV_SEND_SIGNALED} : 0; }

// Polls until there are `count` completions. Where they do not come, the test fails and the result
// is shorter.
std::vector<ibv_wc> wait_for(ibv_cq* cq, size_t count);
// The next completion; of status -1 where none comes (and the test has failed).
ibv_wc wait_for_one(ibv_cq* cq);
// Whether a number of polls find nothing.
bool is_empty(ibv_cq* cq);
// Waits until `done()`; false, and the test fails, where that never comes.
template <typename Done>
bool wait_until(Done&& done);

ibv_qp_state state_of(const Node& node, ibv_qp* qp);
// The type of the context's next asynchronous event, acknowledged; nothing where none comes in
// time.
std::optional<ibv_event_type> wait_for_event(const Node& node);
bool has_event(const Node& node);

// ---- implementation ----

class Deadline {
 public:
  Deadline();
  // Backs off; false when the patience is at an end.
  bool wait();

 private:
  uint64_t end_ns_;
  uint32_t looks_ = 0;
};

template <typename Done>
bool wait_until(Done&& done) {
  Deadline deadline;
  while (!done()) {
    if (!deadline.wait()) return false;
  }
  return true;
}

}  // namespace verbena::soft_test
