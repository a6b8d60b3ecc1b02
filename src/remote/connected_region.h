// A front-end's connection to a region. Control path: connected_region.cc; data path:
// connected_region_datapath.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/channel/channel_error.h"
#include "src/connect/endpoint.h"
#include "src/connect/peer_watch.h"
#include "src/remote/operation_queue.h"
#include "src/remote/region_description.h"
#include "src/remote/vector_cost.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/remote.h"
#include "verbena/remote_vector.h"
#include "verbena/status.h"

namespace verbena::remote {

// Of RemoteRegionOptions::pending.
inline constexpr uint32_t kMaxPending = 4096;

// Whether the options are in their ranges.
Status check(const RemoteRegionOptions& options);

class ConnectedRegion final : public RemoteRegion {
 public:
  // What an operation does to the region.
  enum class Access : uint8_t { kRead, kWrite, kAtomic };

  static Result<std::unique_ptr<ConnectedRegion>> open(const Device& device,
                                                       const ProtectionDomain& domain,
                                                       ControlConnection& control,
                                                       const RemoteRegionOptions& options);
  ~ConnectedRegion() override;

  uint64_t size_bytes() const override { return region_.size_bytes; }
  bool writable() const override { return region_.writable; }
  const RemoteRegionOptions& options() const override { return options_; }

  using RemoteRegion::post_read;
  using RemoteRegion::post_write;
  using RemoteRegion::read;
  using RemoteRegion::write;
  Status read(uint64_t offset_bytes, std::span<char> to) override;
  Status write(uint64_t offset_bytes, std::span<const char> from) override;
  Status read(uint64_t offset_bytes, const LocalSlice& to) override;
  Status write(uint64_t offset_bytes, const LocalSlice& from) override;
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

  Status readv(uint64_t offset_bytes, std::span<const LocalSlice> to, VectorMethod method) override;
  Status writev(uint64_t offset_bytes, std::span<const LocalSlice> from,
                VectorMethod method) override;
  PostResult post_readv(uint64_t offset_bytes, std::span<const LocalSlice> to, uint64_t token,
                        VectorMethod method, Order order) override;
  PostResult post_writev(uint64_t offset_bytes, std::span<const LocalSlice> from, uint64_t token,
                         VectorMethod method, Order order) override;
  std::vector<VectorEstimate> vector_estimates(bool reads, uint32_t entries,
                                               uint32_t entry_bytes) const override;

  bool flush() override;
  uint32_t collect() override;
  RemoteCompletion take() override;
  uint32_t outstanding() const override { return queue_.outstanding(); }

  const Status& status() const override { return status_; }
  const Status& error() const override { return status_.ok() ? refusal_ : status_; }
  void close() override;
  const RemoteStatistics& statistics() const override {
    statistics_.doorbells = queue_.doorbells();
    return statistics_;
  }

  // Whether the region permits an operation, and if not, why. These read nothing that changes after
  // open(), so any thread may ask.
  bool allows(Access access, uint64_t offset_bytes, uint64_t bytes) const {
    const bool inside = bytes <= region_.size_bytes && offset_bytes <= region_.size_bytes - bytes;
    const bool permitted = access == Access::kRead || region_.writable;
    const bool possible = access != Access::kAtomic || (atomics_ && is_aligned(offset_bytes));
    return inside && permitted && possible;
  }
  Status refusal(Access access, uint64_t offset_bytes, uint64_t bytes) const;
  static bool is_valid(const LocalSlice& slice) {
    return slice.memory != nullptr && slice.size_bytes <= kMaxTransferBytes &&
           slice.size_bytes <= slice.memory->length_bytes() &&
           slice.offset_bytes <= slice.memory->length_bytes() - slice.size_bytes;
  }
  static Status refusal(const LocalSlice& slice);

 private:
  // Where it happens: memory of the back-end's user may begin anywhere.
  bool is_aligned(uint64_t offset_bytes) const {
    return (region_.address + offset_bytes) % sizeof(uint64_t) == 0;
  }

  // A vector that may be posted, in pieces that are not empty.
  struct Vector {
    bool reads = false;
    VectorMethod method = VectorMethod::kSp;
    uint64_t offset_bytes = 0;
    uint64_t total_bytes = 0;
    unsigned flags = 0;
    std::span<ibv_sge> pieces = {};
  };
  // A piece of this process's memory, with its key.
  struct Local {
    char* data = nullptr;
    uint32_t size_bytes = 0;
    uint32_t lkey = 0;
  };
  struct Atomic {
    ibv_wr_opcode opcode;
    uint64_t compare_add;
    uint64_t swap;
  };

  ConnectedRegion(const Device& device, ControlConnection& control,
                  const RemoteRegionOptions& options);
  Status prepare(const Device& device, const ProtectionDomain& domain);
  OperationQueueSizes queue_sizes() const;

