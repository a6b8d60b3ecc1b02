// The operations of one front-end, as the closed loop (closed_loop.h) posts and polls them: which
// they are, and whether they did what they should.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/hashtable/hashtable_settings.h"
#include "src/bench/hashtable/key_numbers.h"
#include "src/bench/hashtable/keys.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/node_job.h"
#include "src/bench/run/socket_parts.h"
#include "verbena/apps/hashtable.h"
#include "verbena/connection.h"
#include "verbena/remote.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

class HashtableRequests {
 public:
  // `number` is the front-end's in job.wiring().
  HashtableRequests(NodeJob& job, uint32_t number);

  // Opens the table of each back-end.
  Status connect();

  // --- a phase: begin(), the loop, end() ---

  void begin(const Phase& phase, bool verify);
  // What the slot's next operation is.
  void draw(uint32_t slot);
  uint32_t kind(uint32_t slot) const { return static_cast<uint32_t>(slots_[slot].kind); }
  // Waits for what is still pending, and publishes what was answered before it was. False: nothing
  // was.
  bool complete();
  // Completes. With `verify`, the timed phase ends with a search for each
  // key that has to be in the table; the front-ends share them.
  Status end(Report& report);

  // --- of the loop ---

  PostResult try_post(uint32_t slot, uint32_t bytes);
  template <typename Take>
  uint32_t poll(Take&& take) {
    uint32_t found = 0;
    for (const Part& part : parts_) {
      if (part.table->pending() == 0 && !buffers_) continue;
      const uint32_t replies = part.table->poll([&](const HashtableReply& reply) {
        const auto slot = static_cast<uint32_t>(reply.token);
        if (answered(slot, reply)) take(slot, std::span<const char>());
      });
      if (replies == 0 && !part.table->status().ok()) [[unlikely]]
        fail(part.table->status());
      found += replies;
    }
    if (!stalled_.empty()) [[unlikely]]
      go_on_with_scans();
    return found;
  }
  uint64_t due_ns() const {
    uint64_t due_ns = UINT64_MAX;
    for (const Part& part : parts_) {
      if (part.table->pending() > 0 || buffers_) due_ns = std::min(due_ns, part.table->due_ns());
    }
    return due_ns;
  }
  char* request_buffer(uint32_t /*slot*/) { return nullptr; }
  bool wait(int64_t /*timeout_ns*/) { return false; }
  const Status& status() const { return status_; }
  MarkLayout mark_layout() const { return MarkLayout::kLastBit; }

 private:
  static constexpr size_t kOwnFloors = 4096;

  struct Part {
    ReachedPart reached{};
    std::unique_ptr<Hashtable> table{};
  };
  struct Slot {
    HashtableKind kind = HashtableKind::kSearch;
    bool updates = false;  // of a read-modify-write: it was read
    uint64_t key = 0;
    uint64_t version = 0;        // of an update that is pending
    uint64_t floor = 0;          // of it: this front-end's before that were answered
    uint64_t least_version = 0;  // of a search: this front-end's own are not older
    // Of a scan: its keys, of which the first ones are posted, and answers that are missing.
    uint32_t scanned = 0;
    uint32_t posted = 0;
    uint32_t unanswered = 0;
  };
  struct Counts {
    uint64_t rereads = 0;
    uint64_t lost_races = 0;
    uint64_t work_requests = 0;
    uint64_t hot_hits = 0;
    uint64_t hot_modifications = 0;
    uint64_t hot_flushes = 0;
    uint64_t hot_kept = 0;
  };

  // True: the operation is over.
  bool answered(uint32_t slot, const HashtableReply& reply);
  bool scan_answered(Slot& slot, const HashtableReply& reply);
  void check(const Slot& slot, uint64_t key, const HashtableReply& reply);
  PostResult begin_scan(uint32_t slot);
  // False: the table has no room for the rest now.
  bool post_scan(uint32_t slot);
  void go_on_with_scans();
  PostResult post_update(uint32_t slot);
  std::span<const char> next_value(uint64_t key);
  uint64_t pending_floor() const;
  uint64_t own_floor(uint64_t key) const;
  Counts counts() const;
  uint32_t pending() const;
  void drain();
  void search_all();
  void fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  Hashtable& table_of(uint64_t key) { return *parts_[key % parts_.size()].table; }

  NodeJob& job_;
  const uint32_t number_;
  const Point& point_;
  const HashtableSettings& settings_;
  const uint32_t reads_percent_;
  const HashtableKind changing_kind_;
  KeyNumbers keys_;
  KeyText text_;
  Random random_;
  std::vector<char> value_;
  uint64_t version_;
  const HashtableKind reading_kind_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> stalled_;  // scans that wait for room
  std::vector<Part> parts_;        // by their numbers
  const bool buffers_;
  // Of keys that this front-end has updated: the last one of those with the same place here.
  struct OwnFloor {
    uint64_t key = UINT64_MAX;
    uint64_t version = 0;
  };
  std::vector<OwnFloor> own_floors_ = std::vector<OwnFloor>(kOwnFloors);
  Phase phase_;
  bool verify_ = false;
  uint64_t done_ = 0;
  uint64_t mismatches_ = 0;
  Counts before_;
  Status status_;
};

}  // namespace verbena::bench
