// A file of packets as libpcap writes it, with times in nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/base/private_file.h"

namespace verbena::soft::observe {

// What lies before a packet in the ring: the packet's headers and payload follow, without the
// invariant CRC.
struct PacketRecord {
  uint64_t time_ns;         // by machine_now_ns()
  uint32_t wire_bytes;      // without the CRC
  uint32_t captured_bytes;  // that follow
};

// Of the thread that writes.
class PcapFile {
 public:
  PcapFile(PrivateFile file, uint32_t snap_bytes);
  // Copies it; flush() writes what was added by the order of time.
  void add(const PacketRecord& record, const std::byte* bytes);
  void flush();
  void finish(uint64_t dropped);

 private:
  struct Kept {
    uint64_t time_ns;
    size_t at;
    size_t size;
  };
  PrivateFile file_;
  uint32_t snap_bytes_;
  int64_t wall_clock_offset_ns_;
  uint64_t end_bytes_ = 0;
  bool failed_ = false;
  std::string kept_bytes_;
  std::vector<Kept> kept_;
  std::string text_;
};

}  // namespace verbena::soft::observe
