// A sender: a lane to each receiver. Control path: sender.cc; data path: sender_datapath.cc.
//
//   taken -> in the lane's open batch -> written -> announced
//
// Space in the receiver's ring is reserved when a record is taken, so what was taken can always go.
// The sender has the same two rings as the receiver: lengths, and records that are copied, lie in
// them at the places where they will lie there. So their memory is free again when the receiver's
// is, and nothing else has to be remembered.
//
// With kSp, which copies nearly all, batches rather lie at the beginning of the ring of records, as
// far as WRITEs on their way leave it free: there they stay in the cache, in which they are written
// and read again.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shuffle/layout.h"
#include "shuffle/peer_check.h"
#include "shuffle/peer_messages.h"
#include "verbena/apps/shuffle.h"
#include "verbena/clock.h"

namespace verbena::shuffle_app {

// Memory in pages of its own, zeroed.
class OwnPages {
 public:
  static Result<OwnPages> allocate(uint64_t size_bytes);
  char* data() const { return data_.get(); }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> data_;
  uint64_t size_bytes_ = 0;
};

// Operations on a region for each that asks for a completion, unless fewer may be on their way.
inline constexpr uint32_t kSignalInterval = 4;

class Sender final : public ShuffleSender {
 public:
  static Result<std::unique_ptr<ShuffleSender>> open(const Device& device,
                                                     const ProtectionDomain& domain,
                                                     std::vector<ControlConnection> receivers,
                                                     const ShuffleSenderOptions& options);
  ~Sender() override;

  PostResult send_part(uint32_t partition, std::string_view part, bool more) override;
  PostResult send_part(uint32_t partition, const LocalSlice& part, bool more) override;
  Status put(uint32_t partition, std::string_view record) override;
  Status put(uint32_t partition, const LocalSlice& record) override;
  Status put_each(std::span<const uint32_t> partitions, std::string_view records) override;
  uint32_t poll() override;
  bool flush() override;
  uint64_t completed() const override;
  uint64_t taken() const override { return taken_; }
  Status finish() override;

  const Status& status() const override { return status_; }
  const Status& error() const override { return status_.ok() ? refusal_ : status_; }
  const ShuffleSenderOptions& options() const override { return options_; }
  ShuffleMethod method() const override { return method_; }
  const std::string& why() const override { return why_; }
  uint32_t partitions() const override { return static_cast<uint32_t>(lanes_.size()); }
  uint32_t whole_record_bytes(uint32_t partition) const override {
    return lanes_[partition].shape.whole_bytes();
  }
  uint64_t max_record_bytes(uint32_t partition) const override {
    return lanes_[partition].shape.max_record_bytes;
  }
  ShuffleCount sent(uint32_t partition) const override;
  ShuffleCount sent() const override;
  const ShuffleSenderStatistics& statistics() const override { return statistics_; }

  // Ends the connections without a word, as a crash does.
  void die_for_test() {
    for (Lane& lane : lanes_) {
      if (lane.control != nullptr) lane.control->hang_up();
    }
  }

 private:
  // What an operation on a region was posted for: its token.
  enum Step : uint64_t { kWrite, kAnnounce, kCredit, kSum };

  // Records that go by one WRITE: they lie one behind the other in the ring. What a record changes
  // is as little as can be: its stores wait in the CPU behind those of the copies.
  struct Batch {
    uint64_t offset = 0;     // in the receiver's ring
    uint64_t staged_at = 0;  // in the own one, what of it is copied
    uint64_t bytes = 0;
    uint64_t most_bytes = 0;  // for which there is space without a gap
    uint32_t records = 0;
    uint32_t most_records = 0;
    uint32_t pieces = 0;          // 0: all of it was copied
    uint32_t parts = 0;           // records that are not complete
    uint32_t* lengths = nullptr;  // of its records, if they have some
    uint64_t first = 0;           // of all that the sender has taken

    bool takes(uint64_t record_bytes) const {
      return records < most_records && record_bytes <= most_bytes - bytes;
    }
    bool is_full() const { return records == most_records || bytes == most_bytes; }
  };

  // A WRITE of records on its way.
  struct Flight {
    uint64_t first = 0;  // record
    uint64_t staged_at = 0;
  };

  // A part of the own ring of records.
  struct Place {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  struct Lane {
    // Of each record:
    Batch batch;
    std::vector<LocalSlice> pieces;
    char* records = nullptr;  // as in the receiver's region
    // Complete records of so many bytes can be sent now.
    uint64_t least_bytes = 0;
    uint64_t most_bytes = 0;
    bool in_part = false;  // of a record that was begun
    bool has_checksum = false;

    // Of each batch:
    StreamEnd reserved;  // where it begins
    Released released;   // as far as it is known
    bool asks_for_credit = false;
    uint64_t asked_at = 0;  // where `reserved` was then
    uint64_t written_entries = 0;
    uint64_t announced_entries = 0;
    uint64_t announced_position = 0;  // where `reserved` was then
    uint64_t staged_end = 0;          // of the last batch that was posted
    uint32_t silent_writes = 0;       // since the last announcement
    std::vector<Flight> in_flight;
    uint64_t in_flight_head = 0;
    uint64_t in_flight_tail = 0;
    ShuffleCount sent;        // of batches that are written, but the checksum
    uint64_t part_bytes = 0;  // of the record in parts that was begun
    bool ended = false;       // its sums are posted
    bool has_left = false;    // after that: it has all

