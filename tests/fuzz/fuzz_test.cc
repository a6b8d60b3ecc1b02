// Every target with its seeds and with mutations of them: the same in every run, others with
// VERBENA_SEED=N. What is not survived ends the program, and does so again with the same seed.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutator.h"

namespace verbena::fuzz {

std::ostream& operator<<(std::ostream& out, const FuzzTarget& target) { return out << target.name; }

namespace {

constexpr size_t kMaxInputBytes = size_t{64} << 10;

class FuzzTest : public testing::TestWithParam<FuzzTarget> {};

TEST_P(FuzzTest, RightInputsPass) {
  const std::vector<Bytes> seeds = GetParam().seeds();
  ASSERT_FALSE(seeds.empty());
  for (const Bytes& seed : seeds) {
    const Status status = GetParam().run(seed);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(FuzzTest, AnyInputEnds) {
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(run_seed()));
  const std::vector<Bytes> seeds = GetParam().seeds();
  Random random(run_seed());
  int refused = 0;
  for (int i = 0; i < GetParam().inputs; ++i) {
    if (!GetParam().run(mutated(seeds, random, kMaxInputBytes)).ok()) ++refused;
  }
  // Else the mutations are too weak to find anything.
  EXPECT_GT(refused, GetParam().inputs / 20);
}

INSTANTIATE_TEST_SUITE_P(, FuzzTest,
                         testing::ValuesIn(fuzz_targets().begin(), fuzz_targets().end()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace verbena::fuzz
