#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace verbena::test {

inline std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

}  // namespace verbena::test
