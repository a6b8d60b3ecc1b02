#include "tests/soft/verbs.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>

#include "src/base/runtime.h"
#include "src/device/verbs_control.h"

namespace verbena::soft_test {

Deadline::Deadline() : end_ns_(now_ns() + kPatienceNs) {}

bool Deadline::wait() {
  // More processes than cores is the rule in tests: give the others the CPU.
  sched_yield();
  if (++looks_ % 1024 != 0) return true;
  if (now_ns() < end_ns_) return true;
  ADD_FAILURE() << "what the test waits for does not come";
  return false;
}

std::vector<ibv_wc> wait_for(ibv_cq* cq, size_t count) {
  std::vector<ibv_wc> all;
  Deadline deadline;
  while (all.size() < count) {
    ibv_wc some[16];
    const int got =
        ibv_poll_cq(cq, static_cast<int>(std::min<size_t>(count - all.size(), 16)), some);
    if (got < 0) {
      ADD_FAILURE() << "ibv_poll_cq returns " << got;
      return all;
    }
    all.insert(all.end(), some, some + got);
    if (got == 0 && !deadline.wait()) return all;
  }
  return all;
}

ibv_wc wait_for_one(ibv_cq* cq) {
  const std::vector<ibv_wc> got = wait_for(cq, 1);
  if (!got.empty()) return got.front();
  ibv_wc none{};
  none.status = static_cast<ibv_wc_status>(-1);
  return none;
}

bool is_empty(ibv_cq* cq) {
  for (int look = 0; look < 100; ++look) {
    ibv_wc wc;
    if (ibv_poll_cq(cq, 1, &wc) != 0) return false;
  }
  return true;
}

ibv_qp_state state_of(const Node& node, ibv_qp* qp) {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  EXPECT_EQ(node.control().query_qp(qp, &attributes, IBV_QP_STATE, &init), 0);
  return attributes.qp_state;
}

namespace {

bool event_within(const Node& node, int timeout_ms) {
  pollfd look{.fd = node.device.get()->async_fd, .events = POLLIN, .revents = 0};
  return poll(&look, 1, timeout_ms) == 1;
}

}  // namespace

std::optional<ibv_event_type> wait_for_event(const Node& node) {
  if (!event_within(node, static_cast<int>(kPatienceNs / 1'000'000))) return std::nullopt;
  ibv_async_event event{};
  if (node.control().get_async_event(node.device.get(), &event) != 0) return std::nullopt;
  node.control().ack_async_event(&event);
  return event.event_type;
}

bool has_event(const Node& node) { return event_within(node, 0); }

}  // namespace verbena::soft_test
