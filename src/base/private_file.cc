#include "src/base/private_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace verbena {

namespace {

Status cannot_write(const std::string& path, const char* reason) {
  return {StatusCode::kInvalidArgument,
          fmt::format("cannot write {}: {}; name a file in a directory of yours", path, reason)};
}

Result<FileDescriptor> open_private(const std::string& path) {
  // Whatever lies there, opening it neither waits nor follows a link.
  FileDescriptor file(
      open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!file.valid()) return cannot_write(path, strerror(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return cannot_write(path, "it is no regular file");
  }
  // Where others can make files, the name may be one that they gave to a file of this user.
  if (status.st_uid != geteuid()) return cannot_write(path, "it is another user's");
  if (status.st_nlink != 1) return cannot_write(path, "the file has other names, too");
  if (fchmod(file.get(), 0600) != 0) return cannot_write(path, strerror(errno));
  return file;
}

PrivateFile out_of_the_way(FileDescriptor file, std::string path) {
  if (const int far = duplicate_out_of_the_way(file.get()); far >= 0) file = FileDescriptor(far);
  return {std::move(file), std::move(path)};
}

// Whether this process has it, and it is empty.
bool take_empty(const FileDescriptor& file) {
  struct stat status {};
  return flock(file.get(), LOCK_EX | LOCK_NB) == 0 && fstat(file.get(), &status) == 0 &&
         status.st_size == 0;
}

// Before the last dot of the name, where it has one.
std::string with_pid_added(const std::string& path) {
  const size_t name = path.rfind('/') + 1;  // 0 without a folder
  size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= name) dot = path.size();
  return fmt::format("{}.{}{}", path.substr(0, dot), getpid(), path.substr(dot));
}

}  // namespace

std::string with_pid(const std::string& pattern) {
  std::string path;
  for (size_t at = 0; at < pattern.size(); ++at) {
    if (pattern.compare(at, 2, "%p") == 0) {
      path += fmt::format("{}", getpid());
      ++at;
    } else {
      path += pattern[at];
    }
  }
  return path;
}

Status check_private_file(const std::string& pattern) {
  return open_private(with_pid(pattern)).status();
}

Status prepare_private_file(const std::string& pattern) {
  const std::string path = with_pid(pattern);
  VERBENA_ASSIGN_OR_RETURN(const FileDescriptor file, open_private(path));
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) return {};
  if (ftruncate(file.get(), 0) != 0) return cannot_write(path, strerror(errno));
  return {};
}

Result<PrivateFile> claim_private_file(const std::string& pattern) {
  std::string path = with_pid(pattern);
  VERBENA_ASSIGN_OR_RETURN(FileDescriptor file, open_private(path));
  if (take_empty(file)) return out_of_the_way(std::move(file), std::move(path));
  path = with_pid_added(path);
  VERBENA_ASSIGN_OR_RETURN(FileDescriptor own, open_private(path));
  // What lies there is of a former process by this number.
  if (flock(own.get(), LOCK_EX | LOCK_NB) != 0 || ftruncate(own.get(), 0) != 0) {
    return cannot_write(path, strerror(errno));
  }
  return out_of_the_way(std::move(own), std::move(path));
}

}  // namespace verbena
