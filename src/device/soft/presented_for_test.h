// Devices in either presentation, for tests.
#pragma once

#include <infiniband/verbs.h>

#include <cstdlib>

#include "src/base/device_settings.h"
#include "src/device/verbs_for_test.h"

namespace verbena::test {

// A device as a process with these variables opens it.
inline Node open_presented(const char* link_layer, const char* name = "soft0") {
  setenv(kLinkLayerVariable, link_layer, 1);
  setenv(kDevicesVariable, "2", 1);
  Node node{must(Device::open(name))};
  unsetenv(kLinkLayerVariable);
  unsetenv(kDevicesVariable);
  return node;
}

inline ibv_context* context_of(const Node& node) { return node.domain.get()->context; }

}  // namespace verbena::test
