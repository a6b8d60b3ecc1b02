# The commit in the program: a header written anew whenever the checkout's commit has changed (src/base/build_info.h).
# Included, it defines the target verbena_build_info; run as a script (cmake -P), it writes the header.

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(directory ${PROJECT_BINARY_DIR}/generated)
  string(TOLOWER "${CMAKE_CXX_COMPILER_ID}" compiler)
  string(REPLACE "gnu" "gcc" compiler "${compiler}")
  set(configuration "${compiler} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE}")
  if(VERBENA_SANITIZE)
    string(APPEND configuration " sanitize=${VERBENA_SANITIZE}")
  endif()
  find_package(Git QUIET)
  set(write_header ${CMAKE_COMMAND} -D header=${directory}/verbena_build_info.h -D source=${PROJECT_SOURCE_DIR}
    -D git=${GIT_EXECUTABLE} "-Dconfiguration=${configuration}" -P ${CMAKE_CURRENT_LIST_FILE})
  execute_process(COMMAND ${write_header} COMMAND_ERROR_IS_FATAL ANY)
  add_custom_target(verbena_write_build_info COMMAND ${write_header} VERBATIM
    BYPRODUCTS ${directory}/verbena_build_info.h COMMENT "Looking up the commit")
  add_library(verbena_build_info INTERFACE)
  target_include_directories(verbena_build_info INTERFACE $<BUILD_INTERFACE:${directory}>)
  add_dependencies(verbena_build_info verbena_write_build_info)
  return()
endif()

set(commit unknown)
# Only the project's own repository counts: not one that a copied source tree happens to lie in.
if(git AND EXISTS ${source}/.git)
  execute_process(COMMAND ${git} -C ${source} rev-parse --verify --short=12 HEAD
    OUTPUT_VARIABLE revision RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(commit ${revision})
    execute_process(COMMAND ${git} -C ${source} --no-optional-locks status --porcelain
      OUTPUT_VARIABLE changes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(changes)
      string(APPEND commit -dirty)
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${header} @ONLY CONTENT [[
#define VERBENA_BUILD_COMMIT "@commit@"
#define VERBENA_BUILD_CONFIGURATION "@configuration@"
]])
