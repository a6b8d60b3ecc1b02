# verbena_discover_tests(TARGET PREFIX P LABEL L TIMEOUT_S S [PROCESSORS N] [FILTER F]): every test of a GoogleTest
# program becomes a ctest test P/Suite.Case, or with F, a filter of GoogleTest, those that it lets through. They are
# listed when ctest starts, not at build time: a build runs nothing.
function(verbena_discover_tests target)
  cmake_parse_arguments(TEST "" "PREFIX;LABEL;TIMEOUT_S;PROCESSORS;FILTER" "" ${ARGN})
  if(VERBENA_SANITIZE)
    math(EXPR TEST_TIMEOUT_S "${TEST_TIMEOUT_S} * 3")
  endif()
  if(NOT TEST_PROCESSORS)
    set(TEST_PROCESSORS 1)
  endif()
  gtest_discover_tests(${target} TEST_FILTER "${TEST_FILTER}" TEST_PREFIX ${TEST_PREFIX}/ DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 600
    PROPERTIES TIMEOUT ${TEST_TIMEOUT_S} LABELS ${TEST_LABEL} PROCESSORS ${TEST_PROCESSORS})
  set_property(GLOBAL APPEND PROPERTY VERBENA_TEST_PROGRAMS $<TARGET_FILE:${target}>)
endfunction()
