// What polling and moving bytes costs a thread, counted; and the few functions that count it.
//
//   const DataPathStatistics before = data_path_statistics();
//   ...                                         // the thread serves requests, say
//   const DataPathStatistics spent = data_path_statistics() - before;
//   // spent.empty_polls of spent.polls found nothing ("patterns" 7, table 2)
//
// All of the library's data path reads memory that a device or another thread writes, and copies
// and clears bytes, by these functions, so nothing is left out of the counts. A simulation reads
// the same counts: they are what it charges a thread's CPU time for. A program that copies payloads
// itself may use copy_bytes() so that its own work is in both.
//
// Counts belong to the thread, since a poll often serves all its connections at once: a thread that
// wants those of one server, client or dispatcher takes the difference around its calls. Each costs
// one or two instructions; nothing is shared between threads.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace verbena {

// Of one thread, since it began; in a simulation, of one simulated thread.
struct DataPathStatistics {
  uint64_t polls = 0;          // loads of a polled word, and calls of ibv_poll_cq
  uint64_t empty_polls = 0;    // of these, the ones that found nothing
  uint64_t bytes_copied = 0;   // by the CPU from buffer to buffer; what devices move is not in it
  uint64_t bytes_cleared = 0;  // of received messages, where a mark layout has to (kLengthMarkers)
  uint64_t hand_overs = 0;     // words published to another thread of the process

  DataPathStatistics operator-(const DataPathStatistics& before) const {
    return {polls - before.polls, empty_polls - before.empty_polls,
            bytes_copied - before.bytes_copied, bytes_cleared - before.bytes_cleared,
            hand_overs - before.hand_overs};
  }
};

namespace internal {

// What the functions below count. Lines of its own: no other thread's counts lie beside it.
struct alignas(64) DataPathCounters {
  // A poll of a word is one of these three:
  uint64_t empty_polls = 0;
  uint64_t leading_polls = 0;  // found a word that leads on to a mark or tells of other memory
  uint64_t marks = 0;          // found the mark of a whole message
  uint64_t further_lines = 0;  // read of messages beside the line with the mark
  uint64_t bytes_copied = 0;
  uint64_t bytes_cleared = 0;
  uint64_t hand_overs = 0;
  // Of completion queues; what they cost is the device's affair.
  uint64_t empty_queue_polls = 0;
  uint64_t full_queue_polls = 0;
  uint64_t read_queue_polls = 0;  // found some, and the messages of receives are read, too
  uint64_t consumed_words = 0;    // that another thread published

  // Of a simulation, else null: the thread waits until its core has the line of a word.
  void (*take_line)(const void* word) = nullptr;
};

#if defined(__GNUC__)
__attribute__((tls_model("initial-exec")))
#endif
inline constinit thread_local DataPathCounters data_path_counters;

// With VERBENA_NO_DATA_PATH_COUNTERS nothing is counted; only what counting costs is measured so.
#ifndef VERBENA_NO_DATA_PATH_COUNTERS
inline void count(uint64_t& counter, uint64_t more = 1) { counter += more; }
#else
inline void count(uint64_t&, uint64_t = 1) {}
#endif

// memcpy() of more than kPlainCopyBytes.
void copy_long(void* to, const void* from, size_t bytes);

// Up to here memcpy() is as fast wherever the two buffers lie.
inline constexpr size_t kPlainCopyBytes = 2048;

inline void copy_uncounted(void* to, const void* from, size_t bytes) {
  if (bytes <= kPlainCopyBytes) {
    std::memcpy(to, from, bytes);
  } else {
    copy_long(to, from, bytes);
  }
}

// Branches, which become one with the caller's own.
inline void count_either(bool found, uint64_t& there, uint64_t& empty) {
  if (found) {
    count(there);
  } else {
    count(empty);
  }
}
inline void count_poll(bool found) {
  count_either(found, data_path_counters.leading_polls, data_path_counters.empty_polls);
}

// Before a word is changed that other threads change in the same way.
inline void take_line(const void* word) {
  if (data_path_counters.take_line != nullptr) [[unlikely]]
    data_path_counters.take_line(word);
}
// For a word that is changed in a way of its own, under a lock.
inline void count_change(const void* word) {
  take_line(word);
  count(data_path_counters.hand_overs);
}

}  // namespace internal

// Of the calling thread.
inline DataPathStatistics data_path_statistics() {
  const internal::DataPathCounters& counted = internal::data_path_counters;
  const uint64_t empty = counted.empty_polls + counted.empty_queue_polls;
  const uint64_t found =
      counted.leading_polls + counted.marks + counted.full_queue_polls + counted.read_queue_polls;
  return {empty + found, empty, counted.bytes_copied, counted.bytes_cleared, counted.hand_overs};
}

// --- memory that a device, another process or another thread writes ---

// Polls a word: 0 while nothing has come. What its writer stored before it is visible once it is.
// A poll, and an empty one where it is 0.
template <typename T>
inline T poll_word(const T* address) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  const T word = __atomic_load_n(address, __ATOMIC_ACQUIRE);
  internal::count_poll(word != 0);
  return word;
}

