#include "src/device/soft_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <mutex>
#include <string>

namespace verbena {
namespace {

// dlerror() names the library itself.
Result<const soft::SoftRnic*> load() {
  // By its name alone: if somebody has loaded it, from wherever, this is that copy.
  void* library = dlopen(soft::kLibraryName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(
        StatusCode::kUnavailable,
        fmt::format("soft0: cannot load the software RNIC: {}; link with the rpath that "
                    "verbena's CMake package and verbena.pc give, or add PREFIX/lib/verbena "
                    "to LD_LIBRARY_PATH",
                    dlerror()));
  }
  const auto entry =
      reinterpret_cast<decltype(&verbena_soft_rnic)>(dlsym(library, "verbena_soft_rnic"));
  if (entry == nullptr) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("soft0: this is another library than Verbena's: {}; take its folder "
                              "out of LD_LIBRARY_PATH",
                              dlerror()));
  }
  const soft::SoftRnic* found = entry(soft::kSoftRnicVersion);
  Dl_info place{};
  const bool known = dladdr(reinterpret_cast<void*>(entry), &place) != 0;
  const std::string reason =
      soft::why_unusable(*found, known ? place.dli_fname : soft::kLibraryName);
  if (!reason.empty()) return Status(StatusCode::kUnsupported, reason);
  return found;
}

}  // namespace

// Weak: that of soft/linked_rnic.cc takes precedence.
[[gnu::weak]] Result<const soft::SoftRnic*> load_soft_rnic() {
  static std::mutex mutex;
  static const soft::SoftRnic* loaded = nullptr;
  const std::lock_guard guard(mutex);
  if (loaded == nullptr) {
    VERBENA_ASSIGN_OR_RETURN(loaded, load());
  }
  return loaded;
}

int close_soft_rnic(ibv_context* context) {
  // There is a context, so the library is loaded.
  return (*load_soft_rnic())->close_device(context);
}

}  // namespace verbena
