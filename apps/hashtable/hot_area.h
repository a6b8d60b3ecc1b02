// The hot area as a front-end sees it: the blocks that it has read, and what it does with them.
// hot_block.h says why it is right.
//
// Operations on a block gather until it is worth to begin. A round of a block is a batch of them:
//
//   the block is known      modify it here, WRITE a copy, CAS of the pointer       one round trip
//   it is not               READ of pointer and lock, READ of the copy, then the same
//   nothing is modified     READ of the pointer; if it is the known one, that is all
//
// A round that another front-end came before begins again, with the block's lock: READs of the lock
// until it is free, CAS of the lock, READ of pointer and lock, READ of the copy, then WRITE, CAS of
// the pointer, WRITE of the lock. From then on rounds of the block begin with a READ of pointer and
// lock, and wait for the lock if it is held, until one has found the block as the front-end itself
// had left it: an RNIC does many more READs than atomics. Data path: hot_area_datapath.cc.
//
// With HashtableAcknowledgement::kBuffered a front-end answers updates before that: it keeps them
// (hot_buffer.h), and a round of the block lets them modify it first (hot_area_buffer_datapath.cc).
// Until they are published it gives them to its own searches, and its other modifications of the
// same key wait, so that its operations on a key happen in its own order.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "hashtable/hot_block.h"
#include "hashtable/hot_buffer.h"
#include "hashtable/hot_sketch.h"
#include "hashtable/layout.h"
#include "hashtable/operation.h"
#include "hashtable/spare_nodes.h"
#include "verbena/apps/hashtable.h"
#include "verbena/remote.h"

namespace verbena::hashtable {

class HotArea {
 public:
  // Tokens of the region's operations: those of the pool of copies, and of blocks.
  static constexpr uint64_t kPoolToken = ~uint64_t{0} - 2;
  static constexpr bool is_block_token(uint64_t token) { return token >> 62 == 1; }
  // The region's operations that a round may have on its way: the lock's CAS of the round before,
  // WRITE and two CAS.
  static constexpr uint32_t kOperationsOfOne = 4;
  // With kBuffered: rounds without an operation, and operations for strays, on their way at once.
  static constexpr uint32_t kWriteBacks = 16;

  HotArea(RemoteRegion& region, const Layout& layout, const HashtableOptions& options,
          std::vector<Operation>& operations);

  // Where an operation should go, as far as is known: to its block, because its key lies there, or
  // is to be promised a place there; or to the cold area, maybe with a place to forward to.
  // Where the block is full for long, *victim is the number of an entry to be given back, else
  // kNone. Counts the updates of keys that are not hot.
  enum class Route : uint8_t { kCold, kBlock };
  Route route(Operation& operation, uint32_t* victim);
  void expect_hot(uint64_t hash) { sketch_.raise(hash, options_.hot_after); }

  // --- updates that are answered before they are published ---

  bool buffers() const { return buffer_.has_value(); }
  // Keeps an update, if that is possible: its key lies in the hot area, as far as is known.
  bool keep(uint64_t hash, std::string_view key, std::string_view value);
  // The newest value that is kept of a key; valid until the next call. False: none is, or it may be
  // published: another front-end may have replaced it since, so the operation has to wait (hold()).
  bool find_kept(uint64_t hash, std::string_view key, std::string_view* value) const;
  // Takes an operation on a key of which an update is kept; pop() gives it back when that is
  // published. False: none is kept.
  bool hold(Operation& operation);
  // Whether operations that wait for an update end (kStuck) once it is known that it finds no room,
  // rather than wait until there is some.
  void give_up_stuck(bool gives_up) { gives_up_stuck_ = gives_up; }
  // Begins to write all blocks with such updates, each once: to be over when it is no longer
  // is_writing_back(). end_write_back() says whether a stray found no room.
  void write_back();
  bool is_writing_back() const { return buffer_->is_writing(); }
  bool end_write_back();
  bool has_kept() const { return buffers() && !buffer_->is_empty(); }
  uint64_t kept_since_ns() const { return buffers() ? buffer_->oldest_ns() : UINT64_MAX; }
  // Makes `operation` one for the cold area that carries a stray, which ends with end_stray().
  // False: there is none, or too many are on their way.
  bool take_stray(Operation& operation);
  void end_stray(const Operation& operation, bool placed);
  // Begins to write blocks that waited for others.
  void begin_wanted();

