// Short ways to make, post and poll verbs objects of soft0 in tests. What cannot fail in a test
// ends the process with its message.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "verbena/device.h"

namespace verbena::soft_test {

inline constexpr unsigned kAllAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
// No wait of a test that passes comes near this.
inline constexpr uint64_t kPatienceNs = 300'000'000'000;
// Shortest timers, for tests that wait for them to run out: 8 us, 10 us.
inline constexpr ReliabilityOptions kImpatient = {.retry_count = 1,
                                                  .rnr_retry_count = 1,
                                                  .ack_timeout = 1,
                                                  .min_rnr_timer = 1,
                                                  .max_outstanding_reads = 16};

[[noreturn]] void give_up(const Status& status);

inline void must(const Status& status) {
  if (!status.ok()) give_up(status);
}
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) give_up(result.status());
  return std::move(*result);
}

// An open soft0 with a protection domain.
struct Node {
  Device device = must(Device::open("soft0"));
  ProtectionDomain domain = must(ProtectionDomain::create(device));
  const VerbsControl& control() const { return device.control(); }
};

// Registered pages, zeroed. They are given back to the system at the end.
class Buffer {
 public:
  Buffer(const ProtectionDomain& domain, size_t size_bytes, unsigned access = kAllAccess);
  Buffer(Buffer&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)),
        size_bytes_(other.size_bytes_),
        key_(other.key_),
        region_(std::move(other.region_)) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer();

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
  // The memory stays, and key() names nothing any more.
  void deregister() { region_.reset(); }

 private:
  std::byte* bytes_ = nullptr;
  size_t size_bytes_ = 0;
  uint32_t key_ = 0;
  std::optional<MemoryRegion> region_;
};

// Bytes that depend on `seed` and on the place, and their check.
void fill_pattern(std::byte* bytes, size_t size_bytes, uint64_t seed);
bool has_pattern(const std::byte* bytes, size_t size_bytes, uint64_t seed);

struct EndOptions {
  uint32_t cq_depth = 1024;
  bool with_channel = false;
  const CompletionQueue* send_cq = nullptr;  // else an own one
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
  End(const Device& device, const ProtectionDomain& domain, const EndOptions& options = {});
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

void connect(End& a, End& b, const ReliabilityOptions& options = {});

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
inline unsigned signaled_if(bool signaled) { return signaled ? unsigned{IBV_SEND_SIGNALED} : 0; }
ibv_send_wr to_wr(SendRequest& request);
// What ibv_post_send, ibv_post_recv and ibv_post_srq_recv return.
int post(ibv_qp* qp, SendRequest request);
int post_receive(ibv_qp* qp, uint64_t id, std::vector<ibv_sge> sges);
int post_receive(ibv_srq* srq, uint64_t id, std::vector<ibv_sge> sges);

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
