// A distributed log: records of any number of writers in one total order, in the memory of
// back-ends that run no code when the log is written or read ("memsem" IV-E). Links verbena::log.
//
//   // A back-end:
//   std::deque<ControlConnection> controls;                   // outlive the store
//   auto store = LogStore::expose(device, domain, {.capacity_bytes = 1 << 30});
//   for (;;) (*store)->accept(controls.emplace_back(*listener->accept(...)));
//   (*store)->maintain();                                     // now and then
//
//   // A writer, and a reader, each with a control connection of its own:
//   ControlConnection* const replicas[] = {&*control};
//   auto writer = open_log_writer(device, domain, replicas);
//   Result<LogPosition> position = (*writer)->append("a record");
//
//   auto reader = open_log_reader(device, domain, replicas);
//   Result<std::span<const LogRecord>> records = (*reader)->next();   // empty: nothing new yet
//
// How it works. A writer reserves space for a batch of records by one fetch-and-add (the remote
// sequencer), writes them there from where they lie, and commits them by a compare-and-swap. So the
// order is that of the reservations. Each record has a CRC.
//
// What is promised. A record whose append was acknowledged is in the log, and every reader that
// comes to its position gets it, unless it was trimmed. All readers get the same records in the
// same order; those of one writer are in the order in which it posted them. A batch is in the log
// as a whole or not at all. One that was not acknowledged, because its writer died or lost a
// back-end, is in the log or not, for all readers alike.
//
// Holes. A writer that dies between reservation and commit leaves a hole. A reader that comes to it
// waits for LogReaderOptions::hole_lease_ns by its own clock, and then seals the place by
// compare-and-swap: the writer's own then fails, so a writer that is only late is told that its
// batch was skipped (LogOutcome::kSkipped). No clocks are compared.
//
// Replicas. With k back-ends, each has the whole log, and an append is acknowledged when all have
// it. While one is missing nothing can be appended; form_log() then makes a log of those that are
// left, and of new ones, with all that was acknowledged. k - 1 may be lost at once.
//
// Truncation. LogReader::trim() drops what lies before a reader. A back-end reuses the space in
// maintain(), once no writer can have a WRITE on its way there. A writer that is stopped
// (SIGSTOP) in the middle of an append delays that; one that is dead does not.
//
// Objects are used by one thread at a time; several threads open one each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/posting.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena {

// Where a record is: larger for later ones. Not dense. Plain data that means the same to all.
using LogPosition = uint64_t;

// --- the back-end ---

struct LogStoreOptions {
  // For records and what describes them: a power of two, 64 KiB to 1 TiB. An eighth more, and 64
  // bytes for each writer, describe the space.
  uint64_t capacity_bytes = uint64_t{64} << 20;
  // Writers at once, 1 to 1024; readers do not count.
  uint32_t max_writers = 64;
  // The store begins blank, and takes part in a log when form_log() has made it one of its
  // replicas. Without, it is a whole log by itself at once.
  bool replicated = false;
  uint32_t max_connections = 1024;
  int64_t handshake_timeout_ns = 10'000'000'000;
};

struct LogStoreStatistics {
  // That are in use, or not yet free after a trim. The first replica of a log knows it; others know
  // only what was so when the log was formed, and may be fuller.
  uint64_t kept_bytes = 0;
  uint32_t connections = 0;
  uint32_t writers = 0;
};

class LogStore {
 public:
  // Registers the memory, as expose_region(). `device` and `domain` must outlive it.
  //   kInvalidArgument  an option is out of range
  //   kLimitExceeded    more than the machine has or may be locked: both numbers
  static Result<std::unique_ptr<LogStore>> expose(const Device& device,
                                                  const ProtectionDomain& domain,
                                                  const LogStoreOptions& options = {});

  // Ends all connections, and the log's contents here.
  virtual ~LogStore() = default;
  LogStore(const LogStore&) = delete;
  LogStore& operator=(const LogStore&) = delete;

  // Takes in who opens a writer or a reader, or calls form_log(), at the other end of `control`,
  // which must outlive the connection. Blocks up to the handshake's time-out. On failure nothing
  // remains; who is refused learns why.
  //   kLimitExceeded      max_writers or max_connections are alive
  //   kUnavailable        form_log() is at work on this store
  //   kProtocolViolation  the peer is none of these, or of another release
  virtual Status accept(ControlConnection& control) = 0;
  // Ends the connections of who is gone, and makes trimmed space free. A system call for each
  // connection, and 64 bytes to clear for each 512 that were trimmed: every few milliseconds while
  // the log is trimmed. Returns how many connections are left.
  virtual uint32_t maintain() = 0;
  virtual LogStoreStatistics statistics() const = 0;

