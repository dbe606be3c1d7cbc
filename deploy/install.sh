#!/usr/bin/env bash
# Installs Overnight into a virtual environment of its own. The training environment is not touched.
#
#   deploy/install.sh [--prefix DIR] [SOURCE]     SOURCE: a checkout (default: this one) or a wheel
#   deploy/install.sh --uninstall [--prefix DIR]
#
# As a user: DIR is ~/.local/share/overnight, the command ~/.local/bin/overnight.
# As root:   DIR is /opt/overnight, the command /usr/local/bin/overnight, the unit for every user.
# PYTHON=/path/to/python3.12 chooses the Python. Doing it again updates.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
marker=.installed-by-overnight
prefix='' source='' uninstall=no

die() {
  echo "install.sh: $*" >&2
  exit 1
}

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

while [ $# -gt 0 ]; do
  case $1 in
    --prefix) [ $# -ge 2 ] || die "--prefix needs a directory"; prefix=$2; shift 2 ;;
    --prefix=*) prefix=${1#*=}; shift ;;
    --uninstall) uninstall=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option $1 (see --help)" ;;
    *) [ -z "$source" ] || die "one SOURCE only"; source=$1; shift ;;
  esac
done
source=${source:-$here}

if [ "$(id -u)" -eq 0 ]; then
  prefix=${prefix:-/opt/overnight}
  link=/usr/local/bin/overnight
  units=/etc/systemd/user
else
  prefix=${prefix:-$HOME/.local/share/overnight}
  link=$HOME/.local/bin/overnight
  units=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user
fi
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
unit=$units/overnight@.service

ours_link() { [ -L "$link" ] && [ "$(readlink "$link")" = "$prefix/bin/overnight" ]; }
ours_unit() { [ -f "$unit" ] && grep -qF "ExecStart=$prefix/bin/overnight " "$unit"; }

remove() {
  if ours_link; then rm -f "$link"; fi
  if ours_unit; then rm -f "$unit"; fi
  if [ -e "$prefix/$marker" ]; then
    rm -rf "$prefix"
    echo "removed $prefix"
  else
    echo "nothing of ours at $prefix"
  fi
  echo "Runs and configuration are kept: ~/.local/state/overnight, ~/.config/overnight."
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# An activated training environment puts its own python first; the system's outlives it.
choose_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} /usr/bin/python3 python3 python3.14 python3.13 python3.12 \
    python3.11; do
    if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  die "Overnight needs Python 3.11 or newer (PYTHON=/path/to/python3.12 names one)"
}

install() {
  local python constraint=()
  [ -e "$source" ] || die "no such checkout or wheel: $source"
  if [ -d "$source" ] && [ ! -f "$source/pyproject.toml" ]; then
    die "$source is no checkout: it has no pyproject.toml"
  fi
  if [ -e "$prefix" ] && [ ! -e "$prefix/$marker" ] && [ -n "$(ls -A "$prefix")" ]; then
    die "$prefix exists and is not ours: choose another --prefix"
  fi
  python=$(choose_python)
  # What is set for the training must not lead pip or Python there.
  unset PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX PIP_TARGET PIP_PREFIX PIP_USER PIP_ROOT
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python cannot make virtual environments: apt-get install python3-venv"

  mkdir -p "$prefix"
  touch "$prefix/$marker"
  if [ -x "$prefix/bin/python" ] && new_enough "$prefix/bin/python"; then
    echo "updating $prefix"
  else
    echo "installing into $prefix, with $("$python" --version)"
    "$python" -m venv --clear "$prefix"
    touch "$prefix/$marker"
  fi
  if [ -f "$here/constraints.txt" ]; then constraint=(--constraint "$here/constraints.txt"); fi
  "$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade \
    "${constraint[@]}" "$source"

  mkdir -p "$(dirname "$link")"
  if [ -e "$link" ] && ! ours_link; then
    echo "left alone: $link is another one; ours is $prefix/bin/overnight"
  else
    ln -sfn "$prefix/bin/overnight" "$link"
  fi
  if [ -f "$here/systemd/overnight@.service" ]; then
    mkdir -p "$units"
    sed "s#^ExecStart=[^ ]*#ExecStart=$prefix/bin/overnight#" "$here/systemd/overnight@.service" \
      >"$unit.new"
    mv "$unit.new" "$unit"
  fi

  "$prefix/bin/overnight" --version
  case ":$PATH:" in
    *":$(dirname "$link"):"*) ;;
    *) echo "$(dirname "$link") is not in your PATH: add it, or call $prefix/bin/overnight" ;;
  esac
  echo "Next: in your training environment, put this in front of your command:"
  echo "    overnight run -- python train.py"
}

if [ $uninstall = yes ]; then remove; else install; fi
