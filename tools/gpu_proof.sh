#!/usr/bin/env bash
# Builds and runs what needs a GPU, and prints it with machine, versions and date: the record that is
# kept under docs/results. Needs what `tools/setup.sh test` installs, an NVIDIA driver and nvcc.
#
#   tools/gpu_proof.sh [build folder]    build/gpu-proof by default
#
# SHARDS       test programs side by side on a GPU [3]; more than three can open more channels than an H200 has
# FILTER       of the tests, as --gtest_filter [all]; they run with all PEs on one GPU
# FILTER_ALL   of those that run again over all GPUs, where there are several [all of several PEs]
# SANITIZER    which tools of compute-sanitizer run; 0: none [memcheck racecheck synccheck]
# ONLY         steps whose name matches this expression [all]; "check" means memcheck, racecheck and synccheck alone
#              Where a machine is lent for calls of nine minutes: ONLY=build alone builds; then 'one GPU', 'over',
#              'memcheck', 'racecheck|synccheck', and 'kernels|docu|tensors|dropped|captures|demo|method' fit into one each
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
export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$BUILD/mps
rm -rf "$CUDA_MPS_LOG_DIRECTORY" && mkdir -p "$CUDA_MPS_LOG_DIRECTORY"
end_mps() { echo quit | nvidia-cuda-mps-control >/dev/null 2>&1 || true; }
trap 'end_mps; rm -rf "$mps"' EXIT
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
# In two halves, each with an MPS server of its own: one that had served some 700 clients of two GPUs once came to a halt.
tests() {
  local log=$BUILD/$1 filter=$2 half shard status=0
  shift 2
  rm -f "$log".*.log
  for half in 0 1; do
    for ((shard = 0; shard < $#; ++shard)); do
      CUDA_VISIBLE_DEVICES=${*:shard + 1:1} GTEST_TOTAL_SHARDS=$((2 * $#)) GTEST_SHARD_INDEX=$((half * $# + shard)) \
        "$BUILD/tests/gpu_tests" --gtest_color=no --gtest_filter="$filter" >"$log.$half.$shard.log" 2>&1 &
    done
    for ((shard = 0; shard < $#; ++shard)); do
      wait -n || status=1
    done
    end_mps
    nvidia-cuda-mps-control -d || { sleep 1 && nvidia-cuda-mps-control -d; }  # the last one may still be ending
  done
  grep -hE '^\[ +(OK|FAILED|SKIPPED) +\] .*\([0-9]+ ms\)' "$log".*.log | sort -k4
  printf 'tests: %d passed, %d failed, %d skipped\n' "$(cat "$log".*.log | grep -cE '^\[ +OK ')" \
    "$(cat "$log".*.log | grep -cE '^\[ +FAILED .* ms\)')" "$(cat "$log".*.log | grep -cE '^\[ +SKIPPED .* ms\)')"
  ((status == 0)) || {
    grep -hB2 -A12 ': Failure' "$log".*.log | cut -c1-600 | head -n 80
    what_the_machine_says
  }
  return "$status"
}
# A device's fault ends every program that shares the device: what its MPS server and its driver know of it.
what_the_machine_says() {
  grep -ihE 'exception|fault|fail|error|terminat' "$CUDA_MPS_LOG_DIRECTORY"/*.log | tail -n 20
  dmesg 2>/dev/null | grep -E 'NVRM|Xid' | tail -n 20
}
export -f end_mps tests what_the_machine_says
export BUILD SHARDS gpus

# sanitizer <tool> <filter> <GPUs of each program, as CUDA_VISIBLE_DEVICES>...
# These tools run the kernels of a process one after another: not for tests whose kernels wait for a kernel or a call of
# their own process that comes later. Slowly: nor for those that repeat one thing for long.
sanitizer() {
  local tool=$1 log=$BUILD/$1-${3//,/-} filter shard status=0 passed
  filter="$2-*AWaitEndsWhen*:*WaitingFor*:*AWaitGoesOnWhen*:*AKernelThatSeesTheHostsSignal*:*AHundredThousand*:*AMillion*"
  shift 2
  rm -f "$log".*.log
  for ((shard = 0; shard < $#; ++shard)); do
    CUDA_VISIBLE_DEVICES=${*:shard + 1:1} GTEST_TOTAL_SHARDS=$# GTEST_SHARD_INDEX=$shard timeout 170 \
      compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 "$BUILD/tests/gpu_tests" \
      --gtest_color=no "--gtest_filter=$filter" >"$log.$shard.log" 2>&1 &
  done
  for ((shard = 0; shard < $#; ++shard)); do
    wait -n || status=1
  done
  grep -hE 'SUMMARY|^\[ +FAILED .* ms\)' "$log".*.log | sort | uniq -c
  passed=$(cat "$log".*.log | grep -cE '^\[ +OK ')
  printf '%s: %d tests passed, %d skipped\n' "$tool" "$passed" "$(cat "$log".*.log | grep -cE '^\[ +SKIPPED .* ms\)')"
  ((passed > 0)) || status=1
  ((status == 0)) || grep -hE -A12 '^========= (Error|Invalid|Barrier|Race|Program)|: Failure' "$log".*.log |
    cut -c1-300 | head -n 60
  return "$status"
}
export -f sanitizer

one_gpu_each=()
all_gpus_each=()
for ((shard = 0; shard < SHARDS * gpus; ++shard)); do one_gpu_each+=($((shard % gpus))); done
for ((shard = 0; shard < SHARDS; ++shard)); do all_gpus_each+=("$all_gpus"); done
several_pes='*-*/*Processes1:*/*Threads1:Kernels/CudaFault.*'
step 'tests, all PEs on one GPU' 480 bash -c 'tests one "$@"' tests "${FILTER:-*}" "${one_gpu_each[@]}"
((gpus == 1)) || step "tests, over $gpus GPUs" 480 bash -c 'tests all "$@"' tests "${FILTER_ALL:-$several_pes}" "${all_gpus_each[@]}"
step 'kernels that nvcc links' 180 tests/gpu/linked/run.sh "$BUILD/prefix/lib" "$BUILD/linked"
step 'documentation' 180 python3 tests/gpu/run_docs.py docs/device.md
# Says nothing but OK, also at the end of a program that does not finalize.
says_ok() {
  local said status=0
  said=$(mori run -n "$1" python3 "tests/gpu/$2.py" 2>&1) || status=1
  [[ "$(grep -vcE '(^|\] )PE [01] of [12]: OK$' <<<"$said")" == 0 ]] || status=1
  printf '%s\n' "$said"
  return "$status"
}
export -f says_ok
for program in '2 tensors' '2 dropped' '1 captures'; do
  step "${program#* }" 120 env MORI_SHMEM_HEAP_SIZE=64M MORI_GLOBAL_LOG_LEVEL=WARN bash -c "says_ok $program"
done
# It reads the heap by the CPU, where there is a GPU.
if python3 -c 'import rich, sklearn' 2>/dev/null; then
  step 'the demo' 180 env -u CUDA_MPS_PIPE_DIRECTORY mori run -n 2 python3 examples/digits_training.py
else
  printf -- '---- the demo: not run, since rich or sklearn is not installed\n'
fi
step "the guide's first method, on $gpus GPU" 180 env -u CUDA_MPS_PIPE_DIRECTORY MORI_SHMEM_BACKEND=cuda MORI_SHMEM_HEAP_SIZE=64M \
  torchrun --nproc-per-node "$gpus" tests/gpu/guide_method1.py
read -ra tools <<<"${SANITIZER-memcheck racecheck synccheck}"
for tool in "${tools[@]}"; do
  [[ "$tool" == 0 ]] || step "$tool, one PE" 180 env -u CUDA_MPS_PIPE_DIRECTORY bash -c 'sanitizer "$@"' sanitizer "$tool" \
    '*/staticProcesses1' "${one_gpu_each[@]}"
done
# Between GPUs: the operations of kernels by PEs that are processes.
[[ "${tools[*]}" != *memcheck* ]] || ((gpus == 1)) ||
  step "memcheck, over $gpus GPUs" 180 env -u CUDA_MPS_PIPE_DIRECTORY bash -c 'sanitizer "$@"' sanitizer memcheck \
    '*CudaKernels*/*Processes:*CudaAllPairs*/*Processes:*CudaCollectives*/*Processes:*CudaNames*/*Processes' "${all_gpus_each[@]}"
printf '%d steps failed\n' "$failures"
((failures == 0))
