# Installation: library, headers, CMake package, pkg-config file, the mori command.
#
# A wheel is the same tree under its package folder `mori`. It cannot hold symbolic links: the library there is one file, whose
# name has no version.

include(CMakePackageConfigHelpers)

if(SKBUILD)
  set(prefix mori/)
  set(libdir lib)
  set(bindir "${SKBUILD_SCRIPTS_DIR}")
  set_property(TARGET mori_shmem PROPERTY VERSION)
  set_property(TARGET mori_shmem PROPERTY SOVERSION)
else()
  set(prefix "")
  set(libdir "${CMAKE_INSTALL_LIBDIR}")
  set(bindir "${CMAKE_INSTALL_BINDIR}")
endif()

install(TARGETS mori_shmem EXPORT mori_shmem_targets
  LIBRARY DESTINATION "${prefix}${libdir}"
  INCLUDES DESTINATION "${prefix}include")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/mori" DESTINATION "${prefix}include")
if(TARGET mori)
  install(TARGETS mori RUNTIME DESTINATION "${bindir}")
endif()

set(package_dir "${prefix}${libdir}/cmake/mori_shmem")
install(EXPORT mori_shmem_targets NAMESPACE mori:: FILE mori_shmem-targets.cmake DESTINATION "${package_dir}")
configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/mori_shmem-config.cmake.in" "${PROJECT_BINARY_DIR}/mori_shmem-config.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/mori_shmem-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/mori_shmem-config.cmake" "${PROJECT_BINARY_DIR}/mori_shmem-config-version.cmake"
  DESTINATION "${package_dir}")

# The prefix is where the file lies, so that the installed tree can be moved.
file(RELATIVE_PATH to_prefix "/${libdir}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
set(pkgconfig_prefix "\${pcfiledir}/${to_prefix}")
configure_file("${CMAKE_CURRENT_LIST_DIR}/mori-shmem.pc.in" "${PROJECT_BINARY_DIR}/mori-shmem.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/mori-shmem.pc" DESTINATION "${prefix}${libdir}/pkgconfig")
