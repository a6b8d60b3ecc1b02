// Remote memory: a region of one process that others read and write as if it were their own, by
// one-sided verbs ("memsem" II). The process that has the region, the back-end, takes no part: no
// code of its own runs when the region is accessed.
//
//   // The back-end, once per front-end:
//   auto region = expose_region(device, domain, {.size_bytes = 1 << 20});
//   auto control = listener->accept(10'000'000'000);
//   (*region)->accept(*control);
//
//   // A front-end:
//   struct Account { uint64_t balance; char name[24]; };
//   auto region = open_region(device, domain, *control);
//   const RemotePointer<Account> account{.offset_bytes = 4096};
//   (*region)->write(account, {100, "Ada"});                          // returns when it is done
//   Result<Account> copy = (*region)->read(account);
//   Result<uint64_t> before = (*region)->fetch_and_add(account.at<uint64_t>(0), 5);
//
// Each of these takes a round trip. To have many on their way, post them with tokens and poll:
//
//   for (uint64_t i = 0; i < n;) {
//     switch ((*region)->post_read(accounts + i, /*token=*/i)) {
//       case PostResult::kPosted: ++i; break;
//       case PostResult::kWouldBlock: break;                          // options.pending are posted
//       case PostResult::kFailed: return (*region)->error();
//     }
//     (*region)->poll([&](const RemoteCompletion& done) { sum += done.value<Account>().balance; });
//   }
//
// Long transfers go from and to memory that is registered once, without a copy: LocalSlice.
//
// Order. Operations of one connection begin, and complete, in the order in which they were posted.
// - WRITE, then WRITE, READ or atomic: the later one finds what the earlier one wrote. So a READ or
//   an atomic that has completed tells that the WRITEs before it are in the back-end's memory,
//   which the completion of a WRITE alone does not tell on every device.
// - READ or atomic, then anything: the later one may reach the memory before the answer of the
//   earlier one is there. Post it with Order::kAfterReads where that matters (the fence of
//   ibv_send_wr), or take the completion first. An atomic's answer orders: what is posted after its
//   completion happens after it.
// - The bytes of one READ or WRITE move in no particular order (DeviceInfo::writes_in_order): who
//   reads while another one writes may see parts of both. Words of 8 bytes, aligned, are whole.
// - Atomics are atomic among the atomics that reach the region through the same device. Those of
//   the back-end's own processor count as such on soft0 and in the simulation; on an RNIC, use the
//   region's device from the back-end, too (DeviceInfo::atomics).
// - Operations of different connections have no order but that of their completions.
//
// After connect, nothing on the way of an operation allocates, locks or enters the kernel. Objects
// are used by one thread at a time; several threads open a connection each. Everything named
// `post_`, and polling, never blocks.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "verbena/connection.h"
#include "verbena/data_path.h"
#include "verbena/device.h"
#include "verbena/posting.h"
#include "verbena/remote_vector.h"
#include "verbena/sockets.h"
#include "verbena/status.h"

namespace verbena {

// --- the back-end ---

struct ExposedRegionOptions {
  // Memory that the region makes, zeroed and page-aligned, or the user's own, which must outlive
  // the region. One of the two.
  uint64_t size_bytes = 0;
  std::span<char> memory = {};
  // Without, front-ends can only read.
  bool writable = true;
  // Front-ends at once, 1 to 16,384.
  uint32_t max_connections = 1024;
  // Memory that the region makes, in 2 MiB pages where the system has some: the RNIC then needs
  // fewer translations ("memsem" II-B2).
  bool huge_pages = false;
  // Where memory that the region makes is to lie (sockets.h): kAnySocket for the socket of the
  // device, if it is known. What could not be placed is told in the log.
  int socket = kAnySocket;
  // For each step of the handshake with a front-end.
  int64_t handshake_timeout_ns = 10'000'000'000;
};

class ExposedRegion {
 public:
  // Ends all connections. The memory is out of every front-end's reach then.
  virtual ~ExposedRegion() = default;
  ExposedRegion(const ExposedRegion&) = delete;
  ExposedRegion& operator=(const ExposedRegion&) = delete;