  // Takes an operation; pop() gives it back. `urgent`: it does not wait for others.
  void enqueue(Operation& operation, bool urgent);
  // Begins with blocks that gather, the longest time first, until no more than so many operations
  // wait there.
  void hurry(uint32_t operations) {
    while (gathered_ > operations) begin(first_gathering_);
  }
  // Looks after what is due.
  void poll();
  // Takes a completion with kPoolToken, or with a block's.
  void handle(const RemoteCompletion& done);
  // An operation with its verdict: kNotHere, to be looked for in the cold area, or kAnswered. Null:
  // there is none now. Its result is valid until the next call of these.
  Operation* pop();

  // Whether time alone carries something on.
  bool waits_for_time() const { return first_gathering_ != kNone || !backing_off_.empty(); }
  // When it does; UINT64_MAX: never.
  uint64_t due_ns() const;
  // The block of a key, as far as is known.
  HotBlock block_of(uint64_t hash) const { return content(layout_.block_of(hash)); }

  enum class Failure : uint8_t { kNone, kRefused, kDamaged };
  Failure failure() const { return failure_; }
  uint64_t damaged_offset_bytes() const { return damaged_offset_bytes_; }

  // Gives spare copies back. Nothing may be pending. False: all are back.
  bool begin_spill();
  bool is_busy() const { return pool_.is_busy(); }

  // Sets those that are counted here.
  void add_to(HashtableStatistics* statistics) const;

 private:
  static constexpr uint32_t kNone = Operation::kNone;

  enum class Step : uint8_t {
    kIdle,
    kGathering,
    kBusy,  // waits for a completion
    kBackingOff,
    kWaitingForCopy,
    kAnswering
  };
  // The region's operations of a block, as tokens tell them.
  enum class Part : uint8_t { kLine, kCopy, kLock, kPointer };

  struct Block {
    NodePointer pointer;     // of the copy that `content` is, or comes from
    NodePointer next;        // of the one that is published
    OperationQueue waiting;  // for the next round
    OperationQueue batch;    // of this round
    OperationQueue held;     // until no update of their keys is kept
    uint32_t waiting_operations = 0;
    uint32_t waiting_modifications = 0;
    uint32_t batch_modifications = 0;
    uint32_t modifications = 0;  // that are published
    uint32_t misreads = 0;
    uint32_t refused_promotions = 0;
    uint32_t backoff_ns = 0;
    uint64_t due_ns = 0;
    // The lock as it was last seen, since when it has been that, and what a CAS expects.
    uint64_t lock_word = 0;
    uint64_t lock_seen_ns = 0;
    uint64_t lock_expected = 0;
    uint64_t locked_since_ns = 0;
    uint32_t before = kNone;  // of those that gather
    uint32_t behind = kNone;
    Step step = Step::kIdle;
    bool known = false;      // `content` is that of `pointer`, and is not being modified
    bool validated = false;  // `pointer` was read in this round
    bool contended = false;  // others modify it, too
    bool urgent = false;     // one of those that wait does not wait for others
    bool asked_for_copy = false;
    bool locking = false;  // on its way to the lock
    bool locked = false;
    bool writes_back = false;    // what was kept before this round
    bool is_write_back = false;  // the round began without an operation
    bool has_strays = false;     // it is one of with_strays_
  };
  struct Line {
    uint64_t pointer;
    uint64_t lock;
  };

  uint32_t number_of(const Operation& operation) const {
    return static_cast<uint32_t>(&operation - operations_->data());
  }
  char* copy_of(uint32_t b) { return &contents_[uint64_t{b} * copy_bytes_]; }
  const char* copy_of(uint32_t b) const { return &contents_[uint64_t{b} * copy_bytes_]; }
  HotBlock content(uint32_t b) { return {copy_of(b) + sizeof(NodeHeader), shape_}; }
  // Of a block that is not modified.
  HotBlock content(uint32_t b) const {
    return {const_cast<char*>(copy_of(b)) + sizeof(NodeHeader), shape_};
  }
  uint32_t find(uint32_t b, uint32_t tag, std::string_view key) const;
  uint32_t find(uint32_t b, const Operation& operation) const {
    return find(b, HotEntry::tag_of(operation.hash), operation.key());
  }
  void note_tags(uint32_t b);

