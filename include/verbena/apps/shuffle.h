// A distributed shuffle: n executors send their records to m executors of the next stage, each
// record to the one that its key decides ("memsem" IV-C). The receiving executors' memory is
// written by one-sided verbs; no code of theirs runs when a record comes. Links verbena::shuffle.
//
//   // A receiving executor, number 1 of 4; 2 executors send:
//   auto receiver = ShuffleReceiver::expose(device, domain,
//                                           {.receiver = 1, .receivers = 4, .senders = 2});
//   (*receiver)->accept_all(*listener, 60'000'000'000);
//   for (;;) {
//     Result<ShuffleSpan> span = (*receiver)->wait_next();
//     if (!span.ok()) return span.status();
//     if (span->empty()) break;                                // all senders have finished
//     span->for_each([&](std::string_view record, bool more) { ... });
//     (*receiver)->release(*span);                             // the sender may use it again
//   }
//
//   // A sending executor, number 0, which knows where each receiver listens, in their order:
//   auto sender = open_shuffle_sender(device, domain, addresses, secret, {.sender = 0});
//   for (...) (*sender)->put(partition_of(shuffle_hash(key), 4), record);
//   (*sender)->finish();
//
// Executors may be threads of one process, processes of a host or on several hosts. Each receiver
// listens at an address of its own (ControlListener), or takes its connections from a Job.
//
// How it works. A receiver has a buffer for each sender, a ring. The sender reserves space there,
// WRITEs records one behind the other, several by one WRITE if the method consolidates them, and
// then a counter that says how many have come. The receiver polls the counters, hands out what came
// as spans without a copy, and publishes what was released, which senders READ when their space
// runs short. At the end, a sender adds what it has sent to sums at each receiver, by
// fetch-and-add; so a receiver knows when all is there, and that nothing is missing.
//
// What is promised. Each record that was taken by a sender which then finished is handed out
// exactly once, by the receiver that it was sent to; a receiver checks that at the end: number,
// bytes and, with ShuffleReceiverOptions::checksum, contents. Records from one sender to one
// receiver come in the order in which they were sent. Between others there is no order.
//
// Back-pressure. A receiver never has more than its buffers. A sender whose receiver does not
// release is told kWouldBlock, and may go on with other receivers meanwhile; put() waits.
//
// Failure. When an executor dies, or is destroyed before the end, all that are connected to it get
// one error that names it, within some 20 ms of polling (five seconds where its whole host is
// lost), and tell the reason to those that are connected to them. So nobody waits for ever, and
// each executor has one line. The shuffle is over then: it is done again from the beginning.
//
// Objects are used by one thread at a time; several threads have one each. After connect, nothing
// on a record's way allocates, locks or enters the kernel. Nothing blocks but where it is said.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/posting.h"
#include "verbena/remote.h"
#include "verbena/sockets.h"
#include "verbena/status.h"