// Polls a word of which the bits in `mask` are `wanted` once something has come: as poll_word(),
// and empty until then.
template <typename T>
inline T poll_bits(const T* address, T mask, T wanted) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  const T word = __atomic_load_n(address, __ATOMIC_ACQUIRE);
  internal::count_poll((word & mask) == wanted);
  return word;
}
// Whether poll_bits() finds nothing; that is an empty poll then. Else it counts nothing: for
// callers who poll a word that has something again, where they use it.
template <typename T>
inline bool has_no_bits(const T* address, T mask, T wanted) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  const bool empty = (__atomic_load_n(address, __ATOMIC_ACQUIRE) & mask) != wanted;
  if (empty) internal::count(internal::data_path_counters.empty_polls);
  return empty;
}

// Polls a word that counts up, and whose last known value is `known`: as poll_word(), and empty
// while it is the same.
template <typename T>
inline T poll_counter(const T* address, T known) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  const T word = __atomic_load_n(address, __ATOMIC_ACQUIRE);
  internal::count_poll(word != known);
  return word;
}

// Polls the byte that decides whether a whole message is there: it is if the byte is `mark`. A
// poll, and an empty one where it is not.
inline uint8_t poll_mark(const char* last_byte, uint8_t mark) {
  const auto byte = static_cast<uint8_t>(__atomic_load_n(last_byte, __ATOMIC_ACQUIRE));
  internal::count_either(byte == mark, internal::data_path_counters.marks,
                         internal::data_path_counters.empty_polls);
  return byte;
}

// The same for a mark that is the highest bit of a word, and so in its last byte, which alone is
// polled, since it arrives last. True: it is there, and *word is the whole word.
inline bool poll_marked_word(const char* address, uint64_t* word) {
  const auto last = static_cast<uint8_t>(__atomic_load_n(address + 7, __ATOMIC_ACQUIRE));
  if ((last & 0x80) == 0) {
    internal::count(internal::data_path_counters.empty_polls);
    return false;
  }
  internal::count(internal::data_path_counters.marks);
  *word = __atomic_load_n(reinterpret_cast<const uint64_t*>(address), __ATOMIC_RELAXED);
  return true;
}

// Reads a word of a message whose mark was found, from another cache line than the mark's.
template <typename T>
inline T read_word(const T* address) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  internal::count(internal::data_path_counters.further_lines);
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}

// Stores a word that belongs to a message: the header or mark of one that is to be sent, or 0 where
// the mark of a received one was. Not counted by itself; the message is.
template <typename T>
inline void store_word(void* address, T word) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  __atomic_store_n(static_cast<T*>(address), word, __ATOMIC_RELAXED);
}

// Stores a word that another thread of the process consumes: it sees what this one stored before. A
// hand-over.
template <typename T>
inline void publish_word(T* address, T word) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  __atomic_store_n(address, word, __ATOMIC_RELEASE);
  internal::count(internal::data_path_counters.hand_overs);
}

// Polls a word that another thread of the process publishes, as poll_word().
template <typename T>
inline T consume_word(const T* address) {
  const T word = poll_word(address);
  if (word != 0) internal::count(internal::data_path_counters.consumed_words);
  return word;
}

// Changes a word that other threads change in the same way, sequentially consistent; each of them
// takes the cache line, one after the other. A hand-over. What the word was before.
template <typename T>
inline T compare_and_swap_word(T* address, T expected, T desired) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  internal::count_change(address);
  __atomic_compare_exchange_n(address, &expected, desired, false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
  return expected;
}
template <typename T>
inline T fetch_and_add_word(T* address, T addend) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
  internal::count_change(address);
  return __atomic_fetch_add(address, addend, __ATOMIC_SEQ_CST);
}

// ibv_poll_cq(). A poll, and an empty one where nothing is there.
inline int poll_completions(ibv_cq* queue, int most, ibv_wc* completions) {
  const int found = ibv_poll_cq(queue, most, completions);
  internal::count_either(found > 0, internal::data_path_counters.full_queue_polls,
                         internal::data_path_counters.empty_queue_polls);
  return found;
}
// The same for who then reads the messages that came with receives: a simulation charges each like
// one whose mark was found, and its bytes, which lie in another line than the completion.
inline int poll_messages(ibv_cq* queue, int most, ibv_wc* completions) {
  const int found = ibv_poll_cq(queue, most, completions);
  internal::count_either(found > 0, internal::data_path_counters.read_queue_polls,
                         internal::data_path_counters.empty_queue_polls);
  return found;
}

// --- bytes ---

// memcpy(), but as fast wherever the two buffers lie in their pages.
inline void copy_bytes(void* to, const void* from, size_t bytes) {
  internal::copy_uncounted(to, from, bytes);
  internal::count(internal::data_path_counters.bytes_copied, bytes);
}

// For a program that moves bytes in a loop of its own: counts them as if copy_bytes() had.
inline void count_copied_bytes(size_t bytes) {
  internal::count(internal::data_path_counters.bytes_copied, bytes);
}

// Sets the bytes to 0.
inline void clear_bytes(void* address, size_t bytes) {
  std::memset(address, 0, bytes);
  internal::count(internal::data_path_counters.bytes_cleared, bytes);
}

}  // namespace verbena
