#include "src/device/soft/interpose/installed.h"

#include <dlfcn.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

namespace {

// The contexts that were asked about last. Relaxed: each is a value of its own.
std::atomic<const ibv_context*> latest_soft{nullptr};
std::atomic<const ibv_context*> latest_installed{nullptr};

// Copies what lies at `from`; false if nothing does.
bool read_safely(const void* from, void* to, size_t size_bytes) {
  const int error = errno;
  const iovec local{to, size_bytes};
  const iovec remote{const_cast<void*>(from), size_bytes};
  const ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  const bool forbidden = got < 0 && errno != EFAULT;
  errno = error;
  if (!forbidden) return got == static_cast<ssize_t>(size_bytes);
  std::memcpy(to, from, size_bytes);  // a sandbox: pointers are followed as without Verbena
  return true;
}

// As libibverbs makes them: with a name, and the path of a folder of sysfs.
bool is_device(const ibv_device* device) {
  ibv_device found;
  return read_safely(device, &found, sizeof(found)) && found.name[0] != '\0' &&
         std::memchr(found.name, '\0', sizeof(found.name)) != nullptr && found.dev_path[0] == '/';
}

}  // namespace

Whose whose(const ibv_context* context) {
  if (rnic().device == nullptr) return Whose::kInstalled;
  if (context == nullptr) return Whose::kNobody;
  if (context == latest_soft.load(std::memory_order_relaxed)) return Whose::kSoft;
  if (context == latest_installed.load(std::memory_order_relaxed)) return Whose::kInstalled;
  const ibv_device* device = nullptr;
  if (!read_safely(&context->device, &device, sizeof(void*))) return Whose::kNobody;
  if (owns(device)) {
    latest_soft.store(context, std::memory_order_relaxed);
    return Whose::kSoft;
  }
  if (!is_device(device)) return Whose::kNobody;
  latest_installed.store(context, std::memory_order_relaxed);
  return Whose::kInstalled;
}

void forget(const ibv_context* context) {
  for (std::atomic<const ibv_context*>* latest : {&latest_soft, &latest_installed}) {
    const ibv_context* expected = context;
    latest->compare_exchange_strong(expected, nullptr, std::memory_order_relaxed);
  }
}

}  // namespace verbena::soft::interpose
