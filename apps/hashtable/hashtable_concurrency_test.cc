// Several front-ends at once, in threads on soft0: each key's history must be linearizable.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "hashtable/recorder_for_test.h"
#include "hashtable/table_for_test.h"
#include "src/base/runtime.h"
#include "src/base/sanitizer.h"

#if VERBENA_THREAD_SANITIZER
// Front-ends read what others write, as the memory of a region is made for. The copies are those of
// the device, which on an RNIC are no thread's; what this program does itself is checked.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:verbena::soft::read_peer\n"
         "race:verbena::soft::write_peer\n"
         "race:execute_atomic\n";
}
#endif

namespace verbena::hashtable {
namespace {

using HashtableAcknowledgement::kBuffered;

struct Load {
  uint32_t front_ends;
  uint32_t pending;
  uint64_t keys;
  uint64_t operations;  // of each front-end
  uint32_t hot_blocks = 0;
  HashtableAcknowledgement acknowledgement = HashtableAcknowledgement::kPublished;
};

std::ostream& operator<<(std::ostream& out, const Load& load) {
  return out << load.front_ends << " front-ends, " << load.pending << " pending, " << load.keys
             << " keys, " << load.hot_blocks << " hot blocks"
             << (load.acknowledgement == kBuffered ? ", buffered" : "");
}

class HashtableConcurrencyTest : public testing::TestWithParam<Load> {};

TEST_P(HashtableConcurrencyTest, KeysAreLinearizable) {
  const Load load = GetParam();
  // So few buckets that keys meet in them.
  TableForTest back_end({.entries = std::max<uint64_t>(8, load.keys / 4),
                         .max_front_ends = load.front_ends,
                         .hot_blocks = load.hot_blocks,
                         .hot_block_entries = 4});
  HashtableOptions options = kSoonHot;
  options.acknowledgement = load.acknowledgement;
  std::vector<TableForTest::FrontEnd> tables;
  std::vector<Recorder> recorders;
  std::vector<std::vector<test::MapCall>> histories(load.front_ends);
  for (uint32_t i = 0; i < load.front_ends; ++i) {
    tables.push_back(back_end.open(load.pending, options));
    recorders.emplace_back(*tables[i], i, load.keys, run_seed() * 100 + i, histories[i]);
  }
  std::vector<Thread> threads;
  for (Recorder& recorder : recorders) {
    threads.push_back(start_thread("front-end", [&] { recorder.run(load.operations); }));
  }
  for (Thread& thread : threads) thread.join();
  std::vector<test::MapCall> calls;
  for (uint32_t i = 0; i < load.front_ends; ++i) {
    EXPECT_TRUE(tables[i]->status().ok()) << tables[i]->status().message();
    EXPECT_EQ(recorders[i].torn(), 0u);
    EXPECT_EQ(recorders[i].refused(), 0u);
    EXPECT_EQ(histories[i].size(), load.operations);
    EXPECT_EQ(tables[i]->statistics().hot_kept > 0, load.acknowledgement == kBuffered);
    test::extend_searches(histories[i]);
    calls.insert(calls.end(), histories[i].begin(), histories[i].end());
  }
  EXPECT_EQ(test::broken_history(calls), "");
  // Nothing is lost of the memory, and nothing is used twice.
  for (TableForTest::FrontEnd& end : tables) {
    EXPECT_TRUE(end->close().ok());
    end.region->close();
  }
  back_end.region().wait_for_connections(0);
  const auto lost = reclaim_hashtable(back_end.memory());
  ASSERT_TRUE(lost.ok()) << lost.status().message();
  EXPECT_EQ(*lost, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Loads, HashtableConcurrencyTest,
    testing::Values(Load{2, 1, 4, 4'000}, Load{4, 1, 12, 3'000}, Load{2, 4, 16, 5'000},
                    Load{4, 8, 24, 3'000}, Load{3, 32, 200, 10'000}, Load{2, 1, 4, 4'000, 1},
                    Load{4, 1, 12, 3'000, 2}, Load{2, 4, 16, 5'000, 2}, Load{4, 8, 24, 3'000, 3},
                    Load{3, 32, 200, 10'000, 16}, Load{2, 1, 4, 4'000, 1, kBuffered},
                    Load{2, 4, 16, 5'000, 2, kBuffered}, Load{3, 32, 200, 10'000, 16, kBuffered}));

}  // namespace
}  // namespace verbena::hashtable