namespace verbena {

// --- the rule ---

namespace internal {

// Every bit of the product's halves depends on all bits below it, and on all above.
inline uint64_t shuffle_fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
// Keys are read by the CPU alone, which nothing has to count.
inline uint64_t shuffle_word(const char* at, size_t bytes = sizeof(uint64_t)) {
  uint64_t word = 0;
  std::memcpy(&word, at, bytes);  // NOLINT(conventions): a load
  return word;
}

}  // namespace internal

// A hash of a key, the same in all processes. 64 well mixed bits; not for secrets. About 1 ns for 8
// bytes; here, so that it becomes a few instructions where the compiler knows the key's size.
inline uint64_t shuffle_hash(std::string_view key) {
  // Odd, with bits in no pattern: the fractions of the square roots of 2, 3 and 5.
  constexpr uint64_t kFirst = 0x6a09e667f3bcc909u;
  constexpr uint64_t kSecond = 0xbb67ae8584caa73bu;
  constexpr uint64_t kThird = 0x3c6ef372fe94f82bu;
  const char* at = key.data();
  size_t left = key.size();
  // Two chains, so that the multiplications of long keys overlap.
  uint64_t first = kFirst + left * kSecond;
  uint64_t second = kSecond;
  while (left >= 16) {
    first = internal::shuffle_fold(first ^ internal::shuffle_word(at), kThird);
    second = internal::shuffle_fold(second ^ internal::shuffle_word(at + 8), kFirst);
    at += 16;
    left -= 16;
  }
  if (left >= 8) {
    first = internal::shuffle_fold(first ^ internal::shuffle_word(at), kThird);
    at += 8;
    left -= 8;
  }
  if (left > 0) second = internal::shuffle_fold(second ^ internal::shuffle_word(at, left), kFirst);
  return internal::shuffle_fold(first ^ kSecond,
                                internal::shuffle_fold(second ^ first, kThird) | 1);
}
// The partition, 0 to `partitions` - 1, that a hash belongs to: by its upper bits, so its lower
// ones can serve a hash table in the partition.
inline uint32_t partition_of(uint64_t hash, uint32_t partitions) {
  return static_cast<uint32_t>((static_cast<unsigned __int128>(hash) * partitions) >> 64);
}

// --- what was sent or received ---

struct ShuffleCount {
  uint64_t records = 0;
  uint64_t bytes = 0;
  // The sum, modulo 2^64, of the shuffle_hash() of each record or part of one; so it does not
  // depend on their order. 0 without ShuffleReceiverOptions::checksum.
  uint64_t checksum = 0;

  ShuffleCount& operator+=(const ShuffleCount& other) {
    records += other.records;
    bytes += other.bytes;
    checksum += other.checksum;
    return *this;
  }
  friend bool operator==(const ShuffleCount&, const ShuffleCount&) = default;
};

// --- receivers ---

struct ShuffleReceiverOptions {
  // The number of this executor, 0 to receivers - 1, and of all that receive, 1 to 4096.
  uint32_t receiver = 0;
  uint32_t receivers = 1;
  // Executors that send to this one, numbered from 0; 1 to 4096.
  uint32_t senders = 1;
  // The size of every record, 1 B to 1 MiB, or 0 for records of any size. Records of one size have
  // no overhead, and a span of them is an array.
  uint32_t record_bytes = 0;
  // For the records of each sender, 4 KiB to 1 GiB; with record_bytes it becomes a multiple of that
  // and at least 8 records. Records of any size need a quarter more for their lengths, see
  // max_records. A few hundred KiB keep a sender going while the receiver works on a span.
  uint64_t buffer_bytes = uint64_t{256} << 10;
  // Records of any size: how many may be in a buffer, 16 to 2^26; 0 for one per 16 bytes. 4 bytes
  // each.
  uint32_t max_records = 0;
  // Records of any size: longer ones are refused at the sender, up to 1 TiB. A record of at most
  // whole_record_bytes(), a quarter of the buffer, comes as a whole; a longer one comes in parts
  // (ShuffleSpan). 0: the longest that comes as a whole, so there are no parts.
  uint64_t max_record_bytes = 0;
  // Whether senders and this receiver compute checksums of the contents, and compare them at the
  // end. Costs both sides a shuffle_hash() of each record.
  bool checksum = false;
  // Where the buffers are to lie (sockets.h); as ExposedRegionOptions.
  int socket = kAnySocket;
  bool huge_pages = false;
  // For each step of the handshake with a sender.
  int64_t handshake_timeout_ns = 10'000'000'000;
};

// Records of one sender that lie one behind the other in the receiver's buffer. Valid until it is
// released. Plain data; copies mean the same span.
//
// Parts. A record longer than whole_record_bytes() comes as several entries, in order, of which all
// but the last have `more`. Between them comes nothing else of that sender, but spans of other
// senders may: who puts records together keeps one unfinished record for each sender.
class ShuffleSpan {
 public:
  ShuffleSpan() = default;

  bool empty() const { return count_ == 0; }
  uint32_t sender() const { return sender_; }
  // Records, or parts of records.
  uint32_t count() const { return count_; }
  // All of them, without anything in between.
  std::span<const char> bytes() const { return {data_, size_bytes_}; }

