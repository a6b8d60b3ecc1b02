// Simulated nodes, and short ways to post to them and to poll, for tests. What cannot fail in a
// test ends the process with its message.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/device/sim/rnic_profile.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"
#include "src/device/verbs_control.h"
#include "verbena/device.h"

namespace verbena::sim {

inline constexpr unsigned kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

inline void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::abort();
}
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

inline const Profile& test_profile() {
  static const Profile profile = must(load_profile("connectx3-fdr"));
  return profile;
}

// Nodes of one kind, each with an open device.
class Cluster {
 public:
  struct Member {
    Device device;
    ProtectionDomain domain;
  };

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

// Registered memory, zeroed.
class Buffer {
 public:
  Buffer(Cluster::Member& node, size_t size_bytes, unsigned access = kAllAccess)
      : bytes_(size_bytes),
        region_(must(MemoryRegion::create(node.domain, bytes_.data(), size_bytes, access))) {}

  std::byte* data() { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  uint64_t address(size_t offset = 0) const {
    return reinterpret_cast<uint64_t>(bytes_.data()) + offset;
  }
  uint32_t key() const { return region_->lkey(); }
  ibv_sge sge(size_t offset, size_t length_bytes) const {
    return {address(offset), static_cast<uint32_t>(length_bytes), key()};
  }
  template <typename T>
  T& at(size_t offset) {
    return *reinterpret_cast<T*>(bytes_.data() + offset);
  }
  // Bytes that depend on `seed` and on the place, and their check.
  void fill(uint64_t seed, size_t offset, size_t length_bytes) {
    for (size_t i = 0; i < length_bytes; ++i) bytes_[offset + i] = pattern(seed, i);
  }
  bool has(uint64_t seed, size_t offset, size_t length_bytes) const {
    for (size_t i = 0; i < length_bytes; ++i) {
      if (bytes_[offset + i] != pattern(seed, i)) return false;
    }
    return true;
  }
  // The memory stays; its key names nothing any more.
  void deregister() { region_.reset(); }

 private:
  static std::byte pattern(uint64_t seed, size_t place) {
    return static_cast<std::byte>((seed * 0x9e37 + place * 0x85eb + (place >> 8)) >> 3 | 1);
  }

  std::vector<std::byte> bytes_;
  std::optional<MemoryRegion> region_;
};

struct EndOptions {
  uint32_t cq_depth = 1024;
  const CompletionChannel* channel = nullptr;
  const SharedReceiveQueue* shared_receive_queue = nullptr;
  uint32_t send_depth = 128;
  uint32_t recv_depth = 128;
  uint32_t max_sges = 4;
  uint32_t max_inline_bytes = 256;
  unsigned access = kAllAccess;
};

// An initialized queue pair with a completion queue for both directions.
class End {
 public:
  explicit End(Cluster::Member& node, const EndOptions& options = {})
      : node_(node),
        access_(options.access),
        cq_(must(CompletionQueue::create(
            node.device, {.depth_cqes = options.cq_depth, .channel = options.channel}))),
        queue_pair_(must(verbena::QueuePair::create(
            node.domain, {.send_cq = &*cq_,
                          .recv_cq = &*cq_,
                          .shared_receive_queue = options.shared_receive_queue,
                          .send_depth_wrs = options.send_depth,
                          .recv_depth_wrs = options.recv_depth,
                          .max_send_sges = options.max_sges,
                          .max_recv_sges = options.max_sges,
                          .max_inline_bytes = options.max_inline_bytes}))) {
    must(queue_pair_->init(options.access));
  }

  ibv_qp* qp() const { return queue_pair_->get(); }
  ibv_cq* cq() const { return cq_->get(); }
  verbena::QueuePair& queue_pair() { return *queue_pair_; }
  ibv_qp_state state() const { return as_qp(qp()).state; }
  // Back to where connect() can follow.
  void reset() {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    if (node_.device.control().modify_qp(qp(), &attributes, IBV_QP_STATE) != 0) std::abort();
    must(queue_pair_->init(access_));
  }
  // Destroys the queue pair.
  void close() { queue_pair_.reset(); }

 private:
  Cluster::Member& node_;
  unsigned access_;
  std::optional<CompletionQueue> cq_;
  std::optional<verbena::QueuePair> queue_pair_;
};

inline void connect(End& a, End& b, const ReliabilityOptions& options = {}) {
  must(a.queue_pair().connect(must(b.queue_pair().address()), options));
  must(b.queue_pair().connect(must(a.queue_pair().address()), options));
}

struct SendRequest {
  uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  std::vector<ibv_sge> sges = {};
  unsigned flags = IBV_SEND_SIGNALED;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint32_t immediate = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
};

// What ibv_post_send, ibv_post_recv and ibv_post_srq_recv return.
inline int post(const End& end, SendRequest request) {
  ibv_send_wr wr{};
  wr.wr_id = request.id;
  wr.sg_list = request.sges.data();
  wr.num_sge = static_cast<int>(request.sges.size());
  wr.opcode = request.opcode;
  wr.send_flags = request.flags;
  wr.imm_data = request.immediate;
  if (request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
      request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic = {request.remote_address, request.compare_add, request.swap, request.rkey};
  } else {
    wr.wr.rdma = {request.remote_address, request.rkey};
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(end.qp(), &wr, &bad);
}

inline int post_receive(const End& end, uint64_t id, std::vector<ibv_sge> sges) {
  ibv_recv_wr wr{.wr_id = id,
                 .next = nullptr,
                 .sg_list = sges.data(),
                 .num_sge = static_cast<int>(sges.size())};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(end.qp(), &wr, &bad);
}
inline int post_receive(const SharedReceiveQueue& queue, uint64_t id, std::vector<ibv_sge> sges) {
  ibv_recv_wr wr{.wr_id = id,
                 .next = nullptr,
                 .sg_list = sges.data(),
                 .num_sge = static_cast<int>(sges.size())};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_srq_recv(queue.get(), &wr, &bad);
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
