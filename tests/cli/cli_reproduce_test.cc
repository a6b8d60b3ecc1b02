// `verbena reproduce`: points are measured by processes, and every claim gets a verdict. On soft0,
// where hardly any holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr size_t kClaims = 589;

std::map<std::string, json> by_id(const json& verdicts) {
  std::map<std::string, json> rows;
  for (const json& row : verdicts) rows[row.at("id").get<std::string>()] = row;
  return rows;
}

TEST(Reproduce, GivesEveryClaimAVerdict) {
  const ScratchDirectory scratch;
  const Outcome outcome = run_tool(
      {"reproduce", "patterns-fig4a", "--device", "soft0", "--duration", "2ms", "--jobs", "2",
       "--json", scratch.file("verdicts.json"), "--results", scratch.file("all.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("f4.req_64b"));
  EXPECT_THAT(outcome.out, HasSubstr("patterns: no calibration row checked"));

  const json verdicts = json::parse(read_file(scratch.file("verdicts.json")));
  ASSERT_EQ(verdicts.size(), kClaims);
  const std::map<std::string, json> rows = by_id(verdicts);
  ASSERT_EQ(rows.size(), kClaims);
  for (const auto& [id, row] : rows) {
    EXPECT_TRUE(row.contains("stated") && row.contains("simulated") && row.contains("reason"));
    const std::string verdict = row.at("verdict");
    EXPECT_THAT(verdict, AnyOf("pass", "fail", "unchecked")) << id;
    EXPECT_TRUE(verdict == "pass" || !row.at("reason").get<std::string>().empty()) << id;
  }
  // The only claim of the figure; whether soft0 counts instructions depends on the machine.
  EXPECT_NE(rows.at("patterns.f4.req_64b").at("reason"), "not selected");
  EXPECT_EQ(rows.at("msgproto.f10a.ss").at("reason"), "not selected");

  const json results = json::parse(read_file(scratch.file("all.json")));
  EXPECT_EQ(results.at("results").size(), 4u);
}

TEST(Reproduce, SaysWhyThereIsNoTemporaryDirectory) {
  const Outcome outcome = ToolProcess({VERBENA_TOOL, "reproduce", "mpiiba", "--seeds", "1"},
                                      {{"TMPDIR", "/nonexistent"}})
                              .wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("No such file"), HasSubstr("TMPDIR")));
}

TEST(Reproduce, WhatIsNotCheckedIsNamedWithItsReason) {
  // Whatever is measured in so short a time.
  const Outcome outcome = run_tool({"reproduce", "bufreuse", "--seeds", "1", "--duration", "50us"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("here sizes that do not pay are copied, by the costs that were measured: "
                        "that nothing is lost would hold by construction, and a loss cannot come "
                        "(2): f4.small_negative f6.get_loss"));
  EXPECT_THAT(outcome.out, HasSubstr("bufreuse: no calibration row checked"));
}

TEST(Reproduce, WhatIsSimulatedHasItsUnitAndIsModelled) {
  const ScratchDirectory scratch;
  const Outcome outcome =
      run_tool({"reproduce", "mpiiba-fig1", "--seeds", "2", "--json", scratch.file("verdicts.json"),
                "--results", scratch.file("all.json"), "--report", scratch.file("page.html")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::map<std::string, json> rows =
      by_id(json::parse(read_file(scratch.file("verdicts.json"))));
  EXPECT_THAT(rows.at("mpiiba.f1.write_vs_sr").at("simulated_text").get<std::string>(),
              HasSubstr(" us"));
  EXPECT_EQ(rows.at("mpiiba.f1.write_vs_sr").at("seeds"), 2);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("of 2 seeds"), HasSubstr("with 2 seeds each took")));
  const char* modelled = "sim:infinihost-mt23108 is modelled, not measured";
  EXPECT_THAT(outcome.out, HasSubstr(modelled));
  EXPECT_THAT(read_file(scratch.file("page.html")), HasSubstr(modelled));
  EXPECT_TRUE(json::parse(read_file(scratch.file("all.json")))
                  .at("models")
                  .contains("sim:infinihost-mt23108"));
}

TEST(Reproduce, VariantsTellWhatHangsOnTheProfile) {
  const ScratchDirectory scratch;
  const Outcome outcome =
      run_tool({"reproduce", "mpiiba-fig1", "--seeds", "1", "--variants", "3", "--json",
                scratch.file("verdicts.json"), "--results", scratch.file("all.json"), "--report",
                scratch.file("page.html")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json row =
      by_id(json::parse(read_file(scratch.file("verdicts.json")))).at("mpiiba.f1.write_vs_sr");
  EXPECT_EQ(row.at("variants"), 3);
  const int held = row.at("variants_held");
  EXPECT_EQ(row.at("holds"), held == 3 ? "always" : held > 0 ? "by luck" : "never");
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("of 3 variants"), HasSubstr("with 3 variants took")));
  EXPECT_THAT(read_file(scratch.file("page.html")), HasSubstr("Holds over variants"));
  // What is written down is of the profile as given.
  for (const json& one : json::parse(read_file(scratch.file("all.json"))).at("results")) {
    EXPECT_EQ(one.at("device"), "sim:infinihost-mt23108");
  }
}

TEST(Reproduce, WhatCannotBeDoneIsOneLine) {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& why) {
    std::vector<std::string> command = {"reproduce"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run_tool(command);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(why));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  };
  refused({"msgproto-fig99"}, "the papers patterns, bufreuse, memsem, msgproto, mpiiba");
  refused({"--jobs", "0"}, "number of jobs 0");
  refused({"--duration", "soon"}, "soon");
  refused({"--seeds", "0"}, "number of seeds 0");
  refused({"--variants", "0"}, "number of variants 0");
  refused({"--variants", "101"}, "number of variants 101");
  refused({"--variants", "2", "--device", "soft0"}, "--variants 2 varies the profile");
  refused({"--seeds", "2", "--device", "soft0"}, "--seeds is for simulated devices");
  const ScratchDirectory scratch;
  refused({"--json", scratch.file("all"), "--results", scratch.file("./all")},
          "--json and --results name the same file");
  refused({"--variants", "2", "--device", "sim:connectx3-fdr#1"},
          "--variants 2 varies the profile");
  refused({"patterns-fig4a", "--device", "nosuch0"}, "nosuch0");
}

}  // namespace
}  // namespace verbena::test
