// Result files: what `verbena bench --json` writes and `verbena report` reads. Described in
// lab/README.md.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/result/point_result.h"
#include "verbena/status.h"

namespace verbena::bench {

// Where the numbers come from.
struct ResultOrigin {
  std::string device;
  std::string command;        // as typed, quoted for a shell
  nlohmann::json settings{};  // further things worth knowing
  nlohmann::json plan{};      // plan_json()
  nlohmann::json about{};     // Plan::about
};

nlohmann::json to_json(const PointResult& result);
// The whole file.
nlohmann::json result_document(const ResultOrigin& origin, const std::vector<PointResult>& results);

// A file that readers see as it was or whole, never in part: written beside `path` and renamed.
Status write_json_file(const std::string& path, const nlohmann::json& document);
// Whether write_json_file() will be able to; to be asked before measuring for an hour.
Status check_writable(const std::string& path);

// What an interrupted session left in its result file: the points of `groups` that have at least
// one run and no error, to go on from (session.h). Nothing if there is no such file yet.
//   kInvalidArgument  the file is none of this plan and device; another file, or none to go on from
Result<std::vector<PointResult>> read_results(const std::string& path, const ResultOrigin& origin,
                                              const std::vector<PointGroup>& groups);

// The command line, quoted where a shell needs it.
std::string command_text(int argc, const char* const* argv);

}  // namespace verbena::bench
