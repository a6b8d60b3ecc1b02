// How parameters of tests print, and the names that follow from it.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <ostream>
#include <string>

#include "verbena/rpc.h"

namespace verbena {

inline std::ostream& operator<<(std::ostream& out, Protocol protocol) {
  return out << protocol_name(protocol);
}
inline std::ostream& operator<<(std::ostream& out, MarkLayout layout) {
  return out << mark_layout_name(layout);
}
inline std::ostream& operator<<(std::ostream& out, Transport transport) {
  return out << transport_name(transport);
}

namespace test {

// What the parameter prints; whatever a test's name may not contain becomes an underscore.
template <typename Parameter>
std::string printed_name(const testing::TestParamInfo<Parameter>& info) {
  std::string name;
  for (const char c : testing::PrintToString(info.param)) {
    const bool allowed = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (allowed || (!name.empty() && name.back() != '_')) name += allowed ? c : '_';
  }
  return name;
}

}  // namespace test
}  // namespace verbena
