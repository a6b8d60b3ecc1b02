// One-sided operations of a messenger (message.h): put, get and atomics on memory that a peer
// exposes.
//
//   // At the peer that has the memory; the key is plain data, which the processes exchange.
//   auto key = messenger->exposed().expose({.pieces = {&table, 1}, .access = kMemoryReadWrite});
//
//   // Here. Its first byte is at 0, unless it was exposed with an address.
//   const iovec from{&value, sizeof(value)};
//   const RemoteRange to{.address = 64, .bytes = sizeof(value), .key = *key};
//   messenger->put({.peer = peer, .pieces = {&from, 1}, .remote = {&to, 1}, .context = &value});
//   while (messenger->flush(peer) == PostResult::kWouldBlock) messenger->progress();
//
// The peer carries them out, in the order in which they were posted and between its messages from
// here: inside of its progress(), which checks key, bounds and permission first. What it refuses
// completes with the reason, touches no memory and breaks nothing. Up to some 2 KB travel in the
// request or the answer; of more, the peer's device fetches or stores the bytes, where they lie on
// both sides.
//
// Order. A put, get or atomic sees what all those that were posted before it to the same peer did.
// Messages may overtake them: flush() before those. They do not overtake messages.
//
// Atomics are atomic among each other, however many messengers of a process expose the memory, as
// long as these are used by one thread at a time. The CPU of the peer carries them out: no device
// has all of them, and what a device does is not atomic with what the CPU does.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>

#include "verbena/status.h"

namespace verbena {

using PeerNumber = uint32_t;

// What peers may do.
enum MemoryAccess : uint32_t {
  kMemoryRead = 1u << 0,
  kMemoryWrite = 1u << 1,
  kMemoryReadWrite = kMemoryRead | kMemoryWrite,
};

struct ExposeRequest {
  // At most four, which peers see as one. They stay valid until revoke().
  std::span<const iovec> pieces = {};
  uint32_t access = 0;
  // What peers call the first byte: 0, or its virtual address, say.
  uint64_t address = 0;
  // Its key: chosen by the caller, or by this.
  bool has_key = false;
  uint64_t key = 0;
};

// Operations of peers that were carried out on exposed memory; atomics count as writes, but for
// AtomicOperation::kRead.
struct MemoryCounts {
  uint64_t reads = 0;
  uint64_t writes = 0;
};

// The memory that peers reach. Exposing costs an entry of a table and nothing of a device.
// Threading: as the messengers that have it.
class ExposedMemory {
 public:
  ExposedMemory();
  ~ExposedMemory();
  ExposedMemory(const ExposedMemory&) = delete;
  ExposedMemory& operator=(const ExposedMemory&) = delete;

  // The key.
  //   kInvalidArgument  more pieces than four, no such access, or more bytes than addresses
  //   kUnavailable      the key is in use
  Result<uint64_t> expose(const ExposeRequest& request);
  // From now on the key is unknown. False: a device still moves bytes there; the messengers'
  // progress(), then again. Only then may the memory go. Also true if there is no such key.
  bool revoke(uint64_t key);
  // Counts what peers do there from the first such call for the key on, one lookup for each
  // operation. Valid until revoke() returns true. Null: there is no such key.
  const MemoryCounts* count(uint64_t key);

  struct Table;
  Table& table() { return *table_; }  // for messengers

 private:
  std::unique_ptr<Table> table_;
};

// Memory of a peer.
struct RemoteRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t key = 0;
};

struct OneSidedRequest {
  PeerNumber peer = 0;
  // At most four of each, of as many bytes together. What is put may change at once if it is no
  // longer than one_sided_limit_bytes() and MessengerOptions::reused_buffers is kCopied, or with
  // kMessageSilent or kMessageCopied; else when the operation has completed.
  std::span<const iovec> pieces = {};
  std::span<const RemoteRange> remote = {};
  void* context = nullptr;
  uint64_t data = 0;  // with kMessageData, of a put: for a completion of the peer (kWritten)
  // kMessageData, kMessageSilent, kMessageCopied, kMessageMarked, and kMessageFence: it begins once
  // all before it that has a completion to come from the peer has completed; until then it would
  // block.
  uint32_t flags = 0;
};

enum class AtomicType : uint8_t {
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat,
  kDouble,
  kFloatComplex,
  kDoubleComplex,
  kLongDouble,
  kLongDoubleComplex,
};

// What becomes of a value: of it and the operand.
enum class AtomicOperation : uint8_t {
  kMin,
  kMax,
  kSum,
  kProduct,
  kLogicalOr,
  kLogicalAnd,
  kBitOr,
  kBitAnd,
  kLogicalXor,
  kBitXor,
  kRead,  // as it is; has no operand
  kWrite,
  // The operand, if the compared value and the value are equal, or not, or less or equal (compared
  // <= value) ...
  kSwapIfEqual,
  kSwapIfNotEqual,
  kSwapIfLessOrEqual,
  kSwapIfLess,
  kSwapIfGreaterOrEqual,
  kSwapIfGreater,
  kSwapMasked,  // the operand's bits where the compared value has ones
};

// Bytes of a value.
uint32_t atomic_bytes(AtomicType type);
// Whether there is the operation: bits only of integers, less and greater not of complex numbers.
bool has_atomic(AtomicType type, AtomicOperation operation);
// Whether it has compared values.
constexpr bool compares(AtomicOperation operation) {
  return operation >= AtomicOperation::kSwapIfEqual;
}

// On one value after the other; each by itself is atomic.
struct AtomicRequest {
  PeerNumber peer = 0;
  AtomicType type = AtomicType::kUint64;
  AtomicOperation operation = AtomicOperation::kSum;
  // At most four of each, of as many bytes, atomic_limit_bytes() at most. Operands and compared
  // values are copied. Results are the values before; none if they are not wanted, except of kRead.
  std::span<const iovec> operands = {};
  std::span<const iovec> compared = {};
  std::span<const iovec> results = {};
  std::span<const RemoteRange> remote = {};
  void* context = nullptr;
  uint32_t flags = 0;  // kMessageSilent, kMessageMarked, kMessageFence
};

}  // namespace verbena
