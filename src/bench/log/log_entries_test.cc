#include "src/bench/log/log_entries.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::bench {
namespace {

constexpr uint32_t kEntryBytes = 50;
constexpr uint32_t kPhase = 3;

std::string entry_of(uint32_t writer, uint64_t number, uint32_t phase = kPhase) {
  std::string entry(kEntryBytes, '\0');
  fill_entry(entry, {.writer = writer, .phase = phase, .number = number});
  return entry;
}

// A log of two writers, which take turns, as they would write it.
class Entries : public testing::Test {
 protected:
  struct Placed {
    LogPosition position;
    std::string bytes;
  };

  void SetUp() override {
    EntrySum sums[2];
    LogPosition position = 100;
    for (uint64_t number = 0; number < 10; ++number) {
      for (uint32_t writer = 0; writer < 2; ++writer) {
        // What was skipped leaves numbers out.
        if (writer == 1 && number == 4) continue;
        log_.push_back({position, entry_of(writer, number)});
        sums[writer].add(position, number);
        position += 3;
      }
    }
    for (uint32_t writer = 0; writer < 2; ++writer, ++position) {
      const LastEntry last{.stamp = {.writer = writer, .phase = kPhase | kLastEntry},
                           .acknowledged = sums[writer]};
      log_.push_back({position, std::string(reinterpret_cast<const char*>(&last), sizeof(last))});
    }
  }

  uint64_t mismatches() {
    check_.begin(kPhase, 2, 2, kEntryBytes, true);
    for (const Placed& one : log_) check_.take(one.position, one.bytes);
    return check_.mismatches();
  }

  std::vector<Placed> log_;
  EntryCheck check_;
};

TEST_F(Entries, ThatAreAllThereAreRight) {
  log_.insert(log_.begin(), {50, entry_of(1, 7, kPhase - 1)});  // of an earlier phase
  EXPECT_EQ(mismatches(), 0u);
  EXPECT_TRUE(check_.is_over());
  EXPECT_EQ(check_.entries(), 19u);
}

TEST_F(Entries, ThatAreMissingAreNoticed) {
  for (const size_t missing : {0u, 1u, 10u, 18u}) {
    const Placed taken = log_[missing];
    log_.erase(log_.begin() + static_cast<ptrdiff_t>(missing));
    EXPECT_EQ(mismatches(), 1u) << missing;
    log_.insert(log_.begin() + static_cast<ptrdiff_t>(missing), taken);
  }
}

TEST_F(Entries, ThatComeTwiceAreNoticed) {
  log_.insert(log_.begin() + 6, {log_[5].position + 1, log_[5].bytes});
  EXPECT_EQ(mismatches(), 1u);
}

TEST_F(Entries, ThatChangedTheirOrderAreNoticed) {
  std::swap(log_[2].bytes, log_[4].bytes);  // of one writer
  EXPECT_GT(mismatches(), 0u);
  std::swap(log_[2].bytes, log_[4].bytes);
  std::swap(log_[2].bytes, log_[3].bytes);  // of two
  EXPECT_EQ(mismatches(), 2u);
}

TEST_F(Entries, ThatLieElsewhereThanWasAcknowledgedAreNoticed) {
  ++log_[7].position;
  EXPECT_EQ(mismatches(), 1u);
  log_[7].position = log_[6].position;  // no later than the one before
  EXPECT_GT(mismatches(), 0u);
}

TEST_F(Entries, ThatAreNoWritersAreNoticed) {
  log_[3].bytes[kEntryBytes - 1] ^= 1;
  EXPECT_EQ(mismatches(), 2u);  // the entry, and that its writer lacks one
  log_.clear();
  SetUp();
  log_[3].bytes = entry_of(2, 0);
  EXPECT_EQ(mismatches(), 2u);
  log_[3].bytes = "short";
  EXPECT_EQ(mismatches(), 2u);
  EXPECT_TRUE(check_.is_over());
}

TEST_F(Entries, AreNotOverBeforeAllWritersHaveEnded) {
  log_.pop_back();
  EXPECT_EQ(mismatches(), 0u);
  EXPECT_FALSE(check_.is_over());
}

}  // namespace
}  // namespace verbena::bench
