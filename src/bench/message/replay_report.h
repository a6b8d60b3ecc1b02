// What the last replay of a rank was like, left for the tool in a file, since ranks are threads or
// processes of several programs.
#pragma once

#include <cstdint>
#include <string>

#include "verbena/status.h"

namespace verbena::bench {

struct ReplayReport {
  uint64_t elapsed_ns = 0;  // without the barriers around it
  uint64_t compute_ns = 0;
  uint64_t call_ns = 0;   // in calls: communication, and waiting for it
  uint64_t messages = 0;  // sent, those of collective operations among them
  uint64_t bytes = 0;
};

// Does nothing where kReplayReportVariable is not set.
void leave_report(uint32_t rank, const ReplayReport& report);
Result<ReplayReport> read_report(const std::string& folder, uint32_t rank);

}  // namespace verbena::bench
