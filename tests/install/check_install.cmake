# Installs BUILD_DIR into SCRATCH_DIR, moves the tree, and builds and runs `outside` against it: once through the
# CMake package, once through pkg-config. Wants GENERATOR, COMPILER and SANITIZE of the build.

cmake_minimum_required(VERSION 3.25)
set(outside "${CMAKE_CURRENT_LIST_DIR}/outside")
set(expected "PE 0 of 1 read 42 through the barrier")
set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(expect_output program text)
  execute_process(COMMAND ${program} ${ARGN} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "${text}")
    message(FATAL_ERROR "${program} printed '${output}', expected '${text}'")
  endif()
endfunction()

file(REMOVE_RECURSE "${SCRATCH_DIR}")
run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${SCRATCH_DIR}/installed")
# Nothing in the tree may remember where it was installed.
set(prefix "${SCRATCH_DIR}/moved")
file(RENAME "${SCRATCH_DIR}/installed" "${prefix}")

run("${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${outside}" -B "${SCRATCH_DIR}/build" -D "CMAKE_PREFIX_PATH=${prefix}"
  -D "CMAKE_CXX_COMPILER=${COMPILER}" -D "CMAKE_CXX_FLAGS=${flags}" -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run("${CMAKE_COMMAND}" --build "${SCRATCH_DIR}/build")
expect_output("${SCRATCH_DIR}/build/outside" "${expected}")

file(GLOB_RECURSE pc_file "${prefix}/*/mori-shmem.pc")
cmake_path(GET pc_file PARENT_PATH pc_dir)
set(ENV{PKG_CONFIG_PATH} "${pc_dir}")
function(ask_pkg_config result)
  execute_process(COMMAND pkg-config ${ARGN} mori-shmem OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE
    COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(answer UNIX_COMMAND "${answer}")
  set(${result} ${answer} PARENT_SCOPE)
endfunction()
ask_pkg_config(cflags --cflags)
ask_pkg_config(libs --libs)
run("${COMPILER}" -std=c++17 ${flags} ${cflags} "${outside}/outside.cpp" -o "${SCRATCH_DIR}/outside" ${libs})
expect_output("${SCRATCH_DIR}/outside" "${expected}")

if(EXISTS "${prefix}/bin/mori")
  expect_output("${prefix}/bin/mori" "run" --help)
endif()
