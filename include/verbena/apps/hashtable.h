// A hashtable in remote memory: front-ends insert, search, update and remove entries in the memory
// of a back-end, by one-sided verbs only ("memsem" IV-B). The back-end formats a region, and runs
// no code when it is used.
//
//   constexpr HashtableFormat kFormat = {.entries = 1 << 20, .max_value_bytes = 64};
//
//   // The back-end:
//   auto region = expose_region(device, domain, {.size_bytes = *hashtable_bytes(kFormat)});
//   format_hashtable({(*region)->data(), (*region)->size_bytes()}, kFormat);
//   (*region)->accept(*control);                              // once per front-end
//
//   // A front-end:
//   auto region = open_region(device, domain, *control, hashtable_region_options(kFormat));
//   auto table = Hashtable::open(**region);
//   (*table)->update("Ada", "1815");
//   HashtableReply reply = (*table)->search("Ada");           // reply.value: "1815"
//
// Each call takes two or three round trips. To have many on their way, post them and poll:
//
//   if ((*table)->post_search(key, token) == PostResult::kPosted) ...
//   (*table)->poll([&](const HashtableReply& reply) { ... reply.token, reply.value ... });
//
// Any number of front-ends, in threads, processes and hosts, use a table at once, each with a
// region of its own. What they promise each other:
// - Operations on a key are linearizable: each happens at one moment between its call (or post) and
//   its reply, for all front-ends alike. Operations of one front-end that are pending together have
//   no order among each other, also on the same key. Those that modify the same key do not race
//   each other: they take turns, and several updates are published as one.
// - A front-end that dies, at whatever instruction, blocks nobody, and an operation that was
//   answered is not undone. One that was not answered has happened as a whole or not at all. Its
//   spare entries, at most some 160 (HashtableFormat::max_front_ends), and as many spare blocks of
//   the hot area, are lost to the table until reclaim_hashtable().
// - A value is never torn: what was overwritten while it was read is detected, and read again.
// - What a table contains never depends on a lock or a lease, so a front-end may be stopped and go
//   on at any time.
//
// The hot area ("memsem" IV-B), off unless HashtableFormat::hot_blocks is set, is for keys that are
// updated often. A hot key lies in a block with others. A front-end keeps the blocks it has seen,
// gathers operations on a block until there are theta modifications or the lease ends, and writes
// the block once for all of them. With 32 operations pending this takes a fraction of the work
// requests; with one at a time, one or two round trips instead of three.
// - All promises above hold for hot keys, too. An operation is answered when its block was
//   published, not when it was gathered: a front-end that dies loses nothing that was answered, and
//   what it has gathered is seen by nobody. So the lease bounds how much later an answer comes, and
//   not what a crash loses, which is nothing. (HashtableAcknowledgement says how to have it
//   otherwise.)
// - A front-end finds hot keys by itself: it counts updates and insertions of keys outside of the
//   hot area in a sketch that forgets (HashtableOptions::hot_after), and promotes a key with its
//   next update. A block that is full for long gives its least modified key back. Of the memory of
//   a front-end, the sketch takes 8 to 16 B per hot entry (at least 2 KiB), and the blocks all of
//   their size. Per update of a key that is not hot: two counters, and the tags of one block.
// - Each block has a lock (remote_lock.h) for front-ends that meet there. It only spares them work
//   in vain: a holder that dies delays others by its lease, and one that is late is not believed.
//
// The table lives and dies with the back-end's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "verbena/posting.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena {

// What a table has room for; fixed when it is formatted.
struct HashtableFormat {
  // So many entries always fit, 1 to 2^27. Some more do: max_front_ends have 160 spare ones each,
  // which they need for updates.
  uint64_t entries = 1 << 20;
  // Keys have 1 B to this, at most 4 KiB; values 0 B to this, at most 1,000,000 B. Each entry takes
  // 32 B and both, in whole 64 B: with the default 128 B, and 16 to 32 B of the directory.
  uint32_t max_key_bytes = 32;
  uint32_t max_value_bytes = 64;
  // Front-ends at once for which there are spare entries, 1 to 16,384; one with more than 96
  // operations pending counts as two. More of them work, too, but may find no spare block for a
  // modification in the hot area (kFull).
  uint32_t max_front_ends = 16;
  // Of the hash function. One that nobody knows keeps others from choosing keys that collide.
  uint64_t hash_seed = 1;

