// Tables as text, with commas between the cells (RFC 4180).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "verbena/status.h"

namespace verbena::reproduce {

// The rows of `text`, each with its cells; a cell in quotes may hold commas, line ends and doubled
// quotes. kInvalidArgument names the line where a quote is not closed.
Result<std::vector<std::vector<std::string>>> parse_csv(std::string_view text);

}  // namespace verbena::reproduce
