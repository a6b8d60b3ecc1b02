#include "src/cli/preload_check.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace verbena::cli {
namespace {

class PreloadCheckTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_), nullptr); }
  void TearDown() override {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(folder_);
  }

  std::string write(const std::string& name, const std::string& content) {
    const std::string path = std::string(folder_) + "/" + name;
    std::ofstream(path) << content;
    chmod(path.c_str(), 0755);
    files_.push_back(path);
    return path;
  }

  // The beginning of a program; `loader` is its dynamic linker, if any.
  static std::string program(const std::string& loader) {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_phoff = sizeof(header);
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 2;
    Elf64_Phdr parts[2] = {};
    parts[0].p_type = PT_LOAD;
    parts[1].p_type = loader.empty() ? PT_NOTE : PT_INTERP;
    parts[1].p_offset = sizeof(header) + sizeof(parts);
    parts[1].p_filesz = loader.size();
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes.append(reinterpret_cast<const char*>(parts), sizeof(parts));
    return bytes + loader;
  }

  const char* folder() const { return folder_; }

 private:
  char folder_[32] = "/tmp/verbena-preload-XXXXXX";
  std::vector<std::string> files_;
};

TEST_F(PreloadCheckTest, ProgramsWithTheDynamicLinkerOfGlibcAreReached) {
  EXPECT_EQ(why_not_preloaded(write("dynamic", program("/lib64/ld-linux-x86-64.so.2"))), "");
  EXPECT_EQ(why_not_preloaded("sh"), "");
}

TEST_F(PreloadCheckTest, AStaticProgramIsNotReached) {
  const std::string path = write("static", program(""));
  const std::string reason = why_not_preloaded(path);
  EXPECT_NE(reason.find("'" + path + "' is linked statically"), std::string::npos) << reason;
}

TEST_F(PreloadCheckTest, ADynamicLinkerIsNoStaticProgram) {
  EXPECT_EQ(why_not_preloaded(write("ld-linux-x86-64.so.2", program(""))), "");
}

TEST_F(PreloadCheckTest, AProgramOfAnotherCLibraryIsNotReached) {
  const std::string reason = why_not_preloaded(write("musl", program("/lib/ld-musl-x86_64.so.1")));
  EXPECT_NE(reason.find("musl"), std::string::npos) << reason;
}

TEST_F(PreloadCheckTest, AProgramOf32BitsIsNotReached) {
  std::string bytes = program("");
  bytes[EI_CLASS] = ELFCLASS32;
  const std::string reason = why_not_preloaded(write("small", bytes));
  EXPECT_NE(reason.find("32-bit"), std::string::npos) << reason;
}

TEST_F(PreloadCheckTest, OfAScriptTheInterpreterCounts) {
  const std::string linked = write("static", program(""));
  EXPECT_NE(why_not_preloaded(write("script", "#! " + linked + " -x\n")), "");
  EXPECT_EQ(why_not_preloaded(write("shell", "#!/bin/sh\n")), "");
  EXPECT_EQ(why_not_preloaded(write("text", "echo\n")), "");
}

TEST_F(PreloadCheckTest, AScriptThatInterpretsItselfEnds) {
  const std::string path = std::string(folder()) + "/loop";
  write("loop", "#!" + path + "\n");
  EXPECT_EQ(why_not_preloaded(path), "");
}

TEST_F(PreloadCheckTest, WhatIsNoProgramIsLeftToTheKernel) {
  EXPECT_EQ(why_not_preloaded("no-such-program-anywhere"), "");
  EXPECT_EQ(why_not_preloaded("/"), "");
  EXPECT_EQ(why_not_preloaded(write("empty", "")), "");
  EXPECT_EQ(why_not_preloaded(write("cut", program("").substr(0, sizeof(Elf64_Ehdr) + 8))), "");
  std::string bytes = program("");
  reinterpret_cast<Elf64_Ehdr*>(bytes.data())->e_phoff = ~uint64_t{0};
  EXPECT_EQ(why_not_preloaded(write("far", bytes)), "");
}

}  // namespace
}  // namespace verbena::cli
