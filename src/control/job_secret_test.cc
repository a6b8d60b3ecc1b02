#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "verbena/connection.h"

namespace verbena {
namespace {

using testing::HasSubstr;

class JobSecretTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/verbena-secret-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string path(const char* name) const { return directory_ + "/" + name; }
  void write(const std::string& file, std::string_view text, mode_t mode) const {
    std::ofstream(file) << text;
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
  }

 private:
  std::string directory_;
};

TEST_F(JobSecretTest, TakesTextOfTheRightLength) {
  EXPECT_EQ(JobSecret::from_string("fifteen bytes..").status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(JobSecret::from_string("sixteen bytes...").ok());
  EXPECT_TRUE(JobSecret::from_string(std::string(4096, 'x')).ok());
  EXPECT_FALSE(JobSecret::from_string(std::string(4097, 'x')).ok());
}

TEST_F(JobSecretTest, RandomOnesDiffer) {
  EXPECT_EQ(JobSecret::random().text().size(), 64u);
  EXPECT_NE(JobSecret::random().text(), JobSecret::random().text());
}

TEST_F(JobSecretTest, AFileBringsItBack) {
  const JobSecret made = JobSecret::random();
  ASSERT_TRUE(made.write_file(path("secret")).ok());
  struct stat info {};
  ASSERT_EQ(stat(path("secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(JobSecret::from_file(path("secret"))->text(), made.text());
  // An existing file stays.
  EXPECT_FALSE(JobSecret::random().write_file(path("secret")).ok());
  EXPECT_EQ(JobSecret::from_file(path("secret"))->text(), made.text());
}

// As it may be that a variable of the environment has.
TEST_F(JobSecretTest, AFileBringsItBackWhateverItsEnd) {
  for (const char* const end : {"\r", "\n", "\r\n", "\n\r", "\r\r"}) {
    const std::string text = std::string(JobSecret::kMaxBytes - strlen(end), 'x') + end;
    const std::string file = path("secret");
    ASSERT_TRUE(JobSecret::from_string(text)->write_file(file).ok());
    const Result<JobSecret> found = JobSecret::from_file(file);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->text(), text) << testing::PrintToString(end);
    std::filesystem::remove(file);
  }
}

// The allocator gives the copy's block to the next who asks for as much, if it was one.
TEST_F(JobSecretTest, WritingLeavesNoCopyInMemory) {
  const std::string text(JobSecret::kMaxBytes, 'k');
  const JobSecret made = *JobSecret::from_string(text);
  ASSERT_TRUE(made.write_file(path("secret")).ok());
  const size_t block_bytes = text.size() + 2;
  const std::unique_ptr<char, decltype(&std::free)> block(
      static_cast<char*>(std::malloc(block_bytes)), &std::free);
  EXPECT_EQ(memmem(block.get(), block_bytes, text.data(), JobSecret::kMinBytes), nullptr);
}

TEST_F(JobSecretTest, OneNewlineAtTheEndDoesNotCount) {
  write(path("unix"), "sixteen bytes...\n", 0600);
  write(path("dos"), "sixteen bytes...\r\n", 0400);
  write(path("none"), "sixteen bytes...", 0600);
  for (const char* name : {"unix", "dos", "none"}) {
    const Result<JobSecret> secret = JobSecret::from_file(path(name));
    ASSERT_TRUE(secret.ok()) << secret.status().message();
    EXPECT_EQ(secret->text(), "sixteen bytes...");
  }
}

TEST_F(JobSecretTest, AFileThatOthersCanUseIsRefused) {
  for (mode_t mode : {0640u, 0604u, 0620u, 0602u, 0610u, 0666u}) {
    write(path("open"), "sixteen bytes...\n", mode);
    const Status status = JobSecret::from_file(path("open")).status();
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << std::oct << mode;
    EXPECT_THAT(status.message(), HasSubstr("chmod 600"));
  }
}

TEST_F(JobSecretTest, WhatIsNoSecretFileIsRefused) {
  EXPECT_EQ(JobSecret::from_file(path("missing")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(JobSecret::from_file(path("")).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(JobSecret::from_file(path("pipe")).status().code(), StatusCode::kInvalidArgument);
  write(path("short"), "short\n", 0600);
  const Status status = JobSecret::from_file(path("short")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(path("short")));
  write(path("long"), std::string(5000, 'x'), 0600);
  EXPECT_EQ(JobSecret::from_file(path("long")).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(JobSecretTest, MovingWipesTheSource) {
  JobSecret source = JobSecret::random();
  const std::string text = source.text();
  const JobSecret target = std::move(source);
  EXPECT_EQ(target.text(), text);
  EXPECT_TRUE(source.text().empty());  // NOLINT: that is the point
}

}  // namespace
}  // namespace verbena
