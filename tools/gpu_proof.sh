#!/usr/bin/env bash
# Builds and runs what needs a GPU, and prints it with machine, versions and date: the record that is
# kept under docs/results. Needs what `tools/setup.sh test` installs, and an NVIDIA driver.
#
#   tools/gpu_proof.sh [build folder]    build/gpu-proof by default
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BUILD=${1:-build/gpu-proof}

printf 'date      %s\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
printf 'commit    %s\n' "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | sed 's/^/gpu       /'
printf 'compiler  %s\n' "$("${CXX:-c++}" --version | head -n 1)"

mkdir -p "$BUILD"
{
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMORI_BUILD_EXAMPLES=OFF &&
    cmake --build "$BUILD" --target gpu_tests mori
} >"$BUILD/build.log" 2>&1 || {
  tail -n 40 "$BUILD/build.log"
  exit 1
}

# Kernels of several processes run side by side on one GPU under MPS only. A daemon of our own, that we end.
mps=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps
end_mps() {
  echo quit | nvidia-cuda-mps-control >/dev/null 2>&1 || true
  rm -rf "$mps"
}
trap end_mps EXIT
nvidia-cuda-mps-control -d

export MORI_SOCKET_IFNAME=lo
"$BUILD/tools/mori" info | sed -n '1,/^environment/p' | sed '/^environment/d'
"$BUILD/tests/gpu_tests" --gtest_color=no >"$BUILD/tests.log" 2>&1 || failed=1
grep -E '^\[ +(OK|FAILED|SKIPPED|PASSED) +\]|^\[=+\]' "$BUILD/tests.log"
[[ -z ${failed:-} ]] || {
  grep -B2 -A12 ': Failure' "$BUILD/tests.log" | cut -c1-400 | head -n 60
  exit 1
}
