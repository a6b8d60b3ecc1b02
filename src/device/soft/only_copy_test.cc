// This program has the software RNIC linked, so it must not use it beside libverbena.so.
#include "src/device/soft/only_copy.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "src/device/soft/soft_rnic.h"

namespace verbena::soft {
namespace {

TEST(OnlyCopyDeathTest, IsFineAlone) { EXPECT_TRUE(check_only_copy().ok()); }

// In a child, because nothing unloads the library.
TEST(OnlyCopyDeathTest, NamesTheLibraryThatIsLoadedBesideLinkedObjects) {
  const auto load_and_check = [] {
    if (dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL) == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::_Exit(1);
    }
    const Status status = check_only_copy();
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::_Exit(status.code() == StatusCode::kUnavailable ? 0 : 1);
  };
  EXPECT_EXIT(load_and_check(), testing::ExitedWithCode(0),
              "libverbena.so is loaded beside the one that is linked into this program");
}

}  // namespace
}  // namespace verbena::soft
