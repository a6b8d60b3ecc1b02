// `verbena sim`: what there is to ask about the simulated RNICs.
#include "src/cli/sim_command.h"

#include "src/cli/commands.h"

namespace verbena::cli {

void add_sim_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "sim", "Simulated RNICs: where a message's time goes, and what they are made of");
  command->require_subcommand(1);
  command->footer(
      examples_text({"verbena sim profiles",
                     "verbena sim explain one-to-one --device sim:connectx3-fdr --protocol "
                     "send/send"}));
  add_sim_explain_command(tool, *command);
  add_sim_profiles_command(tool, *command);
}

}  // namespace verbena::cli
