#!/usr/bin/env bash
# Builds the fuzzers with clang and runs each for a while. What they find is kept in build/fuzz/findings.
#
#   tools/fuzz.sh [seconds]    60 for each by default
set -euo pipefail
cd "$(dirname "$0")/.."

readonly SECONDS_EACH=${1:-60}
readonly BUILD=build/fuzz
readonly TARGETS=(unique_id frame messages config launch hosts wire)

if [[ ! $SECONDS_EACH =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: tools/fuzz.sh [seconds]" >&2
  exit 2
fi
if ! command -v clang++ >/dev/null; then
  echo "fuzz: needs clang++ with its run-time libraries (Debian: clang and libclang-rt-dev)" >&2
  exit 2
fi

mkdir -p "$BUILD/findings"
printf 'fuzz: building\n'
{
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ \
    "-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES=$PWD/cmake/MoriCcache.cmake" \
    -DMORI_SANITIZE=fuzzer-no-link,address,undefined -DMORI_BUILD_FUZZERS=ON \
    -DMORI_BUILD_TOOLS=OFF -DMORI_BUILD_EXAMPLES=OFF &&
    cmake --build "$BUILD" --target fuzzers
} >"$BUILD/build.log" 2>&1 || {
  tail -n 40 "$BUILD/build.log"
  exit 1
}

run() {
  local target=$1 corpus=$BUILD/corpus/$1 log=$BUILD/$1.log dictionary=()
  mkdir -p "$corpus"
  [[ $target != config && $target != launch ]] || dictionary=(-dict=tests/fuzz/environment.dict)
  "$BUILD/tests/fuzz/fuzz_$target" "$corpus" "tests/fuzz/corpus/$target" "${dictionary[@]}" \
    "-max_total_time=$SECONDS_EACH" -max_len=8192 -timeout=10 -rss_limit_mb=2048 \
    "-artifact_prefix=$BUILD/findings/$target-" -print_final_stats=1 >"$log" 2>&1
}

passed=0
failed=()
for index in "${!TARGETS[@]}"; do
  target=${TARGETS[$index]}
  printf 'fuzz: %d/%d %s, %s s\n' $((index + 1)) "${#TARGETS[@]}" "$target" "$SECONDS_EACH"
  if run "$target"; then
    passed=$((passed + 1))
    printf 'fuzz: %s: %s inputs, nothing found\n' "$target" \
      "$(sed -n 's/^stat::number_of_executed_units: *//p' "$BUILD/$target.log")"
  else
    failed+=("$target")
    tail -n 40 "$BUILD/$target.log"
  fi
done

((${#failed[@]} == 0)) || printf 'fuzz: %s failed\n' "${failed[@]}"
printf 'fuzz: %d passed, %d failed\n' "$passed" "${#failed[@]}"
((${#failed[@]} == 0))
