#include "src/cli/completion.h"

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <vector>

#include "src/cli/tool.h"

namespace verbena::cli {

namespace {

bool is_shown(const CLI::App& command) { return !command.get_group().empty(); }

// Calls visit(command, path) for the root ("verbena") and every subcommand ("verbena bench").
void for_each_command(const CLI::App& command, const std::string& path,
                      const std::function<void(const CLI::App&, const std::string&)>& visit) {
  visit(command, path);
  for (const CLI::App* child : command.get_subcommands({})) {
    if (is_shown(*child)) for_each_command(*child, path + " " + child->get_name(), visit);
  }
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  std::vector<const CLI::Option*> options;
  for (const CLI::Option* option : command.get_options()) options.push_back(option);
  return options;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// Inside single quotes.
std::string quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) {
    text.replace(at, 1, "'\\''");
  }
  return text;
}

// Inside the description of a zsh _arguments specification.
std::string zsh_description(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '[' || letter == ']' || letter == ':' || letter == '\\') escaped += '\\';
    escaped += letter;
  }
  return quoted(escaped);
}

}  // namespace

std::string bash_completion(const Tool& tool) {
  std::string words;
  std::string values;
  for_each_command(tool.app, "verbena", [&](const CLI::App& command, const std::string& path) {
    std::vector<std::string> offered;
    bool paths = false;
    for (const CLI::App* child : command.get_subcommands({})) {
      if (is_shown(*child)) offered.push_back(child->get_name());
    }
    for (const CLI::Option* option : options_of(command)) {
      const std::vector<std::string> names = names_of(*option);
      offered.insert(offered.end(), names.begin(), names.end());
      paths = paths || (names.empty() && tool.takes_path.contains(option));
      const auto choices = tool.choices.find(option);
      if (names.empty()) {
        if (choices != tool.choices.end()) {
          offered.insert(offered.end(), choices->second.begin(), choices->second.end());
        }
        continue;
      }
      if (!takes_value(*option)) continue;
      std::string reply = "COMPREPLY=()";
      if (choices != tool.choices.end()) {
        reply = fmt::format("mapfile -t COMPREPLY < <(compgen -W '{}'{} -- \"$word\")",
                            joined(choices->second, " "),
                            tool.takes_path.contains(option) ? " -f" : "");
      } else if (tool.takes_path.contains(option)) {
        reply = "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$word\")";
      }
      for (const std::string& name : names) {
        values += fmt::format("    '{} {}') {}; return ;;\n", path, name, reply);
      }
    }
    words += fmt::format("    '{}') words='{}'; paths={} ;;\n", path, joined(offered, " "),
                         paths ? 1 : 0);
  });
  return fmt::format(R"(# Completion of verbena for bash:  source <(verbena completion bash)
_verbena() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local path=verbena words='' paths=0 i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$path ${{COMP_WORDS[i]}}" in
{}    esac
  done
  COMPREPLY=()
  case "$path $previous" in
{}  esac
  case "$path $word" in
    'verbena run -'*) ;;
    'verbena run '*) mapfile -t COMPREPLY < <(compgen -c -- "$word"); return ;;
  esac
  case $path in
{}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  if [ "$paths" = 1 ]; then
    compopt -o filenames
    mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -f -- "$word")
  fi
}}
complete -F _verbena verbena
)",
                     [&] {
                       std::string steps;
                       for_each_command(tool.app, "verbena",
                                        [&](const CLI::App& command, const std::string& path) {
                                          if (&command == &tool.app) return;
                                          steps +=
                                              fmt::format("      '{0}') path='{0}' ;;\n", path);
                                        });
                       return steps;
                     }(),
                     values, words);
}

std::string zsh_completion(const Tool& tool) {
  std::string functions;
  for_each_command(tool.app, "verbena", [&](const CLI::App& command, const std::string& path) {
    std::string name = "_" + path;
    for (char& letter : name) {
      if (letter == ' ' || letter == '-') letter = '_';
    }
    std::string specifications;
    std::string commands;
    std::string cases;
    std::string others;
    for (const CLI::Option* option : options_of(command)) {
      const auto choices = tool.choices.find(option);
      std::string action;
      if (choices != tool.choices.end()) {
        const std::string names = joined(choices->second, " ");
        action = tool.takes_path.contains(option) ? fmt::format("{{compadd -- {}; _files}}", names)
                                                  : fmt::format("({})", names);
      } else if (tool.takes_path.contains(option)) {
        action = "_files";
      }
      const std::vector<std::string> names = names_of(*option);
      const std::string description = zsh_description(option->get_description());
      if (names.empty() && path == "verbena run") {
        specifications += fmt::format(" \\\n    '*::{}: _normal'", description);
      } else if (names.empty() && command.get_subcommands({}).empty()) {
        specifications += fmt::format(" \\\n    '*:{}:{}'", description, action);
      } else if (names.empty() && choices != tool.choices.end()) {
        // Beside the commands below, in whose place it stands.
        for (const std::string& word : choices->second) {
          commands += fmt::format(" '{}:{}'", zsh_description(word), description);
        }
        others = "        *) ";
      }
      for (const std::string& one : names) {
        specifications += fmt::format(" \\\n    '{}[{}]{}'", one, description,
                                      takes_value(*option) ? fmt::format(":value:{}", action) : "");
      }
    }
    if (!others.empty()) others += fmt::format("_arguments{} ;;\n", specifications);
    for (const CLI::App* child : command.get_subcommands({})) {
      if (!is_shown(*child)) continue;
      commands +=
          fmt::format(" '{}:{}'", child->get_name(), zsh_description(child->get_description()));
      std::string function = name + "_" + child->get_name();
      for (char& letter : function) {
        if (letter == '-') letter = '_';
      }
      cases += fmt::format("        {}) {} ;;\n", child->get_name(), function);
    }
    if (commands.empty()) {
      functions += fmt::format("{}() {{\n  _arguments{}\n}}\n\n", name, specifications);
    } else {
      functions += fmt::format(R"({0}() {{
  local line state
  _arguments -C{1} \
    '1: :->command' '*:: :->arguments'
  case $state in
    command) local -a commands=({2}); _describe command commands ;;
    arguments)
      case ${{line[1]}} in
{3}      esac ;;
  esac
}}

)",
                               name, specifications, commands, cases + others);
    }
  });
  return "#compdef verbena\n# Completion of verbena for zsh:  source <(verbena completion "
         "zsh)\n\n" +
         functions +
         "if [ \"$funcstack[1]\" = _verbena ]; then _verbena \"$@\"; else compdef _verbena "
         "verbena; fi\n";
}

}  // namespace verbena::cli
