// Completion scripts for shells, from the tree of subcommands and options.
#pragma once

#include <string>

namespace verbena::cli {

struct Tool;

std::string bash_completion(const Tool& tool);
std::string zsh_completion(const Tool& tool);

}  // namespace verbena::cli
