# verbena_precompile(TARGET [HEADER...]): what most files include is parsed once for the target, and the named headers, too:
# a third of the CPU time of a file that is not compiled together with others. The machine code is the same.
# verbena_precompiled_by(TARGET OTHER): TARGET uses what was parsed for OTHER: its options are the same, but for how it
# optimizes and for definitions that these headers do not know.
#
# A file still has to include what it uses: where files are read one by one (VERBENA_BY_FOLDER=OFF), nothing is precompiled,
# and neither is it for clang, which reads whole folders.
if(VERBENA_BY_FOLDER STREQUAL ON AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(VERBENA_PRECOMPILES ON)
else()
  set(VERBENA_PRECOMPILES OFF)
endif()

function(verbena_precompile target)
  if(VERBENA_PRECOMPILES)
    target_precompile_headers(${target} PRIVATE
      <fmt/format.h> <infiniband/verbs.h>
      <algorithm> <array> <atomic> <cstdint> <cstring> <deque> <functional> <map> <memory> <mutex> <optional> <span>
      <string> <string_view> <unordered_map> <utility> <vector> ${ARGN})
  endif()
endfunction()

function(verbena_precompiled_by target other)
  if(VERBENA_PRECOMPILES)
    target_precompile_headers(${target} REUSE_FROM ${other})
  endif()
endfunction()
