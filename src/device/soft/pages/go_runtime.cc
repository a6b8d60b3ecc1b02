#include "src/device/soft/pages/go_runtime.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/file_descriptor.h"

namespace verbena::soft {
namespace {

constexpr char kOwner[] = "Go\0";  // with what pads it to 4 bytes
constexpr uint32_t kBuildIdType = 4;

bool is_of_go(const std::byte* notes, uint64_t length_bytes, uint64_t alignment) {
  const auto align = [alignment](uint64_t size) {
    return (size + alignment - 1) & ~(alignment - 1);
  };
  ElfW(Nhdr) note;
  for (uint64_t at = 0; at + sizeof(note) <= length_bytes;) {
    std::memcpy(&note, notes + at, sizeof(note));
    const uint64_t name_at = at + sizeof(note);
    if (note.n_type == kBuildIdType && note.n_namesz == sizeof(kOwner) &&
        name_at + sizeof(kOwner) <= length_bytes &&
        std::memcmp(notes + name_at, kOwner, sizeof(kOwner)) == 0) {
      return true;
    }
    at = align(name_at + note.n_namesz) + align(note.n_descsz);
  }
  return false;
}

bool is_loaded(const dl_phdr_info& object, const ElfW(Phdr) & part) {
  return std::any_of(object.dlpi_phdr, object.dlpi_phdr + object.dlpi_phnum, [&](const auto& load) {
    return load.p_type == PT_LOAD && part.p_vaddr >= load.p_vaddr &&
           part.p_vaddr + part.p_memsz <= load.p_vaddr + load.p_memsz;
  });
}

struct Search {
  uint64_t seen_loads;  // how often objects had been loaded at the search before
  uint64_t loads = 0;
  bool found = false;
  // Without the note: each ends with a zero. The memory is there already: the dynamic linker's lock
  // is held, for which somebody may wait who has the lock of the program's allocator.
  std::string files{};
  bool complete = true;  // all had room

  void add_file(const char* path) {
    const size_t bytes = std::strlen(path) + 1;
    complete = complete && files.size() + bytes <= files.capacity();
    if (complete) files.append(path, bytes);
  }
};

int look_at(dl_phdr_info* object, size_t /*size*/, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  search.loads = object->dlpi_adds;
  if (search.loads == search.seen_loads) return 1;
  for (const auto* part = object->dlpi_phdr; part != object->dlpi_phdr + object->dlpi_phnum;
       ++part) {
    if (part->p_type != PT_NOTE || !is_loaded(*object, *part)) continue;
    const auto* notes = reinterpret_cast<const std::byte*>(  // NOLINT(performance-no-int-to-ptr)
        object->dlpi_addr + part->p_vaddr);
    search.found = is_of_go(notes, part->p_memsz, part->p_align == 8 ? 8 : 4);
    if (search.found) return 1;
  }
  // The program itself has no name; what the kernel maps into it has no file, which does no harm.
  search.add_file(object->dlpi_name[0] == '\0' ? "/proc/self/exe" : object->dlpi_name);
  return 0;
}

// Reads all of it, at `offset`.
template <typename T>
bool read_at(int file, uint64_t offset, std::vector<T>& to) {
  const size_t bytes = to.size() * sizeof(T);
  return pread(file, to.data(), bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// Looks at the objects that are loaded, unless none was since `seen_loads`.
Search search_objects(uint64_t seen_loads) {
  for (size_t bytes = 16 << 10;; bytes *= 2) {
    Search search{.seen_loads = seen_loads};
    search.files.reserve(bytes);
    dl_iterate_phdr(look_at, &search);
    if (search.found || search.complete) return search;
  }
}

}  // namespace

std::optional<bool> has_go_section(const char* path) {
  constexpr uint64_t kMaxNamesBytes = 1u << 20;
  const FileDescriptor file(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 && (errno == EMFILE || errno == ENFILE)) return std::nullopt;
  std::vector<ElfW(Ehdr)> header(1);
  if (file.get() < 0 || !read_at(file.get(), 0, header) ||
      std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0 ||
      header[0].e_shentsize != sizeof(ElfW(Shdr)) || header[0].e_shstrndx >= header[0].e_shnum) {
    return false;
  }
  std::vector<ElfW(Shdr)> sections(header[0].e_shnum);
  if (!read_at(file.get(), header[0].e_shoff, sections)) return false;
  const ElfW(Shdr)& names = sections[header[0].e_shstrndx];
  if (names.sh_size > kMaxNamesBytes) return false;
  std::vector<char> text(names.sh_size);
  if (!read_at(file.get(), names.sh_offset, text)) return false;
  return std::any_of(sections.begin(), sections.end(), [&](const ElfW(Shdr) & section) {
    if (section.sh_name >= text.size()) return false;
    const std::string_view rest(text.data() + section.sh_name, text.size() - section.sh_name);
    const std::string_view name = rest.substr(0, rest.find('\0'));
    return name == ".gopclntab" || name == ".data.rel.ro.gopclntab" || name == ".go.buildinfo";
  });
}

bool has_go_runtime() {
  static std::atomic<bool> found{false};
  static std::atomic<uint64_t> seen_loads{0};
  if (found.load(std::memory_order_relaxed)) return true;
  Search search = search_objects(seen_loads.load(std::memory_order_relaxed));
  bool all_read = true;
  for (const char* file = search.files.data(); !search.found && *file != '\0';
       file += std::strlen(file) + 1) {
    const std::optional<bool> is_of_go = has_go_section(file);
    search.found = is_of_go.value_or(false);
    all_read = all_read && is_of_go.has_value();
  }
  if (search.found) found.store(true, std::memory_order_relaxed);
  // What could not be read is read again.
  if (all_read) seen_loads.store(search.loads, std::memory_order_relaxed);
  return search.found;
}

}  // namespace verbena::soft
