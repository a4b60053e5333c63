#!/usr/bin/env bash
# Installs what a job needs: system packages by apt, Python packages into .venv. Installs nothing twice.
#
#   tools/setup.sh demo|test|test-sanitizers|check|bench...
#
# PYTHON               interpreter that .venv is made with (default: python3)
# MORI_NVCC            nvcc that the tests use (default: the one on PATH, of /usr/local/cuda, or packages in .venv)
# MORI_WITHOUT_TORCH   1: leave PyTorch out; everything else is still set up
# MORI_SKIP_APT        1: leave system packages to the caller, on a system without apt for example
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv
readonly BUILD_PACKAGES=(g++ make cmake ninja-build ccache pkg-config git ca-certificates
  libspdlog-dev libfmt-dev libcli11-dev libsodium-dev libfabric-dev python3 python3-venv python3-dev)
# iproute2 for network namespaces, clang for other processors than this machine's.
readonly TEST_PACKAGES=(libgtest-dev libgmock-dev libbenchmark-dev openmpi-bin libopenmpi-dev iproute2 clang)
readonly BENCH_PACKAGES=(libbenchmark-dev openmpi-bin libopenmpi-dev iproute2 libucx-dev)
readonly CHECK_PACKAGES=(clang-tidy shellcheck)
# The runtime libraries of clang's sanitizers and fuzzers: clang only recommends them.
readonly SANITIZER_PACKAGES=(libclang-rt-dev)
# From 18 on, clang compiles the device API for AMD GPUs, from 20 on for gfx950 too. The first of each that is to be had, as
# in the tests.
readonly DEVICE_CLANGS=(clang-19 clang-22 clang-21 clang-20 clang-18)
readonly GFX950_CLANGS=(clang-22 clang-21 clang-20)

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

as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    command -v sudo >/dev/null || fail "root or sudo is needed to install system packages: $*"
    sudo "$@"
  fi
}

# What apt can install, as its servers have it: asked once.
lists_are_fresh=0
refresh_lists() {
  ((lists_are_fresh)) || as_root apt-get update -q
  lists_are_fresh=1
}

install_packages() {
  [[ "${MORI_SKIP_APT:-}" != 1 ]] || return 0
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "apt is not here: install $* (or what they are called on this system), then set MORI_SKIP_APT=1"
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} > 0)) || return 0
  say "installing system packages with apt: ${missing[*]}"
  refresh_lists
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# first_clang <name>...: installs the first of the packages that apt has, unless one is there. 1 if it has none.
first_clang() {
  local clang
  for clang in "$@"; do
    ! command -v "$clang" >/dev/null || return 0
  done
  refresh_lists
  for clang in "$@"; do
    if [[ -n "$(apt-cache madison "$clang" 2>/dev/null)" ]]; then
      install_packages "$clang"
      return
    fi
  done
  return 1
}

install_device_clangs() {
  [[ "${MORI_SKIP_APT:-}" != 1 ]] || return 0
  first_clang "${DEVICE_CLANGS[@]}" || fail "apt has none of ${DEVICE_CLANGS[*]}: install one, which the tests of device code need"
  first_clang "${GFX950_CLANGS[@]}" || say "apt has none of ${GFX950_CLANGS[*]}: device code is not compiled for gfx950"
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
  rm -f "$VENV/installed-cuda" # PyTorch has brought CUDA packages of its own version
}

# After install_torch: pip then takes the compiler that fits PyTorch's CUDA packages.
install_nvcc() {
  case $(uname -m) in
    x86_64 | aarch64) ;;
    *)
      say "leaving NVIDIA's compiler out: NVIDIA has none for $(uname -m)"
      return
      ;;
  esac
  if command -v "${MORI_NVCC:-nvcc}" >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
    return
  fi
  [[ -f $VENV/installed-cuda ]] || say "NVIDIA's compiler is not here: its packages are some 200 MB, once"
  install_requirements cuda
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
      install_device_clangs
      make_venv
      install_requirements build
      install_requirements test
      install_torch
      install_nvcc
      ;;
    check)
      install_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}" "${CHECK_PACKAGES[@]}"
      make_venv
      install_requirements build
      install_requirements check
      ;;
    test-sanitizers)
      install_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}" "${SANITIZER_PACKAGES[@]}"
      make_venv
      install_requirements build
      install_requirements sanitizers
      ;;
    bench)
      install_packages "${BUILD_PACKAGES[@]}" "${BENCH_PACKAGES[@]}"
      make_venv
      install_requirements build
      install_requirements bench
      ;;
    *) fail "unknown job '$1': one of demo, test, test-sanitizers, check, bench" ;;
  esac
}

(($# > 0)) || fail "usage: tools/setup.sh demo|test|test-sanitizers|check|bench..."
for job in "$@"; do
  set_up "$job"
done
