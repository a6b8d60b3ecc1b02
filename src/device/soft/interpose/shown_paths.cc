#include "src/device/soft/interpose/shown_paths.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "src/base/no_cancellation.h"
#include "src/device/soft/interpose/installed.h"

namespace verbena::soft::interpose {
namespace {

thread_local uint32_t real_paths = 0;

// Once a path has needed it: nothing of it can be in a result before.
std::atomic<const char*> known_root{nullptr};

// Null where there is none.
const char* root() {
  static const char* const found = [] {
    const RealPaths guard;
    const NoCancellation no_cancellation;
    const int error = errno;
    const SoftRnic& soft = rnic();
    const char* made = soft.device != nullptr ? soft.sysfs_root() : nullptr;
    errno = error;
    known_root.store(made, std::memory_order_release);
    return made;
  }();
  return found;
}

// Asks the kernel, which reads the word before it refuses what it is to do with it.
bool is_readable_word(uintptr_t address) {
  constexpr int kNothing = ~0;
  const int error = errno;
  const long result = syscall(SYS_rt_sigprocmask, kNothing, address, nullptr, sizeof(uint64_t));
  const bool readable = result != 0 && errno != EFAULT;
  errno = error;
  return readable;
}

// The next name of a path, however many slashes are before it.
std::string_view next_name(const char*& path) {
  while (*path == '/') ++path;
  const char* start = path;
  while (*path != '\0' && *path != '/') ++path;
  return {start, static_cast<size_t>(path - start)};
}

// Below which directory of /sys there is something to show, and under which names. Other names in
// it are the machine's.
struct Place {
  std::string_view group;
  std::string_view directory;
  bool shows_itself;  // its listing has names of both
  bool (*has)(std::string_view name);
};

bool names_device(std::string_view name, char (ibv_device::*known)[IBV_SYSFS_NAME_MAX]) {
  for (size_t i = 0; i < rnic().device_count; ++i) {
    if (name == rnic().devices[i]->*known) return true;
  }
  return false;
}

constexpr Place kPlaces[] = {
    {"class", "infiniband", true,
     [](std::string_view name) { return names_device(name, &ibv_device::name); }},
    {"class", "infiniband_verbs", true,
     [](std::string_view name) {
       return names_device(name, &ibv_device::dev_name) || name == "abi_version";
     }},
    {"devices", "virtual", false, [](std::string_view name) { return name == "verbena"; }},
};

// "ports/1/counters", "ports/1/hw_counters" and what is in them.
void bring_counters_up_to_date() {
  if (rnic().device == nullptr) return;
  const RealPaths guard;
  const NoCancellation no_cancellation;
  const int error = errno;
  rnic().watch->refresh_sysfs();
  errno = error;
}

bool shows(const char* path, Names names) {
  if (next_name(path) != "sys") return false;
  const std::string_view group = next_name(path);
  const std::string_view directory = next_name(path);
  const auto* place = std::find_if(std::begin(kPlaces), std::end(kPlaces), [&](const Place& known) {
    return known.group == group && known.directory == directory;
  });
  if (place == std::end(kPlaces) || rnic().device == nullptr) return false;
  const std::string_view name = next_name(path);
  if (name.empty() || name == ".") return place->shows_itself;
  // The entry of a listing; what lies beside the directory is the machine's.
  if (name == "..") return place->shows_itself && next_name(path).empty();
  const bool pattern =
      names == Names::kPattern && name.find_first_of("*?[{") != std::string_view::npos;
  return pattern ? place->shows_itself : place->has(name);
}

}  // namespace

bool is_readable(const char* path) {
  // Pages may be larger, which only costs further looks.
  constexpr uintptr_t kPageBytes = 4096;
  for (;;) {
    const auto address = reinterpret_cast<uintptr_t>(path);
    if (!is_readable_word(address & ~uintptr_t{7})) return false;
    const uintptr_t left = kPageBytes - address % kPageBytes;
    if (strnlen(path, left) < left) return true;
    path += left;
  }
}

const char* shown_path_below_sys(const char* path, PathBuffer& buffer, Names names) {
  if (real_paths != 0 || !shows(path, names)) return path;
  const char* place = root();
  if (place == nullptr) return path;
  const size_t root_chars = std::strlen(place);
  const size_t path_chars = std::strlen(path);
  if (root_chars + path_chars >= sizeof(PathBuffer)) return path;
  std::memcpy(buffer, place, root_chars);
  std::memcpy(buffer + root_chars, path, path_chars + 1);
  if (std::strstr(path, "counters") != nullptr) bring_counters_up_to_date();
  return buffer;
}

void see_relative_path(const char* /*path: it names counters*/) {
  PathBuffer directory;
  const int error = errno;
  const ssize_t length = readlink("/proc/self/cwd", directory, sizeof(directory) - 1);
  errno = error;
  if (real_paths != 0 || length <= 0) return;
  directory[length] = '\0';
  if (std::strstr(directory, kSysfsTreePrefix) != nullptr) bring_counters_up_to_date();
}

size_t hide_root(char* path, size_t length_chars) {
  const char* place = known_root.load(std::memory_order_acquire);
  // The working directory may be one that the parent process chose.
  if (place == nullptr && real_paths == 0 && std::strstr(path, kSysfsTreePrefix) != nullptr) {
    place = root();
  }
  if (place == nullptr) return length_chars;
  const size_t root_chars = std::strlen(place);
  if (length_chars <= root_chars || std::memcmp(path, place, root_chars) != 0 ||
      path[root_chars] != '/') {
    return length_chars;
  }
  std::memmove(path, path + root_chars, length_chars - root_chars);
  return length_chars - root_chars;
}

RealPaths::RealPaths() { ++real_paths; }
RealPaths::~RealPaths() { --real_paths; }

}  // namespace verbena::soft::interpose
