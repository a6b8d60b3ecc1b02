#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string_view>

#include "src/base/private_file.h"

namespace verbena::soft::observe {

// All of it; false with errno otherwise, EBADF also where the program has closed the descriptor and
// its number is another file's.
inline bool write_at(const PrivateFile& file, std::string_view text, uint64_t offset) {
  if (!file.is_there()) {
    errno = EBADF;
    return false;
  }
  while (!text.empty()) {
    const ssize_t written =
        pwrite(file.file.get(), text.data(), text.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return true;
}

}  // namespace verbena::soft::observe
