// Programs that link the library, with the C library's allocator and with others that trust
// madvise().
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "src/base/sanitizer.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

Outcome run_program(const std::map<std::string, std::string>& environment,
                    const std::string& program = "registered_memory_process") {
  const ScratchDirectory runtime;
  std::map<std::string, std::string> all = environment;
  all["VERBENA_RUNTIME_DIR"] = runtime.path();
  return ToolProcess({VERBENA_TEST_PROCESSES "/" + program}, all).wait();
}

TEST(RegisteredMemoryTest, IsPrivateMemoryAgain) {
  const Outcome outcome = run_program({});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

TEST(RegisteredMemoryTest, IsAsZeroAsJemallocTakesForGranted) {
#if VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER
  GTEST_SKIP() << "the sanitizer has an allocator of its own";
#endif
  // One arena, and freed pages are discarded at once.
  const Outcome outcome =
      run_program({{"LD_PRELOAD", "libjemalloc.so.2"},
                   {"MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0,narenas:1,abort_conf:true"}});
  if (outcome.err.find("libjemalloc.so.2") != std::string::npos) {
    GTEST_SKIP() << "there is no libjemalloc.so.2 here: " << outcome.err;
  }
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

TEST(RegisteredMemoryTest, AForkedChildLeavesAllocatorAndObjectsAlone) {
  const Outcome outcome = run_program({}, "registered_memory_fork_process");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
}

}  // namespace
}  // namespace verbena::test
