#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string_view>

namespace verbena::soft::observe {

// All of it; false with errno otherwise.
inline bool write_at(int fd, std::string_view text, uint64_t offset) {
  while (!text.empty()) {
    const ssize_t written = pwrite(fd, text.data(), text.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return true;
}

}  // namespace verbena::soft::observe
