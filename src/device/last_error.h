// The line that says why a thread's latest call of a device failed (VerbsControl::last_error).
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace verbena {

// One per device, static. Each thread has a line of its own from its first error on. It is no
// thread_local one: a library that a program loads while it runs finds only some hundred bytes of
// room for these. Nothing is destroyed but a thread's line, when it ends: a program's static
// objects may hold verbs objects whose destruction fails.
class LastError {
 public:
  LastError() : has_key_(pthread_key_create(&key_, std::free) == 0) {}

  // Without memory there is no line.
  void set(std::string_view text) {
    char* line = own_line();
    if (line == nullptr && has_key_) {
      line = static_cast<char*>(std::malloc(kLineBytes));
      if (line != nullptr && pthread_setspecific(key_, line) != 0) {
        std::free(line);
        line = nullptr;
      }
    }
    if (line == nullptr) return;
    const size_t length = std::min(text.size(), kLineBytes - 1);
    std::memcpy(line, text.data(), length);
    line[length] = '\0';
  }
  void clear() {
    if (char* line = own_line()) line[0] = '\0';
  }
  const char* text() const {
    const char* line = own_line();
    return line != nullptr ? line : "";
  }

 private:
  static constexpr size_t kLineBytes = 1024;  // what is longer is cut

  char* own_line() const {
    return has_key_ ? static_cast<char*>(pthread_getspecific(key_)) : nullptr;
  }

  pthread_key_t key_ = 0;
  bool has_key_;
};

}  // namespace verbena