    std::unique_ptr<ControlConnection> control;
    std::string name;
    LaneShape shape;
    LaneLayout layout;
    OwnPages pages;
    std::optional<MemoryRegion> memory;
    uint32_t* lengths = nullptr;
    uint64_t lengths_at = 0;               // in `memory`; the records are at 0
    std::unique_ptr<RemoteRegion> region;  // before the memory and the connection
  };

  explicit Sender(const ShuffleSenderOptions& options) : options_(options) {}
  Status prepare(const Device& device, const ProtectionDomain& domain,
                 std::vector<ControlConnection> receivers);
  Status open_lane(const Device& device, const ProtectionDomain& domain, uint32_t number);
  Status make_memory(const ProtectionDomain& domain, Lane& lane) const;
  Status choose_method(const DeviceInfo& device, uint32_t record_bytes);

  // --- data path ---

  // A record, or a part of one.
  struct Source {
    const char* data = nullptr;
    uint64_t bytes = 0;
    const MemoryRegion* memory = nullptr;  // null: not registered
    uint64_t offset_bytes = 0;             // there
  };
  static Source source_of(std::string_view record);
  static Source source_of(const LocalSlice& record);

  // Takes a record that its lane's open batch has room for. False: it was not looked into why not.
  template <typename Record>
  [[gnu::always_inline]] inline bool take_at_once(uint32_t partition, const Record& record);
  // Takes the first of the records as long as their lanes' open batches have room, by copying; how
  // many. kBytes: of each, if it is known when this is compiled.
  template <uint32_t kBytes>
  size_t take_each(std::span<const uint32_t> partitions, const char* records, uint32_t bytes);
  template <typename Part>
  PostResult take(uint32_t partition, const Part& part, bool more);
  template <typename Record>
  Status put_record(uint32_t partition, const Record& record);
  // The lane, if the part may be sent there; else null, and refusal_ says why not.
  Lane* check(uint32_t partition, uint64_t bytes, bool more);
  // The same of a record that may go in parts.
  Lane* check_whole(uint32_t partition, uint64_t bytes);
  bool has_credit(const Lane& lane, uint64_t bytes) const;
  // Posts the open batch, and opens one that has room for so many bytes. False: no room, or
  // status_.
  bool begin_batch(Lane& lane, uint64_t bytes);
  // Where a batch of kSp can be copied, up to so many bytes; none while all is on its way.
  Place place_for(const Lane& lane, uint64_t most_bytes) const;
  [[gnu::always_inline]] inline void append(Lane& lane, const Source& source, bool more);
  [[gnu::always_inline]] inline static void append_piece(Lane& lane, const MemoryRegion* memory,
                                                         uint64_t offset_bytes,
                                                         uint32_t size_bytes);
  // Whether a batch can be posted, with all that may follow it.
  bool can_post(const Lane& lane) const;
  // Posts the open batch. False: no room, or status_.
  bool post_batch(Lane& lane);
  bool post_records(Lane& lane);
  // Tells the receiver of all that was written. Needs can_post().
  bool announce(Lane& lane);
  bool post_lengths(Lane& lane, uint64_t entries, uint64_t end);
  // Posts the open batch, and tells of it.
  bool push(Lane& lane);
  bool push_and_wait(Lane& lane);
  // False: no room, or status_.
  bool ask_for_credit(Lane& lane);
  void take_credit(Lane& lane, const RemoteCompletion& completion);
  // Takes completions, and waits for one if it is to. Returns how many.
  uint32_t collect(Lane& lane, bool waits = false);
  bool end_lane(Lane& lane);
  // Of an operation for which there is room. False: status_.
  bool posted(Lane& lane, PostResult result);

  // --- rare ---

  Lane* refuse_partition(uint32_t partition);
  Lane* refuse_size(uint32_t partition, uint64_t bytes, bool more);
  void refuse_slice(uint32_t partition, uint64_t bytes);
  Status refuse_array(size_t count, uint64_t bytes);
  void refuse_credit(Lane& lane, const Released& released);
  Status refuse_end(uint32_t partition);
  void check_receivers();
  // The region does not work any more.
  void lost(Lane& lane);
  void lost(Lane& lane, const PeerState& state, const std::string& cause);
  // The first failure is the one to tell; `root` is told to all receivers.
  void fail(const Status& status, const std::string& root);
  void end_connections(const Goodbye& goodbye);

  const ShuffleSenderOptions options_;
  ShuffleMethod method_ = ShuffleMethod::kBasic;
  std::string why_;
  uint32_t batch_records_ = 1;
  std::vector<Lane> lanes_;
  uint32_t open_lanes_ = 0;  // all of them while status_ is ok and finish() has not returned
  uint64_t taken_ = 0;
  bool finished_ = false;
  ShuffleSenderStatistics statistics_;
  Status status_;
  Status refusal_;
  PeerCheck check_;
  PollingBackoff backoff_;
};

}  // namespace verbena::shuffle_app
