// The share that each function has of what a side of a benchmark spends.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace verbena::bench {

struct FunctionShare {
  std::string function;  // without parameters and template arguments
  double share = 0;      // of its side
};

// "request_loop<A, B>(int) const" is "request_loop". Pure.
std::string short_function_name(std::string_view symbol);

// The largest first; small ones are left out.
std::vector<FunctionShare> largest_shares(const std::map<std::string, double>& amounts);

}  // namespace verbena::bench
