#include "src/bench/verbs/verbs_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "src/bench/verbs/verbs_settings.h"
#include "verbena/device.h"

namespace verbena::bench {
namespace {

// As many entries of 512 MiB in a buffer that the CPU copies them into, of one work request.
Status checked(uint32_t entries, VectorMethod method) {
  Point point = verbs_workload().point();
  VerbsSettings& settings = verbs_settings(point);
  settings.method = method;
  settings.entries = entries;
  settings.size_bytes = 512u << 20;
  settings.region_bytes = settings.operation_bytes();
  DeviceInfo device;
  device.name = "any";
  device.max_queue_pair_wrs = 16384;
  device.max_sges = 30;
  return verbs_workload().check(point, device, UINT64_MAX);
}

TEST(VerbsWorkload, RefusesWorkRequestsThatAreLongerThanOneCarries) {
  EXPECT_TRUE(checked(2, VectorMethod::kSp).ok());
  for (const VectorMethod method : {VectorMethod::kSp, VectorMethod::kSgl}) {
    // Eight are 4 GiB, of which a length of 32 bits has nothing.
    for (const uint32_t entries : {3u, 8u}) {
      const Status status = checked(entries, method);
      EXPECT_EQ(status.code(), StatusCode::kLimitExceeded) << entries;
      EXPECT_THAT(status.message(), testing::HasSubstr("--method doorbell"));
    }
  }
  EXPECT_TRUE(checked(8, VectorMethod::kDoorbell).ok());
}

}  // namespace
}  // namespace verbena::bench
