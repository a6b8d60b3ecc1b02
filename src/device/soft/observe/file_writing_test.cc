// Files that are written beside the program, whatever it does to descriptors, and others to names.
#include "src/device/soft/observe/file_writing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace verbena::soft::observe {
namespace {

class ObserveFileTest : public testing::Test {
 protected:
  void SetUp() override {
    place_ = testing::TempDir() + "observe-file-XXXXXX";
    ASSERT_NE(mkdtemp(place_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(place_); }
  std::string named(const char* name) const { return place_ + "/" + name; }

  std::string place_;
};

TEST_F(ObserveFileTest, ADescriptorThatTheProgramClosedIsNotWrittenTo) {
  Result<PrivateFile> file = claim_private_file(named("trace"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(write_at(*file, "12345", 0));
  const int number = file->file.get();
  const int program = open(named("program").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(program, 0);
  ASSERT_EQ(dup3(program, number, O_CLOEXEC), number);
  EXPECT_FALSE(write_at(*file, "67890", 5));
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(std::filesystem::file_size(named("program")), 0u);
  EXPECT_EQ(std::filesystem::file_size(named("trace")), 5u);
  close(program);
}

TEST_F(ObserveFileTest, AFileWithASecondNameIsLeftAsItIs) {
  std::ofstream(named("precious")) << "kept";
  ASSERT_EQ(chmod(named("precious").c_str(), 0640), 0);
  ASSERT_EQ(link(named("precious").c_str(), named("trace").c_str()), 0);
  const Status prepared = prepare_private_file(named("trace"));
  EXPECT_FALSE(prepared.ok());
  EXPECT_NE(prepared.message().find("other names"), std::string::npos) << prepared.message();
  EXPECT_FALSE(claim_private_file(named("trace")).ok());
  EXPECT_EQ(std::filesystem::file_size(named("precious")), 4u);
  struct stat status {};
  ASSERT_EQ(stat(named("precious").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_F(ObserveFileTest, AFileOfAnotherUserIsLeftAsItIs) {
  constexpr uid_t kNobody = 65534;
  std::ofstream(named("trace")) << "kept";
  if (chown(named("trace").c_str(), kNobody, static_cast<gid_t>(-1)) != 0) {
    GTEST_SKIP() << "only root gives files to others";
  }
  const Status prepared = prepare_private_file(named("trace"));
  EXPECT_FALSE(prepared.ok());
  EXPECT_NE(prepared.message().find("another user"), std::string::npos) << prepared.message();
  EXPECT_EQ(std::filesystem::file_size(named("trace")), 4u);
}

}  // namespace
}  // namespace verbena::soft::observe
