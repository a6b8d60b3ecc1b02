# How everything here is compiled: standard, warnings, optimization, sanitizers.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# RelWithDebInfo is the release build: a latency is explained with a profiler, and that needs symbols and lines, but not
# the types and variables of -g2, which take a third of the compiler's time. A debugger wants the preset `debug`.
# Not -O3: the data path is branches and single cache lines, which -O3 mostly makes longer. Not -march=native: one
# build must run on every machine of a cluster.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
foreach(language C CXX)
  string(REPLACE "-g " "-g1 " CMAKE_${language}_FLAGS_RELWITHDEBINFO "${CMAKE_${language}_FLAGS_RELWITHDEBINFO} ")
endforeach()

# A newer compiler than ours may warn about more: cmake --compile-no-warning-as-error builds all the same.
if(NOT DEFINED CMAKE_COMPILE_WARNING_AS_ERROR)
  set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
endif()
add_compile_options(-Wall -Wextra)

# Messages name src/base/x.cc, not the folder somebody built in.
add_compile_options(-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)

add_compile_definitions($<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)

set(VERBENA_SANITIZE "" CACHE STRING "Value for -fsanitize, e.g. address,undefined")
if(VERBENA_SANITIZE)
  add_compile_options(-fsanitize=${VERBENA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # DT_RPATH, because DT_RUNPATH is that of the caller of dlopen() alone, and the sanitizers call it in the program's
  # place.
  add_link_options(-fsanitize=${VERBENA_SANITIZE} LINKER:--disable-new-dtags)
  if(VERBENA_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # ThreadSanitizer does not see fences; gcc says so at each. Our fences order stores to other processes and to
    # devices, between which it sees nothing in any case.
    add_compile_options(-Wno-tsan)
  endif()
endif()

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(VERBENA_CCACHE ccache)
  mark_as_advanced(VERBENA_CCACHE)
  if(VERBENA_CCACHE)
    set(CMAKE_C_COMPILER_LAUNCHER ${VERBENA_CCACHE})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${VERBENA_CCACHE})
  endif()
endif()
