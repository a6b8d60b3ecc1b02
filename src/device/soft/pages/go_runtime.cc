#include "src/device/soft/pages/go_runtime.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

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
  return 0;
}

}  // namespace

bool has_go_runtime() {
  static std::atomic<bool> found{false};
  static std::atomic<uint64_t> seen_loads{0};
  if (found.load(std::memory_order_relaxed)) return true;
  Search search{.seen_loads = seen_loads.load(std::memory_order_relaxed)};
  dl_iterate_phdr(look_at, &search);
  if (search.found) found.store(true, std::memory_order_relaxed);
  seen_loads.store(search.loads, std::memory_order_relaxed);
  return search.found;
}

}  // namespace verbena::soft
