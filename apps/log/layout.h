// What lies where in a region that is a log, for all who use it; and why the log is right.
//
//   header | control | writers' floors | a word for each place | the places, of 64 bytes
//
// A place is 64 bytes of the ring; places are numbered without end, and number p lies at p modulo
// the ring's size, in lap p / size. An entry is a batch of records: some places one behind the
// other, reserved by a fetch-and-add on the tail.
//
// Words. The word of an entry's first place says what became of it: free, committed (and how many
// places it has) or skipped (this one place). It carries the lap; one of an earlier lap is free. A
// writer writes the entry, and behind it on the same queue pair swaps the word from free to
// committed. A reader that has waited long enough swaps free to skipped and goes on to the next
// place, which may be part of the same hole, or an entry: since words are read one entry after the
// other from a known beginning, all readers see the same entries. What lies in the places is never
// searched for entries.
//
// Several replicas. An entry is in the log if its words are committed on all, and is not if one is
// skipped, which cannot be both: a word that was committed first can become skipped only where
// another one is skipped. Nobody passes a place before one of both holds on all: a reader that
// finds a skipped word makes the others skipped, too. So whichever replicas are left tell what was
// decided: all committed or not. Writing and swapping go to all replicas at once; no order between
// them is needed. The tail is that of the first replica; of the others it is a lower bound, behind
// which no reader began.
//
// Formation (form.cc) decides what is undecided and copies. Each store first ends all other
// connections, so no operation of an earlier epoch is left.
//
// Reuse. A WRITE of a writer that was stopped for long must not hit a place that is used again.
// Each writer has a floor on each replica, below which it has nothing on its way: it publishes one
// before it reserves, and takes it back when it has nothing pending. A store frees places
// (LogStore::maintain()) below the trim and below all floors, and those of writers whose
// connection it has ended do not count. A reservation below the trim was made before the trim, and
// its floor before that. Freeing is to make the words free in the next lap, so that a writer knows
// what to swap, and to raise the limit. What a late reader swaps carries its lap and so does no
// harm; a writer that finds an older lap's word swaps that instead.
//
// Full. Writers know the limit and reserve nothing beyond it; when several do at the same moment, a
// reservation may end beyond it. It is given up, and becomes a hole when its places are free.
#pragma once

#include <bit>
#include <cstdint>

namespace verbena::log_app {

inline constexpr uint32_t kPlaceBytes = 64;
inline constexpr uint64_t kMagic = 0x676f6c616e656276;  // "vbenalog"
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kMaxReplicas = 16;

enum class StoreState : uint32_t { kBlank, kActive };

// At the region's beginning. What does not change while the store lives, and what form_log()
// writes.
struct Header {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t place_bytes = 0;
  uint64_t places = 0;
  uint32_t writers = 0;
  StoreState state = StoreState::kBlank;
  uint64_t log_id = 0;  // of all replicas of a log
  uint64_t epoch = 0;
  uint32_t replica = 0;
  uint32_t replicas = 0;
  uint64_t prepared = 0;  // the epoch that form_log() was about to begin when it came last
};
static_assert(sizeof(Header) == 64);

// Positions in places. The tail has a cache line of its own.
struct Control {
  uint64_t tail = 0;
  uint64_t unused[7] = {};
  uint64_t trim = 0;   // what is before was dropped
  uint64_t limit = 0;  // what is before may be written
  // Set by the store when form_log() comes, and cleared by that at its end.
  uint64_t forming = 0;
};

// No log comes so far; positions, and laps of the smallest log, have room for it, and sums of it do
// not wrap around.
inline constexpr uint64_t kMaxPlace = uint64_t{1} << 49;

inline constexpr uint64_t kControlAt = 64;
static_assert(sizeof(Header) <= kControlAt);
inline constexpr uint64_t kTailAt = kControlAt;
inline constexpr uint64_t kTrimAt = kControlAt + 64;
inline constexpr uint64_t kLimitAt = kTrimAt + 8;
inline constexpr uint64_t kFormingAt = kLimitAt + 8;
inline constexpr uint64_t kFloorsAt = 256;
inline constexpr uint64_t kFloorStrideBytes = 64;
// A floor is stored plus 1.
inline constexpr uint64_t kNoFloor = 0;

class Layout {
 public:
  Layout() = default;
  Layout(uint64_t places, uint32_t writers) : places_(places), writers_(writers) {}

  uint64_t places() const { return places_; }
  uint64_t ring_place(uint64_t place) const { return place & (places_ - 1); }
  uint64_t lap(uint64_t place) const { return place >> std::countr_zero(places_); }

  uint64_t floor_at(uint32_t writer) const { return kFloorsAt + writer * kFloorStrideBytes; }
  uint64_t words_at() const { return floor_at(writers_); }
  uint64_t word_at(uint64_t place) const {
    return words_at() + ring_place(place) * sizeof(uint64_t);
  }
  uint64_t places_at() const { return words_at() + places_ * sizeof(uint64_t); }
  uint64_t place_at(uint64_t place) const { return places_at() + ring_place(place) * kPlaceBytes; }
  uint64_t region_bytes() const { return places_at() + places_ * kPlaceBytes; }

 private:
  uint64_t places_ = 1;
  uint32_t writers_ = 0;
};

// --- words ---

enum class WordState : uint8_t { kFree, kCommitted, kSkipped };

inline constexpr uint32_t kMaxEntryPlaces = (1u << 22) - 1;

// lap (40 bits) | places (22) | state (2)
inline uint64_t free_word(uint64_t lap) { return lap << 24; }
inline uint64_t committed_word(uint64_t lap, uint32_t places) {
  return lap << 24 | uint64_t{places} << 2 | static_cast<uint64_t>(WordState::kCommitted);
}
inline uint64_t skipped_word(uint64_t lap) {
  return lap << 24 | 1u << 2 | static_cast<uint64_t>(WordState::kSkipped);
}
inline uint64_t word_lap(uint64_t word) { return word >> 24; }
inline uint32_t word_places(uint64_t word) {
  return static_cast<uint32_t>(word >> 2) & kMaxEntryPlaces;
}
// In `lap`; what is of an earlier one is free.
inline WordState word_state(uint64_t word, uint64_t lap) {
  if (word_lap(word) != lap) return WordState::kFree;
  switch (word & 3) {
    case 1:
      return WordState::kCommitted;
    case 2:
      return WordState::kSkipped;
    default:
      return WordState::kFree;
  }
}

// --- entries ---

// An entry is this, a RecordHeader for each record, and the records one behind the other.
struct EntryHeader {
  uint64_t place = 0;  // its own
  uint32_t records = 0;
  uint32_t bytes = 0;  // of the entry
  uint32_t unused = 0;
  uint32_t crc = 0;  // of what is before it, and of all RecordHeaders
};
static_assert(sizeof(EntryHeader) == 24);

struct RecordHeader {
  uint32_t bytes = 0;
  uint32_t crc = 0;
};

inline constexpr uint32_t kMaxRecords = 1000;
// A position is the entry's first place and the record's number in it.
inline constexpr uint32_t kRecordBits = 10;
inline uint64_t position_of(uint64_t place, uint32_t record) {
  return place << kRecordBits | record;
}

inline uint32_t headers_bytes(uint64_t records) {
  return static_cast<uint32_t>(sizeof(EntryHeader) + records * sizeof(RecordHeader));
}
inline uint32_t places_of(uint64_t entry_bytes) {
  return static_cast<uint32_t>((entry_bytes + kPlaceBytes - 1) / kPlaceBytes);
}

}  // namespace verbena::log_app
