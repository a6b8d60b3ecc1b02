#include "src/cli/run_arguments.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace verbena::cli {
namespace {

class RunOptionsTest : public testing::Test {
 protected:
  void SetUp() override { forget(); }
  void TearDown() override { forget(); }
  static void forget() {
    for (const RunOption& option : run_options()) unsetenv(option.variable);
  }
  static std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : "none";
  }
};

TEST_F(RunOptionsTest, SetTheirVariables) {
  std::vector<std::string> arguments = {"--fault", "drop=1e-3,seed=7", "--link=latency=2us",
                                        "--",      "program",          "--fault"};
  ASSERT_TRUE(take_run_options(arguments).ok());
  EXPECT_EQ(arguments, (std::vector<std::string>{"program", "--fault"}));
  EXPECT_EQ(variable("VERBENA_FAULT"), "drop=1e-3,seed=7");
  EXPECT_EQ(variable("VERBENA_LINK"), "latency=2us");
}

TEST_F(RunOptionsTest, SetThePresentation) {
  std::vector<std::string> arguments = {"--link-layer", "ethernet", "--devices=2", "program"};
  ASSERT_TRUE(take_run_options(arguments).ok());
  EXPECT_EQ(arguments, std::vector<std::string>{"program"});
  EXPECT_EQ(variable("VERBENA_SOFT_LINK_LAYER"), "ethernet");
  EXPECT_EQ(variable("VERBENA_SOFT_DEVICES"), "2");
}

TEST_F(RunOptionsTest, WithoutAnyTheEnvironmentStays) {
  setenv("VERBENA_LINK", "rate=1Gbps", 1);
  for (std::vector<std::string> arguments :
       {std::vector<std::string>{"--", "program"}, {"program"}}) {
    ASSERT_TRUE(take_run_options(arguments).ok());
    EXPECT_EQ(arguments, std::vector<std::string>{"program"});
    EXPECT_EQ(variable("VERBENA_FAULT"), "none");
    EXPECT_EQ(variable("VERBENA_LINK"), "rate=1Gbps");
  }
}

TEST_F(RunOptionsTest, AreRefusedInOneLine) {
  const struct {
    std::vector<std::string> arguments;
    const char* named;
  } cases[] = {
      {{"--fault", "drop=2", "--", "program"}, "--fault 'drop=2'"},
      {{"--link=speed=1", "program"}, "--link 'speed=1'"},
      {{"--fault"}, "--fault needs a value"},
      {{"--link=latency=1us", "--link=rate=1Gbps", "program"}, "--link is given twice"},
      {{"--faults", "drop=1", "program"}, "'--faults'"},
      {{"--trace", "--", "program"}, "--trace needs a value"},
      {{"--trace", "--pcap", "p.pcap", "program"}, "--trace needs a value"},
      {{"--link-layer", "roce", "program"}, "--link-layer is 'roce'; it can be infiniband, or"},
      {{"--devices=9", "program"}, "--devices is '9'; it can be 1 to 8 devices"},
  };
  for (const auto& refused : cases) {
    std::vector<std::string> arguments = refused.arguments;
    const Status status = take_run_options(arguments);
    ASSERT_FALSE(status.ok()) << refused.named;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(refused.named), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

TEST_F(RunOptionsTest, AFileIsEmptiedOnlyIfNothingElseIsWrong) {
  const std::string file = testing::TempDir() + "run_arguments_test." + std::to_string(getpid());
  std::ofstream(file) << "kept";
  std::vector<std::string> arguments = {"--trace=" + file, "--fault", "drop=2", "program"};
  EXPECT_FALSE(take_run_options(arguments).ok());
  EXPECT_EQ(std::filesystem::file_size(file), 4u);
  arguments = {"--trace=" + file, "--fault", "drop=0.2", "program"};
  EXPECT_TRUE(take_run_options(arguments).ok());
  EXPECT_EQ(std::filesystem::file_size(file), 0u);
  std::filesystem::remove(file);
}

TEST_F(RunOptionsTest, AWrongVariableIsRefused) {
  setenv("VERBENA_FAULT", "drop=many", 1);
  std::vector<std::string> arguments = {"program"};
  const Status status = take_run_options(arguments);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("VERBENA_FAULT 'drop=many'"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace verbena::cli
