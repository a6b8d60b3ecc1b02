// What is printed: a block for each kind of misuse and place in the program, and how often it came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "src/base/known_file.h"
#include "src/device/check_options.h"
#include "src/device/soft/check/caller.h"

namespace verbena::soft::check {

struct Finding {
  CheckKind kind;
  const void* place = nullptr;        // where the program did it
  const void* other_place = nullptr;  // what it clashes with, if anything
  std::string what{};                 // one line
  std::string object{};
  std::string other{};     // what is at `other_place`: "destroyed", "posted"
  std::string hardware{};  // what an RNIC would do
  std::string remedy{};
  // Where `place` and `other_place` are not looked for before it is reported.
  std::shared_ptr<const Frames> frames{};
  std::shared_ptr<const Frames> other_frames{};
};

// Thread-safe. A finding of the same kind and places is counted, and not printed again.
class Reports {
 public:
  explicit Reports(CheckOptions options);
  void add(const Finding& finding);
  bool wants(CheckKind kind) const { return options_.wants(kind); }
  const CheckOptions& options() const { return options_; }
  // How many findings were added, repeated ones too.
  uint64_t count() const;
  // Prints what was found more than once. To be called once.
  void finish();
  // In a child of fork(): the parent prints its own.
  void start_anew();
  // Held while a process forks.
  std::mutex& mutex() { return mutex_; }

 private:
  struct Place {
    CheckKind kind;
    const void* place;
    const void* other_place;
    auto operator<=>(const Place&) const = default;
  };
  void print(const std::string& text);

  const CheckOptions options_;
  mutable std::mutex mutex_;
  std::map<Place, uint64_t> counts_;
  uint64_t count_ = 0;
  uint64_t unprinted_ = 0;  // of places beyond the limit
  int fd_ = -1;
  // Of standard error: programs close it, and get its number for something else.
  KnownFile file_;
};

// The text of a block, as it is printed.
std::string format_finding(const Finding& finding);

}  // namespace verbena::soft::check
