// `verbena demo` and `verbena report`: from measuring to the page, with one answer everywhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using testing::HasSubstr;

// Lines that were wrapped for the terminal, as one.
std::string joined(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    const bool blank = letter == ' ' || letter == '\n';
    if (!blank || result.empty() || result.back() != ' ') result += blank ? ' ' : letter;
  }
  return result;
}

constexpr const char* kPagePackages = "pages need the packages python3-jinja2 and python3-plotly";

bool can_write_pages() {
  return std::filesystem::exists("/usr/lib/python3/dist-packages/jinja2") &&
         std::filesystem::exists("/usr/share/python3-plotly");
}

TEST(Demo, MeasuresAnswersAndWritesThePage) {
  if (!can_write_pages()) GTEST_SKIP() << kPagePackages;
  const ScratchDirectory scratch;
  const Outcome outcome = run_tool({"demo", "--quick", "--output", scratch.file("a/demo")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;

  const std::string results = scratch.file("a/demo/results.json");
  const std::string page = scratch.file("a/demo/report.html");
  const nlohmann::json document = nlohmann::json::parse(read_file(results));
  EXPECT_EQ(document["results"].size(), 5u * 3u * 2u);
  for (const nlohmann::json& row : document["results"]) EXPECT_EQ(row["errors"], 0) << row;
  for (const auto& [application, points] : std::vector<std::pair<std::string, size_t>>{
           {"hashtable", 6}, {"log", 4}, {"shuffle", 6}, {"join", 4}}) {
    const std::string file = scratch.file("a/demo/" + application + ".json");
    const nlohmann::json measured = nlohmann::json::parse(read_file(file));
    EXPECT_EQ(measured["results"].size(), points) << application;
    for (const nlohmann::json& row : measured["results"]) EXPECT_EQ(row["errors"], 0) << row;
  }
  EXPECT_THAT(outcome.out, HasSubstr(page));

  // The answer on the terminal is the one on the page.
  const std::string question = "Which one should I use here?\n";
  const size_t begin = outcome.out.find(question);
  ASSERT_NE(begin, std::string::npos);
  const std::string rest = outcome.out.substr(begin + question.size());
  const std::string answer = rest.substr(2, rest.find("\n\nReport:") - 2);
  ASSERT_FALSE(answer.empty());
  const std::string html = joined(read_file(page));
  for (const char* application : {"Hashtable", "Log", "Shuffle", "Join"}) {
    EXPECT_THAT(html, HasSubstr("<h2>" + std::string(application) + "</h2>"));
  }
  const std::string sentence = joined(answer.substr(0, answer.find(".\n") + 1));
  EXPECT_THAT(html, HasSubstr("<p>" + sentence + "</p>"));
}

TEST(Report, ReadsFilesAndDirectoriesAndNamesItsPage) {
  if (!can_write_pages()) GTEST_SKIP() << kPagePackages;
  const ScratchDirectory scratch;
  std::filesystem::create_directory(scratch.file("data"));
  for (const char* name : {"data/a.json", "data/b.json"}) {
    ASSERT_EQ(run_tool({"bench", "one-to-one", "--protocol", "read,write/write", "--requests",
                        "100", "--runs", "1", "--json", scratch.file(name)})
                  .exit_code,
              0);
  }
  Outcome outcome = run_tool({"report", "data"}, scratch.path());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(scratch.file("report.html")));
  EXPECT_TRUE(std::filesystem::exists(scratch.file("report.html")));
  outcome = run_tool({"report", "data/a.json", "data/b.json", "-o", "two.html"}, scratch.path());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(read_file(scratch.file("two.html")), HasSubstr("b.json"));
}

TEST(Report, AHalfWrittenFileIsNamedAndThePageStays) {
  const ScratchDirectory scratch;
  write_file(scratch.file("half.json"), R"({"device": "soft0", "results": [)");
  write_file(scratch.file("report.html"), "the old page");
  const Outcome outcome = run_tool({"report", "half.json"}, scratch.path());
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("half.json"));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(read_file(scratch.file("report.html")), "the old page");
}

}  // namespace
}  // namespace verbena::test
