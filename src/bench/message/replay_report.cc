#include "src/bench/message/replay_report.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "src/bench/message/replay_source.h"

namespace verbena::bench {

namespace {
std::string report_path(const std::string& folder, uint32_t rank) {
  return fmt::format("{}/{}", folder, rank);
}
}  // namespace

void leave_report(uint32_t rank, const ReplayReport& report) {
  const char* folder = std::getenv(kReplayReportVariable);
  if (folder == nullptr || *folder == '\0') return;
  std::ofstream file(report_path(folder, rank));
  file << fmt::format("{} {} {} {} {}\n", report.elapsed_ns, report.compute_ns, report.call_ns,
                      report.messages, report.bytes);
}

Result<ReplayReport> read_report(const std::string& folder, uint32_t rank) {
  std::ifstream file(report_path(folder, rank));
  ReplayReport report;
  if (file >> report.elapsed_ns >> report.compute_ns >> report.call_ns >> report.messages >>
      report.bytes) {
    return report;
  }
  return Status(StatusCode::kNotFound,
                fmt::format("rank {} left no report in {}; is the disk full?", rank, folder));
}

}  // namespace verbena::bench
