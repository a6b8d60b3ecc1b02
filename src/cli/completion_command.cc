// `verbena completion`: scripts that complete commands, options and values in a shell.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "src/base/output.h"
#include "src/cli/commands.h"
#include "src/cli/completion.h"
#include "src/cli/tool.h"

namespace verbena::cli {

void add_completion_command(Tool& tool) {
  CLI::App* command =
      tool.app.add_subcommand("completion", "Print a completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  CLI::Option* option = command->add_option("SHELL", *shell, "bash or zsh");
  option->required()->option_text(" ");
  tool.choices[option] = {"bash", "zsh"};
  command->footer(
      "'make install' puts both where the shells look for them. Without it: add the first line to\n"
      "~/.bashrc; for zsh write the output to a file named _verbena in a directory of $fpath.\n\n" +
      examples_text({"source <(verbena completion bash)", "verbena completion zsh > _verbena"}));
  command->callback([&tool, shell] {
    if (*shell == "bash") {
      print_output("{}", bash_completion(tool));
    } else if (*shell == "zsh") {
      print_output("{}", zsh_completion(tool));
    } else {
      tool.exit_code = report_usage_error(
          fmt::format("no completion for the shell '{}'; there are bash and zsh", *shell));
    }
  });
}

}  // namespace verbena::cli
