#include "verbena/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/log.h"
#include "src/device/soft/soft.h"
#include "src/device/verbs_control.h"

namespace verbena {
namespace {

TEST(DeviceTest, ListEndsWithTheSoftwareDevice) {
  const std::vector<DeviceInfo> devices = Device::list();
  ASSERT_FALSE(devices.empty());
  const DeviceInfo& soft = devices.back();
  EXPECT_EQ(soft.name, "soft0");
  EXPECT_EQ(soft.kind, DeviceKind::kSoft);
  EXPECT_EQ(soft.unavailable, "");
  EXPECT_EQ(std::count_if(devices.begin(), devices.end(),
                          [](const DeviceInfo& device) { return device.name == "soft0"; }),
            1);
}

TEST(DeviceTest, AnObjectThatIsInUseWhenItsHandleEndsIsLogged) {
  const Result<Device> device = Device::open("soft0");
  ASSERT_TRUE(device.ok()) << device.status().message();
  const Result<ProtectionDomain> domain = ProtectionDomain::create(*device);
  ASSERT_TRUE(domain.ok());
  Result<CompletionQueue> cq = CompletionQueue::create(*device, {.depth_cqes = 16});
  ASSERT_TRUE(cq.ok());
  ibv_cq* const left = cq->get();
  std::string logged;
  {
    const Result<QueuePair> qp = QueuePair::create(*domain, {.send_cq = &*cq, .recv_cq = &*cq});
    ASSERT_TRUE(qp.ok()) << qp.status().message();
    const LogLevel level = log_level();
    set_log_level(LogLevel::kWarning);
    testing::internal::CaptureStderr();
    { const CompletionQueue ends = std::move(*cq); }
    logged = testing::internal::GetCapturedStderr();
    set_log_level(level);
  }
  EXPECT_EQ(logged,
            "verbena: warning: a completion queue was not destroyed: soft0: the completion queue "
            "still has queue pairs; destroy them first\n");
  EXPECT_EQ(soft::control().destroy_cq(left), 0);
}

TEST(DeviceTest, InfoIsAskedFromTheDevice) {
  const Result<Device> device = Device::open("soft0");
  ASSERT_TRUE(device.ok()) << device.status().message();
  const DeviceInfo& info = device->info();
  EXPECT_EQ(info.name, "soft0");
  EXPECT_EQ(info.port_state, "active");
  EXPECT_EQ(info.link_layer, "InfiniBand");
  EXPECT_NE(info.lid, 0);
  EXPECT_EQ(info.gid_index, -1);
  EXPECT_GT(info.max_queue_pairs, 0u);
  EXPECT_GT(info.max_queue_pair_wrs, 0u);
  EXPECT_GT(info.max_cqes, 0u);
  EXPECT_GT(info.max_shared_receive_queues, 0u);
  EXPECT_GE(info.max_sges, 5u);  // UCX needs that many
  EXPECT_GT(info.max_memory_region_bytes, uint64_t{1} << 30);
  EXPECT_GT(info.max_outstanding_reads, 0u);
  EXPECT_GE(info.active_mtu_bytes, 256u);
  EXPECT_TRUE(info.atomics);
  EXPECT_TRUE(info.writes_in_order);
}

TEST(DeviceTest, AnUnknownNameListsWhatThereIs) {
  const Result<Device> device = Device::open("no_such_device");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kNotFound);
  EXPECT_NE(device.status().message().find("'no_such_device'"), std::string::npos);
  EXPECT_NE(device.status().message().find("soft0"), std::string::npos);
}

TEST(DeviceTest, TheInlineLimitIsExact) {
  Result<Device> device = Device::open("soft0");
  ASSERT_TRUE(device.ok()) << device.status().message();
  Result<ProtectionDomain> domain = ProtectionDomain::create(*device);
  Result<CompletionQueue> cq = CompletionQueue::create(*device, {});
  ASSERT_TRUE(domain.ok() && cq.ok());
  const uint32_t limit = device->info().max_inline_bytes;
  ASSERT_GT(limit, 0u);
  QueuePairOptions options{.send_cq = &*cq, .recv_cq = &*cq};
  options.max_inline_bytes = limit;
  const Result<QueuePair> fits = QueuePair::create(*domain, options);
  ASSERT_TRUE(fits.ok()) << fits.status().message();
  EXPECT_GE(fits->max_inline_bytes(), limit);
  options.max_inline_bytes = limit + 1;
  const Result<QueuePair> too_large = QueuePair::create(*domain, options);
  ASSERT_FALSE(too_large.ok());
  // One line with what was asked and what there is.
  EXPECT_NE(too_large.status().message().find(std::to_string(limit + 1)), std::string::npos)
      << too_large.status().message();
  EXPECT_NE(too_large.status().message().find(std::to_string(limit)), std::string::npos);
  EXPECT_EQ(too_large.status().message().find('\n'), std::string::npos);
}

TEST(DeviceTest, ObjectsMoveAndAreDestroyedOnce) {
  Result<Device> opened = Device::open("soft0");
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Device device = std::move(*opened);
  Result<ProtectionDomain> first = ProtectionDomain::create(device);
  ASSERT_TRUE(first.ok());
  ProtectionDomain domain = std::move(*first);
  EXPECT_EQ(first->get(), nullptr);
  ASSERT_NE(domain.get(), nullptr);
  EXPECT_EQ(domain.get()->context, device.get());
}

}  // namespace
}  // namespace verbena
