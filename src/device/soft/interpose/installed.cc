#include "src/device/soft/interpose/installed.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace verbena::soft::interpose {

void* find_installed_if_any(const char* name, const char* version) {
  // dlvsym itself is replaced by this library, too; see dynamic_lookup.cc.
  using Lookup = void* (*)(void*, const char*, const char*);
  static const auto lookup = reinterpret_cast<Lookup>(dlsym(RTLD_NEXT, "dlvsym"));
  return lookup(RTLD_NEXT, name, version);
}

void* find_installed(const char* name, const char* version) {
  void* found = find_installed_if_any(name, version);
  if (found == nullptr) {
    std::fprintf(stderr,
                 "verbena: error: the installed libibverbs has no %s (version %s); install a newer "
                 "libibverbs\n",
                 name, version);
    std::abort();
  }
  return found;
}

const SoftRnic& rnic() {
  static const SoftRnic none{};
  static const SoftRnic& used = []() -> const SoftRnic& {
    const SoftRnic& found = *verbena_soft_rnic(kSoftRnicVersion);
    Dl_info place{};
    const bool known = dladdr(reinterpret_cast<void*>(&verbena_soft_rnic), &place) != 0;
    const std::string reason = why_unusable(found, known ? place.dli_fname : kLibraryName);
    if (reason.empty()) return found;
    std::fprintf(stderr, "verbena: error: %s\n", reason.c_str());
    return none;
  }();
  return used;
}

}  // namespace verbena::soft::interpose