  // The hot area: this many blocks, to 65,536; 0: none. Which block a hot key lies in follows from
  // its hash.
  uint32_t hot_blocks = 0;
  // 2^t, 2 to 64. An entry of a block takes 32 B and the longest key and value, a block at most
  // 1 MiB; its entries are read and written together. Each block is there once, and 160 times more
  // for each front-end of max_front_ends.
  uint32_t hot_block_entries = 8;
  // How long a front-end that died with a block's lock delays others, 1 us to 10 s.
  uint64_t hot_lock_lease_ns = 1'000'000;
};

// When a front-end answers an update of a hot key.
enum class HashtableAcknowledgement : uint8_t {
  // When its block was published. Nothing that was answered is ever lost.
  kPublished,
  // When the front-end has it, as those of "memsem" IV-B. It keeps the newest value of each key,
  // and writes a block after theta updates of it, or at half of the loss window. Many updates of a
  // block are then one WRITE, also with one pending. All else (other operations, keys that are not
  // hot) is as with kPublished. The price:
  // - A front-end that dies loses the updates that it answered and did not publish: at most those
  //   of the last loss_window_ns. Nothing is lost by flush() or close(). The window holds while
  //   poll() (or any operation, one at a time) is called often enough, and as long as a block is
  //   written in half of it: that takes up to some five round trips, and with a dead front-end's
  //   lock HashtableFormat::hot_lock_lease_ns. Where it is exceeded the front-end answers as with
  //   kPublished until it has caught up. unpublished_since_ns() says what is safe.
  // - An update happens for others when it is published; they see the old value until then. The
  //   front-end's own searches see it before. So all operations on a key still happen one after
  //   the other, for all front-ends alike, those of each front-end in the order in which it called
  //   them (one that was posted after another one's reply comes behind it). Each happens between
  //   its post and its reply, except these updates, and own searches that found them: between
  //   their post and the publication. That is sequential consistency for each key, and
  //   linearizability with the publication as the reply. Updates of different keys may be published
  //   in another order than they were answered in.
  // - A front-end that was stopped publishes what it keeps when it goes on, and these updates
  //   happen then. It overwrites nothing else: a block that others have published meanwhile is read
  //   again, and only the keys that it has updated change.
  // Where it keeps an update of a key, its own insert() and remove() of it wait until that is
  // published, and so does a search() that comes while the update is on its way: it may be replaced
  // by then. If another front-end has removed the key, and the table is full, they wait until there
  // is room; one at a time they are refused (kFull). Takes the memory of the blocks once more.
  kBuffered,
};

// Of one front-end.
struct HashtableOptions {
  // Where the table begins in the region, a multiple of 64: other than 0 where a region has several
  // of them, such as one on each socket (remote_sockets.h).
  uint64_t offset_bytes = 0;

  // Of a table with a hot area:
  // Theta, from 1 on: so many modifications of a block are written at once.
  uint32_t hot_modifications = 16;
  // The longest time for which an operation waits for others on its block before the block is
  // written. It waits less where pending_limit() operations are pending, or a search is for the
  // block; one at a time never waits. 0: only what comes while a block is written is gathered.
  uint64_t hot_lease_ns = 10'000;
  // Updates and insertions of a key, 1 to 255, that make it hot. Counts are halved each time that
  // there were 16 for each entry of the hot area.
  uint32_t hot_after = 8;
  // A block without room gives an entry back after so many promotions that it was full for; from 1.
  uint32_t hot_patience = 64;
  HashtableAcknowledgement acknowledgement = HashtableAcknowledgement::kPublished;
  // With kBuffered: how long an update may be answered and not published; from twice the
  // hot_lock_lease_ns of the table, for which a dead front-end may delay it, to 10 s. So there is
  // no kBuffered where that is above 5 s.
  uint64_t loss_window_ns = 10'000'000;
};

// The size of a region for such a table. kInvalidArgument: a limit is out of range.
Result<uint64_t> hashtable_bytes(const HashtableFormat& format);

