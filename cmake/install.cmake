# What `cmake --install` puts where:
#   include/verbena/            the public headers
#   include/verbena/detail/     the headers behind verbena/design.h, and no other private ones
#   lib/libverbena.a            all layers that a user's system links, in one library
#   lib/verbena/libverbena.so   the software RNIC, which that loads where it is used
#   lib/cmake/verbena/          find_package(verbena) -> verbena::verbena
#   lib/pkgconfig/verbena.pc    pkg-config --cflags --libs verbena
#   bin/verbena, lib/verbena/   the tool and the libraries it starts programs with (installed where they are built)
#   share/verbena/lab/          the Python package that writes the report pages
#   share/verbena/profiles/     the RNICs that can be simulated
#   share/verbena/reproduce/, share/verbena/experiments/   the papers' claims, their checks, and what they measure
#   share/bash-completion/, share/zsh/   what completes the tool's commands in a shell
# The tool finds lib/verbena and share/verbena beside its own folder; the build tree looks the same.
include(CMakePackageConfigHelpers)

add_library(verbena_library STATIC)
add_library(verbena::verbena ALIAS verbena_library)
set_target_properties(verbena_library PROPERTIES OUTPUT_NAME verbena EXPORT_NAME verbena LINKER_LANGUAGE CXX)
target_include_directories(verbena_library INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_compile_features(verbena_library PUBLIC cxx_std_20)
# The public headers need no more than libibverbs; the rest is needed to link only.
target_link_libraries(verbena_library PUBLIC PkgConfig::IBVERBS)
# So that soft0 finds libverbena.so; verbena.pc has the same.
target_link_options(verbena_library INTERFACE
  $<BUILD_INTERFACE:-Wl,-rpath,${CMAKE_LIBRARY_OUTPUT_DIRECTORY}>
  $<INSTALL_INTERFACE:-Wl,-rpath,$<INSTALL_PREFIX>/lib/verbena>)
add_dependencies(verbena_library verbena_soft_library)
foreach(layer base control device memory channel connect rpc remote message job)
  get_target_property(type verbena_${layer} TYPE)
  if(type STREQUAL STATIC_LIBRARY)
    target_sources(verbena_library PRIVATE $<TARGET_OBJECTS:verbena_${layer}>)
  endif()
  get_target_property(libraries verbena_${layer} INTERFACE_LINK_LIBRARIES)
  list(FILTER libraries EXCLUDE REGEX "verbena_|PkgConfig::IBVERBS")
  target_link_libraries(verbena_library PRIVATE ${libraries})
endforeach()

add_dependencies(product verbena_library)

install(DIRECTORY lab DESTINATION share/verbena FILES_MATCHING PATTERN *.py PATTERN *.js PATTERN *.css PATTERN *.html
  PATTERN __pycache__ EXCLUDE)
install(DIRECTORY reproduce experiments profiles DESTINATION share/verbena FILES_MATCHING PATTERN *.csv PATTERN *.toml)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/share/verbena)
foreach(folder lab reproduce experiments profiles)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${PROJECT_BINARY_DIR}/share/verbena/${folder} SYMBOLIC)
endforeach()

# The tool knows its commands, so it writes these itself; bash and zsh look for them below /usr/local too.
set(bash_completion share/bash-completion/completions/verbena)
set(zsh_completion share/zsh/site-functions/_verbena)
foreach(shell bash zsh)
  set(file ${PROJECT_BINARY_DIR}/${${shell}_completion})
  cmake_path(GET file PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${file} COMMAND verbena completion ${shell} > ${file} DEPENDS verbena VERBATIM)
  list(APPEND completions ${file})
  cmake_path(GET ${shell}_completion PARENT_PATH folder)
  install(FILES ${file} DESTINATION ${folder})
endforeach()
add_custom_target(completions ALL DEPENDS ${completions})
add_dependencies(product completions)

set(package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/verbena)
install(DIRECTORY include/verbena DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h
  PATTERN design.h EXCLUDE)
install(CODE "set(source ${PROJECT_SOURCE_DIR})
set(staging ${PROJECT_BINARY_DIR}/package/design)
set(destination \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR})")
install(SCRIPT cmake/install_design.cmake)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(TARGETS verbena_library EXPORT verbena ARCHIVE INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT verbena NAMESPACE verbena:: FILE verbena-targets.cmake DESTINATION ${package_directory})

configure_package_config_file(cmake/verbena-config.cmake.in ${PROJECT_BINARY_DIR}/package/verbena-config.cmake
  INSTALL_DESTINATION ${package_directory} NO_SET_AND_CHECK_MACRO)
# Before 1.0 every minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/verbena-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/verbena-config.cmake
  ${PROJECT_BINARY_DIR}/package/verbena-config-version.cmake DESTINATION ${package_directory})

# The installed tree may be moved: the .pc file finds the prefix from its own place.
cmake_path(SET pkgconfig_directory ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${pkgconfig_directory} OUTPUT_VARIABLE prefix_from_pc)
configure_file(cmake/verbena.pc.in ${PROJECT_BINARY_DIR}/package/verbena.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/verbena.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
