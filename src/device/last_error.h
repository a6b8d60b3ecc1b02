// The line that says why a thread's latest call of a device failed (VerbsControl::last_error).
#pragma once

#include <algorithm>
#include <cstring>
#include <string_view>

namespace verbena {

// A thread_local one needs no destructor: a program's static objects are destroyed after those of
// its threads, and may hold verbs objects whose destruction fails.
class LastError {
 public:
  void set(std::string_view text) {
    const size_t length = std::min(text.size(), sizeof(text_) - 1);
    std::memcpy(text_, text.data(), length);
    text_[length] = '\0';
  }
  void clear() { text_[0] = '\0'; }
  const char* text() const { return text_; }

 private:
  char text_[1024] = {};  // what is longer is cut
};

}  // namespace verbena
