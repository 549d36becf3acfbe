#!/usr/bin/env bash
# Create the virtual environment: a torch that fits this machine, then the pinned rest with verified hashes.
set -euo pipefail
python=$1 venv=$2 torch=$3

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

command -v "$python" >/dev/null || fail "no $python on the PATH; install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)"
command -v git >/dev/null || fail "no git on the PATH; install it (Debian: apt-get install git)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python is older than 3.11; give a newer one: make setup PYTHON=python3.12"
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python has no venv module; install it (Debian: apt-get install python3-venv)"

if [ ! -x "$venv/bin/python" ]; then
  # A CUDA build of torch that is installed already stays the one that jobs run with.
  if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    say "creating $venv over the installed CUDA torch"
    "$python" -m venv --system-site-packages "$venv"
  else
    say "creating $venv"
    "$python" -m venv "$venv"
  fi
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
if "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  say "torch is there: $("$venv/bin/python" -c 'import torch; print(torch.__version__)')"
else
  say "installing torch $torch (the largest download)"
  "${pip[@]}" install --quiet "torch==$torch"
fi
say "installing the pinned dependencies, hashes verified"
"${pip[@]}" install --quiet --no-deps --require-hashes -r constraints.txt
say "installing parity and wholejob's commands"
"${pip[@]}" install --quiet --no-deps --editable .
say "compiling the trace parser and the views (once a checkout)"
"$venv/bin/python" -m scripts.trace.warm > /dev/null 2>&1 || fail "the trace parser does not run; see: $venv/bin/python -m scripts.trace.warm"
say "ready: $venv"
