// A trace in the JSON format of Chrome and Perfetto: a track for each queue pair's sends and one
// for its receives, with further ones below where requests overlap in time.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "src/base/private_file.h"

namespace verbena::soft::observe {

// A request that has completed.
struct TraceRecord {
  static constexpr uint8_t kUnpolled = 0xff;  // of status: no completion was polled

  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t wr_id;
  uint32_t qp_number;
  uint32_t bytes;
  uint8_t opcode;  // ibv_wr_opcode; of receives ibv_wc_opcode
  uint8_t status;  // ibv_wc_status
  bool receive;
};

// Of the thread that writes.
class TraceFile {
 public:
  explicit TraceFile(PrivateFile file);
  void add(const TraceRecord& record);
  // Writes what was added, so that the file is complete as it is. The first failure is said in the
  // log and ends it.
  void flush();
  // With how many were dropped.
  void finish(uint64_t dropped);

 private:
  uint32_t track_of(const TraceRecord& record);

  PrivateFile file_;
  std::string text_;
  uint64_t end_bytes_ = 0;  // of the file, before the closing bracket
  bool failed_ = false;
  // By queue pair and side: when the last request in each of its tracks ended.
  struct Lane {
    uint32_t track;
    uint64_t end_ns;
  };
  std::map<uint64_t, std::vector<Lane>> lanes_;
  uint32_t tracks_ = 0;
};

}  // namespace verbena::soft::observe
