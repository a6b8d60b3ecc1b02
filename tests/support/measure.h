// One measurement of a workload by the tool, and the rows of its result file.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {

inline nlohmann::json results_of(const std::string& file) {
  const nlohmann::json document = nlohmann::json::parse(read_file(file), nullptr, false);
  EXPECT_TRUE(document.is_object());
  return document.is_object() ? document["results"] : nlohmann::json::array();
}

// What is printed has `word`, the head of a column of this workload.
inline nlohmann::json measure_on(const std::string& device, std::vector<std::string> arguments,
                                 const std::string& word) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("results.json");
  arguments.insert(arguments.end(), {"--device", device, "--runs", "1", "--json", file});
  const Outcome outcome = run_tool(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(complaints(outcome), "");
  EXPECT_THAT(outcome.out, testing::HasSubstr(word));
  return results_of(file);
}

}  // namespace verbena::test
