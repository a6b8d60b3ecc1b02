// `verbena run -- PROGRAM ARGS`: starts an unmodified verbs program that sees soft0 beside the real
// devices.
#pragma once

#include <string>
#include <vector>

#include "verbena/status.h"

namespace verbena::cli {

// The library that goes in front of libibverbs: lib/verbena/libverbena-verbs.so beside the
// directory of this executable, in the build tree as in an installed one. kNotFound names where it
// should be.
Result<std::string> find_interposer();

// `preload` with `library` behind what it lists already: others, such as a sanitizer's runtime,
// want to be first. kInvalidArgument if the path has a character that separates entries.
Result<std::string> append_preload(const std::string& preload, const std::string& library);

// Replaces this process by the program `arguments[0]`, searched for in PATH. Returns only if that
// fails, with a line on stderr: the exit code is 127 if there is no such program, 126 if it cannot
// be executed, 2 if none is named, else 1.
int run_program(const std::vector<std::string>& arguments);

}  // namespace verbena::cli
