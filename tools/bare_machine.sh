#!/usr/bin/env bash
# Runs commands in a copy of the project on a machine that has nothing: a minimal Debian in a folder (debootstrap, chroot).
# Shows the steps that a developer's own machine hides. Needs root, Debian or Ubuntu, and 20 GB where PyTorch is installed.
#
#   tools/bare_machine.sh [COMMAND...]    default: 'make demo' 'make check' 'make test'
#
# SUITE   bookworm (Debian 12) or trixie (Debian 13), bookworm by default
# ROOT    folder of the machine, /tmp/bare-$SUITE by default: made anew, unless KEEP=1
# LOG     file for what the commands print, $ROOT.log by default
#
# The copy is of what is committed. MORI_* variables are passed on. Package sources, pip's settings and its downloads, and
# certificates are those of this machine; nothing else comes along.
set -euo pipefail
if ((EUID != 0)); then
  echo "bare machine: needs root, for a folder that it makes, mounts and enters" >&2
  exit 1
fi
if [[ "${IN_OWN_MOUNTS:-}" != 1 ]]; then
  # What is mounted here is seen by nobody else, and gone at the end.
  exec env IN_OWN_MOUNTS=1 unshare --mount --propagation private "$0" "$@"
fi
cd "$(dirname "$0")/.."

project=$PWD
suite=${SUITE:-bookworm}
root=${ROOT:-/tmp/bare-$suite}
log=${LOG:-$root.log}
(($# > 0)) || set -- 'make demo' 'make check' 'make test'

fail() {
  printf 'bare machine: %s\n' "$*" >&2
  exit 1
}

# The address of the packages that this machine takes its own from.
mirror() {
  local files
  mapfile -t files < <(find /etc/apt -name '*.list' -o -name '*.sources' | sort)
  awk '/^(URIs:|deb )/ && match($0, /https?:[^ ]+/) { print substr($0, RSTART, RLENGTH); exit }' "${files[@]}"
}

make_machine() {
  local source
  source=$(mirror)
  [[ -n "$source" ]] || fail "no package source found in /etc/apt"
  rm -rf --one-file-system "$root"
  debootstrap --variant=minbase "$suite" "$root" "$source" >>"$log" 2>&1 || fail "debootstrap failed: see $log"
  cp /etc/apt/apt.conf.d/99* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  cp /etc/pip.conf "$root/etc/" 2>/dev/null || true
  mkdir -p "$root/etc/bare"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/bare/ca.crt"
}

# What the commands see of the environment: nothing of this shell's but MORI_*.
variables=(HOME=/root LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin CI=true
  SSL_CERT_FILE=/etc/bare/ca.crt PIP_CERT=/etc/bare/ca.crt REQUESTS_CA_BUNDLE=/etc/bare/ca.crt)
mapfile -t -O "${#variables[@]}" variables < <(env | grep '^MORI_' || true)
# Its folder becomes the root of mounts of its own: in a chroot, who enters the mounts of another process is outside again.
inside() {
  # shellcheck disable=SC2016  # the inner shell expands it
  unshare --mount --propagation private bash -c '
    cd "$1" && mkdir -p outside && pivot_root . outside && cd / && umount -l outside && rmdir outside && shift && exec "$@"' \
    inside "$root" /usr/bin/env -i "${variables[@]}" bash -c "cd /root/project && $1" >>"$log" 2>&1 </dev/null
}

command -v debootstrap >/dev/null || fail "needs debootstrap (apt-get install debootstrap)"
: >"$log"
[[ "${KEEP:-}" == 1 && -d $root/root ]] || make_machine
mkdir -p "$root/root/.cache/pip" "$HOME/.cache/pip"
mount --bind "$root" "$root" # a root is where something is mounted: programs with mounts of their own need that
for place in proc sys dev dev/pts; do
  mount --bind "/$place" "$root/$place"
done
mount -t tmpfs tmpfs "$root/dev/shm"
mount --bind "$HOME/.cache/pip" "$root/root/.cache/pip"
rm -rf "$root/root/project"
git clone -q "$project" "$root/root/project"
commit=$(git rev-parse --short HEAD)

status=0
inside "apt-get update -q && apt-get install -y -q --no-install-recommends make git" || fail "apt failed: see $log"
for command in "$@"; do
  began=$SECONDS
  if inside "$command"; then
    result=passed
  else
    result="failed with $?"
    status=1
  fi
  printf '%s: %s: %s after %d s, commit %s\n' "$suite" "$command" "$result" $((SECONDS - began)) "$commit"
done
exit "$status"
