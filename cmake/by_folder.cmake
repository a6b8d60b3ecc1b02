# verbena_compile_by_folder(TARGET [FOLDER...] [FILES REGEX]): the sources of a folder are compiled as one unit, those of
# the named folders, and of others those whose names match, or else all. Where many files include the same large headers
# (CLI11, nlohmann/json, GoogleTest), these are parsed once and their templates compiled once: a fifth of the CPU time.
#
# So the names in a file's anonymous namespace must be used by no other file of the folder. If both declare one, mostly the
# compiler says so. What it accepts (overloads, and a name that hides one of a header) scripts/check-private-names refuses.
#
# VERBENA_BY_FOLDER says for what:
#   ON   tools, set-up and tests; not the data path, whose machine code must not depend on what lies beside it
#   ALL  every library: what the sanitizers run and what clang-tidy reads, for which speed does not matter
#   OFF  nothing: quicker where a single file is edited again and again, and what 'scripts/check tidy --alone' reads
set(VERBENA_BY_FOLDER ON CACHE STRING "Compile the files of a folder together: ON (tools and tests), ALL or OFF")

function(verbena_compile_by_folder target)
  if(NOT VERBENA_BY_FOLDER)
    return()
  endif()
  # gcc takes the files of a unit for headers, in which types of anonymous namespaces are suspicious. clang-tidy, which
  # reads the build with ALL, does not know this option.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND (VERBENA_SANITIZE OR NOT VERBENA_BY_FOLDER STREQUAL ALL))
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  cmake_parse_arguments(BY "" "FILES" "" ${ARGN})
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    if(ARGN AND NOT folder IN_LIST BY_UNPARSED_ARGUMENTS AND NOT (BY_FILES AND source MATCHES "${BY_FILES}"))
      continue()
    endif()
    string(MAKE_C_IDENTIFIER "${folder}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()

# The same for libraries of the data path: with ALL; otherwise only the named folders and files, which are not part of
# it.
function(verbena_compile_by_folder_where_all target)
  if(VERBENA_BY_FOLDER STREQUAL ALL)
    verbena_compile_by_folder(${target})
  elseif(ARGN)
    verbena_compile_by_folder(${target} ${ARGN})
  endif()
endfunction()
