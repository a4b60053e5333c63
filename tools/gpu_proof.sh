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

export MORI_SOCKET_IFNAME=lo
"$BUILD/tools/mori" info | sed -n '1,/^environment/p' | sed '/^environment/d'
"$BUILD/tests/gpu_tests" --gtest_brief=0 | grep -E '^\[ +(OK|FAILED|SKIPPED|PASSED) +\]|^\[=+\]'
