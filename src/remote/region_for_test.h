// A region and its front-ends in one process, for tests. What cannot fail in a test ends the
// process with its message.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_for_test.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/remote.h"

namespace verbena::remote {

using test::must;

inline constexpr int64_t kTestTimeoutNs = 120'000'000'000;

class RegionForTest {
 public:
  // A front-end with the connection that it came over, which goes last.
  struct Opened {
    std::unique_ptr<ControlConnection> control;
    Result<std::unique_ptr<RemoteRegion>> region;
    Status accepted;

    RemoteRegion& operator*() { return **region; }
    RemoteRegion* operator->() { return region->get(); }
  };

  explicit RegionForTest(const ExposedRegionOptions& options = {.size_bytes = 4096},
                         const char* device = "soft0")
      : node_{must(Device::open(device))}, region_(must(expose(options))) {}

  ExposedRegion& operator*() { return *region_; }
  ExposedRegion* operator->() { return region_.get(); }
  const test::Node& node() const { return node_; }
  void drop() { region_.reset(); }

  Opened open(const RemoteRegionOptions& options = {}) { return open_on(node_, options); }
  Opened open_on(const test::Node& node, const RemoteRegionOptions& options) {
    Opened opened{nullptr, Status(StatusCode::kInternal, "not opened"), {}};
    auto listener = must(ControlListener::listen("127.0.0.1", 0, secret_));
    Thread front_end = start_thread("front-end", [&] {
      opened.control = std::make_unique<ControlConnection>(
          must(ControlConnection::connect("127.0.0.1", listener.port(), secret_, kTestTimeoutNs)));
      opened.region = open_region(node.device, node.domain, *opened.control, options);
    });
    controls_.push_back(std::make_unique<ControlConnection>(must(listener.accept(kTestTimeoutNs))));
    opened.accepted = region_->accept(*controls_.back());
    front_end.join();
    return opened;
  }

  // Until the back-end knows of the end of all but `left` connections.
  void wait_for_connections(uint32_t left) {
    Waiter waiter;
    while (region_->remove_ended() > left) waiter.idle();
  }

 private:
  Result<std::unique_ptr<ExposedRegion>> expose(const ExposedRegionOptions& options) {
    return expose_region(node_.device, node_.domain, options);
  }

  JobSecret secret_ = JobSecret::random();
  test::Node node_;
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<ExposedRegion> region_;
};

}  // namespace verbena::remote