  // --- data path ---

  // Whether an operation may be; else refusal_ says why not.
  bool may(Access access, uint64_t offset_bytes, uint64_t bytes) {
    if (allows(access, offset_bytes, bytes)) [[likely]]
      return true;
    refusal_ = refusal(access, offset_bytes, bytes);
    return false;
  }
  // The memory that `slice` names; null, and refusal_, if it cannot be.
  Local local(const LocalSlice& slice) {
    if (is_valid(slice)) [[likely]] {
      return {static_cast<char*>(slice.memory->address()) + slice.offset_bytes, slice.size_bytes,
              slice.memory->lkey()};
    }
    refusal_ = refusal(slice);
    return {};
  }
  // Where the value of the operation that is posted next lies.
  Local next_value(uint32_t bytes) {
    return {values_ + uint64_t{queue_.next_place()} * value_stride_bytes_, bytes,
            endpoint_->arena.lkey()};
  }
  unsigned write_flags(uint64_t bytes) const {
    return bytes <= inline_limit_bytes_ ? IBV_SEND_INLINE : 0;
  }

  static unsigned fence(Order order) { return order == Order::kAfterReads ? IBV_SEND_FENCE : 0; }

  // A work request with `pieces` gather entries of `bytes` together, for its caller to fill in.
  ibv_send_wr& add_request(ibv_wr_opcode opcode, unsigned flags, uint64_t offset_bytes,
                           uint32_t bytes, uint32_t pieces);
  void add_transfer(ibv_wr_opcode opcode, unsigned flags, uint64_t offset_bytes,
                    const Local& local);
  void add_atomic(const Atomic& atomic, unsigned flags, uint64_t offset_bytes, const Local& result);
  PostResult post_transfer(ibv_wr_opcode opcode, unsigned flags, uint64_t offset_bytes,
                           const Local& local, uint64_t token);
  PostResult post_atomic(const Atomic& atomic, RemotePointer<uint64_t> word, uint64_t token,
                         Order order);
  Status transfer_alone(ibv_wr_opcode opcode, unsigned flags, uint64_t offset_bytes,
                        const Local& local);
  // Fills in the rest of `vector`, with its pieces in pieces_of(place). False: refusal_ says why it
  // may not be.
  bool make_vector(std::span<const LocalSlice> slices, uint32_t place, uint32_t staging_bytes,
                   Vector* vector);
  // Adds its work requests. The result says where its bytes go, if the CPU has to put them there.
  std::span<const ibv_sge> add_vector(const Vector& vector, const Local& staging);
  PostResult post_vector(Vector vector, std::span<const LocalSlice> slices, uint64_t token);
  Status vector_alone(Vector vector, std::span<const LocalSlice> slices);
  // Of the operation at that place of the ring; one behind them for synchronous calls.
  std::span<ibv_sge> pieces_of(uint32_t place) {
    return {pieces_.data() + size_t{place} * options_.max_entries, options_.max_entries};
  }
  Result<uint64_t> atomic_alone(const Atomic& atomic, RemotePointer<uint64_t> word);
  // Posts what was added, and waits for it.
  Status finish_alone();
  PostResult would_block() {
    ++statistics_.would_block;
    return PostResult::kWouldBlock;
  }
  PostResult committed(bool posted) {
    if (posted) [[likely]]
      return PostResult::kPosted;
    fail(queue_.error());
    return PostResult::kFailed;
  }

  // --- rare ---

  void refuse_value(uint64_t bytes);
  void refuse_vector(const Vector& vector, uint64_t entries, uint32_t staging_bytes);
  VectorWorkload vector_workload() const;
  // The first failure is the one to tell.
  void fail(Status status);
  void fail(const channel::ChannelError& error);
  void check_peer();

  const RemoteRegionOptions options_;
  ControlConnection* control_;
  std::string peer_;
  const DeviceInfo device_;
  RegionDescription region_;
  bool atomics_ = false;  // both devices have them
  uint32_t inline_limit_bytes_ = 0;
  uint64_t value_stride_bytes_ = 0;
  char* values_ = nullptr;       // one for each place of the ring
  char* copy_buffer_ = nullptr;  // of synchronous calls
  std::vector<ibv_sge> pieces_;  // of vectors
  VectorChoice vector_choice_;
  OperationQueue queue_;
  connect::PeerWatch watch_;
  connect::SilenceCheck silence_;
  uint64_t answered_ = 0;  // changes whenever the back-end's device was heard of
  mutable RemoteStatistics statistics_;
  Status status_;
  Status refusal_;
  std::optional<connect::Endpoint> endpoint_;
};

}  // namespace verbena::remote
