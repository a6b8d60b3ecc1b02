#include "src/base/kept_status.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

TEST(KeptStatusTest, IsWhatWasAssignedLast) {
  KeptStatus kept;
  EXPECT_TRUE(kept.ok());
  EXPECT_EQ(kept.code(), StatusCode::kOk);
  EXPECT_EQ(kept.get().message(), "");
  const Status& now = kept = Status(StatusCode::kTimeout, "late");
  EXPECT_EQ(now.message(), "late");
  EXPECT_FALSE(kept.ok());
  EXPECT_EQ(kept.code(), StatusCode::kTimeout);
  kept = Status(StatusCode::kUnavailable, "gone");
  EXPECT_EQ(kept.code(), StatusCode::kUnavailable);
  EXPECT_EQ(kept.get().message(), "gone");
  kept = Status::ok_status();
  EXPECT_TRUE(kept.ok());
  EXPECT_EQ(kept.get().code(), StatusCode::kOk);
}

}  // namespace
}  // namespace verbena
