#include "tests/soft/verbs.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "src/base/runtime.h"
#include "src/device/verbs_control.h"

namespace verbena::soft_test {

void give_up(const Status& status) {
  std::fprintf(stderr, "process %d: %s\n", getpid(), status.message().c_str());
  std::abort();
}

// ---- memory ----

Buffer::Buffer(const ProtectionDomain& domain, size_t size_bytes, unsigned access)
    : size_bytes_(size_bytes) {
  void* pages =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    std::perror("mmap");
    std::abort();
  }
  bytes_ = static_cast<std::byte*>(pages);
  region_ = must(MemoryRegion::create(domain, bytes_, size_bytes, access));
  key_ = region_->rkey();
}

Buffer::~Buffer() {
  region_.reset();
  if (bytes_ != nullptr) munmap(bytes_, size_bytes_);
}

namespace {

uint64_t pattern_word(uint64_t seed, size_t word) {
  uint64_t z = (seed + word + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 32);
}

}  // namespace

void fill_pattern(std::byte* bytes, size_t size_bytes, uint64_t seed) {
  for (size_t at = 0; at < size_bytes; at += sizeof(uint64_t)) {
    const uint64_t word = pattern_word(seed, at);
    memcpy(bytes + at, &word, std::min(sizeof(word), size_bytes - at));
  }
}

bool has_pattern(const std::byte* bytes, size_t size_bytes, uint64_t seed) {
  for (size_t at = 0; at < size_bytes; at += sizeof(uint64_t)) {
    const uint64_t word = pattern_word(seed, at);
    if (memcmp(bytes + at, &word, std::min(sizeof(word), size_bytes - at)) != 0) return false;
  }
  return true;
}

// ---- ends ----

End::End(const Device& device, const ProtectionDomain& domain, const EndOptions& options) {
  if (options.with_channel) channel_ = must(CompletionChannel::create(device));
  if (options.send_cq == nullptr || options.recv_cq == nullptr) {
    cq_ = must(CompletionQueue::create(
        device, {.depth_cqes = options.cq_depth, .channel = channel_ ? &*channel_ : nullptr}));
  }
  queue_pair_ = must(
      QueuePair::create(domain, {.send_cq = options.send_cq != nullptr ? options.send_cq : &*cq_,
                                 .recv_cq = options.recv_cq != nullptr ? options.recv_cq : &*cq_,
                                 .shared_receive_queue = options.shared_receive_queue,
                                 .send_depth_wrs = options.send_depth,
                                 .recv_depth_wrs = options.recv_depth,
                                 .max_send_sges = options.max_sges,
                                 .max_recv_sges = options.max_sges,
                                 .max_inline_bytes = options.max_inline_bytes,
                                 .signal_all = options.signal_all}));
  must(queue_pair_->init(options.access));
}

void connect(End& a, End& b, const ReliabilityOptions& options) {
  a.connect(b.address(), options);
  b.connect(a.address(), options);
}

// ---- work requests ----

ibv_send_wr to_wr(SendRequest& request) {
  ibv_send_wr wr{};
  wr.wr_id = request.id;
  wr.sg_list = request.sges.data();
  wr.num_sge = static_cast<int>(request.sges.size());
  wr.opcode = request.opcode;
  wr.send_flags = request.flags;
  wr.imm_data = request.immediate;
  if (request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
      request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic = {.remote_addr = request.remote_address,
                    .compare_add = request.compare_add,
                    .swap = request.swap,
                    .rkey = request.rkey};
  } else {
    wr.wr.rdma = {.remote_addr = request.remote_address, .rkey = request.rkey};
  }
  return wr;
}

int post(ibv_qp* qp, SendRequest request) {
  ibv_send_wr wr = to_wr(request);
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

int post_receive(ibv_qp* qp, uint64_t id, std::vector<ibv_sge> sges) {
  ibv_recv_wr wr{.wr_id = id,
                 .next = nullptr,
                 .sg_list = sges.data(),
                 .num_sge = static_cast<int>(sges.size())};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, &wr, &bad);
}

int post_receive(ibv_srq* srq, uint64_t id, std::vector<ibv_sge> sges) {
  ibv_recv_wr wr{.wr_id = id,
                 .next = nullptr,
                 .sg_list = sges.data(),
                 .num_sge = static_cast<int>(sges.size())};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_srq_recv(srq, &wr, &bad);
}

// ---- waiting ----

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
