// The main() of GoogleTest programs.
#include <gtest/gtest.h>

#include "tests/test_seed.h"

int main(int argc, char** argv) {
  verbena::fix_seed_of_tests();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
