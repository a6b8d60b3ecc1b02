// What the tool says about itself: help, version, shell completion; and every example of every help
// page works as printed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "src/base/sanitizer.h"
#include "tests/support/own_port.h"
#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"
#include "verbena/rpc.h"
#include "verbena/version.h"

namespace verbena::test {
namespace {

using testing::HasSubstr;

#if VERBENA_ADDRESS_SANITIZER
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = VERBENA_THREAD_SANITIZER != 0;
#endif

std::vector<std::string> split(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::string> list;
  for (std::string word; words >> word;) list.push_back(word);
  return list;
}

const std::vector<std::string>& all_commands() {
  static const std::vector<std::string> commands = {"",
                                                    "devices",
                                                    "explain",
                                                    "bench",
                                                    "bench message",
                                                    "verbs",
                                                    "remote",
                                                    "app",
                                                    "app hashtable",
                                                    "app join",
                                                    "app log",
                                                    "app shuffle",
                                                    "demo",
                                                    "report",
                                                    "reproduce",
                                                    "calibrate",
                                                    "sim",
                                                    "sim explain",
                                                    "sim profiles",
                                                    "run",
                                                    "top",
                                                    "completion",
                                                    "sim explain verbs",
                                                    "sim explain message",
                                                    "sim explain remote",
                                                    "sim explain hashtable",
                                                    "sim explain log",
                                                    "sim explain shuffle",
                                                    "sim explain join"};
  return commands;
}

std::string help_of(const std::string& command) {
  std::vector<std::string> arguments = split(command);
  arguments.push_back("--help");
  const Outcome outcome = run_tool(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << command << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

// The indented lines below "Example:" or "Examples:".
std::vector<std::string> examples_of(const std::string& help) {
  std::vector<std::string> examples;
  std::istringstream lines(help);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line == "Example:" || line == "Examples:") {
      inside = true;
    } else if (inside && line.starts_with("  ")) {
      examples.push_back(line.substr(2));
    } else {
      inside = false;
    }
  }
  return examples;
}

std::set<std::string> options_in(const std::string& help) {
  std::set<std::string> options;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    // An option's line begins with its names; texts below the options may mention others.
    if (!line.starts_with("  -")) continue;
    for (const std::string& word : split(line)) {
      for (size_t at = 0; (at = word.find("--", at)) != std::string::npos; at += 2) {
        options.insert(word.substr(at, word.find_first_of(",=", at) - at));
      }
      if (!word.starts_with("-")) break;
    }
  }
  return options;
}

TEST(Help, EveryPageHasExamplesAndFitsATerminal) {
  for (const std::string& command : all_commands()) {
    SCOPED_TRACE(command);
    const std::string help = help_of(command);
    EXPECT_FALSE(examples_of(help).empty());
    EXPECT_THAT(help, HasSubstr("Usage: verbena"));
    EXPECT_FALSE(options_in(help).empty());
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 140u) << line;
  }
}

TEST(Help, OfAllApplicationsHasAnExampleOfEach) {
  const std::vector<std::string> examples = examples_of(help_of("app"));
  std::set<std::string> named;
  for (const std::string& example : examples) {
    const std::vector<std::string> words = split(example);
    ASSERT_GT(words.size(), 2u);
    EXPECT_EQ(words[0] + " " + words[1], "verbena app");
    named.insert(words[2]);
  }
  EXPECT_THAT(named, testing::UnorderedElementsAre("hashtable", "log", "shuffle", "join"));
}

// Others may have the fixed port of these programs, and a busy machine may not have started the
// first one within a second.
std::string with_own_port(std::string example) {
  const std::string program = "ibv_rc_pingpong";
  if (example.find(program) == std::string::npos) return example;
  const uint16_t port = own_port();
  const std::string option = fmt::format(" -p {}", port);
  for (size_t at = 0; (at = example.find(program, at)) != std::string::npos;) {
    at += program.size();
    example.insert(at, option);
  }
  const std::string pause = "sleep 1;";
  const size_t at = example.find(pause);
  EXPECT_NE(at, std::string::npos);
  if (at != std::string::npos) {
    example.replace(at, pause.size(),
                    fmt::format("until grep -q ':{:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; "
                                "do sleep 0.1; done;",
                                port));
  }
  return example;
}

class Examples : public testing::TestWithParam<std::string> {};

TEST_P(Examples, WorkAsPrinted) {
  if (GetParam() == "run" && kSanitized)
    GTEST_SKIP() << "a foreign program cannot load a sanitizer";
  const ScratchDirectory scratch;
  for (const std::string& example : examples_of(help_of(GetParam()))) {
    SCOPED_TRACE(example);
    if (example.find("ibv_") != std::string::npos && access("/usr/bin/ibv_devinfo", X_OK) != 0) {
      GTEST_SKIP() << "the package ibverbs-utils is missing";
    }
    const std::string folder = std::filesystem::path(VERBENA_TOOL).parent_path();
    const Outcome outcome =
        ToolProcess({"bash", "-c", "PATH=" + folder + ":$PATH\n" + with_own_port(example)},
                    {{"XDG_DATA_HOME", scratch.path()}}, scratch.path())
            .wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err.find("error"), std::string::npos) << outcome.err;
  }
}

std::string command_test_name(const testing::TestParamInfo<std::string>& command) {
  std::string name = command.param.empty() ? "verbena" : command.param;
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Of, Examples, testing::ValuesIn(all_commands()), command_test_name);

