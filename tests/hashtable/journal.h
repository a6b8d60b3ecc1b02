// What a front-end has called and was answered, in a file that outlives it: its test reads there
// what it did until it was killed.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <ostream>
#include <vector>

#include "src/base/runtime.h"
#include "tests/rpc_support.h"
#include "tests/support/map_history.h"
#include "verbena/apps/hashtable.h"

namespace verbena::hashtable_test {

// With a hot area, a third of the keys fits into it, and locks of the dead are soon taken over.
inline HashtableFormat table_format(bool has_hot_area) {
  return {.entries = 64,
          .max_key_bytes = 16,
          .max_value_bytes = 64,
          .max_front_ends = 64,
          .hot_blocks = has_hot_area ? 4u : 0u,
          .hot_block_entries = 4,
          .hot_lock_lease_ns = 200'000};
}
enum class Area : uint32_t { kCold, kHot, kBuffered };

inline std::ostream& operator<<(std::ostream& out, Area area) {
  constexpr const char* kNames[] = {"Without", "With", "Buffered"};
  return out << kNames[static_cast<uint32_t>(area)];
}

// So that keys come and go in the hot area, and much is answered before it is published.
inline HashtableOptions table_options(Area area) {
  return {.hot_modifications = area == Area::kBuffered ? 64u : 4u,
          .hot_lease_ns = 2'000,
          .hot_after = 2,
          .hot_patience = 8,
          .acknowledgement = area == Area::kBuffered ? HashtableAcknowledgement::kBuffered
                                                     : HashtableAcknowledgement::kPublished,
          .loss_window_ns = 400'000};
}
inline constexpr uint64_t kKeys = 48;
inline constexpr uint32_t kTaskTag = 0x48544b01;

struct Task {
  uint64_t number = 0;  // of the front-end: its values are its own
  uint32_t pending = 1;
  uint32_t dies_after_us = 0;  // 0: it lives
  Area area = Area::kCold;
};

// Zeroed, so a call is there once its begin_ns is, answered once its reply_ns is, and has happened
// for certain once its end_ns is: with the answer, or when it was seen to be published.
struct Journal {
  static constexpr uint64_t kMostCalls = 4'000;

  struct Entry {
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t reply_ns;
    uint64_t key;
    uint64_t value;
    test::MapOperation::Kind kind;
    uint32_t succeeded;
  };
  uint64_t go;     // 1: all have come, begin
  uint64_t count;  // of answers
  uint64_t hot;    // ... of the hot area, once all are there
  uint64_t kept;   // updates that were answered before they were published
  Entry entries[kMostCalls];
};

// Null: it cannot be.
inline Journal* map_journal(int file) {
  void* const memory = mmap(nullptr, sizeof(Journal), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Journal*>(memory);
}

inline uint64_t load(uint64_t& word) { return std::atomic_ref(word).load(); }
inline void store(uint64_t& word, uint64_t value) { std::atomic_ref(word).store(value); }

// `session`: of this front-end, and no other one.
inline std::vector<test::MapCall> calls_of(Journal& journal, uint64_t session) {
  std::vector<test::MapCall> calls;
  for (uint64_t i = 0; i < Journal::kMostCalls; ++i) {
    Journal::Entry& entry = journal.entries[i];
    const uint64_t begin_ns = load(entry.begin_ns);
    if (begin_ns == 0) break;
    const auto moment = [](uint64_t at_ns) { return at_ns == 0 ? test::kUnanswered : at_ns; };
    const uint64_t end_ns = load(entry.end_ns);
    calls.push_back({begin_ns,
                     moment(end_ns),
                     {entry.kind, end_ns != 0 && entry.succeeded != 0, entry.key, entry.value},
                     session,
                     moment(load(entry.reply_ns))});
  }
  test::extend_searches(calls);
  return calls;
}

}  // namespace verbena::hashtable_test
