// The subcommands of `verbena`, each in a file of its own.
#pragma once

#include <optional>

namespace verbena::cli {

struct Tool;

void add_devices_command(Tool& tool);
void add_explain_command(Tool& tool);
void add_bench_command(Tool& tool);
// Of the workloads that have no command above.
void add_workload_commands(Tool& tool);
void add_demo_command(Tool& tool);
void add_report_command(Tool& tool);
void add_reproduce_command(Tool& tool);
void add_calibrate_command(Tool& tool);
void add_sim_command(Tool& tool);
void add_run_command(Tool& tool);
void add_top_command(Tool& tool);
void add_mpi_command(Tool& tool);
void add_trace_command(Tool& tool);
void add_completion_command(Tool& tool);

// Where the command is one that becomes another program (`run`, `mpi`), does that and returns only
// if it fails, with the exit code; where it starts one (`trace`), its exit code. Arguments are
// taken past the parser: they are the program's, whatever they look like.
std::optional<int> run_other_program(int argc, const char* const* argv);

}  // namespace verbena::cli
