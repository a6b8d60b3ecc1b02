// The tests of this program have a registry to themselves: slots go round in one, so in the user's
// common registry any slot may be this process's own, or that of a program beside it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "src/device/soft/rnic.h"

namespace verbena::soft {
namespace {

std::string own_registry;
pid_t owner = 0;

void remove_own_registry() {
  // Not where a child of a test ends.
  if (getpid() != owner) return;
  std::error_code ignored;
  std::filesystem::remove_all(own_registry, ignored);
}

class OwnRegistry : public testing::Environment {
 public:
  void SetUp() override {
    own_registry = testing::TempDir() + "verbena-registry-XXXXXX";
    ASSERT_NE(mkdtemp(own_registry.data()), nullptr);
    owner = getpid();
    setenv("VERBENA_RUNTIME_DIR", own_registry.c_str(), 1);
    // Registered before the device is opened, so it runs after the device has left the registry.
    std::atexit(remove_own_registry);
  }
};

const testing::Environment* const environment = testing::AddGlobalTestEnvironment(new OwnRegistry);

TEST(OwnRegistryTest, ThisProcessHasTheFirstSlot) {
  ASSERT_NE(environment, nullptr);
  Result<Rnic*> rnic = Rnic::get();
  ASSERT_TRUE(rnic.ok()) << rnic.status().message();
  EXPECT_EQ((*rnic)->slot(), 1u);
}

}  // namespace
}  // namespace verbena::soft
