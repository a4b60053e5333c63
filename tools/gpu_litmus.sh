#!/usr/bin/env bash
# Shows that the GPU's litmus tests can fail: takes one fence after the other out of a copy of the headers, compiles the
# tests' kernels with it, and says which tests see it. Needs what tools/gpu_proof.sh needs.
#
#   tools/gpu_litmus.sh [build folder]    build/gpu-proof by default
#
# A GPU may keep an order that nothing asks it to keep: that a test does not see a change is no error. It is one if the
# tests see none of the changes, or fail without a change; or if a change does not find its text, once, in the headers.
#
# UNTIL        change: only makes the changes; compile: only compiles, which needs no GPU either [run]
# ONLY         a part of the names of the changes to try [all]
# PART         which of them, as 1/3, where a machine is lent for calls of nine minutes [1/1]
# SHARDS       runs side by side [3]
# ARCHITECTURE that kernels are compiled for [that of the GPU, or else 90]
# COMMIT       what is said of the source, where there is no git
set -euo pipefail
cd "$(dirname "$0")/.."

BUILD=$(realpath -m "${1:-build/gpu-proof}")
readonly BUILD UNTIL=${UNTIL:-run} ONLY=${ONLY:-} PART=${PART:-1/1} SHARDS=${SHARDS:-3}
readonly WORK=$BUILD/litmus NOTHING='no change'
export BUILD WORK
of_gpu=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader --id=0 2>/dev/null | tr -dc 0-9 || true)
export ARCHITECTURE=${ARCHITECTURE:-${of_gpu:-90}}
readonly DEVICE=mori/shmem/device

die() {
  printf 'gpu_litmus: %s\n' "$*" >&2
  exit 1
}
case $UNTIL in change | compile | run) ;; *) die "UNTIL is change, compile or run" ;; esac

# ---- the changes: a copy of the headers each

[[ "$PART" =~ ^([1-9][0-9]*)/([1-9][0-9]*)$ ]] || die "PART is a number, / and how many there are"
part=${BASH_REMATCH[1]} parts=${BASH_REMATCH[2]} seen=0

names=()
rm -rf "$WORK"
mkdir -p "$WORK"

