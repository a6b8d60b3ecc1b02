// Experiments that the command line names: the papers', which are installed, or any file.
#pragma once

#include <string>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "verbena/status.h"

namespace verbena::cli {

// "msgproto-fig10a" and so on.
std::vector<std::string> experiment_names();
// By name, or from the file of that path. kNotFound: there is neither. kInvalidArgument: it cannot
// be read, or is about another workload.
Result<bench::Plan> read_experiment(const std::string& name_or_path,
                                    const bench::Workload& workload);

}  // namespace verbena::cli
