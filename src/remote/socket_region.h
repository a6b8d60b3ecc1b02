// A region whose parts lie on several sockets, as one thread accesses it: the part that matches
// its socket by its own connection, others by the proxies.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/remote/connected_region.h"
#include "src/remote/proxied_part.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena::remote {

class SocketRegion final : public RemoteRegion {
 public:
  // A connection of the thread's own, with the control connection that it came over.
  struct Own {
    std::unique_ptr<ControlConnection> control;
    std::unique_ptr<ConnectedRegion> region;
  };
  struct Part {
    uint64_t begin_bytes = 0;
    uint64_t end_bytes = 0;
    std::unique_ptr<ProxiedPart> proxied;  // null: its own connection
  };

  SocketRegion(const RemoteRegionOptions& options, std::vector<Part> parts, Own own, bool writable);
  ~SocketRegion() override = default;

  uint64_t size_bytes() const override { return parts_.back().end_bytes; }
  bool writable() const override { return writable_; }
  uint64_t part_end_bytes(uint64_t offset_bytes) const override;
  const RemoteRegionOptions& options() const override { return options_; }

  using RemoteRegion::post_read;
  using RemoteRegion::post_write;
  using RemoteRegion::read;
  using RemoteRegion::write;
  Status read(uint64_t offset_bytes, std::span<char> to) override;
  Status write(uint64_t offset_bytes, std::span<const char> from) override;
  Status read(uint64_t offset_bytes, const LocalSlice& to) override;
  Status write(uint64_t offset_bytes, const LocalSlice& from) override;
  Status readv(uint64_t offset_bytes, std::span<const LocalSlice> to, VectorMethod method) override;
  Status writev(uint64_t offset_bytes, std::span<const LocalSlice> from,
                VectorMethod method) override;
  Result<uint64_t> compare_and_swap(RemotePointer<uint64_t> word, uint64_t expected,
                                    uint64_t desired) override;
  Result<uint64_t> fetch_and_add(RemotePointer<uint64_t> word, uint64_t addend) override;

  PostResult post_read(uint64_t offset_bytes, uint32_t size_bytes, uint64_t token,
                       Order order) override;
  PostResult post_write(uint64_t offset_bytes, std::span<const char> from, uint64_t token,
                        Order order) override;
  PostResult post_read(uint64_t offset_bytes, const LocalSlice& to, uint64_t token,
                       Order order) override;
  PostResult post_write(uint64_t offset_bytes, const LocalSlice& from, uint64_t token,
                        Order order) override;
  PostResult post_compare_and_swap(RemotePointer<uint64_t> word, uint64_t expected,
                                   uint64_t desired, uint64_t token, Order order) override;
  PostResult post_fetch_and_add(RemotePointer<uint64_t> word, uint64_t addend, uint64_t token,
                                Order order) override;
  PostResult post_readv(uint64_t offset_bytes, std::span<const LocalSlice> to, uint64_t token,
                        VectorMethod method, Order order) override;
  PostResult post_writev(uint64_t offset_bytes, std::span<const LocalSlice> from, uint64_t token,
                         VectorMethod method, Order order) override;
  std::vector<VectorEstimate> vector_estimates(bool reads, uint32_t entries,
                                               uint32_t entry_bytes) const override;

  bool flush() override;
  uint32_t collect() override;
  RemoteCompletion take() override;
  uint32_t outstanding() const override { return static_cast<uint32_t>(tail_ - head_); }

  const Status& status() const override { return status_; }
  const Status& error() const override { return status_.ok() ? refusal_ : status_; }
  void close() override;
  const RemoteStatistics& statistics() const override;

 private:
  // The part that has all of these bytes; null, and refusal_, if none has.
  Part* part_of(uint64_t offset_bytes, uint64_t bytes);
  bool has_room(const Part& part, Order order) const;
  uint32_t outstanding(const Part& part) const {
    return part.proxied != nullptr ? part.proxied->outstanding() : own_.region->outstanding();
  }
  // Posts by whatever leads to the part: `own` on the thread's connection, `proxied` on the
  // proxy's.
  template <typename PostOwn, typename PostProxied>
  PostResult post(uint64_t offset_bytes, uint64_t bytes, Order order, PostOwn&& own,
                  PostProxied&& proxied);
  // The same for calls that wait.
  template <typename Outcome, typename CallOwn, typename CallProxied>
  Outcome call(uint64_t offset_bytes, uint64_t bytes, CallOwn&& own, CallProxied&& proxied);
  uint32_t collect(Part& part);
  // After a call on the part: its failure is that of the region.
  void take_over_failure(const Part& part);

  const RemoteRegionOptions options_;
  const bool writable_;
  Own own_;
  std::vector<Part> parts_;
  // Of each operation under way, its part: completions are handed out in the order of posts.
  std::vector<uint8_t> routes_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  std::vector<uint32_t> done_;  // of each part, while completions are counted
  mutable RemoteStatistics statistics_;
  uint64_t would_block_ = 0;
  Status status_;
  Status refusal_;
};

}  // namespace verbena::remote
