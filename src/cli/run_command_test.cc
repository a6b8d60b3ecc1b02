#include "src/cli/run_command.h"

#include <gtest/gtest.h>

namespace verbena::cli {
namespace {

TEST(RunCommandTest, ThePreloadGoesBehindOthers) {
  EXPECT_EQ(append_preload("", "/a/b.so").value(), "/a/b.so");
  EXPECT_EQ(append_preload("libasan.so", "/a/b.so").value(), "libasan.so:/a/b.so");
}

TEST(RunCommandTest, APathThatThePreloadCannotNameIsRefused) {
  for (const char* path : {"/with space/b.so", "/with:colon/b.so", "/with\ttab/b.so"}) {
    const Result<std::string> preload = append_preload("", path);
    ASSERT_FALSE(preload.ok()) << path;
    EXPECT_EQ(preload.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(preload.status().message().find(path), std::string::npos);
  }
}

TEST(RunCommandTest, WithoutAProgramItSaysHow) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_program({}), 2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("verbena run -- PROGRAM"),
            std::string::npos);
}

}  // namespace
}  // namespace verbena::cli
