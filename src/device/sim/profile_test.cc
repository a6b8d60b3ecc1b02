#include "src/device/sim/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

namespace verbena::sim {
namespace {

using testing::HasSubstr;

// profiles/connectx3-fdr.toml, found where the programs look for it.
std::string whole_text() {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  std::ifstream profile(program.parent_path().parent_path() /
                        "share/verbena/profiles/connectx3-fdr.toml");
  std::ostringstream text;
  text << profile.rdbuf();
  return text.str();
}

std::string replaced(const std::string& pattern, const std::string& with) {
  const std::string text = whole_text();
  std::string changed =
      std::regex_replace(text, std::regex(pattern), with, std::regex_constants::format_first_only);
  EXPECT_NE(changed, text) << pattern;
  return changed;
}

std::string complaint(const std::string& text) {
  const Result<Profile> profile = parse_profile(text, "test");
  EXPECT_EQ(profile.status().code(), StatusCode::kInvalidArgument);
  return profile.status().message();
}

// A parameter's section, up to the empty line behind it.
std::string section(const std::string& name) { return "\\[" + name + "\\](\n[^\n\\[][^\n]*)+\n"; }

TEST(ProfileTest, AllInstalledOnesParse) {
  const std::vector<std::string> names = profile_names();
  EXPECT_THAT(names, testing::Contains("connectx3-fdr"));
  for (const std::string& name : names) {
    const Result<Profile> profile = load_profile(name);
    ASSERT_TRUE(profile.ok()) << profile.status().message();
    EXPECT_EQ(profile->name, name);
    EXPECT_FALSE(profile->title.empty()) << name;
    const auto parameters = profile_parameters(name);
    ASSERT_TRUE(parameters.ok());
    for (const ParameterText& one : *parameters) {
      EXPECT_FALSE(one.source.empty()) << name << ": " << one.name;
    }
  }
}

TEST(ProfileTest, UnitsBecomePicosecondsAndPicosecondsPerKib) {
  std::string text =
      replaced("\\[switch_latency\\]\nvalue = [0-9.]+", "[switch_latency]\nvalue = 12.5");
  const auto profile = parse_profile(text, "test");
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->switch_latency, 12'500u);

  text = replaced("\\[link_rate\\]\nvalue = [0-9.]+", "[link_rate]\nvalue = 8");
  const auto slow = parse_profile(text, "test");
  ASSERT_TRUE(slow.ok());
  EXPECT_EQ(slow->link_time(1000), 1000 * kPsPerNs);  // 1 GB/s

  text = replaced("\\[cpu_clock\\]\nvalue = [0-9.]+", "[cpu_clock]\nvalue = 2");
  const auto clock = parse_profile(text, "test");
  ASSERT_TRUE(clock.ok());
  EXPECT_EQ(clock->cpu_cycle, 500u);
}

TEST(ProfileTest, EachParameterMustBeThere) {
  const auto parameters = profile_parameters("connectx3-fdr");
  ASSERT_TRUE(parameters.ok());
  EXPECT_GT(parameters->size(), 50u);
  for (const ParameterText& one : *parameters) {
    const std::string text = complaint(replaced(section(one.name), ""));
    EXPECT_THAT(text, HasSubstr(one.name + " is missing: " + one.meaning));
  }
}

TEST(ProfileTest, OneLineNamesWhatIsWrong) {
  EXPECT_THAT(complaint(whole_text() + "\n[warp]\nvalue = 9\nunit = \"ns\"\n"),
              HasSubstr("there is no parameter 'warp'"));
  EXPECT_THAT(complaint("warp = 9\n" + whole_text()),
              HasSubstr("profile test: there is no parameter 'warp'"));
  EXPECT_THAT(complaint(replaced("(\\[mtu\\]\nvalue = [0-9]+\nunit = )\"B\"", "$1\"KiB\"")),
              HasSubstr("mtu is in B, not KiB"));
  EXPECT_THAT(complaint(replaced("(\\[mtu\\]\nvalue = [0-9]+\n)unit = \"B\"\n", "$1")),
              HasSubstr("mtu is in B, not nothing"));
  EXPECT_THAT(complaint(replaced("(\\[mtu\\](\n[^\n]+){3}\nsource = )\"[^\"]*\"", "$1\"\"")),
              HasSubstr("mtu has no source"));
  EXPECT_THAT(complaint(replaced("(\\[mtu\\](\n[^\n]+){2}\nevidence = )\"[^\"]*\"", "$1\"hope\"")),
              HasSubstr("the evidence of mtu"));
  EXPECT_THAT(complaint(replaced("\\[mtu\\]\nvalue = [0-9]+", "[mtu]\nvalue = 1500")),
              HasSubstr("power of two"));
  EXPECT_THAT(complaint(replaced("\\[mtu\\]\nvalue = [0-9]+", "[mtu]\nvalue = -1")),
              HasSubstr("mtu needs a value of 0 or more"));
  EXPECT_THAT(complaint(replaced("\\[mtu\\]\nvalue = [0-9]+", "[mtu]\nvalue = nan")),
              HasSubstr("mtu needs a value of 0 or more"));
  EXPECT_THAT(complaint(replaced("\\[link_rate\\]\nvalue = [0-9.]+", "[link_rate]\nvalue = 0")),
              HasSubstr("link_rate needs a value"));
  EXPECT_THAT(complaint(replaced("\\[cores\\]\nvalue = [0-9]+", "[cores]\nvalue = 0")),
              HasSubstr("cores must be above 0"));
  EXPECT_THAT(complaint("[mtu\n"), HasSubstr("line 1"));
}

TEST(ProfileTest, AnUnknownNameTellsWhichThereAre) {
  for (const char* name : {"connectx99", "", "../profiles/connectx3-fdr"}) {
    const Result<Profile> profile = load_profile(name);
    EXPECT_EQ(profile.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(profile.status().message(), HasSubstr("connectx3-fdr")) << name;
  }
}

}  // namespace
}  // namespace verbena::sim
