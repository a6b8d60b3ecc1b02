# verbena_compile_by_folder(TARGET): the sources of a folder are compiled as one unit. Where many files include the same
# large headers (CLI11, nlohmann/json, GoogleTest), these are parsed once and their templates compiled once: a fifth of
# the CPU time.
#
# So the names in a file's anonymous namespace must be used by no other file of the folder. If both declare one, mostly the
# compiler says so. What it accepts (overloads, and a name that hides one of a header) scripts/check-private-names refuses.
#
# Not for the data path, whose machine code must not depend on what lies beside it. VERBENA_BY_FOLDER=OFF compiles each
# file alone: quicker where a single file is edited again and again, and what 'scripts/check tidy --alone' reads.
option(VERBENA_BY_FOLDER "Compile the files of a folder together, where that is much faster" ON)

function(verbena_compile_by_folder target)
  if(NOT VERBENA_BY_FOLDER)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    string(MAKE_C_IDENTIFIER "${folder}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()
