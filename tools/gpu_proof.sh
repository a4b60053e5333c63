#!/usr/bin/env bash
# Builds and runs what needs a GPU, and prints it with machine, versions and date: the record that is
# kept under docs/results. Needs what `tools/setup.sh test` installs, an NVIDIA driver and nvcc.
#
#   tools/gpu_proof.sh [build folder]    build/gpu-proof by default
#
# SHARDS       test programs side by side on a GPU [3]
# FILTER       of the tests, as --gtest_filter [all]; they run with all PEs on one GPU
# FILTER_ALL   of those that run again over all GPUs, where there are several [all]
# SANITIZER    which tools of compute-sanitizer run; 0: none [memcheck racecheck synccheck]
# ONLY         steps whose name matches this expression [all]
# COMMIT       what is said of the source, where there is no git
set -uo pipefail
cd "$(dirname "$0")/.." || exit

BUILD=$(realpath -m "${1:-build/gpu-proof}")
readonly BUILD SHARDS=${SHARDS:-3}
failures=0

printf 'date      %s\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
printf 'commit    %s\n' "${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}"
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | sed 's/^/gpu       /'
printf 'compiler  %s\n' "$("${CXX:-c++}" --version | head -n 1)"
printf 'nvcc      %s\n' "$(nvcc --version | grep release)"

