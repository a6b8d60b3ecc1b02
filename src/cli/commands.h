// The subcommands of `verbena`, each in a file of its own.
#pragma once

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
void add_sim_command(Tool& tool);
void add_run_command(Tool& tool);
void add_completion_command(Tool& tool);

// `verbena run` takes its arguments past the parser: they are the program's.
bool asks_for_help(int argc, const char* const* argv);
int run_program_command(int argc, const char* const* argv);

}  // namespace verbena::cli
