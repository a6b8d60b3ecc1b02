// Simulated nodes for tests, and short ways to post to them and to poll.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/device/sim/rnic_profile.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"
#include "src/device/verbs_control.h"
#include "src/device/verbs_for_test.h"
#include "verbena/device.h"

namespace verbena::sim {

using test::Buffer;
using test::EndOptions;
using test::kAllAccess;
using test::must;
using test::SendRequest;

inline const Profile& test_profile() {
  static const Profile profile = must(load_profile("connectx3-fdr"));
  return profile;
}

// Nodes of one kind, each with an open device.
class Cluster {
 public:
  using Member = test::Node;

  explicit Cluster(size_t nodes = 2, uint64_t seed = 1, const Profile& profile = test_profile())
      : simulation_({.seed = seed}) {
    for (size_t i = 0; i < nodes; ++i) {
      const OnNode here(simulation_, simulation_.add_node(profile));
      Device device = must(Device::open(std::string(kDevicePrefix) + profile.name));
      ProtectionDomain domain = must(ProtectionDomain::create(device));
      members_.emplace_back(new Member{std::move(device), std::move(domain)});
    }
  }

  Simulation& simulation() { return simulation_; }
  Member& operator[](size_t number) { return *members_[number]; }
  Node& node(size_t number) { return simulation_.node(number); }
  // Until nothing happens any more.
  void settle() {
    simulation_.run_until([] { return false; });
  }
  // Lets so much virtual time pass.
  void pass(uint64_t duration_ns) {
    simulation_.run_until([] { return false; }, now_ns() + duration_ns);
  }
  // A thread of a node.
  Thread start(size_t number, std::function<void()> body) {
    const OnNode here(simulation_, simulation_.node(number));
    return start_thread("test", std::move(body));
  }

 private:
  Simulation simulation_;
  std::vector<std::unique_ptr<Member>> members_;
};

// As everywhere, and with what the simulation knows of it.
class End : public test::End {
 public:
  explicit End(const Cluster::Member& node, const EndOptions& options = {})
      : test::End(node, options), control_(&node.control()), access_(options.access) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  // Tests own ends of both kinds by this class.
  virtual ~End() = default;

  ibv_qp_state state() const { return as_qp(qp()).state(); }
  // Back to where connect() can follow.
  void reset() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    if (control_->modify_qp(qp(), &attributes, IBV_QP_STATE) != 0) std::abort();
    must(queue_pair().init(access_));
  }

 private:
  const VerbsControl* control_;
  unsigned access_;
};

inline int post(const End& end, SendRequest request) {
  return test::post(end.qp(), std::move(request));
}
// Posts `count` operations of 8 B, each with its doorbell, and polls for `at_once` completions at a
// time until left[thread] is 0. Threads that share a queue pair take each other's completions.
inline void post_and_poll(const End& end, ibv_wr_opcode opcode, const Buffer& here,
                          const Buffer& there, uint32_t count, int at_once, uint32_t thread,
                          std::vector<uint32_t>& left) {
  left[thread] = count;
  for (uint32_t i = 0; i < count; ++i) {
    ASSERT_EQ(post(end, {.id = thread,
                         .opcode = opcode,
                         .sges = {here.sge(0, 8)},
                         .flags = IBV_SEND_SIGNALED,
                         .remote_address = there.address(),
                         .rkey = there.key()}),
              0);
  }
  while (left[thread] > 0) {
    ibv_wc completions[16];
    const int polled = ibv_poll_cq(end.cq(), at_once, completions);
    ASSERT_GE(polled, 0);
    for (int i = 0; i < polled; ++i) --left[completions[i].wr_id];
  }
}
inline int post_receive(const End& end, uint64_t id, std::vector<ibv_sge> sges) {
  return test::post_receive(end.qp(), id, std::move(sges));
}
inline int post_receive(const SharedReceiveQueue& queue, uint64_t id, std::vector<ibv_sge> sges) {
  return test::post_receive(queue.get(), id, std::move(sges));
}

// All completions that there are.
inline std::vector<ibv_wc> take_all(const End& end) {
  std::vector<ibv_wc> taken;
  ibv_wc one;
  while (ibv_poll_cq(end.cq(), 1, &one) == 1) taken.push_back(one);
  return taken;
}

// "17 success, 18 Work Request Flushed Error": what a test expects, readable where it fails.
inline std::string text_of(const std::vector<ibv_wc>& completions) {
  std::string text;
  for (const ibv_wc& one : completions) {
    if (!text.empty()) text += ", ";
    text += std::to_string(one.wr_id) + " " + ibv_wc_status_str(one.status);
  }
  return text;
}

}  // namespace verbena::sim
