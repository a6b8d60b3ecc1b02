// Who made a call: the program's code, not that of the libraries between it and the software RNIC.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace verbena::soft::check {

struct Caller {
  const void* place = nullptr;
  bool is_connection_manager = false;  // librdmacm called for it
};
// The nearest caller outside of Verbena, libibverbs and librdmacm; null if none is found. Costs
// microseconds.
Caller find_caller();

// Return addresses, the nearest first.
struct Frames {
  static constexpr size_t kMax = 32;
  std::array<const void*, kMax> addresses{};
  size_t count = 0;
};
// Asks the dynamic loader for no names, so it may be called where another thread, which loads a
// library, waits for this one.
void collect_frames(Frames& frames);
// The nearest caller among them, as find_caller() finds it. May wait for a library to be loaded.
const void* place_of(const Frames& frames);

// "function+0x12 (program)", or "program+0x1234", which addr2line takes, where no symbol is known.
std::string describe_place(const void* address);

}  // namespace verbena::soft::check
