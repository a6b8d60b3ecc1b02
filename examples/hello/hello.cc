// A first program: which devices can this machine use?
//
//   cmake -B build && cmake --build build && build/hello
//   c++ -std=c++20 hello.cc $(pkg-config --cflags --libs verbena) -o hello && ./hello
#include <iostream>

#include "verbena/device.h"
#include "verbena/version.h"

int main() {
  std::cout << "verbena " << verbena::kVersion << '\n';
  for (const verbena::DeviceInfo& info : verbena::Device::list()) {
    if (info.unavailable.empty()) {
      std::cout << info.name << ": port " << info.port_state << ", " << info.max_inline_bytes
                << " bytes inline\n";
    } else {
      std::cout << info.name << ": cannot be opened: " << info.unavailable << '\n';
    }
  }

  const auto device = verbena::Device::open("soft0");
  if (!device.ok()) {
    std::cerr << device.status().message() << '\n';
    return 1;
  }
  return 0;
}