  // Takes in the front-end at the other end of `control`, which calls open_region(). `control` must
  // outlive the connection. Blocks up to the handshake's time-out; about 1 ms. On failure nothing
  // remains; a refused front-end learns why.
  //   kLimitExceeded      max_connections are alive, or a limit of the device
  //   kInvalidArgument    the peer exposes a region, too
  //   kProtocolViolation  what it sent is not this handshake, or that of another release
  virtual Status accept(ControlConnection& control) = 0;

  // Ends the connections of front-ends that are gone, which frees their places. Returns how many
  // are left. A system call for each: now and then; accept() does it by itself.
  virtual uint32_t remove_ended() = 0;
  // Connections that are alive, as of the last remove_ended().
  virtual uint32_t connections() const = 0;
  // Why the connection that ended last did; ok as long as none has.
  virtual const Status& last_end() const = 0;

  // Front-ends access these bytes at any time. Words that they write are read with acquire order
  // (std::atomic_ref), never as plain memory.
  virtual char* data() const = 0;
  virtual uint64_t size_bytes() const = 0;

 protected:
  ExposedRegion() = default;
};

// Registers the region. Control path: 60 us on soft0 for 4 KiB, 0.7 s for 1 GiB.
//   kInvalidArgument  both or none of size_bytes and memory, an option out of range, or no such
//                     socket
//   kLimitExceeded    more than the machine has, or may be locked, or the device registers at once:
//                     both numbers
// `device` and `domain` must outlive the region.
Result<std::unique_ptr<ExposedRegion>> expose_region(const Device& device,
                                                     const ProtectionDomain& domain,
                                                     const ExposedRegionOptions& options);

// --- the front-end ---

// A place in a region, and what lies there. Plain data: it means the same to every front-end, and
// may itself be stored in the region.
template <typename T>
struct RemotePointer {
  static_assert(std::is_trivially_copyable_v<T>, "bytes are copied");

  uint64_t offset_bytes = 0;  // from the region's beginning

  // The next elements of an array.
  RemotePointer operator+(uint64_t count) const { return {offset_bytes + count * sizeof(T)}; }
  // A part: `account.at<uint64_t>(offsetof(Account, balance))`.
  template <typename Part>
  RemotePointer<Part> at(uint64_t inner_offset_bytes) const {
    return {offset_bytes + inner_offset_bytes};
  }
  friend bool operator==(RemotePointer, RemotePointer) = default;
};

// A part of memory that this process has registered (MemoryRegion, with IBV_ACCESS_LOCAL_WRITE if
// READs go there), from and to which a device transfers without a copy. The bytes of a WRITE must
// not change, and those of a READ mean nothing, until the operation has completed.
struct LocalSlice {
  const MemoryRegion* memory = nullptr;
  uint64_t offset_bytes = 0;
  uint32_t size_bytes = 0;  // at most kMaxTransferBytes
};

inline constexpr uint32_t kMaxTransferBytes = 1u << 30;

// When a posted operation may begin.
enum class Order : uint8_t {
  kPosted,      // after the operations before it have begun
  kAfterReads,  // after the READs and atomics before it have completed; costs their round trip
};

// An operation that is done.
struct RemoteCompletion {
  uint64_t token = 0;
  // What was read, of an atomic the 8 bytes before it; of a WRITE and of vectors nothing. Valid
  // until the next post.
  std::span<const char> bytes;

  template <typename T>
  T value() const {
    static_assert(std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T>);
    assert(bytes.size() >= sizeof(T));
    T value{};
    copy_bytes(&value, bytes.data(), sizeof(T));
    return value;
  }
};

struct RemoteRegionOptions {
  // Posted operations that were not polled yet, 1 to 4096.
  uint32_t pending = 16;
  // The largest value that is posted by itself, 8 B to 1 MiB. Each of the pending operations has
  // registered memory of this size. LocalSlices may be longer.
  uint32_t value_bytes = 64;
  // Synchronous calls move memory that is not registered through a buffer of this size, in as many
  // parts as it takes; 8 B to 16 MiB. Longer ones save round trips.
  uint32_t copy_bytes = 16 * 1024;
  // WRITEs up to this size travel inside the work request; never more than the device takes.
  uint32_t inline_bytes = kDeviceInlineLimit;
  // Every n-th posted operation asks for a completion, which tells of those before it, too: fewer
  // completions, which come later. 1 to pending.
  uint32_t signal_interval = 1;
  // Operations that are posted as one list (one doorbell). 1: each at once. Above: when that many
  // are there, and at each poll; at most 256 and pending.
  uint32_t post_batch = 1;
  // The most pieces of a vector operation, 1 to 1024 (readv() and so on). Each of the pending
  // operations then has as many entries in the send queue.
  uint32_t max_entries = 1;
  // Threads that use the device like this one at once: for VectorMethod::kAutomatic.
  uint32_t threads = 1;
  bool huge_pages = false;
  int64_t handshake_timeout_ns = 10'000'000'000;
};

struct RemoteStatistics {
  uint64_t reads = 0;  // work requests
  uint64_t writes = 0;
  uint64_t atomics = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t doorbells = 0;    // lists of work requests that were posted
  uint64_t would_block = 0;  // posts that found no room
};

class RemoteRegion {
 public:
  // Ends the connection.
  virtual ~RemoteRegion() = default;
  RemoteRegion(const RemoteRegion&) = delete;
  RemoteRegion& operator=(const RemoteRegion&) = delete;