  // Calls on_record(std::string_view bytes, bool more) for each.
  template <typename OnRecord>
  void for_each(OnRecord&& on_record) const {
    const char* at = data_;
    for (uint32_t i = 0; i < count_; ++i) {
      const uint32_t length = lengths_ != nullptr ? lengths_[i] : record_bytes_;
      const uint32_t size_bytes = length & ~kMore;
      on_record(std::string_view(at, size_bytes), (length & kMore) != 0);
      at += size_bytes;
    }
  }
  // Records of one size as an array, if that is the size of T. They are aligned as T needs it.
  template <typename T>
  std::span<const T> as() const {
    static_assert(std::is_trivially_copyable_v<T>, "records are bytes");
    assert(count_ == 0 || record_bytes_ == sizeof(T));
    return {reinterpret_cast<const T*>(data_), count_};
  }

 private:
  friend struct ShuffleSpanAccess;  // the receiver makes spans
  static constexpr uint32_t kMore = 1u << 31;

  uint32_t sender_ = 0;
  uint32_t count_ = 0;
  uint32_t record_bytes_ = 0;          // of each, or
  const uint32_t* lengths_ = nullptr;  // of each its own, with kMore
  const char* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  // Of the sender's stream: entries before the span, and what release() tells the sender.
  uint64_t first_entry_ = 0;
  uint64_t end_entry_ = 0;
  uint64_t end_position_ = 0;
};

class ShuffleReceiver {
 public:
  // Registers the buffers: senders * (buffer_bytes + 4 * max_records), about. `device` and `domain`
  // must outlive it. Control path.
  //   kInvalidArgument  an option is out of range
  //   kLimitExceeded    more than the machine has or may be locked: both numbers
  static Result<std::unique_ptr<ShuffleReceiver>> expose(
      const Device& device, const ProtectionDomain& domain,
      const ShuffleReceiverOptions& options = {});

  // Before the end (finished()), senders get an error then.
  virtual ~ShuffleReceiver() = default;
  ShuffleReceiver(const ShuffleReceiver&) = delete;
  ShuffleReceiver& operator=(const ShuffleReceiver&) = delete;

  // Takes in the sender at the other end of `control`, which calls open_shuffle_sender(). Blocks up
  // to the handshake's time-out; about 1 ms. Records may come and be taken while others are still
  // missing. On failure nothing remains, and who is refused learns why.
  //   kInvalidArgument    its number is not below options.senders, or is taken; or it looks for
  //                       another receiver, or for another number of them
  //   kLimitExceeded      a limit of the device
  //   kProtocolViolation  the peer is no sender, or of another release
  virtual Status accept(ControlConnection control) = 0;
  // accept() for each sender that is still missing, from `listener`. Ends with the first failure.
  //   kTimeout  not all came in time; names those that are missing
  virtual Status accept_all(ControlListener& listener, int64_t timeout_ns) = 0;

  // The next records of any sender, in turn; at most a quarter of its buffer at once. Empty:
  // nothing is there now, or, if finished(), ever. Several spans may be held. A load for each
  // sender that has nothing; with records of any size, reads their lengths. An error is final, and
  // senders are told:
  //   kUnavailable        a sender died, or gave up; names it and its reason
  //   kProtocolViolation  a sender broke its buffer, or at the end the sums are not equal
  virtual Result<ShuffleSpan> next() = 0;
  // As next(), but returns only when there is something: empty means finished(). Spins, yields and
  // sleeps, as all that wait here.
  //   kInvalidArgument  a sender was not accepted yet, and all others have finished
  virtual Result<ShuffleSpan> wait_next() = 0;
  // Gives the space back to its sender. Spans of one sender are released in the order in which they
  // came, each once; those of different senders in any order. A store.
  virtual void release(const ShuffleSpan& span) = 0;
  // Whether all senders have finished, and all records were handed out, and the sums are equal.
  virtual bool finished() const = 0;

  // Ok until next() has failed; then why.
  virtual const Status& status() const = 0;
  virtual const ShuffleReceiverOptions& options() const = 0;
  // Records up to this size are never in parts.
  virtual uint32_t whole_record_bytes() const = 0;
  // What was handed out, of one sender or of all.
  virtual ShuffleCount received(uint32_t sender) const = 0;
  virtual ShuffleCount received() const = 0;
  // The bytes of a sender's buffer that were handed out and not released.
  virtual uint64_t held_bytes(uint32_t sender) const = 0;