mkdir -p "$BUILD"
{
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMORI_CUDA_ARCHITECTURES=90 -DMORI_BUILD_EXAMPLES=OFF \
    -DMORI_BUILD_PYTHON=ON -DPython_EXECUTABLE="$(command -v python3)" -DCMAKE_INSTALL_PREFIX="$BUILD/prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib &&
    cmake --build "$BUILD" --target gpu_tests mori mori_shmem mori_python && cmake --install "$BUILD"
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

export MORI_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
export PATH=$BUILD/prefix/bin:$PATH PKG_CONFIG_PATH=$BUILD/prefix/lib/pkgconfig:${PKG_CONFIG_PATH:-}
export LD_LIBRARY_PATH=$BUILD/prefix/lib:${LD_LIBRARY_PATH:-} PYTHONPATH=$BUILD/python
mori info | sed -n '1,/^environment/p' | sed '/^environment/d'

# What a step prints, and its name if it fails or takes too long.
step() {
  local name=$1 seconds=$2
  shift 2
  [[ "$name" =~ ${ONLY:-.} ]] || return 0
  printf -- '---- %s\n' "$name"
  timeout "$seconds" "$@" || {
    printf '[FAILED] %s: ended with %d\n' "$name" $?
    failures=$((failures + 1))
  }
}

gpus=$(nvidia-smi -L | wc -l)
all_gpus=$(seq -s, 0 $((gpus - 1)))

# tests <log> <filter> <GPUs of each program, as CUDA_VISIBLE_DEVICES>...
tests() {
  local log=$BUILD/$1 filter=$2 shard status=0
  shift 2
  rm -f "$log".*.log
  for ((shard = 0; shard < $#; ++shard)); do
    CUDA_VISIBLE_DEVICES=${*:shard + 1:1} GTEST_TOTAL_SHARDS=$# GTEST_SHARD_INDEX=$shard "$BUILD/tests/gpu_tests" \
      --gtest_color=no --gtest_filter="$filter" >"$log.$shard.log" 2>&1 &
  done
  for ((shard = 0; shard < $#; ++shard)); do
    wait -n || status=1
  done
  grep -hE '^\[ +(OK|FAILED|SKIPPED) +\] .*\([0-9]+ ms\)' "$log".*.log | sort -k4
  printf 'tests: %d passed, %d failed, %d skipped\n' "$(cat "$log".*.log | grep -cE '^\[ +OK ')" \
    "$(cat "$log".*.log | grep -cE '^\[ +FAILED .* ms\)')" "$(cat "$log".*.log | grep -cE '^\[ +SKIPPED .* ms\)')"
  ((status == 0)) || grep -hB2 -A12 ': Failure' "$log".*.log | cut -c1-600 | head -n 80
  return "$status"
}
export -f tests
export BUILD SHARDS gpus

# Tools that watch every access run kernels one after another: the tests of one PE, but those whose kernels wait for a
# kernel or a call that comes later.
sanitizer() {
  local tool=$1 shards=$((2 * SHARDS * gpus)) shard status=0
  local filter='*/staticProcesses1-*AWaitEndsWhen*:*WaitingFor*:*AWaitGoesOnWhen*:*AKernelThatSeesTheHostsSignal*'
  rm -f "$BUILD/$tool".*.log
  for ((shard = 0; shard < shards; ++shard)); do
    CUDA_VISIBLE_DEVICES=$((shard % gpus)) GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout 170 \
      compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 "$BUILD/tests/gpu_tests" --gtest_color=no "--gtest_filter=$filter" >"$BUILD/$tool.$shard.log" 2>&1 &
  done
  for ((shard = 0; shard < shards; ++shard)); do
    wait -n || status=1
  done
  grep -hE 'SUMMARY|^\[ +FAILED .* ms\)' "$BUILD/$tool".*.log | sort | uniq -c
  local passed
  passed=$(cat "$BUILD/$tool".*.log | grep -cE '^\[ +OK ')
  printf '%s: %d tests of one PE passed, %d skipped\n' "$tool" "$passed" \
    "$(cat "$BUILD/$tool".*.log | grep -cE '^\[ +SKIPPED .* ms\)')"
  ((passed > 0)) || status=1
  ((status == 0)) || grep -hE -A12 '^========= (Error|Invalid|Barrier|Race|Program)|: Failure' "$BUILD/$tool".*.log |
    cut -c1-300 | head -n 60
  return "$status"
}
export -f sanitizer

one_gpu_each=()
all_gpus_each=()
for ((shard = 0; shard < SHARDS * gpus; ++shard)); do one_gpu_each+=($((shard % gpus))); done
for ((shard = 0; shard < SHARDS; ++shard)); do all_gpus_each+=("$all_gpus"); done
step 'tests, all PEs on one GPU' 480 bash -c 'tests one "$@"' tests "${FILTER:-*}" "${one_gpu_each[@]}"
((gpus == 1)) || step "tests, over $gpus GPUs" 480 bash -c 'tests all "$@"' tests "${FILTER_ALL:-*}" "${all_gpus_each[@]}"
step 'kernels that nvcc links' 180 tests/gpu/linked/run.sh "$BUILD/prefix/lib" "$BUILD/linked"
step 'documentation' 180 python3 tests/gpu/run_docs.py docs/device.md
# Says nothing but OK, also at the end of a program that does not finalize.
tensors() {
  local said status=0
  said=$(mori run -n 2 python3 tests/gpu/tensors.py 2>&1) || status=1
  [[ "$(grep -vcE '(^|\] )PE [01] of 2: OK$' <<<"$said")" == 0 ]] || status=1
  printf '%s\n' "$said"
  return "$status"
}
export -f tensors
step 'tensors' 120 env MORI_SHMEM_BACKEND=cuda MORI_SHMEM_HEAP_SIZE=64M MORI_GLOBAL_LOG_LEVEL=WARN bash -c tensors
step "the guide's first method, on $gpus GPU" 180 env -u CUDA_MPS_PIPE_DIRECTORY MORI_SHMEM_BACKEND=cuda MORI_SHMEM_HEAP_SIZE=64M \
  torchrun --nproc-per-node "$gpus" tests/gpu/guide_method1.py
read -ra tools <<<"${SANITIZER-memcheck racecheck synccheck}"
for tool in "${tools[@]}"; do
  [[ "$tool" == 0 ]] || step "$tool" 180 env -u CUDA_MPS_PIPE_DIRECTORY bash -c "sanitizer $tool"
done
printf '%d steps failed\n' "$failures"
((failures == 0))
