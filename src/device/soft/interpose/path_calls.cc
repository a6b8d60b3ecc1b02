// The C library's calls that take a path, for programs that look for devices below /sys: see
// shown_paths.h. open() and its like also open the connection manager's file
// (connection_channels.h); stat() and access(), which also know the device file, are in
// device_node.cc.
//
// Not intercepted: fts and ftw, and calls within the C library, as of getaddrinfo().
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "src/device/soft/interpose/connection_channels.h"
#include "src/device/soft/interpose/replace.h"
#include "src/device/soft/interpose/shown_paths.h"

// What programs that are compiled with checks of buffers, or with glibc before 2.33, call instead.
extern "C" {
int __open_2(const char* path, int flags);
int __open64_2(const char* path, int flags);
int __openat_2(int folder, const char* path, int flags);
int __openat64_2(int folder, const char* path, int flags);
int __lxstat(int version, const char* path, struct stat* status);
int __lxstat64(int version, const char* path, struct stat64* status);
int __fxstatat(int version, int folder, const char* path, struct stat* status, int flags);
int __fxstatat64(int version, int folder, const char* path, struct stat64* status, int flags);
char* __realpath_chk(const char* path, char* resolved, size_t resolved_size);
ssize_t __readlink_chk(const char* path, char* buffer, size_t size, size_t buffer_size);
}

namespace verbena::soft::interpose {
namespace {

// Memory allocators open files before this library is initialized, and to find the next definition
// would allocate: so long the kernel is called directly.
std::atomic<bool> initialized{false};
__attribute__((constructor)) void initialize() { initialized.store(true); }

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// The mode is there only where the flags say so.
#define VERBENA_TAKE_MODE(flags)      \
  mode_t mode = 0;                    \
  if (takes_mode(flags)) {            \
    va_list arguments;                \
    va_start(arguments, flags);       \
    mode = va_arg(arguments, mode_t); \
    va_end(arguments);                \
  }

// What soft0 has below /sys is for reading, as the kernel's is for users; errno says so.
bool refuses_flags(const char* path, const char* shown, int flags) {
  if (shown == path) [[likely]]
    return false;
  if ((flags & O_ACCMODE) == O_RDONLY && (flags & (O_CREAT | O_TRUNC)) == 0) return false;
  errno = EACCES;
  return true;
}

bool refuses_mode(const char* path, const char* shown, const char* mode) {
  if (shown == path) [[likely]]
    return false;
  if (mode[0] == 'r' && std::strchr(mode, '+') == nullptr) return false;
  errno = EACCES;
  return true;
}

// `next` opens what the path stands for, unless it is the connection manager's file.
template <typename Next>
int open_shown(int folder, const char* path, int flags, mode_t mode, Next&& next) {
  if (!initialized.load(std::memory_order_relaxed)) {
    return static_cast<int>(syscall(SYS_openat, folder, path, flags, mode));
  }
  if (!is_readable(path)) [[unlikely]]
    return next(path);  // EFAULT
  if (names_connection_channel(path)) [[unlikely]]
    return open_connection_channel(flags);
  PathBuffer buffer;
  const char* shown = shown_readable_path(path, buffer);
  return refuses_flags(path, shown, flags) ? -1 : next(shown);
}

void hide_root_in(char* path) {
  if (path == nullptr) return;
  const size_t length = hide_root(path, std::strlen(path));
  path[length] = '\0';
}

template <typename Next>
char* resolve_shown(const char* path, Next&& next) {
  PathBuffer buffer;
  const char* shown = shown_path(path, buffer);
  char* found = next(shown);
  if (shown != path || path == nullptr || path[0] != '/') hide_root_in(found);
  return found;
}

// Hides the root in the results of this call, which are behind those of earlier ones.
template <typename Found, typename Next>
int glob_shown(const char* pattern, int flags, const Found& found, Next&& next) {
  PathBuffer buffer;
  const char* shown = shown_path(pattern, buffer, Names::kPattern);
  if (shown == pattern) return next(pattern);
  const size_t before = (flags & GLOB_APPEND) != 0 ? found.gl_pathc : 0;
  const size_t skipped = (flags & GLOB_DOOFFS) != 0 ? found.gl_offs : 0;
  const int result = next(shown);
  if (result != 0) return result;
  for (size_t i = before; i < found.gl_pathc; ++i) hide_root_in(found.gl_pathv[skipped + i]);
  return result;
}

}  // namespace
}  // namespace verbena::soft::interpose

using namespace verbena::soft::interpose;  // NOLINT: definitions below are global

// ---- opening ----

VERBENA_REPLACE(open) int verbena_open(const char* path, int flags, ...) {
  VERBENA_TAKE_MODE(flags)
  return open_shown(AT_FDCWD, path, flags, mode,
                    [=](const char* shown) { return VERBENA_NEXT(open)(shown, flags, mode); });
}

