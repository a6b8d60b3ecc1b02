// `verbena report` where its user is: that pages are right is tested in tests/report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Those that Python loads for itself, those of the report, and its own name.
TEST(Report, RunsNoModuleOfTheFolderWhereItIsCalled) {
  const ScratchDirectory scratch;
  for (const char* module : {"csv", "json", "argparse", "runpy", "jinja2", "verbena_lab"}) {
    write_file(scratch.file(std::string(module) + ".py"), "print('ran'); raise SystemExit(99)\n");
  }
  const Outcome outcome = run_tool({"report", "no-such-results.json"}, scratch.path());
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("ran")));
  EXPECT_THAT(complaints(outcome), HasSubstr("no-such-results.json"));
}

}  // namespace
}  // namespace verbena::test
