#include "src/bench/baselines/external.h"

#include <gtest/gtest.h>

#include "src/bench/baselines/queue_pair_memory.h"

namespace verbena::bench::baselines {
namespace {

TEST(PeersOutput, UcxPerftest) {
  const std::string output =
      "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n"
      "200000,0.057,0.061,0.060,0.91,0.79,119791,103605\n";
  const Result<double> median_us = parse_ucx_median_us(output);
  ASSERT_TRUE(median_us.ok()) << median_us.status().message();
  EXPECT_DOUBLE_EQ(*median_us, 0.057);
  EXPECT_FALSE(parse_ucx_median_us("").ok());
  EXPECT_FALSE(parse_ucx_median_us("iterations,50.0_percentile_lat,avg_lat\n").ok());
  EXPECT_FALSE(parse_ucx_median_us("error: connection refused on port 13337\n").ok());
}

TEST(PeersOutput, Perftest) {
  const std::string output =
      " Data ex. method : Ethernet\n"
      "---------------------------------------------------------------------------------------\n"
      " local address: LID 0x01 QPN 0x0100 PSN 0x1 RKey 0x1 VAddr 0x1\n"
      "---------------------------------------------------------------------------------------\n"
      " #bytes #iterations    t_min[cycles]    t_max[cycles]  t_typical[cycles]    t_avg[cycles]\n"
      " 8       100000          180.00         2130.00      201.50     	       204.67\n"
      "---------------------------------------------------------------------------------------\n";
  const Result<double> typical = parse_perftest_typical(output);
  ASSERT_TRUE(typical.ok()) << typical.status().message();
  EXPECT_DOUBLE_EQ(*typical, 201.5);
  EXPECT_FALSE(parse_perftest_typical("8 100000 180 2130 201\n").ok());
  EXPECT_FALSE(parse_perftest_bandwidth(output).ok());
}

TEST(PeersOutput, PerftestBandwidth) {
  const std::string output =
      "                    RDMA_Write BW Test\n"
      " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
      " 65536      50000            0.00               2000.50\t\t   0.032008\n"
      "---------------------------------------------------------------------------------------\n";
  const Result<double> bytes_per_s = parse_perftest_bandwidth(output);
  ASSERT_TRUE(bytes_per_s.ok()) << bytes_per_s.status().message();
  EXPECT_DOUBLE_EQ(*bytes_per_s, 2000.5 * 1048576);
  EXPECT_FALSE(parse_perftest_bandwidth(" 65536 50000 0.00 2000.50 0.032\n").ok());
  EXPECT_FALSE(parse_perftest_bandwidth("").ok());
}

TEST(PeersOutput, ProportionalMemory) {
  const Result<double> bytes = parse_proportional_bytes(
      "55d0-7ffd ---p 00000000 00:00 0    [rollup]\n"
      "Rss:               3000 kB\nPss:               1234 kB\nPss_Dirty:          500 kB\n");
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_DOUBLE_EQ(*bytes, 1234 * 1024);
  EXPECT_FALSE(parse_proportional_bytes("Rss: 3000 kB\n").ok());
}

}  // namespace
}  // namespace verbena::bench::baselines