  void gather(uint32_t b);
  void stop_gathering(uint32_t b);
  // Begins a round with operations that wait, or lets them gather.
  void begin_or_gather(uint32_t b);
  void begin(uint32_t b);
  void poll_kept();
  void want_write_back(uint32_t b);
  void begin_write_back(uint32_t b);
  uint64_t kept_due_ns() const;
  uint32_t merge_kept(uint32_t b);
  void release_held(Block& block);
  bool has_answered(uint32_t b) const;
  void end_round(uint32_t b);
  bool has_room_for_next(uint32_t b) const;
  void take_next(uint32_t b);
  void take_late_updates(uint32_t b);
  void go_on(uint32_t b);
  bool has_modifier(uint32_t b) const;
  void evaluate(uint32_t b);
  // Lets the batch modify the content, and gives it its verdicts. `next`: of the copy that would be
  // published; null: there is no room. Returns how many have modified it.
  uint32_t apply(uint32_t b, NodePointer next);
  bool modify(uint32_t b, Operation& operation, uint64_t new_place);
  bool add_promise(uint32_t b, Operation& operation, uint64_t new_place);
  static bool modify_promised(HotBlock& block, uint32_t number, Operation& operation);
  void look_up(uint32_t b, Operation& operation);
  void publish(uint32_t b, NodePointer next);
  void take_publication(uint32_t b, NodePointer before);
  void lock(uint32_t b);
  bool is_lock_held(const Block& block) const;
  void take_lock(Block& block, uint64_t before);
  void unlock(uint32_t b);
  void see_lock(Block& block, uint64_t word) const;
  void back_off(uint32_t b);
  void read_line(uint32_t b);
  void take_line(uint32_t b, const Line& line);
  void take_copy(uint32_t b, const RemoteCompletion& done);
  void answer(uint32_t b);
  void resume_waiting();
  void keep_pool_filled();
  void damaged(uint32_t b);

  uint64_t token(uint32_t b, Part part) const {
    return uint64_t{1} << 62 | uint64_t{b} << 2 | static_cast<uint64_t>(part);
  }
  void expect(PostResult posted) {
    if (posted != PostResult::kPosted) failure_ = Failure::kRefused;
  }

  RemoteRegion* region_;
  const Layout layout_;
  const NodeSpace space_;
  const HashtableOptions options_;
  const HotBlock::Shape shape_;
  const uint64_t copy_bytes_;
  std::vector<Operation>* operations_;
  SpareNodes pool_;
  HotSketch sketch_;
  std::vector<Block> blocks_;
  std::vector<char> contents_;        // a copy of each block
  std::vector<uint32_t> tags_;        // of their entries
  uint32_t first_gathering_ = kNone;  // blocks, the one that is due first in front
  uint32_t last_gathering_ = kNone;
  uint32_t gathered_ = 0;  // operations that wait there
  std::vector<uint32_t> backing_off_;
  std::vector<uint32_t> waiting_;  // blocks, for spare copies
  std::vector<uint32_t> due_;      // blocks, while they go on
  std::vector<uint32_t> answering_;
  size_t answered_ = 0;  // of answering_
  uint32_t publishing_ = 0;
  std::optional<HotBuffer> buffer_;    // with kBuffered
  OperationQueue released_;            // operations that were held
  std::vector<uint32_t> with_strays_;  // blocks
  uint32_t write_backs_ = 0;           // on their way
  bool late_ = false;  // what was kept is older than it should be, so nothing more is
  bool writes_all_back_ = false;
  bool stuck_ = false;  // a stray found no room, since write_back()
  bool gives_up_stuck_ = false;
  uint64_t random_ = 0;
  bool closing_ = false;
  Failure failure_ = Failure::kNone;
  uint64_t damaged_offset_bytes_ = 0;
  HashtableStatistics statistics_;
};

}  // namespace verbena::hashtable
