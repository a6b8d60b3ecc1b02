// What the records of the shuffle's load say, so that a receiver knows whether it has all of its
// own, each once.
//
// Each record has its key, which decides who gets it, its sender, its phase, and a number that
// rises with each record of this sender. After them a sender sends a last one to each receiver,
// with the count of the records that went there and the sum of hashes of their numbers. A receiver
// computes the same of what comes: so who finds both equal has each record once, in whatever order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "verbena/apps/shuffle.h"

namespace verbena::bench {

// At the beginning of each record.
struct RecordStamp {
  uint64_t key = 0;
  uint32_t sender = 0;
  uint32_t phase = 0;  // with kLastRecord: the sender's last one
  uint64_t number = 0;
};
inline constexpr uint32_t kLastRecord = 1u << 31;

// Of records of one sender for one receiver.
struct RecordSum {
  uint64_t count = 0;
  uint64_t hashes = 0;

  void add(uint64_t number) {
    ++count;
    hashes += shuffle_hash({reinterpret_cast<const char*>(&number), sizeof(number)});
  }
  friend bool operator==(const RecordSum&, const RecordSum&) = default;
};

struct LastRecord {
  RecordStamp stamp;
  RecordSum sent;
};
inline constexpr uint32_t kLeastRecordBytes = sizeof(LastRecord);

inline uint64_t record_key_hash(uint64_t key) {
  return shuffle_hash({reinterpret_cast<const char*>(&key), sizeof(key)});
}

// The bytes behind the stamp follow from it.
inline void fill_record(std::span<char> record, const RecordStamp& stamp) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  std::memcpy(record.data(), &stamp, sizeof(stamp));
  uint64_t word = (uint64_t{stamp.sender} << 40 ^ uint64_t{stamp.phase} << 32) + stamp.number;
  for (size_t at = sizeof(stamp); at < record.size(); at += sizeof(word)) {
    word += kStep;
    std::memcpy(record.data() + at, &word, std::min(sizeof(word), record.size() - at));
  }
}

// What one receiver makes of the records of a phase.
class RecordCheck {
 public:
  RecordCheck(uint32_t phase, uint32_t receiver, uint32_t receivers, uint32_t senders,
              uint32_t record_bytes)
      : phase_(phase),
        receiver_(receiver),
        receivers_(receivers),
        expected_(record_bytes),
        senders_(senders) {}

  // False: it is a sender's last one.
  bool take(uint32_t sender, std::string_view record);
  // At the end: records that are not as they were sent, or are another receiver's; and senders
  // whose records are not those that were sent.
  uint64_t mismatches() const;

 private:
  struct Seen {
    RecordSum came;
    RecordSum sent;
    bool ended = false;
  };

  const uint32_t phase_;
  const uint32_t receiver_;
  const uint32_t receivers_;
  std::vector<char> expected_;
  std::vector<Seen> senders_;
  uint64_t mismatches_ = 0;
};

}  // namespace verbena::bench
