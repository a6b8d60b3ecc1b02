#include "src/bench/explain/function_share.h"

#include <algorithm>
#include <cstddef>

namespace verbena::bench {

namespace {

constexpr size_t kMostFunctions = 12;
constexpr double kLeastShare = 0.005;

}  // namespace

std::string short_function_name(std::string_view symbol) {
  std::string name;
  int depth = 0;
  for (size_t i = 0; i < symbol.size(); ++i) {
    const char letter = symbol[i];
    if (letter == '<') ++depth;
    if (depth == 0 && letter == '(' && !symbol.substr(i).starts_with("(anonymous namespace)")) {
      // The call operator of a function object has a pair of parentheses in its name.
      if (!name.ends_with("operator")) break;
      name += "()";
      break;
    }
    if (depth == 0) name += letter;
    if (letter == '>' && depth > 0) --depth;
  }
  // Before the name of a template's instance stands what it returns.
  for (size_t space = name.rfind(' '); space != std::string::npos && space > 0;
       space = name.rfind(' ', space - 1)) {
    const std::string_view before = std::string_view(name).substr(0, space);
    if (before.ends_with("(anonymous") || before.ends_with("operator")) continue;
    return name.substr(space + 1);
  }
  return name;
}

std::vector<FunctionShare> largest_shares(const std::map<std::string, double>& amounts) {
  double sum = 0;
  for (const auto& [function, amount] : amounts) sum += amount;
  std::vector<FunctionShare> shares;
  for (const auto& [function, amount] : amounts) {
    if (amount / sum >= kLeastShare) shares.push_back({function, amount / sum});
  }
  std::sort(shares.begin(), shares.end(),
            [](const FunctionShare& a, const FunctionShare& b) { return a.share > b.share; });
  if (shares.size() > kMostFunctions) shares.resize(kMostFunctions);
  return shares;
}

}  // namespace verbena::bench
