# The library's own kernels, as one image that the CUDA driver loads: machine code of common GPUs and PTX for all others
# by nvcc, PTX alone by clang where there is no nvcc. No CUDA header, library or GPU is needed.

find_program(MORI_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
if(NOT MORI_NVCC)
  # The compiler as a Python package, where tools/setup.sh puts it.
  file(GLOB nvcc_folders "${PROJECT_SOURCE_DIR}/.venv/lib*/python*/site-packages/nvidia/*/bin")
  find_program(MORI_NVCC nvcc PATHS ${nvcc_folders})
endif()
find_program(MORI_CUDA_CLANG NAMES clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14 clang++)

# GPUs whose machine code is embedded; others compile the PTX when it is loaded first. Builds that do not ship have none.
if(CMAKE_BUILD_TYPE STREQUAL "Release" OR CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
  set(default_architectures 80 90 100 120)
endif()
set(MORI_CUDA_ARCHITECTURES "${default_architectures}" CACHE STRING "GPUs to embed machine code for, e.g. 80;90")

# mori_embed_kernels(<source.cu>): compiles it, and defines MORI_KERNEL_IMAGE for kernel_image.cpp.
function(mori_embed_kernels source)
  set(image "${CMAKE_CURRENT_BINARY_DIR}/library_kernels.image")
  file(GLOB headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/mori/shmem/device/*.hpp"
    "${PROJECT_SOURCE_DIR}/src/kernels/*.cuh")
  set(include "-I${PROJECT_SOURCE_DIR}/include" "-I${PROJECT_SOURCE_DIR}/src")
  if(MORI_NVCC)
    # Those that this nvcc knows: older ones have not heard of the newest GPUs.
    execute_process(COMMAND "${MORI_NVCC}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
    set(code "")
    foreach(architecture IN LISTS MORI_CUDA_ARCHITECTURES)
      if(known MATCHES "sm_${architecture}\n")
        list(APPEND code -gencode "arch=compute_${architecture},code=sm_${architecture}")
      else()
        message(STATUS "${MORI_NVCC} does not know sm_${architecture}: such a GPU compiles the PTX")
      endif()
    endforeach()
    set(compile "${MORI_NVCC}" -fatbin -std=c++17 -O3 ${include} ${code}
      -gencode arch=compute_80,code=compute_80 "${source}" -o "${image}")
  elseif(MORI_CUDA_CLANG)
    # Text, which the driver wants to end with a zero.
    set(compile "${MORI_CUDA_CLANG}" -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc -nocudalib -nostdinc
      -Wno-unknown-cuda-version -std=c++17 -O3 -fno-exceptions ${include} -S "${source}" -o "${image}.s"
      COMMAND "${CMAKE_COMMAND}" -E copy "${image}.s" "${image}")
  else()
    message(WARNING "no nvcc and no clang++: this build has no kernels of its own, and makes no calls on CUDA streams")
    return()
  endif()
  add_custom_command(OUTPUT "${image}" COMMAND ${compile} DEPENDS "${source}" ${headers} VERBATIM
    COMMENT "Compiling the library's kernels")
  set(embedding "${PROJECT_SOURCE_DIR}/src/runtime/cuda/kernel_image.cpp")
  set_source_files_properties("${embedding}" PROPERTIES OBJECT_DEPENDS "${image}"
    COMPILE_DEFINITIONS "MORI_KERNEL_IMAGE=\"${image}\"")
endfunction()
