// The subcommands of `verbena sim`, each in a file of its own.
#pragma once

#include <CLI/CLI.hpp>

#include "src/cli/tool.h"

namespace verbena::cli {

void add_sim_explain_command(Tool& tool, CLI::App& sim);
// The commands below `sim explain`, one for each workload without a topology.
void add_sim_explain_workloads(Tool& tool, CLI::App& explain);
void add_sim_profiles_command(Tool& tool, CLI::App& sim);

}  // namespace verbena::cli