VERBENA_REPLACE(open64) int verbena_open64(const char* path, int flags, ...) {
  VERBENA_TAKE_MODE(flags)
  return open_shown(AT_FDCWD, path, flags, mode,
                    [=](const char* shown) { return VERBENA_NEXT(open64)(shown, flags, mode); });
}

VERBENA_REPLACE(openat) int verbena_openat(int folder, const char* path, int flags, ...) {
  VERBENA_TAKE_MODE(flags)
  return open_shown(folder, path, flags, mode, [=](const char* shown) {
    return VERBENA_NEXT(openat)(folder, shown, flags, mode);
  });
}

VERBENA_REPLACE(openat64) int verbena_openat64(int folder, const char* path, int flags, ...) {
  VERBENA_TAKE_MODE(flags)
  return open_shown(folder, path, flags, mode, [=](const char* shown) {
    return VERBENA_NEXT(openat64)(folder, shown, flags, mode);
  });
}

// These take no mode.

VERBENA_REPLACE(__open_2) int verbena___open_2(const char* path, int flags) {
  return open_shown(AT_FDCWD, path, flags, 0,
                    [=](const char* shown) { return VERBENA_NEXT(__open_2)(shown, flags); });
}

VERBENA_REPLACE(__open64_2) int verbena___open64_2(const char* path, int flags) {
  return open_shown(AT_FDCWD, path, flags, 0,
                    [=](const char* shown) { return VERBENA_NEXT(__open64_2)(shown, flags); });
}

VERBENA_REPLACE(__openat_2) int verbena___openat_2(int folder, const char* path, int flags) {
  return open_shown(folder, path, flags, 0, [=](const char* shown) {
    return VERBENA_NEXT(__openat_2)(folder, shown, flags);
  });
}

VERBENA_REPLACE(__openat64_2) int verbena___openat64_2(int folder, const char* path, int flags) {
  return open_shown(folder, path, flags, 0, [=](const char* shown) {
    return VERBENA_NEXT(__openat64_2)(folder, shown, flags);
  });
}

VERBENA_REPLACE(fopen) FILE* verbena_fopen(const char* path, const char* mode) {
  PathBuffer buffer;
  const char* shown = shown_path(path, buffer);
  return refuses_mode(path, shown, mode) ? nullptr : VERBENA_NEXT(fopen)(shown, mode);
}

VERBENA_REPLACE(fopen64) FILE* verbena_fopen64(const char* path, const char* mode) {
  PathBuffer buffer;
  const char* shown = shown_path(path, buffer);
  return refuses_mode(path, shown, mode) ? nullptr : VERBENA_NEXT(fopen64)(shown, mode);
}

// ---- folders ----

VERBENA_REPLACE(opendir) DIR* verbena_opendir(const char* path) {
  PathBuffer buffer;
  return VERBENA_NEXT(opendir)(shown_path(path, buffer));
}

VERBENA_REPLACE(scandir)
int verbena_scandir(const char* path, dirent*** names, int (*select)(const dirent*),
                    int (*compare)(const dirent**, const dirent**)) {
  PathBuffer buffer;
  return VERBENA_NEXT(scandir)(shown_path(path, buffer), names, select, compare);
}

VERBENA_REPLACE(scandir64)
int verbena_scandir64(const char* path, dirent64*** names, int (*select)(const dirent64*),
                      int (*compare)(const dirent64**, const dirent64**)) {
  PathBuffer buffer;
  return VERBENA_NEXT(scandir64)(shown_path(path, buffer), names, select, compare);
}

VERBENA_REPLACE(chdir) int verbena_chdir(const char* path) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(chdir)(shown_path(path, buffer));
}

VERBENA_REPLACE(getcwd) char* verbena_getcwd(char* given, size_t size) noexcept {
  char* found = VERBENA_NEXT(getcwd)(given, size);
  hide_root_in(found);
  return found;
}

VERBENA_REPLACE(glob)
int verbena_glob(const char* pattern, int flags, int (*report)(const char*, int), glob_t* found) {
  return glob_shown(pattern, flags, *found, [=](const char* shown) {
    return VERBENA_NEXT(glob)(shown, flags, report, found);
  });
}

VERBENA_REPLACE(glob64)
int verbena_glob64(const char* pattern, int flags, int (*report)(const char*, int),
                   glob64_t* found) {
  return glob_shown(pattern, flags, *found, [=](const char* shown) {
    return VERBENA_NEXT(glob64)(shown, flags, report, found);
  });
}

// ---- links ----

VERBENA_REPLACE(readlink)
ssize_t verbena_readlink(const char* path, char* target, size_t size) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(readlink)(shown_path(path, buffer), target, size);
}

