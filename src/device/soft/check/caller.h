// Who made a call: the program's code, not that of the libraries between it and the software RNIC.
#pragma once

#include <string>

namespace verbena::soft::check {

struct Caller {
  const void* place = nullptr;
  bool is_connection_manager = false;  // librdmacm called for it
};
// The nearest caller outside of Verbena, libibverbs and librdmacm; null if none is found. Costs
// microseconds.
Caller find_caller();

// "function+0x12 (program)", or "program+0x1234", which addr2line takes, where no symbol is known.
std::string describe_place(const void* address);

}  // namespace verbena::soft::check
