// Makes the device files of soft0 look present. UCX opens a device only if stat() and access() find
// a character device with the name from ibv_device::dev_name below /dev/infiniband; a software
// device has none, and nobody opens it. The connection manager's is opened
// by connection_channels.cc.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/device/soft/interpose/installed.h"
#include "src/device/soft/interpose/replace.h"
#include "src/device/soft/interpose/shown_paths.h"

// Programs built with glibc before 2.33 call these, which newer headers do not declare.
extern "C" {
int __xstat(int version, const char* path, struct stat* status);
int __xstat64(int version, const char* path, struct stat64* status);
}

namespace verbena::soft::interpose {
namespace {

bool is_device_node(const char* path) {
  constexpr char kDirectory[] = "/dev/infiniband/";
  constexpr size_t kDirectoryChars = sizeof(kDirectory) - 1;
  if (path == nullptr || std::strncmp(path, kDirectory, kDirectoryChars) != 0) return false;
  if (rnic().device == nullptr) return false;
  const char* name = path + kDirectoryChars;
  for (size_t i = 0; i < rnic().device_count; ++i) {
    if (std::strcmp(name, rnic().devices[i]->dev_name) == 0) return true;
  }
  return std::strcmp(name, "rdma_cm") == 0;
}

// A real file of this name, as of a device whose driver counts as soft0 does, is left as it is.
bool stands_for_device_node(int result, const char* path) {
  return result != 0 && (errno == ENOENT || errno == ENOTDIR) && is_device_node(path);
}

template <typename Status>
int describe_device_node(Status* status) {
  std::memset(status, 0, sizeof(*status));
  status->st_mode = S_IFCHR | 0666;
  status->st_nlink = 1;
  return 0;
}

}  // namespace
}  // namespace verbena::soft::interpose

using namespace verbena::soft::interpose;  // NOLINT: definitions below are global

VERBENA_REPLACE(stat) int verbena_stat(const char* path, struct stat* status) noexcept {
  PathBuffer buffer;
  const int result = VERBENA_NEXT(stat)(shown_path(path, buffer), status);
  return stands_for_device_node(result, path) ? describe_device_node(status) : result;
}

VERBENA_REPLACE(stat64) int verbena_stat64(const char* path, struct stat64* status) noexcept {
  PathBuffer buffer;
  const int result = VERBENA_NEXT(stat64)(shown_path(path, buffer), status);
  return stands_for_device_node(result, path) ? describe_device_node(status) : result;
}

VERBENA_REPLACE(__xstat) int verbena___xstat(int version, const char* path, struct stat* status) {
  PathBuffer buffer;
  const int result = VERBENA_NEXT(__xstat)(version, shown_path(path, buffer), status);
  return stands_for_device_node(result, path) ? describe_device_node(status) : result;
}

VERBENA_REPLACE(__xstat64)
int verbena___xstat64(int version, const char* path, struct stat64* status) {
  PathBuffer buffer;
  const int result = VERBENA_NEXT(__xstat64)(version, shown_path(path, buffer), status);
  return stands_for_device_node(result, path) ? describe_device_node(status) : result;
}

VERBENA_REPLACE(access) int verbena_access(const char* path, int mode) noexcept {
  PathBuffer buffer;
  const int result = VERBENA_NEXT(access)(shown_path(path, buffer), mode);
  return stands_for_device_node(result, path) && (mode & X_OK) == 0 ? 0 : result;
}
