#include "src/reproduce/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verbena::reproduce {
namespace {

using testing::ElementsAre;

TEST(Csv, CellsInQuotesMayHoldEverything) {
  const auto rows = parse_csv("a,\"b, \"\"c\"\"\n\",\r\n\nx,y");
  ASSERT_TRUE(rows.ok());
  EXPECT_THAT(*rows, ElementsAre(ElementsAre("a", "b, \"c\"\n", ""), ElementsAre("x", "y")));
}

TEST(Csv, AnOpenQuoteIsRefusedWithItsLine) {
  const auto rows = parse_csv("a,b\nc,\"d\n");
  ASSERT_FALSE(rows.ok());
  EXPECT_THAT(rows.status().message(), testing::HasSubstr("line 2"));
}

}  // namespace
}  // namespace verbena::reproduce