  virtual uint64_t size_bytes() const = 0;
  virtual bool writable() const = 0;
  // Where the part ends that has this byte: no operation reaches beyond (remote_sockets.h).
  virtual uint64_t part_end_bytes(uint64_t /*offset_bytes*/) const { return size_bytes(); }
  virtual const RemoteRegionOptions& options() const = 0;

  // --- one at a time: each call returns when its operation is done ---
  //
  // What lies outside of the region, is not aligned (atomics: to 8 bytes in the back-end's memory)
  // or not permitted is refused before anything happens: kInvalidArgument, kPermissionDenied or
  // kUnsupported, and the connection goes on. kUnavailable: the connection broke, see status(); a
  // WRITE or an atomic may have happened or not. Operations that are posted may wait meanwhile;
  // they go first.

  // `to.size()` bytes from `offset_bytes` on. One round trip for each options.copy_bytes.
  virtual Status read(uint64_t offset_bytes, std::span<char> to) = 0;
  virtual Status write(uint64_t offset_bytes, std::span<const char> from) = 0;
  // The same from and to registered memory: one round trip, no copy.
  virtual Status read(uint64_t offset_bytes, const LocalSlice& to) = 0;
  virtual Status write(uint64_t offset_bytes, const LocalSlice& from) = 0;

  template <typename T>
  Result<T> read(RemotePointer<T> from) {
    T value{};
    Status status = read(from.offset_bytes, {reinterpret_cast<char*>(&value), sizeof(T)});
    if (!status.ok()) return status;
    return value;
  }
  template <typename T>
  Status write(RemotePointer<T> to, const std::type_identity_t<T>& value) {
    return write(to.offset_bytes, bytes_of(value));
  }

  // Several pieces of registered memory, at most options.max_entries, which lie one behind the
  // other in the region ("memsem" III-A). With VectorMethod::kSp at most options.copy_bytes in all.
  virtual Status readv(uint64_t offset_bytes, std::span<const LocalSlice> to,
                       VectorMethod method = VectorMethod::kAutomatic) = 0;
  virtual Status writev(uint64_t offset_bytes, std::span<const LocalSlice> from,
                        VectorMethod method = VectorMethod::kAutomatic) = 0;

  // Sets the word to `desired` if it is `expected`. What it was before: equal to `expected` if it
  // was set.
  virtual Result<uint64_t> compare_and_swap(RemotePointer<uint64_t> word, uint64_t expected,
                                            uint64_t desired) = 0;
  // Adds, modulo 2^64. What the word was before.
  virtual Result<uint64_t> fetch_and_add(RemotePointer<uint64_t> word, uint64_t addend) = 0;

  // --- many at once ---
  //
  // kWouldBlock: options.pending operations are posted and not polled: poll, then try again.
  // kFailed: error() says why; what was refused has not happened, and the connection goes on unless
  // status() says otherwise.