TEST(Documents, NameEveryMarkLayout) {
  const std::string help = help_of("bench");
  const std::string design = read_file(VERBENA_SOURCE_DIR "/docs/design-space.md");
  size_t layouts = 0;
  for (const char* layout : {"last-bit", "length-markers", "head-tail", "immediate", "dense"}) {
    EXPECT_THAT(help, HasSubstr(layout));
    EXPECT_THAT(design, HasSubstr("`" + std::string(layout) + "`")) << layout;
    ++layouts;
  }
  EXPECT_EQ(layouts, all_mark_layouts().size());
  EXPECT_THAT(read_file(VERBENA_SOURCE_DIR "/README.md"),
              HasSubstr("five layouts of completion marks"));
}

TEST(Version, NamesReleaseAndCommit) {
  const Outcome outcome = run_tool({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, testing::StartsWith(std::string("verbena ") + kVersion));
  EXPECT_THAT(outcome.out, HasSubstr("commit "));
}

TEST(Devices, TableAndJsonListTheSoftwareDevice) {
  EXPECT_THAT(run_tool({"devices"}).out, HasSubstr("soft0"));
  const nlohmann::json devices = nlohmann::json::parse(run_tool({"devices", "--json"}).out);
  ASSERT_TRUE(devices.is_array());
  const nlohmann::json& soft = devices.back();
  EXPECT_EQ(soft.at("name"), "soft0");
  EXPECT_EQ(soft.at("kind"), "software");
  EXPECT_EQ(soft.at("atomics"), true);
  EXPECT_EQ(soft.at("writes_in_order"), true);
  EXPECT_GT(soft.at("max_queue_pairs"), 0);
  EXPECT_GT(soft.at("max_inline_bytes"), 0);
}

// --- completion ---

// What bash offers for the last of these words.
std::set<std::string> bash_offers(const std::vector<std::string>& words) {
  std::string script = "source <(" VERBENA_TOOL " completion bash) || exit 1\nCOMP_WORDS=(";
  for (const std::string& word : words) script += "'" + word + "' ";
  script +=
      ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\ncompopt() { :; }\n_verbena\n"
      "printf '%s\\n' \"${COMPREPLY[@]}\"\n";
  const ScratchDirectory scratch;
  write_file(scratch.file("results.json"), "");
  const Outcome outcome = ToolProcess({"bash", "-c", script}, {}, scratch.path()).wait();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  const std::vector<std::string> offered = split(outcome.out);
  return {offered.begin(), offered.end()};
}

TEST(Completion, BashKnowsCommandsOptionsAndValues) {
  using testing::Contains;
  using testing::ElementsAre;
  using testing::IsSupersetOf;
  EXPECT_THAT(bash_offers({"verbena", ""}),
              IsSupersetOf({"devices", "explain", "bench", "demo", "report", "reproduce", "sim",
                            "run", "completion"}));
  EXPECT_THAT(bash_offers({"verbena", ""}), testing::Not(Contains("bench-node")));
  EXPECT_THAT(bash_offers({"verbena", "be"}), ElementsAre("bench"));
  EXPECT_THAT(bash_offers({"verbena", "bench", ""}), IsSupersetOf({"one-to-one", "N-to-M"}));
  EXPECT_THAT(bash_offers({"verbena", "bench", "one-to-one", "--protocol", "write/"}),
              ElementsAre("write/send", "write/write"));
  EXPECT_THAT(bash_offers({"verbena", "bench", "one-to-one", "--mark", ""}),
              IsSupersetOf({"last-bit", "head-tail", "all"}));
  EXPECT_THAT(bash_offers({"verbena", "bench", "one-to-one", "--verify", "--json", "re"}),
              ElementsAre("results.json"));
  EXPECT_THAT(bash_offers({"verbena", "verbs", "--operation", "fet"}), ElementsAre("fetch-add"));
  EXPECT_THAT(bash_offers({"verbena", "verbs", "--method", ""}),
              IsSupersetOf({"sp", "sgl", "doorbell", "all"}));
  EXPECT_THAT(bash_offers({"verbena", "report", "res"}), ElementsAre("results.json"));
  EXPECT_THAT(bash_offers({"verbena", "completion", ""}), IsSupersetOf({"bash", "zsh"}));
  EXPECT_THAT(bash_offers({"verbena", "sim", ""}), IsSupersetOf({"explain", "profiles"}));
  EXPECT_THAT(bash_offers({"verbena", "sim", "explain", "M"}), ElementsAre("M:1", "M:M"));
  EXPECT_THAT(
      bash_offers({"verbena", "sim", "explain", "one-to-one", "--device", "sim:connectx3-f"}),
      ElementsAre("sim:connectx3-fdr"));
}

TEST(Completion, KnowsEveryOptionOfEveryHelpPage) {
  for (const char* shell : {"bash", "zsh"}) {
    const std::string script = run_tool({"completion", shell}).out;
    for (const std::string& command : all_commands()) {
      for (const std::string& option : options_in(help_of(command))) {
        EXPECT_THAT(script, HasSubstr(option)) << shell << " " << command;
      }
    }
  }
}

TEST(Completion, ShellsCanReadTheScripts) {
  const ScratchDirectory scratch;
  for (const char* shell : {"bash", "zsh"}) {
    const std::string file = scratch.file(shell);
    write_file(file, run_tool({"completion", shell}).out);
    const Outcome outcome =
        ToolProcess({"bash", "-c", "exec \"$0\" -n \"$1\"", shell, file}).wait();
    if (outcome.exit_code == 127) continue;  // no such shell here
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
  }
}

}  // namespace
}  // namespace verbena::test
