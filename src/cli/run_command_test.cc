#include "src/cli/run_command.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace verbena::cli {
namespace {

TEST(RunCommandTest, ThePreloadGoesBehindOthers) {
  EXPECT_EQ(append_preload("", "/a/b.so").value(), "/a/b.so");
  EXPECT_EQ(append_preload("libasan.so", "/a/b.so").value(), "libasan.so:/a/b.so");
}

TEST(RunCommandTest, APathThatThePreloadCannotNameIsRefused) {
  const std::pair<const char*, const char*> paths[] = {
      {"/with space/b.so", "/with space/b.so"},
      {"/with:colon/b.so", "/with:colon/b.so"},
      {"/with\ttab/b.so", "/with?tab/b.so"},  // as messages print it
  };
  for (const auto& [path, printed] : paths) {
    const Result<std::string> preload = append_preload("", path);
    ASSERT_FALSE(preload.ok()) << path;
    EXPECT_EQ(preload.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(preload.status().message().find(printed), std::string::npos);
  }
}

TEST(RunCommandTest, WithoutAProgramItSaysHow) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_program({}), 2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("verbena run [OPTIONS] -- PROGRAM"),
            std::string::npos);
}

}  // namespace
}  // namespace verbena::cli
