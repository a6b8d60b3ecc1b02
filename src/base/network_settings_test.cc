#include "src/base/network_settings.h"

#include <gtest/gtest.h>

#include <string>

namespace verbena {
namespace {

TEST(NetworkSettingsTest, ReadsEveryFault) {
  const Result<FaultSettings> settings = parse_fault_settings(
      "drop=1e-3,rnr=0.5,delay=0.25:50us,qp-error=1,kill-after=12,seed=18446744073709551615");
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->drop, 1e-3);
  EXPECT_EQ(settings->rnr, 0.5);
  EXPECT_EQ(settings->delay, 0.25);
  EXPECT_EQ(settings->longest_delay_ns, 50'000u);
  EXPECT_EQ(settings->queue_pair_error, 1);
  EXPECT_EQ(settings->kill_after_requests, 12u);
  EXPECT_EQ(settings->kill_after_ns, 0u);
  EXPECT_EQ(settings->seed, UINT64_MAX);
  EXPECT_TRUE(settings->any());
}

TEST(NetworkSettingsTest, ADelayOfEachOperationAndAnEndAfterATime) {
  const Result<FaultSettings> settings = parse_fault_settings("delay=1.5ms,kill-after=0.5s");
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->delay, 1);
  EXPECT_EQ(settings->longest_delay_ns, 1'500'000u);
  EXPECT_EQ(settings->kill_after_requests, 0u);
  EXPECT_EQ(settings->kill_after_ns, 500'000'000u);
}

TEST(NetworkSettingsTest, ReadsALink) {
  const Result<LinkSettings> settings = parse_link_settings("latency=2us,rate=100Gbps");
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->latency_ns, 2'000u);
  EXPECT_EQ(settings->rate_bits_per_s, 100'000'000'000u);
  EXPECT_EQ(parse_link_settings("rate=2.5Mbps")->rate_bits_per_s, 2'500'000u);
  EXPECT_EQ(parse_link_settings("latency=0ns")->latency_ns, 0u);
}

TEST(NetworkSettingsTest, AnEmptyTextIsANetworkWithoutFaults) {
  EXPECT_FALSE(parse_fault_settings("")->any());
  EXPECT_FALSE(parse_fault_settings("seed=3")->any());
  EXPECT_FALSE(parse_link_settings("")->any());
}

struct WrongText {
  const char* text;
  const char* part;  // that the line names
};

TEST(NetworkSettingsTest, NamesTheFaultThatIsWrong) {
  for (const WrongText& wrong : {
           WrongText{"drop", "'drop'"},
           {"drop=", "'drop='"},
           {"drop=2", "'drop=2'"},
           {"drop=-0.1", "'drop=-0.1'"},
           {"drop=nan", "'drop=nan'"},
           {"drop=0.1x", "'drop=0.1x'"},
           {"drop=0.1%", "'drop=0.1%'"},
           {"drop=0.1,drop=0.1", "given twice"},
           {"rnr=0.1:1ms", "'rnr=0.1:1ms'"},
           {"delay=0.1", "'delay=0.1'"},
           {"delay=0.1:", "'delay=0.1:'"},
           {"delay=2:1us", "'delay=2:1us'"},
           {"delay=0.1:61s", "60s"},
           {"delay=1e300s", "60s"},
           {"delay=5", "'delay=5'"},
           {"qp-error=maybe", "'qp-error=maybe'"},
           {"kill-after=0", "'kill-after=0'"},
           {"kill-after=-1", "'kill-after=-1'"},
           {"kill-after=1h", "'kill-after=1h'"},
           {"seed=-1", "'seed=-1'"},
           {"seed=0x7", "'seed=0x7'"},
           {"loss=0.1", "drop, rnr, delay"},
           {"drop=0.1,,seed=7", "''"},
       }) {
    const Result<FaultSettings> settings = parse_fault_settings(wrong.text);
    ASSERT_FALSE(settings.ok()) << wrong.text;
    EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(settings.status().message().find(wrong.part), std::string::npos)
        << settings.status().message();
    EXPECT_NE(settings.status().message().find("an example: drop="), std::string::npos);
  }
}

TEST(NetworkSettingsTest, NamesWhatIsWrongWithALink) {
  for (const WrongText& wrong : {
           WrongText{"latency=2", "'latency=2'"},
           {"latency=2m", "'latency=2m'"},
           {"latency=11s", "10s"},
           {"latency=-1us", "'latency=-1us'"},
           {"rate=100", "'rate=100'"},
           {"rate=100GBps", "in bits"},
           {"rate=0Gbps", "1kbps"},
           {"rate=1e9Tbps", "1000Tbps"},
           {"bandwidth=1Gbps", "a latency and a rate"},
       }) {
    const Result<LinkSettings> settings = parse_link_settings(wrong.text);
    ASSERT_FALSE(settings.ok()) << wrong.text;
    EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(settings.status().message().find(wrong.part), std::string::npos)
        << settings.status().message();
  }
}

}  // namespace
}  // namespace verbena
