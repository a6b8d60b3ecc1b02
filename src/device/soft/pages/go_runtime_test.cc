#include "src/device/soft/pages/go_runtime.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "src/device/soft/no_descriptors_for_test.h"

namespace verbena::soft {
namespace {

// A file with sections of these names, and nothing in them.
class ElfFile {
 public:
  explicit ElfFile(const std::vector<std::string>& names) {
    std::string text(1, '\0');
    std::vector<ElfW(Shdr)> sections(1);
    for (const std::string& name : names) {
      ElfW(Shdr) section{};
      section.sh_name = static_cast<ElfW(Word)>(text.size());
      text += name + '\0';
      sections.push_back(section);
    }
    header.e_shentsize = sizeof(ElfW(Shdr));
    header.e_shnum = static_cast<ElfW(Half)>(sections.size());
    header.e_shoff = sizeof(header);
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    sections[0].sh_offset = sizeof(header) + sections.size() * sizeof(sections[0]);
    sections[0].sh_size = text.size();
    rest_.assign(reinterpret_cast<const char*>(sections.data()),
                 sections.size() * sizeof(sections[0]));
    rest_ += text;
  }
  ~ElfFile() { unlink(path_.c_str()); }

  // Its first `bytes`, as they are now.
  bool is_of_go(size_t bytes = std::string::npos) const {
    std::ofstream(path_) << (std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
                             rest_)
                                .substr(0, bytes);
    return has_go_section(path_.c_str()).value();
  }
  size_t size() const { return sizeof(header) + rest_.size(); }

  ElfW(Ehdr) header{};

 private:
  std::string path_ = testing::TempDir() + "go_runtime." + std::to_string(getpid());
  std::string rest_;
};

TEST(GoRuntime, IsToldByTheSectionsOfItsFile) {
  EXPECT_TRUE(ElfFile({".text", ".gopclntab"}).is_of_go());
  EXPECT_TRUE(ElfFile({".data.rel.ro.gopclntab", ".data"}).is_of_go());
  EXPECT_TRUE(ElfFile({".go.buildinfo"}).is_of_go());
  EXPECT_FALSE(ElfFile({".text", ".data", ".gopclntab2", "x.gopclntab"}).is_of_go());
  EXPECT_FALSE(ElfFile({}).is_of_go());
  EXPECT_EQ(has_go_section("/proc/self/exe"), false);
  EXPECT_EQ(has_go_section("/nothing"), false);
  EXPECT_EQ(has_go_section("/proc/self"), false);
  EXPECT_FALSE(has_go_runtime());
}

TEST(GoRuntime, WithoutADescriptorNothingIsKnown) {
  {
    const verbena::soft::test::NoDescriptors none;
    EXPECT_EQ(has_go_section("/proc/self/exe"), std::nullopt);
  }
  EXPECT_EQ(has_go_section("/proc/self/exe"), false);
}

TEST(GoRuntime, DamagedFilesAreNotOfGo) {
  ElfFile file({".text", ".gopclntab"});
  for (size_t bytes = 0; bytes < file.size(); ++bytes) EXPECT_FALSE(file.is_of_go(bytes)) << bytes;
  EXPECT_TRUE(file.is_of_go());
  const auto good = file.header;
  file.header.e_shstrndx = 3;
  EXPECT_FALSE(file.is_of_go());
  file.header = good;
  file.header.e_shentsize = 1;
  EXPECT_FALSE(file.is_of_go());
  file.header = good;
  file.header.e_shoff = ~0ull;
  EXPECT_FALSE(file.is_of_go());
  file.header = good;
  file.header.e_shnum = 0xffff;
  EXPECT_FALSE(file.is_of_go());
}

}  // namespace
}  // namespace verbena::soft
