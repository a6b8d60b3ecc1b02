// A part of a region on another socket, as a thread accesses it through the proxy there. Data
// path.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/memory/arena.h"
#include "src/remote/connected_region.h"
#include "src/remote/socket_lane.h"
#include "src/remote/socket_proxy.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena::remote {

class ProxiedPart {
 public:
  using Access = ConnectedRegion::Access;

  static Result<std::unique_ptr<ProxiedPart>> open(std::shared_ptr<SocketProxy> proxy,
                                                   const RemoteRegionOptions& options);
  ~ProxiedPart();
  ProxiedPart(const ProxiedPart&) = delete;
  ProxiedPart& operator=(const ProxiedPart&) = delete;

  // Posts need room: fewer than options.pending are posted and not taken. False: refusal() says
  // why; nothing has happened.
  bool post_read(uint64_t offset_bytes, uint32_t size_bytes, uint64_t token, Order order);
  bool post_write(uint64_t offset_bytes, std::span<const char> from, uint64_t token, Order order);
  bool post_slices(bool reads, uint64_t offset_bytes, std::span<const LocalSlice> slices,
                   uint64_t token, Order order);
  bool post_atomic(RequestKind kind, uint64_t offset_bytes, uint64_t operand, uint64_t desired,
                   uint64_t token, Order order);
  const Status& refusal() const { return refusal_; }

  // Operations that are done and were not taken. After a failure: see broken().
  uint32_t collect();
  RemoteCompletion take();
  uint32_t outstanding() const { return static_cast<uint32_t>(tail_ - head_); }
  bool broken() const { return broken_; }
  const Status& failure() const { return proxy_->failure(); }
  // Waits for what is on its way, so that memory may go. Only taking statistics is allowed then.
  void leave();

  // One at a time.
  Status read(uint64_t offset_bytes, std::span<char> to);
  Status write(uint64_t offset_bytes, std::span<const char> from);
  Status slices_alone(bool reads, uint64_t offset_bytes, std::span<const LocalSlice> slices);
  Result<uint64_t> atomic_alone(RequestKind kind, uint64_t offset_bytes, uint64_t operand,
                                uint64_t desired);

  const RemoteStatistics& statistics() const { return statistics_; }
  std::vector<VectorEstimate> vector_estimates(bool reads, uint32_t entries,
                                               uint32_t entry_bytes) const;

 private:
  struct Operation {
    uint64_t token = 0;
    const char* bytes = nullptr;  // of the result
    uint32_t size_bytes = 0;
    uint64_t before = 0;                    // of an atomic
    std::span<const ibv_sge> scatter = {};  // where the CPU copies what was read
  };

  ProxiedPart(std::shared_ptr<SocketProxy> proxy, RegisteredArena arena,
              const RemoteRegionOptions& options);

  bool may(Access access, uint64_t offset_bytes, uint64_t bytes) {
    if (proxy_->region().allows(access, offset_bytes, bytes)) [[likely]]
      return true;
    refusal_ = proxy_->region().refusal(access, offset_bytes, bytes);
    return false;
  }
  bool fits_value(uint64_t bytes) {
    if (bytes <= options_.value_bytes) [[likely]]
      return true;
    refuse_copy(bytes, options_.value_bytes);
    return false;
  }
  void refuse_copy(uint64_t bytes, uint32_t staging_bytes);
  void refuse_entries(size_t entries);
  size_t next_place() const { return tail_ & (operations_.size() - 1); }
  LocalSlice value(size_t place, uint32_t bytes) const {
    return {&arena_.region(), place * value_stride_bytes_, bytes};
  }
  LocalSlice copy_buffer(uint32_t bytes) const {
    return {&arena_.region(), operations_.size() * value_stride_bytes_, bytes};
  }
  char* address(const LocalSlice& slice) const { return arena_.data() + slice.offset_bytes; }
  std::span<ibv_sge> pieces_of(size_t place) {
    return {pieces_.data() + place * options_.max_entries, options_.max_entries};
  }
  // Whether the proxy's RNIC can reach it where it lies.
  bool is_reachable(const LocalSlice& slice) const {
    return slice.memory->get()->pd == proxy_->domain().get();
  }
  // The addresses of valid slices, which lie in `staging_bytes`, in the pieces of `place`.
  bool make_pieces(bool reads, uint64_t offset_bytes, std::span<const LocalSlice> slices,
                   size_t place, uint32_t staging_bytes, std::span<ibv_sge>* pieces,
                   uint32_t* total_bytes);
  void push(const ProxyRequest& request);
  void post(const ProxyRequest& request, const Operation& operation);
  Status finish_alone(const ProxyRequest& request, uint64_t* before);

  std::shared_ptr<SocketProxy> proxy_;
  const RemoteRegionOptions options_;
  RegisteredArena arena_;  // of the proxy's domain: values, and the buffer of synchronous calls
  const uint64_t value_stride_bytes_;
  std::shared_ptr<SocketLane> lane_;
  std::vector<Operation> operations_;
  std::vector<ibv_sge> pieces_;
  // Counts of posted operations so far.
  uint64_t head_ = 0;  // taken
  uint64_t done_ = 0;
  uint64_t tail_ = 0;
  bool broken_ = false;
  bool left_ = false;
  RemoteStatistics statistics_;
  Status refusal_;
};

}  // namespace verbena::remote
