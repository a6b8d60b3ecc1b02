#include "src/device/soft/interpose/installed.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

#include "src/base/log.h"
#include "src/base/runtime.h"

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
    log_error("the installed libibverbs has no {} (version {}); install a newer libibverbs", name,
              version);
    std::abort();
  }
  return found;
}

void report_refusal(const char* verb) {
  constexpr uint32_t kLinesPerPeriod = 5;
  constexpr uint64_t kPeriodNs = 1'000'000'000;
  const int error = errno;
  const char* reason = control().last_error();
  if (*reason != '\0' && log_enabled(LogLevel::kError)) {
    static std::mutex mutex;
    static LogRateLimit rate_limit(kLinesPerPeriod, kPeriodNs);
    std::lock_guard guard(mutex);
    uint64_t suppressed = 0;
    if (rate_limit.allow(now_ns(), &suppressed)) log_error("{}: {}", verb, reason);
  }
  errno = error;
}

}  // namespace verbena::soft::interpose