VERBENA_REPLACE(readlinkat)
ssize_t verbena_readlinkat(int folder, const char* path, char* target, size_t size) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(readlinkat)(folder, shown_path(path, buffer), target, size);
}

VERBENA_REPLACE(__readlink_chk)
ssize_t verbena___readlink_chk(const char* path, char* target, size_t size, size_t target_size) {
  PathBuffer buffer;
  return VERBENA_NEXT(__readlink_chk)(shown_path(path, buffer), target, size, target_size);
}

VERBENA_REPLACE(realpath) char* verbena_realpath(const char* path, char* resolved) noexcept {
  return resolve_shown(path,
                       [=](const char* shown) { return VERBENA_NEXT(realpath)(shown, resolved); });
}

VERBENA_REPLACE(__realpath_chk)
char* verbena___realpath_chk(const char* path, char* resolved, size_t resolved_size) {
  return resolve_shown(path, [=](const char* shown) {
    return VERBENA_NEXT(__realpath_chk)(shown, resolved, resolved_size);
  });
}

VERBENA_REPLACE(canonicalize_file_name)
char* verbena_canonicalize_file_name(const char* path) noexcept {
  return resolve_shown(
      path, [=](const char* shown) { return VERBENA_NEXT(canonicalize_file_name)(shown); });
}

// ---- status ----

VERBENA_REPLACE(lstat) int verbena_lstat(const char* path, struct stat* status) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(lstat)(shown_path(path, buffer), status);
}

VERBENA_REPLACE(lstat64) int verbena_lstat64(const char* path, struct stat64* status) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(lstat64)(shown_path(path, buffer), status);
}

VERBENA_REPLACE(fstatat)
int verbena_fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(fstatat)(folder, shown_path(path, buffer), status, flags);
}

VERBENA_REPLACE(fstatat64)
int verbena_fstatat64(int folder, const char* path, struct stat64* status, int flags) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(fstatat64)(folder, shown_path(path, buffer), status, flags);
}

VERBENA_REPLACE(statx)
int verbena_statx(int folder, const char* path, int flags, unsigned mask,
                  struct statx* status) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(statx)(folder, shown_path(path, buffer), flags, mask, status);
}

VERBENA_REPLACE(__lxstat) int verbena___lxstat(int version, const char* path, struct stat* status) {
  PathBuffer buffer;
  return VERBENA_NEXT(__lxstat)(version, shown_path(path, buffer), status);
}

VERBENA_REPLACE(__lxstat64)
int verbena___lxstat64(int version, const char* path, struct stat64* status) {
  PathBuffer buffer;
  return VERBENA_NEXT(__lxstat64)(version, shown_path(path, buffer), status);
}

VERBENA_REPLACE(__fxstatat)
int verbena___fxstatat(int version, int folder, const char* path, struct stat* status, int flags) {
  PathBuffer buffer;
  return VERBENA_NEXT(__fxstatat)(version, folder, shown_path(path, buffer), status, flags);
}

VERBENA_REPLACE(__fxstatat64)
int verbena___fxstatat64(int version, int folder, const char* path, struct stat64* status,
                         int flags) {
  PathBuffer buffer;
  return VERBENA_NEXT(__fxstatat64)(version, folder, shown_path(path, buffer), status, flags);
}

VERBENA_REPLACE(faccessat)
int verbena_faccessat(int folder, const char* path, int mode, int flags) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(faccessat)(folder, shown_path(path, buffer), mode, flags);
}

VERBENA_REPLACE(euidaccess) int verbena_euidaccess(const char* path, int mode) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(euidaccess)(shown_path(path, buffer), mode);
}

VERBENA_REPLACE(eaccess) int verbena_eaccess(const char* path, int mode) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(eaccess)(shown_path(path, buffer), mode);
}

// ---- extended attributes, which listings ask for ----

VERBENA_REPLACE(getxattr)
ssize_t verbena_getxattr(const char* path, const char* name, void* value, size_t size) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(getxattr)(shown_path(path, buffer), name, value, size);
}

VERBENA_REPLACE(lgetxattr)
ssize_t verbena_lgetxattr(const char* path, const char* name, void* value, size_t size) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(lgetxattr)(shown_path(path, buffer), name, value, size);
}

VERBENA_REPLACE(listxattr)
ssize_t verbena_listxattr(const char* path, char* names, size_t size) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(listxattr)(shown_path(path, buffer), names, size);
}

VERBENA_REPLACE(llistxattr)
ssize_t verbena_llistxattr(const char* path, char* names, size_t size) noexcept {
  PathBuffer buffer;
  return VERBENA_NEXT(llistxattr)(shown_path(path, buffer), names, size);
}
