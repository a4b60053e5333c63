# Compiler settings shared by every target of this project.

find_package(Threads REQUIRED)

# mori_target(<target>): the language level, warnings and instrumentation that all our code is built with.
function(mori_target target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE -fpch-preprocess) # for ccache, where headers are precompiled
  endif()
  if(MORI_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(MORI_SANITIZE)
    # Without vptr: that check opens a pipe, and accuses good objects once a test has used up the descriptors.
    target_compile_options(${target} PRIVATE -fsanitize=${MORI_SANITIZE} -fno-sanitize=vptr
                                             -fno-omit-frame-pointer -fno-sanitize-recover=all)
    if(MORI_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # It does not understand fences, and says so. Tests of what fences order are in tests/ordering.
      # Beside its calls GCC takes what an optional holds for uninitialised.
      target_compile_options(${target} PRIVATE -Wno-tsan -Wno-maybe-uninitialized)
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${MORI_SANITIZE})
  endif()
  if(MORI_COVERAGE)
    target_compile_options(${target} PRIVATE --coverage -fprofile-update=atomic)
    target_link_options(${target} PRIVATE --coverage)
  endif()
endfunction()

# mori_precompile(<name> <headers>...): an object library that holds precompiled headers. Targets take them by
# `target_precompile_headers(TARGET REUSE_FROM <name>)` if they have its flags and, at least, its definitions. Headers of the
# system only: an edit of ours then compiles no more than what includes it.
function(mori_precompile name)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// Nothing but precompiled headers.\n")
  add_library(${name} OBJECT "${source}")
  mori_target(${name})
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()