 protected:
  ShuffleReceiver() = default;
};

// --- senders ---

// How records become WRITEs.
enum class ShuffleMethod : uint8_t {
  kBasic,  // one WRITE for each record
  kSp,     // the CPU copies records of one receiver into a buffer, which one WRITE takes there
  kSgl,    // one WRITE for several records, whose gather list finds them where they lie
  kAutomatic = 255,  // the one that is estimated to be cheapest and can be used
};

// "basic", "sp", "sgl", "automatic".
const char* shuffle_method_name(ShuffleMethod method);

struct ShuffleSenderOptions {
  // The number of this executor among those that send.
  uint32_t sender = 0;
  ShuffleMethod method = ShuffleMethod::kAutomatic;
  // The most records of a WRITE, 1 to 256 ("memsem" IV-C: 1 to 16). kSgl needs a device with as
  // many gather entries.
  uint32_t batch = 16;
  // The most bytes of a WRITE of several records, 64 B to 16 MiB.
  uint32_t batch_bytes = 64 * 1024;
  // WRITEs on their way to each receiver, 1 to 256.
  uint32_t pending = 8;
  // For kAutomatic: what records are like, unless they have one size, and the threads that use the
  // device like this one at once.
  uint32_t typical_record_bytes = 64;
  uint32_t threads = 1;
  // For each receiver.
  int64_t handshake_timeout_ns = 10'000'000'000;
};

struct ShuffleEstimate {
  ShuffleMethod method = ShuffleMethod::kBasic;
  bool usable = false;
  // In one sentence: what it costs and what limits it, or what forbids it and what to do.
  std::string why;
  double record_ns = 0;  // from one record of a thread to its next
};

// The three methods for records of that size, the cheapest first, as kAutomatic takes it; those
// that cannot be used come last. Control path. See verbena/remote_vector.h for what is estimated.
std::vector<ShuffleEstimate> estimate_shuffle_methods(const DeviceInfo& device,
                                                      const ShuffleSenderOptions& options,
                                                      uint32_t record_bytes);

struct ShuffleSenderStatistics {
  uint64_t writes = 0;        // of records
  uint64_t counters = 0;      // WRITEs that tell a receiver how many records have come
  uint64_t credit_reads = 0;  // READs of what a receiver has released
  uint64_t would_block = 0;   // times that a record found no room
};

class ShuffleSender {
 public:
  // Before finish() has returned, receivers get an error then.
  virtual ~ShuffleSender() = default;
  ShuffleSender(const ShuffleSender&) = delete;
  ShuffleSender& operator=(const ShuffleSender&) = delete;

  // Takes a record for a receiver. It goes when its batch is full, at flush(), and when the
  // receiver has no more space.
  //   kWouldBlock  the receiver's buffer is full, or options.pending WRITEs are on their way to it;
  //                nothing was taken: poll(), then try again, or send to another one
  //   kFailed      error() says why; nothing was taken, and the shuffle goes on unless status()
  //                says otherwise: no such partition, too long, or outside of registered memory
  //
  // Of any memory, which is copied, whatever the method, and may change at once.
  PostResult send(uint32_t partition, std::string_view record) {
    return send_part(partition, record, false);
  }
  // The same from registered memory. With kSgl and kBasic it is read there when it goes, and must
  // not change until completed() tells that it has. With kSp it is copied, unless it is longer than
  // options.batch_bytes.
  PostResult send(uint32_t partition, const LocalSlice& record) {
    return send_part(partition, record, false);
  }
  // A part of a record, up to whole_record_bytes(), which is taken as a whole or not at all. All
  // but the last part have `more`; what is sent to this receiver next is the next part. put() makes
  // parts by itself.
  virtual PostResult send_part(uint32_t partition, std::string_view part, bool more) = 0;
  virtual PostResult send_part(uint32_t partition, const LocalSlice& part, bool more) = 0;

