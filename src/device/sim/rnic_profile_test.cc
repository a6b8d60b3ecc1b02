#include "src/device/sim/rnic_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <sstream>
#include <string>

#include "src/device/sim/profile_files.h"

namespace verbena::sim {
namespace {

using testing::HasSubstr;

// A file of profiles/, found where the programs look for it.
std::string file_text(const std::string& name) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  std::ifstream file(program.parent_path().parent_path() / "share/verbena/profiles" / name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

constexpr const char* kChipLine = "chip = \"connectx3\"\n";

// connectx3-fdr and its chip, as one profile that names no chip.
std::string whole_text() {
  std::string profile = file_text("connectx3-fdr.toml");
  const size_t line = profile.find(kChipLine);
  EXPECT_NE(line, std::string::npos);
  profile.erase(line, std::string(kChipLine).size());
  const std::string chip = file_text("chips/connectx3.toml");
  return profile + "\n" + chip.substr(chip.find("\n["));
}

// The text from one parameter's heading to the next one's.
struct Section {
  size_t begin;
  size_t end;
};
Section find_section(const std::string& text, const std::string& name) {
  const size_t begin = text.find("[" + name + "]\n");
  EXPECT_NE(begin, std::string::npos) << name;
  return {begin, std::min(text.find("\n[", begin), text.size() - 1) + 1};
}

std::string without(const std::string& name) {
  std::string text = whole_text();
  const Section section = find_section(text, name);
  return text.erase(section.begin, section.end - section.begin);
}

// With another line instead of "key = ..." in the parameter's section; an empty one: without it.
std::string with_line(const std::string& name, const std::string& key, const std::string& line) {
  std::string text = whole_text();
  const Section section = find_section(text, name);
  const size_t begin = text.find("\n" + key + " = ", section.begin) + 1;
  EXPECT_LT(begin, section.end) << name << ": " << key;
  return text.replace(begin, text.find('\n', begin) - begin, line);
}

std::string complaint(const std::string& text) {
  const Result<Profile> profile = parse_profile(text, "test");
  EXPECT_EQ(profile.status().code(), StatusCode::kInvalidArgument);
  return profile.status().message();
}

TEST(ProfileTest, AllInstalledOnesParse) {
  const std::vector<std::string> names = installed_profile_names();
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
  const auto latency = parse_profile(with_line("switch_latency", "value", "value = 12.5"), "test");
  ASSERT_TRUE(latency.ok()) << latency.status().message();
  EXPECT_EQ(latency->switch_latency, 12'500u);
  const auto slow = parse_profile(with_line("link_rate", "value", "value = 8"), "test");
  ASSERT_TRUE(slow.ok());
  EXPECT_EQ(slow->link_time(1000), 1000 * kPsPerNs);  // 1 GB/s
  const auto clock = parse_profile(with_line("cpu_clock", "value", "value = 2"), "test");
  ASSERT_TRUE(clock.ok());
  EXPECT_EQ(clock->cpu_cycle, 500u);
}

TEST(ProfileTest, EachParameterMustBeThere) {
  const auto parameters = profile_parameters("connectx3-fdr");
  ASSERT_TRUE(parameters.ok());
  EXPECT_GT(parameters->size(), 50u);
  for (const ParameterText& one : *parameters) {
    const std::string text = complaint(without(one.name));
    EXPECT_THAT(text, HasSubstr(one.name + " is missing: " + one.meaning));
  }
}

TEST(ProfileTest, OneLineNamesWhatIsWrong) {
  EXPECT_THAT(complaint(whole_text() + "\n[warp]\nvalue = 9\nunit = \"ns\"\n"),
              HasSubstr("there is no parameter 'warp'"));
  EXPECT_THAT(complaint("warp = 9\n" + whole_text()),
              HasSubstr("profile test: there is no parameter 'warp'"));
  struct Wrong {
    const char* name;
    const char* key;
    const char* line;
    const char* why;
  };
  for (const Wrong& wrong : {
           Wrong{"mtu", "unit", "unit = \"KiB\"", "the unit of mtu is B, not KiB"},
           Wrong{"mtu", "unit", "", "the unit of mtu is B, not nothing"},
           Wrong{"mtu", "source", "source = \"\"", "mtu has no source"},
           Wrong{"mtu", "source", "", "mtu has no source"},
           Wrong{"mtu", "evidence", "evidence = \"hope\"", "the evidence of mtu"},
           Wrong{"mtu", "value", "value = 1500", "power of two"},
           Wrong{"mtu", "value", "value = -1", "mtu needs a value of 0 or more"},
           Wrong{"mtu", "value", "value = nan", "mtu needs a value of 0 or more"},
           Wrong{"mtu", "value", "value = \"2048\"", "mtu needs a value of 0 or more"},
           Wrong{"link_rate", "value", "value = 0", "link_rate needs a value"},
           Wrong{"poll_empty", "value", "value = 1e10",
                 "poll_empty is at most 1e+09 ns, not 1e+10"},
           Wrong{"cpu_clock", "value", "value = 2500", "cpu_clock is at most 2000 GHz, not 2500"},
           Wrong{"cpu_copy", "value", "value = 1e7", "cpu_copy is at most 2.048e+06 GB/s"},
           Wrong{"link_rate", "value", "value = 1e8", "link_rate is at most 1.6384e+07 Gb/s"},
           Wrong{"cpu_jitter", "value", "value = 101", "cpu_jitter is at most 100 %, not 101"},
           Wrong{"poll_empty", "range", "range = [10, 1e10]", "poll_empty is at most 1e+09 ns"},
           Wrong{"mtu", "source", "source = \"x\"\nrange = [1024, 4096]",
                 "mtu is documented and has no range"},
           Wrong{"poll_empty", "range", "range = [20, 25]",
                 "poll_empty is 15, outside of its range from 20 to 25"},
           Wrong{"poll_empty", "range", "range = [25, 10]", "the range of poll_empty must be two"},
           Wrong{"poll_empty", "range", "range = [10]", "the range of poll_empty must be two"},
           Wrong{"poll_empty", "range", "range = [-1, 25]", "the range of poll_empty must be two"},
           Wrong{"poll_empty", "range", "range = [10, \"25\"]",
                 "the range of poll_empty must be two"},
           Wrong{"poll_empty", "range", "range = 10", "the range of poll_empty must be two"},
           Wrong{"cores", "value", "value = 0", "cores must be above 0"},
           Wrong{"payload_prefetch", "value", "value = 0", "payload_prefetch must be above 0"},
           Wrong{"pcie_reads_at_once", "value", "value = 0", "pcie_reads_at_once must be above 0"},
           Wrong{"pcie_reads_at_once", "value", "value = 1e9",
                 "pcie_reads_at_once must be at most 65536"},
           Wrong{"cores", "value", "value = 1e9", "cores is at most 65536, not 1e+09"},
           // As a signed number of 32 bits it would be 0.
           Wrong{"max_outstanding_reads", "value", "value = 4294967296",
                 "max_outstanding_reads is at most 255"},
           Wrong{"hyperthread_slowdown", "value", "value = 1e6",
                 "hyperthread_slowdown is at most 10000 %"},
           // A KiB would take more picoseconds than there are.
           Wrong{"link_rate", "value", "value = 1e-12", "link_rate is at least 0.001 Gb/s"},
           Wrong{"cpu_clock", "value", "value = 1e-300", "cpu_clock is at least 0.001 GHz"},
           Wrong{"cpu_copy", "source", "source = \"x\"\nrange = [1e-9, 10]",
                 "cpu_copy is at least 0.001 GB/s"},
           Wrong{"doorbell_lock", "value", "value = 2",
                 "doorbell_lock is 1 (yes) or 0 (no), not 2"},
           Wrong{"pcie_shared", "value", "value = 0.4",
                 "pcie_shared is 1 (yes) or 0 (no), not 0.4"},
       }) {
    EXPECT_THAT(complaint(with_line(wrong.name, wrong.key, wrong.line)), HasSubstr(wrong.why));
  }
  EXPECT_THAT(complaint("[mtu\n"), HasSubstr("line 1"));
}

TEST(ProfileTest, AChipGivesItsParametersToTheProfilesThatNameIt) {
  const auto named = load_profile("connectx3-fdr");
  const auto other = load_profile("connectx3-40g");
  const auto whole = parse_profile(whole_text(), "whole");
  ASSERT_TRUE(named.ok() && other.ok() && whole.ok());
  EXPECT_EQ(named->chip, "connectx3");
  EXPECT_EQ(other->chip, "connectx3");
  EXPECT_EQ(whole->chip, "");
  EXPECT_EQ(named->tx_message, whole->tx_message);
  const auto parameters = profile_parameters("connectx3-fdr");
  ASSERT_TRUE(parameters.ok());
  const auto of_chip = [](const ParameterText& one) { return one.of_chip; };
  EXPECT_GT(std::count_if(parameters->begin(), parameters->end(), of_chip), 20);
}

// A cluster that changes a chip's value would be another chip under the same name.
TEST(ProfileTest, EachParameterStandsInOneFile) {
  const std::string profile = file_text("connectx3-fdr.toml");
  const std::string entry =
      "\n[tx_ack]\nvalue = 1\nunit = \"ns\"\nevidence = \"assumed\"\nsource = \"x\"\n";
  EXPECT_THAT(
      complaint(profile + entry),
      HasSubstr("profile test: tx_ack is the chip's: it stands in chips/connectx3.toml alone"));
  std::string unknown = profile;
  unknown.replace(unknown.find(kChipLine), std::string(kChipLine).size(), "chip = \"warp\"\n");
  EXPECT_THAT(complaint(unknown),
              AllOf(HasSubstr("there is no chip 'warp'"), HasSubstr("connectx3")));
  std::string number = profile;
  number.replace(number.find(kChipLine), std::string(kChipLine).size(), "chip = 7\n");
  EXPECT_THAT(complaint(number), HasSubstr("there is no chip ''"));
}

TEST(ProfileTest, WhatIsWrongInAChipIsSaidOfItsFile) {
  const std::filesystem::path folder = testing::TempDir() + "/chips-" + std::to_string(getpid());
  std::filesystem::create_directories(folder / "chips");
  const auto complaint_with_chip = [&folder](const std::string& chip) {
    std::ofstream(folder / "chips/connectx3.toml") << chip;
    return complaint(file_text("connectx3-fdr.toml"));
  };
  const std::string chip = file_text("chips/connectx3.toml");
  setenv("VERBENA_PROFILES", folder.c_str(), 1);
  EXPECT_THAT(complaint_with_chip(chip.substr(0, chip.find("\n[page]"))),
              HasSubstr("profile chips/connectx3: page is missing"));
  EXPECT_THAT(complaint_with_chip(chip + "\n[cores]\nvalue = 8\n"),
              HasSubstr("profile chips/connectx3: cores is not the chip's"));
  EXPECT_THAT(complaint_with_chip(chip + "\n[page\n"), HasSubstr("profile chips/connectx3:"));
  std::filesystem::remove_all(folder / "chips");
  EXPECT_THAT(complaint(file_text("connectx3-fdr.toml")),
              HasSubstr("there are none: copy those of the installed profiles"));
  unsetenv("VERBENA_PROFILES");
  std::filesystem::remove_all(folder);
}

// "60 to 80 cycles" (at the profile's clock), "40 to 80 ns", "0.4 to 0.9 us", "some 20 cycles",
// "2 x 270 ns" and the like: what a source says of its parameter, in ns.
struct Stated {
  double low_ns;
  double high_ns;
};
std::optional<Stated> stated_of(const std::string& source, double clock_ghz) {
  static const std::regex range(R"(([0-9.]+) to ([0-9.]+) (cycles|ns|us))");
  static const std::regex product(R"(([0-9.]+) x ([0-9.]+) (cycles|ns|us))");
  static const std::regex single(R"((?:[:,] |some |about )([0-9.]+) (cycles|ns|us))");
  const auto unit_ns = [clock_ghz](const std::string& unit) {
    return unit == "cycles" ? 1 / clock_ghz : unit == "us" ? 1e3 : 1.0;
  };
  // Values are rounded, and "some" is not exact.
  constexpr double kRounded = 0.05;
  std::smatch found;
  if (std::regex_search(source, found, range)) {
    const double unit = unit_ns(found[3]);
    return Stated{std::stod(found[1]) * unit, std::stod(found[2]) * unit};
  }
  if (std::regex_search(source, found, product)) {
    const double value = std::stod(found[1]) * std::stod(found[2]) * unit_ns(found[3]);
    return Stated{value * (1 - kRounded), value * (1 + kRounded)};
  }
  if (std::regex_search(source, found, single)) {
    const double value = std::stod(found[1]) * unit_ns(found[2]);
    return Stated{value * (1 - 2 * kRounded), value * (1 + 2 * kRounded)};
  }
  return std::nullopt;
}

TEST(ProfileTest, ValuesAgreeWithTheSourcesThatTheyName) {
  size_t compared = 0;
  size_t ranges = 0;
  for (const std::string& name : installed_profile_names()) {
    const auto profile = load_profile(name);
    const auto parameters = profile_parameters(name);
    ASSERT_TRUE(profile.ok() && parameters.ok());
    const double clock_ghz = 1e3 / static_cast<double>(profile->cpu_cycle);
    for (const ParameterText& one : *parameters) {
      // Its sources are latencies of a WRITE, of which it is a part.
      if (one.unit != "ns" || one.name == "pcie_one_way") continue;
      const std::optional<Stated> stated = stated_of(one.source, clock_ghz);
      if (!stated) continue;
      ++compared;
      EXPECT_GE(std::stod(one.value), stated->low_ns)
          << name << ": " << one.name << ": " << one.source;
      EXPECT_LE(std::stod(one.value), stated->high_ns)
          << name << ": " << one.name << ": " << one.source;
      // That variants are drawn from, of a source that states one.
      if (!one.range || !std::regex_search(one.source, std::regex(R"([0-9] to [0-9])"))) continue;
      ++ranges;
      EXPECT_NEAR(one.range->least, stated->low_ns, 0.01 * stated->low_ns)
          << name << ": " << one.name << ": " << one.source;
      EXPECT_NEAR(one.range->most, stated->high_ns, 0.01 * stated->high_ns)
          << name << ": " << one.name << ": " << one.source;
    }
  }
  EXPECT_GT(compared, 50u);
  EXPECT_GT(ranges, 30u);
}

// Two hosts with processors of one microarchitecture, whose cores, caches and ring have one clock:
// what the processor does by itself takes as many cycles in both, so the slower one takes longer.
TEST(ProfileTest, ProcessorsOfOneMicroarchitectureTakeAsManyCycles) {
  const auto fast = load_profile("connectx3-fdr");
  const auto slow = load_profile("connectx3-40g");
  ASSERT_TRUE(fast.ok() && slow.ok());
  ASSERT_LT(fast->cpu_cycle, slow->cpu_cycle);
  const auto cycles = [](const Profile& profile, Time Profile::*cost) {
    return static_cast<double>(profile.*cost) / static_cast<double>(profile.cpu_cycle);
  };
  for (Time Profile::*const cost :
       {&Profile::cpu_poll, &Profile::cpu_device_line, &Profile::cpu_message,
        &Profile::cpu_line_transfer, &Profile::cpu_atomic, &Profile::post_sge,
        &Profile::post_blueflame_64}) {
    const double expected = cycles(*fast, cost);
    EXPECT_NEAR(cycles(*slow, cost), expected, 0.07 * expected);  // they are rounded
    EXPECT_GT(*slow.*cost, *fast.*cost);
  }
}

// What `verbena calibrate` writes has the command line in it, and so names of files.
TEST(ProfileTest, IsReadBackWhateverItsTitleAndCommentAre) {
  const auto parameters = template_parameters("software");
  ASSERT_TRUE(parameters.ok()) << parameters.status().message();
  for (const std::string& text :
       {std::string("of 64,…,4MiB"), std::string("a\nb = 1"), std::string("r\xe9sultats.json"),
        std::string("\"\\\t\r\x7f"), std::string("nul \0 byte", 10)}) {
    const Result<Profile> profile = parse_profile(profile_text(text, text, *parameters), "own");
    EXPECT_TRUE(profile.ok()) << text << ": " << profile.status().message();
  }
  const auto title = [&](const char* text) {
    return parse_profile(profile_text(text, "", *parameters), "own").value().title;
  };
  EXPECT_EQ(title("größer"), "größer");
  EXPECT_EQ(title("gr\xf6\xdf"
                  "er"),
            "gr??er");
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
