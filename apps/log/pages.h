// Zeroed memory in pages of its own: what is registered shares no page with anything else.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <string>
#include <utility>

#include "verbena/status.h"

namespace verbena::log_app {

class Pages {
 public:
  static Result<Pages> allocate(uint64_t size_bytes) {
    void* const data = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return Status(StatusCode::kLimitExceeded,
                    "the system has no " + std::to_string(size_bytes) +
                        " bytes of memory for the log; make it smaller");
    }
    return Pages(static_cast<char*>(data), size_bytes);
  }
  Pages() = default;
  Pages(Pages&& other) noexcept { *this = std::move(other); }
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~Pages() {
    if (data_ != nullptr) ::munmap(data_, size_bytes_);
  }

  char* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  Pages(char* data, uint64_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  char* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

}  // namespace verbena::log_app
