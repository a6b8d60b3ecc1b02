// A reader. Each step waits for its answer: what is read at once makes it fast.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "log/layout.h"
#include "log/pages.h"
#include "log/replicas.h"
#include "verbena/apps/log.h"

namespace verbena::log_app {

class Reader final : public LogReader {
 public:
  static Result<std::unique_ptr<LogReader>> open(const Device& device,
                                                 const ProtectionDomain& domain,
                                                 std::span<ControlConnection* const> controls,
                                                 const LogReaderOptions& options);

  Result<std::span<const LogRecord>> next() override;
  LogPosition position() const override { return position_of(place_, first_record_); }
  Status seek(LogStart start, LogPosition position) override;
  Status skip_damaged() override;
  Status trim() override;
  const LogReaderStatistics& statistics() const override { return statistics_; }

 private:
  struct Entry {
    uint64_t place;
    uint32_t places;
  };
  enum class Decision { kCommitted, kSkipped, kPartlySkipped, kOpen };

  Reader(const ProtectionDomain& domain, const LogReaderOptions& options)
      : domain_(domain), options_(options) {}
  Status prepare(const Device& device, std::span<ControlConnection* const> controls);

  // Tells the replicas that do not know the tail where this reader begins.
  Status note_start(uint64_t place) const;
  // Raises a word that others may raise, too.
  static Status raise(const Replica& replica, uint64_t word_at, uint64_t to);
  Status read_tail();
  // The words from place_ on, of all replicas.
  Status read_words();
  // Which entries of these come next: as many as a chunk takes. Seals what has to be. `*end` is
  // behind the last place that is decided.
  Status find_entries(uint64_t* end);
  Decision decide(uint64_t place) const;
  uint64_t& word(size_t replica, uint64_t place) const;
  // Of the entry that is committed there.
  Result<uint32_t> entry_places(uint64_t place);
  bool lease_is_over(uint64_t place);
  // Tries to have it skipped on all replicas; false if the place is not free there yet.
  Result<bool> seal(uint64_t place);
  Status read_places(const Replica& replica, uint64_t place, uint64_t places, uint64_t to_bytes);
  static Status check_not_trimmed(uint64_t trim, uint64_t place, LogPosition position);
  Status check_not_trimmed(const Control& control) const;
  // Adds its records. False: it is damaged.
  bool take_entry(const Entry& entry);
  Result<bool> take_entry_from_other_replica(const Entry& entry);
  // Room for so many bytes of entries.
  Status make_room(uint64_t bytes);
  char* places_in_chunk(uint64_t place) const;

  const ProtectionDomain& domain_;
  const LogReaderOptions options_;
  Layout layout_;
  std::vector<Replica> replicas_;
  size_t source_ = 0;  // the replica that entries are read from
  // Registered: the words of each replica, then the places.
  Pages buffer_;
  std::optional<MemoryRegion> memory_;
  uint64_t most_words_ = 0;
  uint64_t chunk_at_ = 0;

  uint64_t place_ = 0;         // where the next entry is
  uint32_t first_record_ = 0;  // the first of that which is wanted
  uint64_t tail_ = 0;          // of the log, when it was read last
  uint64_t words_end_ = 0;     // behind the words that were read
  bool waits_ = false;         // for the place to be decided
  // Everything before this place is known to be reserved since then.
  uint64_t watched_tail_ = 0;
  uint64_t watched_since_ns_ = 0;
  uint32_t damaged_places_ = 0;
  std::vector<Entry> entries_;
  std::vector<LogRecord> records_;
  LogReaderStatistics statistics_;
};

}  // namespace verbena::log_app