# change <name> <file> <text> <other text> <test>...: the tests are those that could see it. A file of device/ changes the
# kernels of the tests; of src/, or of device/ behind `library:`, the library's own.
change() {
  local name=$1 header=$2 text=$3 other=$4
  shift 4
  [[ "$name" == *"$ONLY"* || "$name" == "$NOTHING" ]] || return 0
  [[ "$name" == "$NOTHING" ]] || ((seen++ % parts == part - 1)) || return 0
  local folder=$WORK/${#names[@]}
  names+=("$name")
  mkdir "$folder"
  cp -r include "$folder/include"
  mkdir "$folder/src"
  cp -r src/kernels "$folder/src/kernels"
  printf '%s\n' "$name" >"$folder/name"
  printf '%s\n' "$@" >"$folder/tests"
  [[ -n "$header" ]] || return 0
  local file=$folder/include/$DEVICE/${header#library:}
  [[ "$header" != src/* ]] || file=$folder/$header
  [[ "$file" == "$folder/include/$DEVICE/$header" ]] || touch "$folder/library"
  python3 - "$file" "$text" "$other" <<'PYTHON' || die "the change '$name' cannot be made"
import pathlib, sys

path, text, other = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
source = path.read_text()
if source.count(text) != 1:
    sys.exit(f"{path.name} has the text {source.count(text)} times instead of once:\n{text}")
path.write_text(source.replace(text, other))
PYTHON
}

signal_tests=(CudaLitmus.WhoSeesTheSignalSeesTheWholeMessage CudaLitmus.WhoSeesTheSumOfSignalsSeesTheWholeMessage CudaKernels.WhoSeesTheSignalSeesTheData
  CudaWaits.SignalsThatAddTellHowMuchHasCome CudaWaits.ASignalComesAfterWhatItsThreadPutBefore)
late_tests=(CudaLitmus.ASignalStandsForThreadsThatComeLate)
fence_tests=(CudaLitmus.AFlagBehindAFenceComesBehindTheMessage CudaLitmus.BehindAPollAndAFenceNothingIsAsItWasReadBefore)
quiet_tests=(CudaLitmus.AFlagAfterQuietComesBehindTheMessage CudaLitmus.OfTwoThatPutAndLookOneSeesTheOther
  CudaWaits.WhatWasPutBeforeQuietIsThereAfterIt)
get_tests=(CudaWaits.WhatAGetBringsIsThereAfterQuiet)
wait_tests=(CudaLitmus.AfterAWaitNothingIsAsItWasReadBefore)
barrier_tests=(CudaLitmus.ABarrierBringsWhatWasPutBefore)
late_barrier_tests=(CudaLitmus.ABarrierStandsForThreadsThatComeLate CudaLitmus.ABarrierBringsWhatWasPutBefore)
stream_tests=(CudaLitmus.ACollectiveOnAStreamBringsTheWholeMessage)
stream_barrier_tests=(CudaLitmus.ABarrierOnAStreamBringsWhatKernelsPutBefore)
atomic_tests=(CudaKernels.AtomicsSumExactly CudaAllPairs.AtomicsOfAllOnAllHandOutEachNumberOnce)

change "$NOTHING" '' '' '' "${signal_tests[@]}" "${late_tests[@]}" "${fence_tests[@]}" "${quiet_tests[@]}" \
  "${get_tests[@]}" "${wait_tests[@]}" "${barrier_tests[@]}" "${late_barrier_tests[0]}" "${atomic_tests[@]}" \
  "${stream_tests[@]}" "${stream_barrier_tests[@]}"

change 'a signal without the fence before it' ops.hpp \
  '  FenceRelease();  // pairs with the acquiring load of who waits for the signal
' '' "${signal_tests[@]}"
change 'a put, with a signal too, without the meeting of its scope' ops.hpp \
  '  Scope::Sync();  // of a put
' '' "${late_tests[@]}" "${signal_tests[0]}"
change 'Fence() does nothing' ops.hpp \
  'MORI_DEVICE_FN void Fence() {
  Scope::Sync();
  FenceSystem();
' 'MORI_DEVICE_FN void Fence() {
' "${fence_tests[@]}"
# From sm_90 on; before, a fence that releases acquires too.
((ARCHITECTURE < 90)) || change 'Fence() only releases' ops.hpp \
  'MORI_DEVICE_FN void Fence() {
  Scope::Sync();
  FenceSystem();
' 'MORI_DEVICE_FN void Fence() {
  Scope::Sync();
  FenceRelease();
' "${fence_tests[1]}"
change 'Quiet() does nothing' ops.hpp \
  'MORI_DEVICE_FN void Quiet() {
  Scope::Sync();
  FenceSequential();
' 'MORI_DEVICE_FN void Quiet() {
' "${quiet_tests[@]}" "${get_tests[@]}"
change 'Quiet() only meets' ops.hpp \
  'MORI_DEVICE_FN void Quiet() {
  Scope::Sync();
  FenceSequential();
' 'MORI_DEVICE_FN void Quiet() {
  Scope::Sync();
' "${quiet_tests[@]}"
change 'Quiet() only releases' ops.hpp \
  'MORI_DEVICE_FN void Quiet() {
  Scope::Sync();
  FenceSequential();
' 'MORI_DEVICE_FN void Quiet() {
  Scope::Sync();
  FenceRelease();
' CudaLitmus.OfTwoThatPutAndLookOneSeesTheOther
change 'a wait that does not acquire' ops.hpp \
  'return FromWord<T>(Load(AsWord(ivar), order));' 'return FromWord<T>(Load(AsWord(ivar), Relaxed{}));' \
  "${wait_tests[@]}" "${signal_tests[1]}"
change 'a barrier without its fence' collectives.hpp \
  '  FenceRelease();
  u32 pe = rank;' '  u32 pe = rank;' "${barrier_tests[@]}"
change 'a barrier whose scope does not meet before it' collectives.hpp \
  '  if (Scope::SyncAny(others != 0)) FailMeeting' '  if (others != 0) FailMeeting' "${late_barrier_tests[@]}"
change 'an add that is a load and a store' memory.hpp \
  'MORI_PTX_ATOMIC(FetchAdd, "add.u" bits, type, letter)' \
  'MORI_DEVICE_FN type FetchAdd(type* p, type v) { const type old = LoadRelaxed(p); StoreRelaxed(p, old + v); return old; }' \
  "${atomic_tests[@]}"
# Of the library's own kernels.
change 'meetings of blocks, and of a grid, without the fence' library:collectives.hpp \
  '  FenceRelease();
  u32 pe = rank;' '  u32 pe = rank;' "${stream_tests[@]}"
change 'blocks that do not meet before they tell others' src/kernels/exchange.cuh \
  '  Scope::Sync();
  const bool has_met' '  const bool has_met' "${stream_tests[@]}"
change 'blocks of a grid that do not fence before they count' src/kernels/library_kernels.cu \
  '  FenceRelease();  // pairs with the fence of the last block, behind the same word
' '' "${stream_tests[@]}"
change 'the last block of a grid does not fence' src/kernels/library_kernels.cu \
  '  FenceSystem();
  StoreRelaxed(done, u64{0});' '  StoreRelaxed(done, u64{0});' "${stream_tests[@]}"
change 'a block that does not meet before it counts' src/kernels/library_kernels.cu \
  '  BlockSync();
  if (ThreadInBlock() != 0) return;
  u64* done' '  if (ThreadInBlock() != 0) return;
  u64* done' "${stream_tests[@]}"
# shellcheck disable=SC2016 # the backquotes are the source's
change 'a barrier of few PEs on a stream without its fence' src/kernels/library_kernels.cu \
  '    FenceRelease();  // pairs with the acquiring load on `pe`
' '' "${stream_barrier_tests[@]}"
change 'a barrier of few PEs on a stream that waits for nobody' src/kernels/library_kernels.cu \
  'Load(&mine->meetings[pe], order) >= meeting' 'Load(&mine->meetings[pe], order) + 1 >= meeting' "${stream_barrier_tests[@]}"
change 'a small message whose tag is not looked at' src/kernels/exchange.cuh \
  'words[k] >> 32 == Tag()' '(words[k] >> 32 == Tag() || true)' "${stream_tests[@]}"
((${#names[@]} > 1)) || die "no change is called like ONLY=$ONLY"
printf 'date      %s\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
printf 'commit    %s\n' "${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}"
nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader 2>/dev/null | sed 's/^/gpu       /' || true
printf '%d changes of the headers, for compute capability %s\n' $((${#names[@]} - 1)) "$ARCHITECTURE"
[[ "$UNTIL" != change ]] || exit 0

# ---- kernels

# The folder's NAME.ptx for each test program NAME.cu that its tests need, compiled as tests/CMakeLists.txt does; or
# library.ptx and the image that the library embeds.
programs_of() {
  if [[ -e "$1/library" ]]; then
    echo library
  else
    sed -E 's/CudaAllPairs.*/all_pairs/; s/Cuda([A-Za-z]+)\..*/\L\1/' "$1/tests" | sort -u
  fi
}
compile() {
  local folder=$1 program=$2 source="tests/gpu/$2.cu"
  [[ "$program" != library ]] || source="$folder/src/kernels/library_kernels.cu"
  local options=(-std=c++17 -O3 "-I$folder/include" "-I$folder/src" "$source")
  {
    nvcc -ptx "-arch=compute_$ARCHITECTURE" "${options[@]}" -o "$folder/$program.ptx" &&
      { [[ "$program" != library ]] || nvcc -fatbin "-arch=sm_$ARCHITECTURE" "${options[@]}" -o "$folder/library.image"; }
  } >"$folder/$program.log" 2>&1 || {
    cat "$folder/$program.log"
    return 1
  }
}
export -f compile
for ((i = 0; i < ${#names[@]}; ++i)); do
  { programs_of "$WORK/$i" && { ((i > 0)) || echo library; }; } | sed "s|^|$WORK/$i |"
done | xargs -P "$(nproc)" -L 1 bash -c 'compile "$@"' compile || die 'a change does not compile'
for ((i = 1; i < ${#names[@]}; ++i)); do
  while read -r program; do
    ! cmp -s "$WORK/0/$program.ptx" "$WORK/$i/$program.ptx" || die "'${names[i]}' changes nothing in $program"
  done < <(programs_of "$WORK/$i")
done
printf 'kernels are compiled\n'
[[ "$UNTIL" != compile ]] || exit 0

{
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMORI_CUDA_ARCHITECTURES=90 -DMORI_BUILD_EXAMPLES=OFF &&
    cmake --build "$BUILD" --target gpu_tests
} >"$WORK/build.log" 2>&1 || {
  tail -n 40 "$WORK/build.log"
  exit 1
}

# The test program again, with the image of a changed library in it.
link=$(ninja -C "$BUILD" -t commands gpu_tests | grep -e '-o tests/gpu_tests ' | tail -n 1)
embedding=$(grep -oE '[^ ]*kernel_image\.cpp\.o' <<<"$link" | head -n 1)
[[ -n "$embedding" ]] || die 'the test program is not linked as this script expects'
for ((i = 1; i < ${#names[@]}; ++i)); do
  folder=$WORK/$i
  [[ -e "$folder/library" ]] || continue
  c++ -std=c++20 -fPIC -Isrc "-DMORI_KERNEL_IMAGE=\"$folder/library.image\"" -c src/runtime/cuda/kernel_image.cpp -o "$folder/image.o"
  relink=${link//"$embedding"/"$folder/image.o"}
  (cd "$BUILD" && eval "${relink//-o tests\/gpu_tests /-o "$folder/gpu_tests" }") || die "'${names[i]}' cannot be linked"
done

# ---- runs

# Kernels of several processes run side by side on one GPU under MPS only. A daemon of our own, that we end.
mps=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps MORI_SOCKET_IFNAME=lo
end_mps() {
  echo quit | nvidia-cuda-mps-control >/dev/null 2>&1 || true
  rm -rf "$mps"
}
trap end_mps EXIT
nvidia-cuda-mps-control -d

gpus=(0) # as CUDA_VISIBLE_DEVICES: two PEs on one GPU, and on two where there are
(($(nvidia-smi -L | wc -l) < 2)) || gpus+=("0,1")

# The tests of one change, of two PEs each.
run_tests() {
  local folder=$WORK/$1 visible=$2 filter
  filter=$(sed 's|.*|*&/staticProcesses:*&/staticThreads|' "$folder/tests" | paste -sd:)
  local kernels=$folder program=$BUILD/tests/gpu_tests
  [[ ! -e "$folder/library" ]] || kernels=$WORK/0 program=$folder/gpu_tests
  CUDA_VISIBLE_DEVICES=$visible GPU_TEST_KERNELS=$kernels timeout 400 "$program" --gtest_color=no \
    "--gtest_filter=$filter" >"$folder/run.$visible.log" 2>&1 || true
}
export -f run_tests
for ((i = 0; i < ${#names[@]}; ++i)); do
  printf "$i %s\n" "${gpus[@]}"
done | xargs -P "$SHARDS" -L 1 bash -c 'run_tests "$@"' run_tests

python3 - "$WORK" "${#names[@]}" "${gpus[@]}" <<'PYTHON'
import pathlib, re, sys

work, count, gpus = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
# What a test says of words that are not there; other failures are none of the change's order.
SEEN = re.compile(r": (?!Shmem)[^:\n]* is \d+, not \d+; last error|the kernel counted errors|other bytes")


def outcome_of(log: str, test: str) -> str:
    part = re.search(
        rf"^\[ RUN +\] \S*{re.escape(test)}$(.*?)^\[ +(OK|FAILED|SKIPPED) +\]", log, re.M | re.S
    )
    if part is None:
        return "did not end"
    if part[2] == "FAILED":
        return "caught" if SEEN.search(part[1]) else "failed otherwise"
    return "not seen" if part[2] == "OK" else "skipped"


runs = [(kind, visible) for visible in gpus for kind in ("Processes", "Threads")]
headings = [f"{kind.lower()}, {len(visible.split(','))} GPU" for kind, visible in runs]
outcomes: dict[str, dict[str, list[str]]] = {}
for folder in (work / str(i) for i in range(count)):
    logs = {
        visible: (folder / f"run.{visible}.log").read_text(errors="replace") for visible in gpus
    }
    outcomes[(folder / "name").read_text().strip()] = {
        test: [outcome_of(logs[visible], f"{test}/static{kind}") for kind, visible in runs]
        for test in (folder / "tests").read_text().split()
    }

unchanged = outcomes.pop("no change")
wrong = [
    f"{test}, {heading}: {'failed' if result == 'caught' else result}"
    for test, results in unchanged.items()
    for heading, result in zip(headings, results)
    if result != "not seen"
]
passed = len(unchanged) * len(runs) - len(wrong)
print(f"without a change: {passed} passed, {len(wrong)} did not")
for line in wrong:
    print(f"[FAILED] {line}")

print(f"{'change':58}  {'test':56}  " + "  ".join(f"{heading:16}" for heading in headings).rstrip())
caught = 0
for change, tests in outcomes.items():
    for test, results in tests.items():
        print(f"{change:58}  {test:56}  " + "  ".join(f"{result:16}" for result in results).rstrip())
    caught += any("caught" in results for results in tests.values())
print(f"{caught} of {len(outcomes)} changes were seen by a test; logs are in {work}")
sys.exit(1 if wrong or caught == 0 else 0)
PYTHON
