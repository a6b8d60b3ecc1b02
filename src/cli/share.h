// Files that are installed with the tool.
#pragma once

#include <string>
#include <string_view>

#include "verbena/status.h"

namespace verbena::cli {

// share/verbena/NAME beside the directory of this executable; the build tree looks like an
// installed one. kUnavailable where `probe` is not in it.
Result<std::string> find_share(std::string_view name, std::string_view probe);

// The path of this executable.
Result<std::string> own_path();

}  // namespace verbena::cli
