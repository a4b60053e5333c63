#!/usr/bin/env bash
# Installs what a job needs: system packages by apt, Python packages into .venv. Installs nothing twice.
#
#   tools/setup.sh demo|test|check|bench...
#
# PYTHON               interpreter that .venv is made with (default: python3)
# MORI_WITHOUT_TORCH   1: leave PyTorch out; everything else is still set up
# MORI_SKIP_APT        1: leave system packages to the caller, on a system without apt for example
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv
readonly BUILD_PACKAGES=(g++ make cmake ninja-build ccache pkg-config git ca-certificates
  libspdlog-dev libfmt-dev libcli11-dev libsodium-dev python3 python3-venv python3-dev)
readonly TEST_PACKAGES=(libgtest-dev libgmock-dev libbenchmark-dev openmpi-bin libopenmpi-dev)
readonly BENCH_PACKAGES=(libbenchmark-dev openmpi-bin libopenmpi-dev)
readonly CHECK_PACKAGES=(clang clang-tidy shellcheck)

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# Prints those of the named packages that dpkg does not have.
missing_packages() {
  local package
  for package in "$@"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
  done
}

install_packages() {
  [[ "${MORI_SKIP_APT:-}" != 1 ]] || return 0
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "apt is not here: install $* (or what they are called on this system), then set MORI_SKIP_APT=1"
  fi
  local missing as_root=()
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} > 0)) || return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "root or sudo is needed to install the system packages ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing system packages with apt: ${missing[*]}"
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

make_venv() {
  [[ -x $VENV/bin/pip ]] && "$VENV/bin/python" -c '' 2>/dev/null && return
  say "making $VENV"
  "${PYTHON:-python3}" -m venv --clear "$VENV"
}

# install_requirements <name>: requirements/<name>.txt, unless it was installed as it now stands.
install_requirements() {
  local file=requirements/$1.txt stamp=$VENV/installed-$1
  local state
  state=$(cat requirements/*.txt "$VENV/pyvenv.cfg" | sha256sum)
  [[ "$(cat "$stamp" 2>/dev/null)" != "$state" ]] || return 0
  say "installing $file into $VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r "$file"
  echo "$state" >"$stamp"
}

has_module() {
  "$VENV/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "$1"
}

install_torch() {
  if [[ "${MORI_WITHOUT_TORCH:-}" == 1 ]]; then
    say "leaving PyTorch out (MORI_WITHOUT_TORCH=1): its tests are skipped"
    return
  fi
  ! has_module torch || return 0
  say "installing PyTorch into $VENV: several GB on x86-64, once; MORI_WITHOUT_TORCH=1 leaves it out"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements/torch.txt ||
    fail "PyTorch could not be installed; MORI_WITHOUT_TORCH=1 runs everything else without it"
}

set_up() {
  case $1 in
    demo)
      install_packages "${BUILD_PACKAGES[@]}"
      make_venv
      install_requirements build
      install_requirements demo
      ;;
    test)
      install_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
      make_venv
      install_requirements build
      install_requirements test
      install_torch
      ;;
    check)
      install_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}" "${CHECK_PACKAGES[@]}"
      make_venv
      install_requirements build
      install_requirements check
      ;;
    bench)
      install_packages "${BUILD_PACKAGES[@]}" "${BENCH_PACKAGES[@]}"
      make_venv
      install_requirements build
      install_requirements bench
      ;;
    *) fail "unknown job '$1': one of demo, test, check, bench" ;;
  esac
}

(($# > 0)) || fail "usage: tools/setup.sh demo|test|check|bench..."
for job in "$@"; do
  set_up "$job"
done