// Makes an empty table of `memory`, which is all of an exposed region that no front-end uses yet;
// what was in it is lost. Control path: writes the directory, 8 B for each of the buckets.
//   kInvalidArgument  a limit is out of range, or the memory is not aligned to 8 B
//   kLimitExceeded    the memory is too small: both sizes
Status format_hashtable(std::span<char> memory, const HashtableFormat& format);

struct HashtableEntry {
  std::string_view key;
  std::string_view value;
  // Into the hot area, if there is one and the key's block has room, as the paper's warm-up does.
  bool is_hot = false;
};

// Puts entries into a table that no front-end has used yet, without its connections: what a
// back-end begins with. Calls entry(number) for each number below `count`; what it returns is
// copied before the next call. Control path: one write of each entry, some 100 ns. On failure the
// table has those before the one that failed.
//   kInvalidArgument    a key or value above its limit, an empty key, or one that is there already
//   kLimitExceeded      more entries than the table was formatted for, or too many keys of one hash
//   kProtocolViolation  this is no hashtable, or a damaged one
Status fill_hashtable(std::span<char> memory, uint64_t count,
                      const std::function<HashtableEntry(uint64_t)>& entry);

// Gives the table back what front-ends that died have left. No front-end may be connected
// meanwhile. Control path: reads all entries. Returns how many were found; kProtocolViolation: this
// is no hashtable, or a damaged one, and nothing has changed.
Result<uint64_t> reclaim_hashtable(std::span<char> memory);

// What the region of a front-end needs for `pending` operations at once, 1 to 256; with kBuffered
// also for blocks that are written meanwhile.
RemoteRegionOptions hashtable_region_options(const HashtableFormat& format, uint32_t pending = 1,
                                             const HashtableOptions& of_front_end = {});

enum class HashtableOutcome : uint8_t {
  kDone,
  kNotFound,  // search and remove: there is no such key
  kExists,    // insert: there is, and its value stays
  kFull,      // no entry, or spare block of the hot area, is free, see error(); nothing has changed
  kFailed,    // one at a time only: refused, see error(), or the connection broke, see status()
};

struct HashtableReply {
  uint64_t token = 0;
  HashtableOutcome outcome = HashtableOutcome::kFailed;
  // Of a search that found it; valid until the next call of this front-end.
  std::string_view value;
};

struct HashtableStatistics {
  uint64_t searches = 0;  // that were answered, as the others
  uint64_t inserts = 0;
  uint64_t updates = 0;
  uint64_t removes = 0;
  uint64_t rereads = 0;     // entries that were overwritten while they were read
  uint64_t lost_races = 0;  // publications that another front-end's came before
  // Of the updates: those that a later one of this front-end and key was published in place of.
  uint64_t overwritten_updates = 0;
  uint64_t copied_entries = 0;  // rewritten because they lay before another one in a bucket
  uint64_t refills = 0;         // batches of free entries taken from the table
  uint64_t spills = 0;          // ... given to it
  // The hot area:
  uint64_t hot_hits = 0;           // operations that it answered
  uint64_t hot_modifications = 0;  // of these, the ones that changed a block
  uint64_t hot_flushes = 0;        // blocks written, for one or more of them
  uint64_t hot_kept = 0;        // updates that were answered before they were published (kBuffered)
  uint64_t hot_strays = 0;      // of these, values whose key had left its block meanwhile
  uint64_t hot_loads = 0;       // blocks read
  uint64_t hot_lost_races = 0;  // publications that another front-end's came before
  uint64_t hot_promotions = 0;  // keys that this front-end moved into the hot area
  uint64_t hot_demotions = 0;   // ... out of it
  uint64_t hot_refusals = 0;    // promotions that a full block had no room for
  uint64_t hot_lock_waits = 0;  // attempts that found a block's lock held
  uint64_t hot_lock_takeovers = 0;  // from holders whose lease had ended
};

