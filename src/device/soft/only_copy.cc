#include "src/device/soft/only_copy.h"

#include <fmt/format.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/device/soft/soft_rnic.h"

namespace verbena::soft {
namespace {

struct Copies {
  std::string own;
  std::string other;
};

bool holds_this_code(const dl_phdr_info& object) {
  const auto here = reinterpret_cast<uintptr_t>(&holds_this_code);
  for (size_t i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object.dlpi_phdr[i];
    const uintptr_t start = object.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && here >= start && here - start < segment.p_memsz) return true;
  }
  return false;
}

int note_copy(dl_phdr_info* object, size_t /*size*/, void* argument) {
  auto& copies = *static_cast<Copies*>(argument);
  const std::string_view path = object->dlpi_name;
  if (holds_this_code(*object)) {
    copies.own = path.empty() ? "the one that is linked into this program" : path;
  } else if (path.substr(path.rfind('/') + 1) == kLibraryName) {
    copies.other = path;
  }
  return 0;
}

}  // namespace

Status check_only_copy() {
  Copies copies;
  dl_iterate_phdr(note_copy, &copies);
  if (copies.other.empty()) return {};
  return {StatusCode::kUnavailable,
          fmt::format("soft0: {} is loaded beside {}, and a process has one software RNIC; load {} "
                      "by its name without a path, and let LD_PRELOAD and LD_LIBRARY_PATH lead to "
                      "one copy",
                      copies.other, copies.own, kLibraryName)};
}

}  // namespace verbena::soft