 protected:
  LogStore() = default;
};

// --- replicas ---

struct LogFormation {
  uint64_t epoch = 0;    // 1 for a new log; rises with each form_log()
  uint32_t kept = 0;     // replicas whose contents the log has
  uint32_t filled = 0;   // replicas that got them; of a new log all
  uint64_t entries = 0;  // batches that the log has
  uint64_t skipped = 0;  // places that were given up, because their batch was not complete
};

// Makes a log of the stores at the other ends of `replicas`, one connection for each, 1 to 16: a
// new one if all are blank; else the one of which some were part, whose contents the others get.
// Ends the connections of all its writers and readers, who then open it anew.
//
// Among stores that are not blank, those of the highest epoch are believed. So at least one replica
// of the last formation has to be among them: who was left out of a formation has missed what came
// after it, and must not form the log alone. If it is interrupted, call it again.
//
// Blocks for a transfer of the whole log to each replica that gets it, and of an eighth of
// capacity_bytes to each of a new log.
//   kInvalidArgument    stores of different capacity, of several logs, or too many
//   kProtocolViolation  the trim or limit of one cannot be: its memory was overwritten
//   kUnavailable        one of them is gone
Result<LogFormation> form_log(const Device& device, const ProtectionDomain& domain,
                              std::span<ControlConnection* const> replicas,
                              int64_t handshake_timeout_ns = 10'000'000'000);

// --- writers ---

struct LogWriterOptions {
  // Batches that were posted and not polled, 1 to 256. Each takes the device's send queue some 6
  // times max_batch work requests.
  uint32_t pending = 16;
  // The most records of a batch, 1 to 1000, and their bytes together, 1 B to 16 MiB; at most an
  // eighth of the log's capacity.
  uint32_t max_batch = 32;
  uint32_t max_batch_bytes = 16 * 1024;
  // How records in registered memory are written ("memsem" III-A). kSgl needs a device with
  // max_batch + 1 gather entries; kSp takes batches up to 1 MiB, with 24 bytes and 8 for each
  // record of max_batch.
  VectorMethod method = VectorMethod::kAutomatic;
  int64_t handshake_timeout_ns = 10'000'000'000;
};

enum class LogOutcome : uint8_t {
  kAppended,
  kSkipped,  // not in the log: a reader had waited for its hole_lease_ns, and sealed the place
  kFull,     // not in the log: other writers took the last space at the same moment
};

struct LogCompletion {
  uint64_t token = 0;
  LogOutcome outcome = LogOutcome::kAppended;
  uint32_t records = 0;
  LogPosition first = 0;  // of its first record; the others follow, each plus 1
};

struct LogWriterStatistics {
  uint64_t appended_records = 0;
  uint64_t appended_batches = 0;
  uint64_t skipped_batches = 0;
  uint64_t full = 0;         // batches that found no space
  uint64_t would_block = 0;  // posts that found no room
};

class LogWriter {
 public:
  // Ends the connections. What was posted and not polled is in the log or not. A writer whose
  // status() is not ok has ended them all: nothing reads from the records' memory any more.
  virtual ~LogWriter() = default;
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // --- one at a time ---

  // The position of the batch's first record once it is in the log. Nothing may be outstanding. Two
  // round trips.
  //   kLimitExceeded    the log is full; it is unchanged
  //   kTimeout          LogOutcome::kSkipped
  //   kInvalidArgument  no record, too many, or too long; or something is outstanding
  //   kUnavailable      see status()
  virtual Result<LogPosition> append(std::span<const LocalSlice> records) = 0;
  virtual Result<LogPosition> append(std::span<const std::string_view> records) = 0;
  Result<LogPosition> append(std::string_view record) {
    return append(std::span<const std::string_view>(&record, 1));
  }

  // --- many at once ---

  // Posts a batch of records that lie in registered memory. They must not change until it is done.
  // Costs the CPU their CRC.
  //   kWouldBlock  options.pending batches are posted and not polled; or fewer, near the log's end,
  //                whose places are not known yet: poll, then try again
  //   kFailed      error() says why: as append(); nothing has happened
  virtual PostResult post_append(std::span<const LocalSlice> records, uint64_t token) = 0;
  // The same of any memory, which is copied and may change at once.
  virtual PostResult post_append(std::span<const std::string_view> records, uint64_t token) = 0;

  // Calls on_completion(const LogCompletion&) for each batch that is done, in the order in which
  // they were posted; it may post others. Returns how many. Never blocks, but that where the log
  // seems full it reads how much space there is.
  template <typename OnCompletion>
  uint32_t poll(OnCompletion&& on_completion) {
    const uint32_t done = collect();
    for (uint32_t i = 0; i < done; ++i) on_completion(take());
    if (done > 0) rest();
    return done;
  }
  // The same in three steps: how many are done; each of these once; then once at the end.
  virtual uint32_t collect() = 0;
  virtual LogCompletion take() = 0;
  virtual void rest() = 0;
  // Batches that are posted and were not taken.
  virtual uint32_t outstanding() const = 0;

  // Ok while the connections work; then kUnavailable, naming the back-end and the cause, or
  // kProtocolViolation where the log's tail or limit cannot be: its memory was overwritten. Batches
  // that were not polled get no completion, and are in the log or not.
  virtual const Status& status() const = 0;
  // Why the last post that returned kFailed did.
  virtual const Status& error() const = 0;
  virtual const LogWriterOptions& options() const = 0;
  virtual const LogWriterStatistics& statistics() const = 0;

 protected:
  LogWriter() = default;
};

// Opens the log whose replicas are at the other ends of `replicas`, in any order: all of them, one
// connection for each, which must outlive it. `device` and `domain` must, too. A failure hangs them
// up. Control path.
//   kInvalidArgument    an option is out of range, or these are not all replicas of one log
//   kLimitExceeded      a limit of the device, or a store has as many writers as it wants
//   kUnavailable        a store is blank, or being formed, or gone
//   kProtocolViolation  no log, or one of another version
Result<std::unique_ptr<LogWriter>> open_log_writer(const Device& device,
                                                   const ProtectionDomain& domain,
                                                   std::span<ControlConnection* const> replicas,
                                                   const LogWriterOptions& options = {});

// --- readers ---

enum class LogStart : uint8_t {
  kOldest,    // the first record that is not trimmed
  kNewest,    // what is appended from now on
  kPosition,  // LogReaderOptions::position
};

struct LogReaderOptions {
  LogStart start = LogStart::kOldest;
  // Of a record that was appended or read, or what LogReader::position() was.
  LogPosition position = 0;
  // What next() reads at once, 4 KiB to 64 MiB; longer batches are read all the same.
  uint32_t chunk_bytes = 256 * 1024;
  // For how long a writer may be silent between its reservation and its commit, before this reader
  // seals the place. Above 0, and longer than a writer may be stopped or without a CPU.
  uint64_t hole_lease_ns = 1'000'000'000;
  int64_t handshake_timeout_ns = 10'000'000'000;
};

struct LogRecord {
  LogPosition position = 0;
  std::string_view bytes;
};

struct LogReaderStatistics {
  uint64_t records = 0;
  uint64_t batches = 0;
  uint64_t skipped_places = 0;  // of 64 bytes, in holes
  uint64_t sealed_places = 0;   // of these, the ones that this reader sealed
  uint64_t damaged_copies = 0;  // batches that one replica had damaged
};

class LogReader {
 public:
  virtual ~LogReader() = default;
  LogReader(const LogReader&) = delete;
  LogReader& operator=(const LogReader&) = delete;

  // The records that follow, as many as a chunk holds; none if there are none yet, or if what comes
  // next is not complete: call again, by and by. They are valid until the next call. Two to four
  // round trips.
  //   kLimitExceeded      what comes next was trimmed: the reader was too slow. Let it seek()
  //                       LogStart::kOldest
  //   kProtocolViolation  a record fails its CRC, on all replicas: see skip_damaged()
  //   kUnavailable        a connection broke; open the log anew at position()
  // An error does not move the reader.
  virtual Result<std::span<const LogRecord>> next() = 0;
  // Where next() goes on: the records before it have been read.
  virtual LogPosition position() const = 0;
  // Goes on elsewhere, as if the reader had been opened with this start. One round trip for each
  // replica, and with kNewest one or two more for each but the first. On failure the reader stays
  // where it is.
  //   kInvalidArgument    the position is beyond the log's end
  //   kLimitExceeded      the position was trimmed
  virtual Status seek(LogStart start, LogPosition position = 0) = 0;
  // Leaves out the batch that next() found damaged.
  //   kInvalidArgument  the last call of next() did not
  virtual Status skip_damaged() = 0;
  // Drops all records before position(), for everybody. Two round trips for each replica.
  virtual Status trim() = 0;
  virtual const LogReaderStatistics& statistics() const = 0;

 protected:
  LogReader() = default;
};

// As open_log_writer(), and
//   kInvalidArgument  the position is beyond the log's end
//   kLimitExceeded    the position was trimmed
Result<std::unique_ptr<LogReader>> open_log_reader(const Device& device,
                                                   const ProtectionDomain& domain,
                                                   std::span<ControlConnection* const> replicas,
                                                   const LogReaderOptions& options = {});

}  // namespace verbena
