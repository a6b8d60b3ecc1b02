// Parsers of bytes that somebody else wrote, each as a target that takes any bytes. fuzz_test runs
// them with mutated seeds: the same few in every `make test`, fresh ones in the soak.
//
// A target must end, whatever the bytes are: with an error of one printable line, or with something
// that keeps what its type promises. A violation aborts.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbena/status.h"

namespace verbena::fuzz {

using Bytes = std::vector<std::byte>;

struct FuzzTarget {
  const char* name;
  Status (*run)(std::span<const std::byte> input);  // what the parser says of it
  std::vector<Bytes> (*seeds)();                    // inputs that are right, to begin with
  int inputs = 2000;                                // of a run; fewer where each takes milliseconds
};

std::span<const FuzzTarget> fuzz_targets();

// --- for targets ---

// Aborts with the line's text if the condition does not hold.
void require(bool condition, std::string_view what);
// Aborts if it is an error whose text is empty, of several lines, or not fit for a terminal.
void require_readable(const Status& status);

inline std::string_view as_text(std::span<const std::byte> input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}
Bytes as_bytes(std::string_view text);
// The files of a folder of this repository whose names end so.
std::vector<Bytes> repository_files(const std::string& folder, const std::string& suffix);

// Calls `use` with the path of a file of these bytes.
void with_file(std::span<const std::byte> content,
               const std::function<void(const std::string& path)>& use);

}  // namespace verbena::fuzz
