#include "tests/one_rnic/module.h"

#include "src/device/verbs_for_test.h"

#define VERBENA_MODULE_EXPORT __attribute__((visibility("default")))

namespace {

verbena::test::Node& node() {
  static auto* node = new verbena::test::Node;
  return *node;
}

}  // namespace

VERBENA_MODULE_EXPORT ibv_context* module_context() { return node().device.get(); }

VERBENA_MODULE_EXPORT uint32_t module_register(void* address, size_t length_bytes) {
  static auto* regions = new std::vector<verbena::MemoryRegion>;
  regions->push_back(verbena::test::must(verbena::MemoryRegion::create(
      node().domain, address, length_bytes, verbena::test::kAllAccess)));
  return regions->back().rkey();
}
