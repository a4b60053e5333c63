# Included by the presets: compiles through ccache where it is installed.
find_program(MORI_CCACHE ccache)
if(MORI_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${MORI_CCACHE}")
endif()