  // Takes a record of any size up to max_record_bytes(), and waits as long as there is no room.
  // Long ones go in parts.
  //   kInvalidArgument  what send() refuses; nothing was taken
  //   kLimitExceeded    longer than the receiver takes; nothing was taken
  //   kUnavailable      see status()
  virtual Status put(uint32_t partition, std::string_view record) = 0;
  virtual Status put(uint32_t partition, const LocalSlice& record) = 0;
  // Takes an array of records of one size, one for each number in `partitions`, in that order, and
  // waits as long as there is no room. Of any memory, which is copied, whatever the method, and may
  // change at once. Short records cost less than one by one.
  //   kInvalidArgument  `records` cannot be divided by their number; nothing was taken
  //   others            as put() of the first record that was not taken; those before it were
  virtual Status put_each(std::span<const uint32_t> partitions, std::string_view records) = 0;

  // Completes what is done, and asks receivers for space where it was short. Returns how many
  // WRITEs completed. For who got kWouldBlock, and now and then for who sends nothing: it finds out
  // whether receivers live. False in status() then.
  virtual uint32_t poll() = 0;
  // Posts what waits for its batch to be full. Never blocks for space; may wait for the device to
  // complete WRITEs. False: see status().
  virtual bool flush() = 0;
  // Of the records that were taken, so many, from the first on, are complete: their memory may
  // change. All of them are after flush() once it equals taken(). A load for each receiver.
  virtual uint64_t completed() const = 0;
  // Records and parts that were taken.
  virtual uint64_t taken() const = 0;

  // Sends what is left, and adds the sums at each receiver: then all is in the receivers' memory.
  // Nothing may be sent afterwards. Blocks for some round trips; not for space.
  //   kInvalidArgument  a record in parts is not complete
  //   kUnavailable      see status(): what has come where is not known
  virtual Status finish() = 0;

  // Ok while all receivers live; then kUnavailable, naming the first that was lost and the cause.
  virtual const Status& status() const = 0;
  // Why the last call that returned kFailed did.
  virtual const Status& error() const = 0;
  virtual const ShuffleSenderOptions& options() const = 0;
  // The method in use, and why; never kAutomatic.
  virtual ShuffleMethod method() const = 0;
  virtual const std::string& why() const = 0;
  virtual uint32_t partitions() const = 0;
  // Records up to this size come as a whole at that receiver.
  virtual uint32_t whole_record_bytes(uint32_t partition) const = 0;
  // The longest record that it takes.
  virtual uint64_t max_record_bytes(uint32_t partition) const = 0;
  // What was taken for one receiver, or for all.
  virtual ShuffleCount sent(uint32_t partition) const = 0;
  virtual ShuffleCount sent() const = 0;
  virtual const ShuffleSenderStatistics& statistics() const = 0;

 protected:
  ShuffleSender() = default;
};

// Connects to the receivers at the other ends of `receivers`, number 0 first, 1 to 4096; each calls
// ShuffleReceiver::accept(). `device` and `domain` must outlive it. Registers as much memory as the
// receivers have for this sender. Blocks until all have accepted, one after the other; about 1 ms
// each. A failure hangs them all up.
//   kInvalidArgument    an option is out of range; or a receiver has another number, or counts
//                       other receivers, or has this sender already
//   kLimitExceeded      a limit of the device
//   kProtocolViolation  a peer is no receiver, or of another release
//   kUnavailable        a peer is gone
Result<std::unique_ptr<ShuffleSender>> open_shuffle_sender(
    const Device& device, const ProtectionDomain& domain, std::vector<ControlConnection> receivers,
    const ShuffleSenderOptions& options = {});

// Where a receiver's ControlListener is reached.
struct ShuffleAddress {
  std::string host;
  uint16_t port = 0;
};
// The same, and makes the connections; `secret` is that of the listeners. Each receiver has to be
// in ShuffleReceiver::accept_all() meanwhile, in another thread where it is the caller's own.
//   kTimeout, kPermissionDenied  a receiver cannot be reached, see ControlConnection::connect()
Result<std::unique_ptr<ShuffleSender>> open_shuffle_sender(
    const Device& device, const ProtectionDomain& domain,
    const std::vector<ShuffleAddress>& receivers, const JobSecret& secret,
    const ShuffleSenderOptions& options = {});

}  // namespace verbena