class Hashtable {
 public:
  // Uses the table that `region` has, which must outlive it; nobody else may post to or poll the
  // region meanwhile. One round trip. As many operations may be pending as the region has room for
  // (hashtable_region_options()).
  //   kInvalidArgument    the region's options are too small for this table, or an option is out of
  //                       range
  //   kPermissionDenied   the region is read only
  //   kProtocolViolation  there is no hashtable in it, or that of another release, or a damaged one
  static Result<std::unique_ptr<Hashtable>> open(RemoteRegion& region,
                                                 const HashtableOptions& options = {});
  // As close(), but nobody learns of a failure.
  virtual ~Hashtable() = default;
  Hashtable(const Hashtable&) = delete;
  Hashtable& operator=(const Hashtable&) = delete;

  // --- one at a time: each call returns when its operation is done; none may be pending ---
  //
  // kFailed, with kInvalidArgument in error(): a key or value above its limit, an empty key, or
  // operations are pending; nothing has happened. Where status() is not ok the connection broke: an
  // operation that modifies may have happened or not.

  // Two round trips; one more where another entry lies before it, which up to a fifth of them have.
  virtual HashtableReply search(std::string_view key) = 0;
  // Only if there is no such key. Two round trips.
  virtual HashtableReply insert(std::string_view key, std::string_view value) = 0;
  // Whether there is such a key or not. Three round trips; with kBuffered none, if it is hot.
  virtual HashtableReply update(std::string_view key, std::string_view value) = 0;
  // Three round trips.
  virtual HashtableReply remove(std::string_view key) = 0;

  // Makes the key's next update promote it, if its block has room: for who knows the hot keys
  // beforehand, as the paper's warm-up. Nothing happens without a hot area. No round trip.
  virtual void expect_hot(std::string_view key) = 0;

  // --- many at once ---
  //
  // Key and value may change at once. kWouldBlock: pending_limit() operations are pending, or more
  // was removed than could go back to the table yet: poll, then try again. kFailed: error() says
  // why, and nothing has happened.

  virtual PostResult post_search(std::string_view key, uint64_t token) = 0;
  virtual PostResult post_insert(std::string_view key, std::string_view value, uint64_t token) = 0;
  virtual PostResult post_update(std::string_view key, std::string_view value, uint64_t token) = 0;
  virtual PostResult post_remove(std::string_view key, uint64_t token) = 0;

  // Carries pending operations on, and calls on_reply(const HashtableReply&) for each that is done,
  // in any order; it may post others. Returns how many. Never blocks.
  template <typename OnReply>
  uint32_t poll(OnReply&& on_reply) {
    uint32_t replies = 0;
    collect();
    for (HashtableReply reply; take(&reply); ++replies) on_reply(reply);
    return replies;
  }
  // When poll() has something to do even if nothing comes, by now_ns() (clock.h): operations wait
  // for the end of a lease or for a lock, or what was answered has to be published. UINT64_MAX:
  // never. For who sleeps between polls.
  virtual uint64_t due_ns() const = 0;
  // With kBuffered: when the oldest of the updates was answered that are not published yet, by
  // now_ns(). All that were answered before are safe. UINT64_MAX: all are.
  virtual uint64_t unpublished_since_ns() const = 0;
  // Publishes all updates that were answered; none may be pending (else kInvalidArgument, in
  // error(), too). Returns when they are published: some five round trips for each 16 blocks.
  //   kLimitExceeded  another front-end has removed a key since, and there is no room for its
  //                   update: it is kept, and close() would lose it
  virtual Status flush() = 0;
  // Posted and not answered.
  virtual uint32_t pending() const = 0;
  virtual uint32_t pending_limit() const = 0;

  // Ok while the table works. Else: kUnavailable, the connection broke, or kProtocolViolation, an
  // entry is damaged. Pending operations get no reply then, and what was not published is lost.
  virtual const Status& status() const = 0;
  // Why the last operation that was refused or found no room was.
  virtual const Status& error() const = 0;
  // Waits for what is pending, without replies, publishes what flush() does (and fails as it does),
  // and gives the spare entries back. What is pending on a key whose update finds no room does not
  // happen.
  virtual Status close() = 0;

  virtual const HashtableStatistics& statistics() const = 0;

 protected:
  Hashtable() = default;

  // The two steps of poll().
  virtual void collect() = 0;
  virtual bool take(HashtableReply* reply) = 0;
};

}  // namespace verbena
