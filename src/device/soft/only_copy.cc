#include "src/device/soft/only_copy.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/device/soft/soft_rnic.h"

// What every copy of this code has in its file, whatever the name of that is: a note of ELF, which
// is loaded with it.
asm(R"(
  .pushsection .note.verbena.soft, "a", %note
  .balign 4
  .long 2f - 1f
  .long 0
  .long 0x736f6674
1:
  .asciz "Verbena"
2:
  .balign 4
  .popsection
)");

namespace verbena::soft {
namespace {

constexpr char kNoteName[] = "Verbena";
constexpr uint32_t kNoteType = 0x736f6674;  // "soft"

// A file as the loader, or somebody else, has mapped it.
struct Image {
  std::string path;
  uint64_t start = 0;
  uint64_t end = 0;
  bool has_code = false;
  bool contains(uint64_t address) const { return address >= start && address < end; }
};

// One for each mapping of the beginning of a file. The loader's own list has the objects of one
// namespace (dlmopen), the kernel's has all.
std::vector<Image> mapped_images() {
  std::vector<Image> images;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t offset = 0;
    char protection[5] = {};
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %lx %*s %*s %n", &start, &end, protection, &offset,
                    &path_at) != 4 ||
        path_at == 0) {
      continue;
    }
    std::string_view path = std::string_view(line).substr(static_cast<size_t>(path_at));
    if (!path.starts_with('/')) continue;
    constexpr std::string_view kDeleted = " (deleted)";
    if (path.ends_with(kDeleted)) path.remove_suffix(kDeleted.size());
    if (offset == 0) images.push_back({.path = std::string(path), .start = start});
    if (images.empty() || images.back().path != path) continue;
    images.back().end = end;
    images.back().has_code |= protection[2] == 'x';
  }
  return images;
}

// Reads this process's memory where it may be gone, or not what it seems.
class OwnMemory {
 public:
  template <typename T>
  bool read(uint64_t address, T* values, size_t count = 1) const {
    const size_t size_bytes = count * sizeof(T);
    return pread(file_.get(), values, size_bytes, static_cast<off_t>(address)) ==
           static_cast<ssize_t>(size_bytes);
  }

 private:
  FileDescriptor file_{open("/proc/self/mem", O_RDONLY | O_CLOEXEC)};
};

bool has_note(const std::vector<char>& notes) {
  size_t at = 0;
  ElfW(Nhdr) note;
  while (at + sizeof(note) <= notes.size()) {
    std::memcpy(&note, &notes[at], sizeof(note));
    at += sizeof(note);
    if (note.n_type == kNoteType && note.n_namesz == sizeof(kNoteName) &&
        notes.size() - at >= sizeof(kNoteName) &&
        std::memcmp(&notes[at], kNoteName, sizeof(kNoteName)) == 0) {
      return true;
    }
    const auto padded = [](uint64_t size) { return (size + 3) / 4 * 4; };
    at += padded(note.n_namesz) + padded(note.n_descsz);
  }
  return false;
}

bool has_this_code(const Image& image, const OwnMemory& memory) {
  constexpr size_t kMostHeaders = 64;
  constexpr uint64_t kMostNoteBytes = 4096;
  ElfW(Ehdr) file;
  if (!memory.read(image.start, &file) || std::memcmp(file.e_ident, ELFMAG, SELFMAG) != 0 ||
      file.e_phentsize != sizeof(ElfW(Phdr)) || file.e_phnum > kMostHeaders) {
    return false;
  }
  std::vector<ElfW(Phdr)> headers(file.e_phnum);
  if (!memory.read(image.start + file.e_phoff, headers.data(), headers.size())) return false;
  const auto first = std::find_if(headers.begin(), headers.end(), [](const ElfW(Phdr) & header) {
    return header.p_type == PT_LOAD;
  });
  if (first == headers.end()) return false;
  return std::any_of(headers.begin(), headers.end(), [&](const ElfW(Phdr) & header) {
    if (header.p_type != PT_NOTE || header.p_memsz > kMostNoteBytes) return false;
    std::vector<char> notes(header.p_memsz);
    return memory.read(image.start + (header.p_vaddr - first->p_vaddr), notes.data(),
                       notes.size()) &&
           has_note(notes);
  });
}

}  // namespace

Status check_only_copy() {
  const auto here = reinterpret_cast<uintptr_t>(&check_only_copy);
  const uint64_t program = getauxval(AT_PHDR);
  const OwnMemory memory;
  const std::string linked = "the one that is linked into this program";
  std::string own = linked;
  std::string other;
  for (const Image& image : mapped_images()) {
    const bool has_name = image.path.substr(image.path.rfind('/') + 1) == kLibraryName;
    // By its name, too: those of older releases have no note.
    if (!image.has_code || (!has_name && !has_this_code(image, memory))) continue;
    (image.contains(here) ? own : other) = image.contains(program) ? linked : image.path;
  }
  if (other.empty()) return {};
  if (other == linked) std::swap(own, other);
  return {StatusCode::kUnavailable,
          fmt::format("soft0: {} is loaded {}, and a process has one software RNIC; load {} by its "
                      "name without a path and without dlmopen(), and let LD_PRELOAD and "
                      "LD_LIBRARY_PATH lead to one copy",
                      other, other == own ? "twice" : "beside " + own, kLibraryName)};
}

}  // namespace verbena::soft
