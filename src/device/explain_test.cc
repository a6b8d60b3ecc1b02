#include "src/device/explain.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace verbena {
namespace {

TEST(ExplainTest, EveryCompletionErrorHasACauseOnOneLine) {
  for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_GENERAL_ERR; ++status) {
    const std::string text = explain_completion_error(static_cast<ibv_wc_status>(status));
    EXPECT_GT(text.size(),
              std::string(ibv_wc_status_str(static_cast<ibv_wc_status>(status))).size() + 10)
        << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  EXPECT_EQ(explain_completion_error(IBV_WC_SUCCESS), "success");
}

TEST(ExplainTest, TheReceiverNotReadyErrorWarnsOfTheTimerTrap) {
  const std::string text = explain_completion_error(IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_NE(text.find("655 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("rnr_retry_count"), std::string::npos) << text;
}

TEST(ExplainTest, TheLockedMemoryLimitIsBlamedOnlyWhereItBinds) {
  LockedMemory memory{.limit_bytes = 65536, .unlimited = false, .pinned_bytes = 60000};
  EXPECT_EQ(explain_locked_memory(memory, 5536), "");
  const std::string text = explain_locked_memory(memory, 5537);
  EXPECT_NE(text.find("65536"), std::string::npos) << text;
  EXPECT_NE(text.find("60000"), std::string::npos) << text;
  EXPECT_NE(text.find("ulimit -l"), std::string::npos) << text;
  // Lowered below what is pinned already.
  memory.pinned_bytes = 70000;
  EXPECT_NE(explain_locked_memory(memory, 1), "");
  memory.unlimited = true;
  EXPECT_EQ(explain_locked_memory(memory, uint64_t{1} << 40), "");
}

TEST(ExplainTest, ADeviceThatOnlyTheKernelHasIsExplained) {
  namespace fs = std::filesystem;
  const fs::path sysfs = fs::path(testing::TempDir()) / ("verbena-sys-" + std::to_string(getpid()));
  const auto explained = [&] {
    return explain_unlisted_device("test0", "soft0", sysfs.string()).message();
  };
  EXPECT_EQ(explained(), "there is no RDMA device 'test0'; this machine has: soft0");
  fs::create_directories(sysfs / "class/infiniband/test0");
  EXPECT_NE(explained().find("load the module ib_uverbs"), std::string::npos) << explained();
  fs::create_directories(sysfs / "class/infiniband_verbs/no_such_uverbs");
  std::ofstream(sysfs / "class/infiniband_verbs/no_such_uverbs/ibdev") << "test0\n";
  EXPECT_NE(explained().find("/dev/infiniband/no_such_uverbs is missing"), std::string::npos)
      << explained();
  fs::remove_all(sysfs);
}

TEST(ExplainTest, IwarpDevicesAreRefusedWithTheReason) {
  ibv_device device{};
  std::strcpy(device.name, "siw0");
  device.transport_type = IBV_TRANSPORT_IWARP;
  const Status refused = check_transport(device);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("siw0 is an iWARP device"), std::string::npos);
  device.transport_type = IBV_TRANSPORT_IB;
  EXPECT_TRUE(check_transport(device).ok());
}

TEST(ExplainTest, ADeviceFileThatIsMissingIsNamed) {
  ibv_device device{};
  std::snprintf(device.name, sizeof(device.name), "test0");
  std::snprintf(device.dev_name, sizeof(device.dev_name), "no_such_uverbs");
  const Status status = explain_open_error(device, ENODEV);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/dev/infiniband/no_such_uverbs"), std::string::npos)
      << status.message();
}

TEST(ExplainTest, ErrnoValuesMapToCodes) {
  EXPECT_EQ(status_code_of_errno(EINVAL), StatusCode::kInvalidArgument);
  EXPECT_EQ(status_code_of_errno(ENOMEM), StatusCode::kLimitExceeded);
  EXPECT_EQ(status_code_of_errno(EACCES), StatusCode::kPermissionDenied);
  EXPECT_EQ(status_code_of_errno(EOPNOTSUPP), StatusCode::kUnsupported);
  EXPECT_EQ(status_code_of_errno(ETIMEDOUT), StatusCode::kTimeout);
}

}  // namespace
}  // namespace verbena
