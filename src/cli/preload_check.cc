#include "src/cli/preload_check.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>

#include "src/base/file_descriptor.h"

namespace verbena::cli {

namespace {

// The kernel follows as many.
constexpr int kMaxInterpreters = 4;
constexpr size_t kMaxScriptLineBytes = 256;
constexpr size_t kMaxProgramHeaders = 1024;
constexpr size_t kMaxLoaderPathBytes = 4096;

// Empty if there is none.
std::string find_in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return program;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + program;
    struct stat found {};
    if (access(candidate.c_str(), X_OK) == 0 && stat(candidate.c_str(), &found) == 0 &&
        S_ISREG(found.st_mode)) {
      return candidate;
    }
  }
  return "";
}

bool read_at(int file, void* to, size_t size_bytes, uint64_t offset) {
  return pread(file, to, size_bytes, static_cast<off_t>(offset)) ==
         static_cast<ssize_t>(size_bytes);
}

// The program that the kernel starts for a script, or nothing where `file` is none.
std::string script_interpreter(int file) {
  char line[kMaxScriptLineBytes];
  const ssize_t got = pread(file, line, sizeof(line), 0);
  if (got < 3 || line[0] != '#' || line[1] != '!') return "";
  std::string_view text(line + 2, static_cast<size_t>(got) - 2);
  text = text.substr(0, text.find('\n'));
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  text.remove_prefix(begin);
  return std::string(text.substr(0, text.find_first_of(" \t\r")));
}

// A dynamic linker, by which programs may be started, is linked statically itself.
bool is_loader(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.starts_with("ld-") || name.starts_with("ld.so") || name.starts_with("ld64");
}

std::string why_not_linked(int file, const std::string& path) {
  Elf64_Ehdr header{};
  if (!read_at(file, &header, sizeof(header), 0) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return "";
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64) {
    return fmt::format("'{}' is a 32-bit program, which cannot load soft0: build it for 64 bits",
                       path);
  }
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kMaxProgramHeaders) return "";
  for (size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part{};
    if (!read_at(file, &part, sizeof(part), header.e_phoff + i * sizeof(part))) return "";
    if (part.p_type != PT_INTERP) continue;
    std::string loader(std::min<uint64_t>(part.p_filesz, kMaxLoaderPathBytes), '\0');
    if (!read_at(file, loader.data(), loader.size(), part.p_offset)) return "";
    if (loader.find("ld-musl") == std::string::npos) return "";
    return fmt::format(
        "'{}' uses the C library musl, and soft0 needs glibc: run it on a distribution with glibc",
        path);
  }
  if (is_loader(path)) return "";
  return fmt::format(
      "'{}' is linked statically, so soft0 cannot be loaded into it: link it with the shared "
      "libibverbs",
      path);
}

std::string why_more_rights(int file, const std::string& path) {
  struct stat found {};
  if (geteuid() == 0 || fstat(file, &found) != 0) return "";  // root gains nothing
  const bool set_user = (found.st_mode & S_ISUID) != 0 && found.st_uid != geteuid();
  const bool set_group = (found.st_mode & S_ISGID) != 0 && found.st_gid != getegid();
  if (!set_user && !set_group && fgetxattr(file, "security.capability", nullptr, 0) <= 0) return "";
  return fmt::format(
      "'{}' has more rights than its caller (set-user-ID, set-group-ID or capabilities of the "
      "file), so the dynamic linker loads nothing of its caller's into it: run a copy of it "
      "without",
      path);
}

}  // namespace

std::string why_not_preloaded(const std::string& program) {
  std::string path = find_in_path(program);
  for (int followed = 0; followed <= kMaxInterpreters && !path.empty(); ++followed) {
    struct stat found {};
    // Nothing else is read: opening a pipe would wait.
    if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) return "";
    const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0) return "";
    if (std::string interpreter = script_interpreter(file.get()); !interpreter.empty()) {
      path = std::move(interpreter);
      continue;
    }
    if (std::string reason = why_not_linked(file.get(), path); !reason.empty()) return reason;
    return why_more_rights(file.get(), path);
  }
  return "";
}

}  // namespace verbena::cli
