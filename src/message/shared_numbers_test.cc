#include "src/message/shared_numbers.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::message {
namespace {

TEST(SharedNumbersTest, ThereIsOneForWhoHasNone) {
  constexpr uint32_t kConnections = 50;
  SharedNumbers numbers(kConnections, 100);
  std::vector<uint32_t> own(kConnections);
  std::vector<bool> taken(kConnections + 100);
  // One after the other takes all that it may have.
  for (uint32_t& of : own) {
    ASSERT_TRUE(numbers.grants(of));
    while (numbers.grants(of)) {
      const uint32_t number = numbers.take(&of);
      ASSERT_FALSE(taken.at(number));
      taken[number] = true;
    }
  }
  EXPECT_EQ(own[0], 51u);
  EXPECT_EQ(own[1], 26u);
  EXPECT_EQ(own.back(), 1u);
}

TEST(SharedNumbersTest, WhatIsGivenBackIsThereForOthers) {
  SharedNumbers numbers(2, 4);
  uint32_t one = 0;
  uint32_t other = 0;
  std::vector<uint32_t> of_one;
  while (numbers.grants(one)) of_one.push_back(numbers.take(&one));
  EXPECT_EQ(one, 3u);
  while (numbers.grants(other)) numbers.take(&other);
  EXPECT_EQ(other, 2u);
  for (const uint32_t number : of_one) numbers.give_back(number, &one);
  EXPECT_EQ(one, 0u);
  EXPECT_EQ(numbers.in_use(), 2u);
  while (numbers.grants(other)) numbers.take(&other);
  EXPECT_EQ(other, 3u);
  EXPECT_TRUE(numbers.grants(one));
}

}  // namespace
}  // namespace verbena::message
