#!/usr/bin/env bash
# Builds with nvcc what has kernels linked into it, whole-program and with -rdc=true, and runs it on
# the GPUs there are. The exit status is how many cases have failed, or 101 if something was not built.
#
#   tests/gpu/linked/run.sh <folder of libmori_shmem.so> <build folder> [GPU architecture]
#
# The architecture is that of the GPU here unless given. With BUILD_ONLY=1 nothing is run.
set -uo pipefail
[[ $# -ge 2 ]] || { sed -n '2,7s/^# \{0,1\}//p' "$0" && exit 101; }

here=$(cd "$(dirname "$0")" && pwd)
library=$(realpath "$1")
build=$(realpath -m "$2")
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
common=("-arch=${3:-native}" -std=c++17 -O2 "-I$here/../../../include")
link=("-L$library" -lmori_shmem -Xlinker "-rpath=$library" -ldl)

compile() {
  mkdir -p "$build/$kind"
  "$nvcc" "${common[@]}" "${rdc[@]}" -Xcompiler -fPIC "$@" || exit 101
}

failed=0
for kind in whole rdc; do
  rdc=()
  [[ $kind == whole ]] || rdc=(-rdc=true)
  out=$build/$kind
  compile -shared "$here/plugin.cu" -o "$out/plugin.so"
  compile "$here/program.cu" "$here/second_unit.cu" "${link[@]}" -o "$out/program"
  compile "$here/early_init.cpp" "$here/early.cu" "$here/second_unit.cu" "${link[@]}" -o "$out/early"
  [[ -z ${BUILD_ONLY:-} ]] || continue
  for program in "$out/program $out/plugin.so" "$out/early"; do
    printf -- '---- %s: %s\n' "$kind" "$(basename "${program%% *}")"
    $program
    failed=$((failed + $?))
  done
done
exit $((failed < 100 ? failed : 100))
