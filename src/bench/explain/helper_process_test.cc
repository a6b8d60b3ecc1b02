#include "src/bench/explain/helper_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace verbena::bench {
namespace {

// TMPDIR of this process, as it was again at the end.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const char* name) {
    if (const char* const before = std::getenv("TMPDIR")) before_ = before;
    setenv("TMPDIR", name, 1);
  }
  ~TemporaryDirectory() {
    if (before_) {
      setenv("TMPDIR", before_->c_str(), 1);
    } else {
      unsetenv("TMPDIR");
    }
  }

 private:
  std::optional<std::string> before_;
};

TEST(TemporaryFolder, GoesWithItsOwner) {
  std::string path;
  {
    const TemporaryFolder folder;
    ASSERT_TRUE(folder.status().ok()) << folder.status().message();
    path = folder.path();
    EXPECT_TRUE(std::filesystem::is_directory(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryFolder, SaysWhyThereIsNone) {
  const TemporaryDirectory missing("/nonexistent/folder");
  const TemporaryFolder folder;
  EXPECT_EQ(folder.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(folder.status().message(),
              testing::AllOf(testing::HasSubstr("No such file"), testing::HasSubstr("TMPDIR")));
}

}  // namespace
}  // namespace verbena::bench
