// Short ways to make verbs objects and to post to them, for tests on any device. What cannot fail
// in a test ends the process with its message.
#pragma once

#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "src/device/verbs_control.h"
#include "verbena/device.h"

namespace verbena::test {

inline constexpr unsigned kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

inline void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "process %d: %s\n", getpid(), status.message().c_str());
  std::abort();
}
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

// An open device, soft0 unless another one is given, with a protection domain.
struct Node {
  Device device = must(Device::open("soft0"));
  ProtectionDomain domain = must(ProtectionDomain::create(device));
  const VerbsControl& control() const { return device.control(); }
};

// Bytes that depend on `seed` and on the place, and their check.
inline uint64_t pattern_word(uint64_t seed, size_t word) {
  uint64_t z = (seed + word + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 32);
}
inline void fill_pattern(std::byte* bytes, size_t size_bytes, uint64_t seed) {
  for (size_t at = 0; at < size_bytes; at += sizeof(uint64_t)) {
    const uint64_t word = pattern_word(seed, at);
    std::memcpy(bytes + at, &word, std::min(sizeof(word), size_bytes - at));
  }
}
inline bool has_pattern(const std::byte* bytes, size_t size_bytes, uint64_t seed) {
  for (size_t at = 0; at < size_bytes; at += sizeof(uint64_t)) {
    const uint64_t word = pattern_word(seed, at);
    if (std::memcmp(bytes + at, &word, std::min(sizeof(word), size_bytes - at)) != 0) return false;
  }
  return true;
}

// Registered pages, zeroed. They are given back to the system at the end.
class Buffer {
 public:
  Buffer(const ProtectionDomain& domain, size_t size_bytes, unsigned access = kAllAccess)
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
  Buffer(const Node& node, size_t size_bytes, unsigned access = kAllAccess)
      : Buffer(node.domain, size_bytes, access) {}
  Buffer(Buffer&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)),
        size_bytes_(other.size_bytes_),
        key_(other.key_),
        region_(std::move(other.region_)) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() {
    region_.reset();
    if (bytes_ != nullptr) munmap(bytes_, size_bytes_);
  }

  std::byte* data() { return bytes_; }
  const std::byte* data() const { return bytes_; }
  size_t size() const { return size_bytes_; }
  uint64_t address(size_t offset = 0) const { return reinterpret_cast<uint64_t>(bytes_) + offset; }
  uint32_t key() const { return key_; }
  ibv_sge sge(size_t offset, size_t length_bytes) const {
    return {address(offset), static_cast<uint32_t>(length_bytes), key()};
  }
  template <typename T>
  T& at(size_t offset) {
    return *reinterpret_cast<T*>(bytes_ + offset);
  }
  void fill(uint64_t seed, size_t offset, size_t length_bytes) {
    fill_pattern(bytes_ + offset, length_bytes, seed);
  }
  bool has(uint64_t seed, size_t offset, size_t length_bytes) const {
    return has_pattern(bytes_ + offset, length_bytes, seed);
  }
  // The memory stays, and key() names nothing any more.
  void deregister() { region_.reset(); }

 private:
  std::byte* bytes_ = nullptr;
  size_t size_bytes_ = 0;
  uint32_t key_ = 0;
  std::optional<MemoryRegion> region_;
};

struct EndOptions {
  Transport transport = Transport::kRc;
  uint32_t cq_depth = 1024;
  const CompletionChannel* channel = nullptr;  // of the own completion queue
  bool with_channel = false;                   // it has one of its own
  const CompletionQueue* send_cq = nullptr;    // else the own one
  const CompletionQueue* recv_cq = nullptr;
  const SharedReceiveQueue* shared_receive_queue = nullptr;
  uint32_t send_depth = 128;
  uint32_t recv_depth = 128;
  uint32_t max_sges = 4;
  uint32_t max_inline_bytes = 256;
  bool signal_all = false;
  unsigned access = kAllAccess;
};

// A queue pair, initialized, with a completion queue of its own unless others are given.
class End {
 public:
  explicit End(const Node& node, const EndOptions& options = {})
      : End(node.device, node.domain, options) {}
  End(const Device& device, const ProtectionDomain& domain, const EndOptions& options = {}) {
    if (options.with_channel) channel_ = must(CompletionChannel::create(device));
    if (options.send_cq == nullptr || options.recv_cq == nullptr) {
      cq_ = must(CompletionQueue::create(
          device, {.depth_cqes = options.cq_depth,
                   .channel = options.with_channel ? &*channel_ : options.channel}));
    }
    queue_pair_ = must(
        QueuePair::create(domain, {.transport = options.transport,
                                   .send_cq = options.send_cq != nullptr ? options.send_cq : &*cq_,
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

  void connect(const QueuePairAddress& peer, const ReliabilityOptions& options = {}) {
    must(queue_pair_->connect(peer, options));
  }
  QueuePairAddress address() const { return must(queue_pair_->address()); }
  ibv_qp* qp() const { return queue_pair_->get(); }
  ibv_cq* cq() const { return qp()->recv_cq; }
  CompletionChannel& channel() { return *channel_; }
  QueuePair& queue_pair() { return *queue_pair_; }
  // Destroys the queue pair, then the queue.
  void close() {
    queue_pair_.reset();
    cq_.reset();
  }

 private:
  std::optional<CompletionChannel> channel_;
  std::optional<CompletionQueue> cq_;
  std::optional<QueuePair> queue_pair_;
};

inline void connect(End& a, End& b, const ReliabilityOptions& options = {}) {
  a.connect(b.address(), options);
  b.connect(a.address(), options);
}

// A work request with its gather list.
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

inline ibv_send_wr to_wr(SendRequest& request) {
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

// What ibv_post_send, ibv_post_recv and ibv_post_srq_recv return.
inline int post(ibv_qp* qp, SendRequest request) {
  ibv_send_wr wr = to_wr(request);
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, &wr, &bad);
}

inline ibv_recv_wr to_wr(uint64_t id, std::vector<ibv_sge>& sges) {
  return {.wr_id = id,
          .next = nullptr,
          .sg_list = sges.data(),
          .num_sge = static_cast<int>(sges.size())};
}
inline int post_receive(ibv_qp* qp, uint64_t id, std::vector<ibv_sge> sges) {
  ibv_recv_wr wr = to_wr(id, sges);
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp, &wr, &bad);
}
inline int post_receive(ibv_srq* srq, uint64_t id, std::vector<ibv_sge> sges) {
  ibv_recv_wr wr = to_wr(id, sges);
  ibv_recv_wr* bad = nullptr;
  return ibv_post_srq_recv(srq, &wr, &bad);
}

}  // namespace verbena::test
