#!/usr/bin/env bash
# Checks format, include directions, spelling and lint of the whole tree; changes nothing.
#
#   tools/check.sh                wants what `tools/setup.sh check` installs
#   tools/check.sh fix            formats C++ and Python files instead
#   tools/check.sh tidy FILE...   runs clang-tidy on these sources alone
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BIN=.venv/bin
readonly BUILD=build/check

# Every file that is or could be committed and matches a pattern, one a line.
files() { git ls-files --cached --others --exclude-standard --deduplicate -- "$@" | while read -r f; do [[ ! -f $f ]] || echo "$f"; done; }

mapfile -t cpp < <(files '*.cpp' '*.hpp' '*.h')
mapfile -t shell < <(files '*.sh' .ci/run)
mapfile -t text < <(files)

if [[ "${1:-}" == fix ]]; then
  "$BIN/clang-format" -i "${cpp[@]}"
  "$BIN/ruff" format
  "$BIN/ruff" check --fix
  exit
fi

# Without precompiled headers: those of GCC are not clang's, and they hide an include that a source lacks.
clang_tidy() {
  mkdir -p build
  cmake --preset host-debug -B "$BUILD" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DMORI_BUILD_PYTHON=ON \
    "-DPython_EXECUTABLE=$PWD/$BIN/python" >"$BUILD.log" || { cat "$BUILD.log"; return 1; }
  "$BIN/python" tools/clang_tidy.py "$BUILD" "$@"
}

if [[ "${1:-}" == tidy ]]; then
  shift
  clang_tidy "$@"
  exit
fi

passed=0
failed=()
run() {
  local name=$1
  shift
  printf 'check: %s\n' "$name"
  if "$@"; then
    passed=$((passed + 1))
  else
    failed+=("$name")
  fi
}

run format "$BIN/clang-format" --dry-run -Werror "${cpp[@]}"
run includes "$BIN/python" tools/check_includes.py
run spelling "$BIN/codespell" "${text[@]}"
run 'python format' "$BIN/ruff" format --quiet --diff
run 'python lint' "$BIN/ruff" check --quiet
run 'shell lint' shellcheck "${shell[@]}"
run clang-tidy clang_tidy

((${#failed[@]} == 0)) || printf 'check: %s failed\n' "${failed[@]}"
printf 'check: %d passed, %d failed\n' "$passed" "${#failed[@]}"
((${#failed[@]} == 0))