  // At most options.value_bytes: the completion has the bytes.
  virtual PostResult post_read(uint64_t offset_bytes, uint32_t size_bytes, uint64_t token,
                               Order order = Order::kPosted) = 0;
  // At most options.value_bytes, which are copied: `from` may change at once.
  virtual PostResult post_write(uint64_t offset_bytes, std::span<const char> from, uint64_t token,
                                Order order = Order::kPosted) = 0;
  virtual PostResult post_read(uint64_t offset_bytes, const LocalSlice& to, uint64_t token,
                               Order order = Order::kPosted) = 0;
  virtual PostResult post_write(uint64_t offset_bytes, const LocalSlice& from, uint64_t token,
                                Order order = Order::kPosted) = 0;
  virtual PostResult post_compare_and_swap(RemotePointer<uint64_t> word, uint64_t expected,
                                           uint64_t desired, uint64_t token,
                                           Order order = Order::kPosted) = 0;
  virtual PostResult post_fetch_and_add(RemotePointer<uint64_t> word, uint64_t addend,
                                        uint64_t token, Order order = Order::kPosted) = 0;

  // As readv() and writev(). With VectorMethod::kSp at most options.value_bytes in all; the pieces
  // of a WRITE then may change at once, those of a READ are filled when its completion is taken.
  virtual PostResult post_readv(uint64_t offset_bytes, std::span<const LocalSlice> to,
                                uint64_t token, VectorMethod method = VectorMethod::kAutomatic,
                                Order order = Order::kPosted) = 0;
  virtual PostResult post_writev(uint64_t offset_bytes, std::span<const LocalSlice> from,
                                 uint64_t token, VectorMethod method = VectorMethod::kAutomatic,
                                 Order order = Order::kPosted) = 0;
  // What the methods cost for posted operations of this size, by the costs of the next powers of
  // two; the one that kAutomatic takes comes first. Control path.
  virtual std::vector<VectorEstimate> vector_estimates(bool reads, uint32_t entries,
                                                       uint32_t entry_bytes) const = 0;

  template <typename T>
  PostResult post_read(RemotePointer<T> from, uint64_t token, Order order = Order::kPosted) {
    return post_read(from.offset_bytes, uint32_t{sizeof(T)}, token, order);
  }
  template <typename T>
  PostResult post_write(RemotePointer<T> to, const std::type_identity_t<T>& value, uint64_t token,
                        Order order = Order::kPosted) {
    return post_write(to.offset_bytes, bytes_of(value), token, order);
  }

  // Posts what waits for its batch to be full; poll() does, too. False: see status().
  virtual bool flush() = 0;

  // Calls on_completion(const RemoteCompletion&) for each operation that is done, in the order in
  // which they were posted; it may post others. Returns how many.
  template <typename OnCompletion>
  uint32_t poll(OnCompletion&& on_completion) {
    const uint32_t done = collect();
    for (uint32_t i = 0; i < done; ++i) on_completion(take());
    return done;
  }
  // The same in two steps: how many are done, and each of these once.
  virtual uint32_t collect() = 0;
  virtual RemoteCompletion take() = 0;
  // As collect(), but returns only when an operation is done, or none can be: nothing is
  // outstanding, or the connection broke. Spins, yields and sleeps as synchronous calls do.
  uint32_t wait();
  // Operations that are posted and were not taken.
  virtual uint32_t outstanding() const = 0;

  // Ok while the connection works. Once it does not: kUnavailable, naming the back-end and the
  // cause. Operations that were not polled get no completion then; WRITEs and atomics among them
  // may have happened or not.
  virtual const Status& status() const = 0;
  // Why the last post that returned kFailed did.
  virtual const Status& error() const = 0;
  // Ends the connection: later calls fail.
  virtual void close() = 0;

  virtual const RemoteStatistics& statistics() const = 0;

 protected:
  RemoteRegion() = default;

 private:
  template <typename T>
  static std::span<const char> bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(T)};
  }
};

// Opens the region at the other end of `control`, whose process calls ExposedRegion::accept().
// `device`, `domain` and `control` must outlive it. Blocks up to the handshake's time-out; about
// 1 ms. Registers pending * value_bytes + copy_bytes.
//   kInvalidArgument    an option is out of range, or the peer opens a region, too
//   kLimitExceeded      a limit of the device, or the back-end has as many connections as it wants
//   kProtocolViolation  the peer does something else, or runs another release
//   kUnavailable        the peer is gone
Result<std::unique_ptr<RemoteRegion>> open_region(const Device& device,
                                                  const ProtectionDomain& domain,
                                                  ControlConnection& control,
                                                  const RemoteRegionOptions& options = {});

}  // namespace verbena
