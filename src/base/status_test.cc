#include "verbena/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "verbena/must.h"

namespace verbena {
namespace {

TEST(StatusTest, OkHasNoMessage) {
  EXPECT_TRUE(Status().ok());
  EXPECT_TRUE(Status::ok_status().ok());
  EXPECT_EQ(Status().message(), "");
}

TEST(StatusTest, AnErrorKeepsItsCodeAndMessage) {
  const Status status(StatusCode::kTimeout, "too late");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_EQ(status.message(), "too late");
}

TEST(StatusTest, AMessageIsOneLineWhateverItQuotes) {
  const Status status(StatusCode::kInvalidArgument, "peer 'a\n\x1b[31m\x7f\t…' is no host");
  EXPECT_EQ(status.message(), "peer 'a??[31m??…' is no host");
}

TEST(StatusTest, EveryCodeHasANameOfItsOwn) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    const std::string name = status_code_name(static_cast<StatusCode>(code));
    EXPECT_NE(name, "unknown") << code;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_STREQ(status_code_name(StatusCode::kProtocolViolation), "protocol_violation");
  EXPECT_STREQ(status_code_name(static_cast<StatusCode>(1000)), "unknown");
}

TEST(ResultTest, HoldsAValueThatOnlyMoves) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  EXPECT_EQ(**result, 5);
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

Result<int> half(int number) {
  if (number % 2 != 0) return Status(StatusCode::kInvalidArgument, "odd");
  return number / 2;
}

Result<int> quarter(int number) {
  VERBENA_ASSIGN_OR_RETURN(const int once, half(number));
  VERBENA_ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}

Status check_even(int number) {
  VERBENA_RETURN_IF_ERROR(half(number).status());
  return Status::ok_status();
}

TEST(ResultTest, ErrorsReturnThroughTheMacros) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).status().message(), "odd");
  EXPECT_EQ(quarter(6).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_FALSE(check_even(3).ok());
}

TEST(MustTest, ReturnsTheValueOfWhatSucceeded) {
  must(check_even(2));
  EXPECT_EQ(must(half(12)), 6);
  EXPECT_EQ(*must(Result<std::unique_ptr<int>>(std::make_unique<int>(3))), 3);
}

TEST(MustDeathTest, EndsTheProgramWithTheMessageOtherwise) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(must(half(3)), testing::ExitedWithCode(1), "error: odd");
  EXPECT_EXIT(must(check_even(3)), testing::ExitedWithCode(1), "error: odd");
}

}  // namespace
}  // namespace verbena
