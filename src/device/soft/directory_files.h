// The files of a directory that is open.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace verbena::soft {

// Calls `use(name)` for each file of the directory; ends early where that returns false. False with
// errno if it cannot be read. Takes a file descriptor meanwhile.
template <typename Use>
bool for_each_file(int directory_fd, Use&& use) {
  const int opened = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return false;
  DIR* entries = fdopendir(opened);
  if (entries == nullptr) {
    const int error = errno;
    close(opened);
    errno = error;
    return false;
  }
  const dirent* entry = readdir(entries);
  while (entry != nullptr && use(entry->d_name)) entry = readdir(entries);
  closedir(entries);
  return true;
}

}  // namespace verbena::soft
