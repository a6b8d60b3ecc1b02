#include "src/device/sim/profile_variants.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "src/device/sim/profile_files.h"

namespace verbena::sim {
namespace {

using testing::HasSubstr;

constexpr uint32_t kDrawn = 40;  // variants that these tests look at

std::vector<ParameterText> parameters_of(const std::string& name) {
  const Result<std::vector<ParameterText>> parameters = profile_parameters(name);
  EXPECT_TRUE(parameters.ok()) << parameters.status().message();
  return *parameters;
}

Profile loaded(const std::string& name) {
  const Result<Profile> profile = load_profile(name);
  EXPECT_TRUE(profile.ok()) << profile.status().message();
  return *profile;
}

// A profile's text that has exactly these values, and names no chip.
std::string text_with(const std::vector<ParameterText>& parameters) {
  std::string text;
  for (const ParameterText& one : parameters) {
    text += fmt::format(
        "[{}]\nvalue = {:.17g}\nunit = \"{}\"\nevidence = \"assumed\"\nsource = \"x\"\n", one.name,
        one.number, one.unit);
  }
  return text;
}

// Whoever adds a parameter need do nothing: it is drawn. One that must not be is added here, too.
TEST(ProfileVariants, EveryNumberIsDrawnButForWhatIsKnownExactly) {
  const std::set<std::string> known = {"cores",
                                       "sockets",
                                       "pcie_payload",
                                       "mtu",
                                       "page",
                                       "max_inline",
                                       "max_inline_datagram",
                                       "datagram_address",
                                       "max_outstanding_reads"};
  for (const std::string& name : installed_profile_names()) {
    const std::vector<ParameterText> given = parameters_of(name);
    std::vector<std::set<double>> seen(given.size());
    for (uint32_t variant = 1; variant < kDrawn; ++variant) {
      const std::vector<ParameterText> drawn = parameters_of(variant_name(name, variant));
      ASSERT_EQ(drawn.size(), given.size());
      for (size_t i = 0; i < given.size(); ++i) seen[i].insert(drawn[i].number);
    }
    for (size_t i = 0; i < given.size(); ++i) {
      const ParameterText& one = given[i];
      const bool same = one.unit == "yes/no" || known.contains(one.name) || one.number == 0;
      // Of a small count there are few values nearby.
      const size_t wanted = one.number <= 2 && one.unit == "count" ? 1
                            : one.unit == "count"                  ? 2
                                                                   : 4;
      EXPECT_GE(seen[i].size(), same ? 1 : wanted) << name << ": " << one.name;
      if (!same) continue;
      EXPECT_EQ(seen[i], std::set<double>{one.number}) << name << ": " << one.name;
    }
  }
}

TEST(ProfileVariants, ValuesLieWithinTheirRanges) {
  size_t with_range = 0;
  for (const std::string& name : installed_profile_names()) {
    for (uint32_t variant = 1; variant < kDrawn; ++variant) {
      const std::vector<ParameterText> given = parameters_of(name);
      const std::vector<ParameterText> drawn = parameters_of(variant_name(name, variant));
      for (size_t i = 0; i < given.size(); ++i) {
        const bool whole = given[i].unit == "count" || given[i].unit == "B";
        const double rounded = whole ? 0.5 : 1e-9;
        const double share = 0.2;
        const ValueRange range = given[i].range.value_or(
            ValueRange{(1 - share) * given[i].number, (1 + share) * given[i].number});
        EXPECT_GE(drawn[i].number, range.least - rounded) << name << ": " << given[i].name;
        EXPECT_LE(drawn[i].number, range.most + rounded) << name << ": " << given[i].name;
        with_range += given[i].range ? 1 : 0;
      }
    }
  }
  EXPECT_GT(with_range, 50 * (kDrawn - 1));
}

// They reach both ends, and not one of them more often.
TEST(ProfileVariants, ValuesAreSpreadOverTheirRanges) {
  double sum = 0;
  double least = 1;
  double most = 0;
  size_t count = 0;
  for (const ParameterText& one : parameters_of("connectx6-hdr")) {
    const ValueRange range = variant_range(one);
    if (range.least == range.most || one.unit == "count" || one.unit == "B") continue;
    for (uint32_t variant = 1; variant < kMostVariants; ++variant) {
      const double place = (variant_value(one, variant) - range.least) / (range.most - range.least);
      sum += place;
      least = std::min(least, place);
      most = std::max(most, place);
      ++count;
    }
  }
  ASSERT_GT(count, 2000U);
  EXPECT_NEAR(sum / static_cast<double>(count), 0.5, 0.02);
  EXPECT_LT(least, 0.01);
  EXPECT_GT(most, 0.99);
}

// The values are written down so that they are the same on every machine and in every release:
// "connectx6-hdr#7" is one RNIC.
TEST(ProfileVariants, TheNumberAloneDecides) {
  const ParameterText one{.name = "tx_message", .number = 100, .unit = "ns"};
  EXPECT_EQ(variant_value(one, 0), 100);
  EXPECT_NEAR(variant_value(one, 1), 112.94578, 1e-4);
  EXPECT_NEAR(variant_value(one, 2), 94.60017, 1e-4);
  EXPECT_EQ(loaded("connectx6-hdr#7"), loaded("connectx6-hdr#7"));
  EXPECT_NE(loaded("connectx6-hdr#7"), loaded("connectx6-hdr#8"));
}

// What a parameter is drawn to does not hang on its profile, nor on the others: of two profiles of
// one chip its values are the same.
TEST(ProfileVariants, ProfilesOfAChipShareItsVariants) {
  const std::vector<ParameterText> one = parameters_of("connectx3-fdr#3");
  const std::vector<ParameterText> other = parameters_of("connectx3-40g#3");
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    if (!one[i].of_chip) continue;
    EXPECT_EQ(one[i].number, other[i].number) << one[i].name;
  }
}

// What is told of a variant is what the model computes with.
TEST(ProfileVariants, TheModelHasTheValuesThatAreListed) {
  for (const std::string& name : installed_profile_names()) {
    for (uint32_t variant = 0; variant < kDrawn; ++variant) {
      const std::string full = variant_name(name, variant);
      Profile profile = loaded(full);
      EXPECT_EQ(profile.name, full);
      const Result<Profile> listed = parse_profile(text_with(parameters_of(full)), full);
      ASSERT_TRUE(listed.ok()) << listed.status().message();
      profile.title = profile.chip = "";
      EXPECT_EQ(profile, *listed) << full;
    }
  }
}

TEST(ProfileVariants, SmallNumbersStayWholeAndDoNotVanish) {
  const auto range_of = [](double number, const char* unit) {
    return variant_range({.name = "x", .number = number, .unit = unit});
  };
  EXPECT_EQ(range_of(1, "count").least, 1);
  EXPECT_EQ(range_of(1, "count").most, 1);
  EXPECT_EQ(range_of(3, "count").least, 2);
  EXPECT_EQ(range_of(3, "count").most, 4);
  EXPECT_EQ(range_of(0, "count").most, 0);
  EXPECT_EQ(range_of(0, "ns").most, 0);
  EXPECT_EQ(range_of(64, "B").least, 51);
  EXPECT_EQ(range_of(64, "B").most, 77);
}

// Beyond a limit times would be 0 or turn back.
TEST(ProfileVariants, NoneIsDrawnBeyondALimit) {
  std::vector<ParameterText> given = parameters_of("connectx3-fdr");
  for (ParameterText& one : given) {
    if (one.name == "cpu_jitter") one.number = 95;
    if (one.name == "cpu_clock") one.number = 1950;
    if (one.name == "link_rate") one.number = 16e6;
    if (one.name == "dma_rate") one.number = 0.001;
    if (one.name == "cpu_slice") one.number = 1e9;
  }
  provide_profile("at-limits", text_with(given));
  for (uint32_t variant = 0; variant < kMostVariants; ++variant) {
    const std::string name = variant_name("at-limits", variant);
    const Profile profile = loaded(name);
    EXPECT_LE(profile.jitter_percent, 100u) << name;
    EXPECT_GT(profile.cpu_cycle, 0u) << name;
    EXPECT_GT(profile.link_kib, 0u) << name;
    const Result<Profile> listed = parse_profile(text_with(parameters_of(name)), name);
    EXPECT_TRUE(listed.ok()) << listed.status().message();
  }
}

TEST(ProfileVariants, NamesAreReadAndWritten) {
  EXPECT_EQ(variant_name("sim:a", 0), "sim:a");
  EXPECT_EQ(variant_name("sim:a", 12), "sim:a#12");
  const auto parsed = parse_variant_name("a#12");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->profile, "a");
  EXPECT_EQ(parsed->variant, 12U);
  EXPECT_EQ(parse_variant_name("a")->variant, 0U);
  for (const char* wrong : {"a#", "a#0", "a#100", "a#-1", "a#1x", "a#x", "a#1#2", "a#4294967297"}) {
    const auto refused = parse_variant_name(wrong);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(refused.status().message(), HasSubstr("there are #1 to #99")) << wrong;
  }
  EXPECT_EQ(load_profile("connectx6-hdr#0").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(load_profile("nosuch#1").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace verbena::sim
