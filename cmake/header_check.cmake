# The target header_check compiles every header alone, so that each includes what it uses. The public headers see only
# include/, as they do once installed; verbena/design.h, which shows the inside, sees the inside too.
function(verbena_header_check target)
  cmake_parse_arguments(CHECK "" "" "FROM;HEADERS;LINK;INCLUDE" ${ARGN})
  set(sources)
  foreach(header IN LISTS CHECK_HEADERS)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${CHECK_FROM} OUTPUT_VARIABLE name)
    set(source ${PROJECT_BINARY_DIR}/header_check/${name}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${name}\"\n#include \"${name}\"  // twice: its guard\n")
    list(APPEND sources ${source})
  endforeach()
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${sources})
  target_include_directories(${target} PRIVATE ${CHECK_INCLUDE})
  target_link_libraries(${target} PRIVATE ${CHECK_LINK})
  add_dependencies(header_check ${target})
endfunction()

add_custom_target(header_check COMMENT "Every header compiles alone")

file(GLOB_RECURSE public_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/*.h)
set(design_header ${PROJECT_SOURCE_DIR}/include/verbena/design.h)
list(REMOVE_ITEM public_headers ${design_header})
verbena_header_check(verbena_design_header_check FROM ${PROJECT_SOURCE_DIR}/include HEADERS ${design_header}
  LINK verbena_rpc)
verbena_header_check(verbena_public_header_check FROM ${PROJECT_SOURCE_DIR}/include HEADERS ${public_headers}
  INCLUDE ${PROJECT_SOURCE_DIR}/include LINK PkgConfig::IBVERBS)

file(GLOB_RECURSE private_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.h)
verbena_header_check(verbena_private_header_check FROM ${PROJECT_SOURCE_DIR} HEADERS ${private_headers}
  LINK verbena_cli)
