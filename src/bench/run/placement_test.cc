#include "src/bench/run/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

using testing::ElementsAre;

TEST(Placement, EachThreadHasACoreWhereThereAreEnough) {
  const auto placed = place_threads({{.host = "a", .cpus = {4, 0, 2}, .threads = 2},
                                     {.host = "a", .cpus = {4, 0, 2}, .threads = 1}});
  EXPECT_THAT(placed, ElementsAre(ElementsAre(4, 0), ElementsAre(2)));
}

TEST(Placement, NobodyIsPinnedOnACrowdedHost) {
  const auto placed = place_threads({{.host = "a", .cpus = {0, 1}, .threads = 2},
                                     {.host = "b", .cpus = {0, 1}, .threads = 2},
                                     {.host = "a", .cpus = {0, 1}, .threads = 1}});
  EXPECT_THAT(placed, ElementsAre(ElementsAre(-1, -1), ElementsAre(0, 1), ElementsAre(-1)));
}

TEST(Placement, LaunchersMayGiveEachNodeItsOwnCores) {
  const auto placed = place_threads(
      {{.host = "a", .cpus = {0, 1}, .threads = 2}, {.host = "a", .cpus = {2, 3}, .threads = 2}});
  EXPECT_THAT(placed, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(Placement, AHostIsTheSameForItself) { EXPECT_EQ(host_identity(), host_identity()); }

}  // namespace
}  // namespace verbena::bench
