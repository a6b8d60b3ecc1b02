# An application above the library: what a user's program could be. It is compiled with the installed headers alone.
#
# verbena_app(NAME) takes apps/NAME:
#   *.cc          the library lib/libverbena-NAME.a; find_package(verbena) knows it as verbena::NAME
#   *_test.cc     GoogleTest unit tests, NAME_test; these may use everything; ctest names them NAME/Suite.Case
# Its public header is include/verbena/apps/NAME.h; its files name each other as "NAME/file.h". LINK: further libraries.
function(verbena_app name)
  cmake_parse_arguments(APP "" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")

  set(library verbena_app_${name})
  add_library(${library} STATIC ${sources})
  verbena_compile_by_folder_where_all(${library})
  add_library(verbena::${name} ALIAS ${library})
  set_target_properties(${library} PROPERTIES OUTPUT_NAME verbena-${name} EXPORT_NAME ${name})
  target_compile_features(${library} PUBLIC cxx_std_20)
  # Position-independent code calls even the functions of its own file, unless nobody may replace them.
  target_compile_options(${library} PRIVATE -fno-semantic-interposition)
  target_include_directories(${library} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    PRIVATE ${PROJECT_SOURCE_DIR}/apps)
  target_link_libraries(${library} PUBLIC PkgConfig::IBVERBS ${APP_LINK}
    INTERFACE $<BUILD_INTERFACE:verbena_remote> $<BUILD_INTERFACE:verbena_rpc> $<INSTALL_INTERFACE:verbena::verbena>)
  add_dependencies(product ${library})
  install(TARGETS ${library} EXPORT verbena ARCHIVE)

  if(tests AND VERBENA_TESTS)
    add_executable(${name}_test ${tests})
    verbena_compile_by_folder(${name}_test)
    target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/apps)
    target_link_libraries(${name}_test PRIVATE ${library} verbena_test_main)
    verbena_discover_tests(${name}_test PREFIX ${name} LABEL unit TIMEOUT_S 600)
  endif()
endfunction()
