// A writer: batches on their way, in the order in which they were posted. Control path: writer.cc;
// data path: writer_datapath.cc.
//
//   posted -> (floors are published) -> reserve -> write and commit on all replicas -> done
//
// Where one of them has it skipped, the others are made to skip it before it is done: else it would
// be in the log again if that one was lost.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "log/layout.h"
#include "log/pages.h"
#include "log/replicas.h"
#include "verbena/apps/log.h"
#include "verbena/remote_sequencer.h"

namespace verbena::log_app {

class Writer final : public LogWriter {
 public:
  static Result<std::unique_ptr<LogWriter>> open(const Device& device,
                                                 const ProtectionDomain& domain,
                                                 std::span<ControlConnection* const> controls,
                                                 const LogWriterOptions& options);

  using LogWriter::append;
  Result<LogPosition> append(std::span<const LocalSlice> records) override;
  Result<LogPosition> append(std::span<const std::string_view> records) override;
  PostResult post_append(std::span<const LocalSlice> records, uint64_t token) override;
  PostResult post_append(std::span<const std::string_view> records, uint64_t token) override;
  uint32_t collect() override;
  LogCompletion take() override;
  void rest() override;
  uint32_t outstanding() const override { return static_cast<uint32_t>(tail_ - head_); }

  const Status& status() const override { return status_; }
  const Status& error() const override { return status_.ok() ? refusal_ : status_; }
  const LogWriterOptions& options() const override { return options_; }
  const LogWriterStatistics& statistics() const override { return statistics_; }

 private:
  // What an operation on a region was posted for; the token has it and the batch's number.
  enum class Step : uint8_t { kReserve, kWrite, kCommit, kTakeBack, kAnnounce, kFloor };
  static constexpr uint32_t kStepBits = 3;

  struct Batch {
    LogCompletion completion;
    uint64_t place = 0;
    uint32_t bytes = 0;  // of the entry
    uint32_t places = 0;
    uint32_t pieces = 0;
    uint32_t commits_left = 0;  // replicas that have not answered
    bool reserved = false;      // its place is known
    bool done = false;
  };

  explicit Writer(const LogWriterOptions& options) : options_(options) {}
  Status prepare(const Device& device, const ProtectionDomain& domain,
                 std::span<ControlConnection* const> controls);
  uint32_t most_entry_bytes() const {
    return headers_bytes(options_.max_batch) + options_.max_batch_bytes;
  }

  // --- data path ---

  static uint64_t token(uint64_t number, Step step) {
    return number << kStepBits | static_cast<uint64_t>(step);
  }
  Batch& batch(uint64_t number) { return batches_[number % batches_.size()]; }
  char* staging(uint64_t number) const {
    return staging_.data() + number % batches_.size() * staging_stride_bytes_;
  }
  // The gather list of a batch.
  LocalSlice* pieces(uint64_t number) {
    return pieces_.data() + number % batches_.size() * (options_.max_batch + 1);
  }
  // What a commit is expected to find on a replica, and then what is there.
  uint64_t& expected(uint64_t number, size_t replica) {
    return expected_[number % batches_.size() * replicas_.size() + replica];
  }

  template <typename Record>
  Result<LogPosition> append_and_wait(std::span<const Record> records);
  template <typename Record>
  PostResult post(std::span<const Record> records, uint64_t token);
  // Whether a batch may be posted; else why not, in refusal_ where it is kFailed.
  PostResult check(uint64_t records, uint64_t bytes);
  bool has_space(uint32_t places) const { return known_tail_ + unreserved_ + places <= limit_; }
  // Reads tail and limits. False: status_.
  bool refresh();
  // Whether the log's tail can be there. False: status_.
  bool check_tail(uint64_t tail);
  void begin(uint64_t number);
  void announce();
  void reserve_next();
  void reserved(uint64_t number, uint64_t place);
  void write(uint64_t number);
  bool write_pieces(RemoteRegion& region, uint64_t offset_bytes, std::span<const LocalSlice> pieces,
                    uint64_t token);
  bool write_entry(RemoteRegion& region, uint64_t number);
  void committed(size_t replica, uint64_t number, uint64_t before);
  void take_back(uint64_t number);
  void taken_back(Batch& batch);
  void finish(Batch& batch, LogOutcome outcome);
  void completed(size_t replica, const RemoteCompletion& completion);
  // Takes what the regions have completed, and posts what follows.
  void advance();
  void publish_floor(uint64_t floor_word);
  void raise_floor();
  // What a region must have room for. False: status_.
  bool posted(PostResult result, const RemoteRegion& region);

  // --- rare ---

  void refuse_batch(uint64_t records, uint64_t bytes);
  void refuse_slice(const LocalSlice& slice);
  void refuse_full(uint32_t places);
  Status no_success(LogOutcome outcome) const;
  void fail(const Status& status);
  void fail_damaged(const char* what, uint64_t place);

  const LogWriterOptions options_;
  Layout layout_;
  Pages staging_;
  std::optional<MemoryRegion> staging_memory_;
  uint64_t staging_stride_bytes_ = 0;
  std::vector<Replica> replicas_;
  std::optional<RemoteSequencer> sequencer_;

  // Numbers of batches so far: taken, done, with a posted reservation, posted.
  uint64_t head_ = 0;
  uint64_t done_ = 0;
  uint64_t reserving_ = 0;
  uint64_t tail_ = 0;
  std::vector<Batch> batches_;
  std::vector<LocalSlice> pieces_;
  std::vector<LocalSlice> cut_;  // of an entry that goes on at the ring's beginning
  std::vector<uint64_t> expected_;

  uint64_t known_tail_ = 0;  // the log's is this or more
  uint64_t limit_ = 0;       // the smallest of the replicas'
  uint64_t unreserved_ = 0;  // places of batches whose reservation is not known yet
  uint64_t own_end_ = 0;     // of the last reservation that is known
  uint64_t floor_word_ = kNoFloor;
  uint32_t announcing_ = 0;  // replicas that do not have the floor yet

  LogWriterStatistics statistics_;
  Status status_;
  Status refusal_;
};

}  // namespace verbena::log_app
