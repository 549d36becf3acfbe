#!/usr/bin/env bash
# Compile the pins with hashes. torch is left out: which build fits is the machine's to say (scripts/setup.sh).
set -euo pipefail
bin=$1
options=(--quiet --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header
  --no-annotate --allow-unsafe --strip-extras)

without_torch() { # drop torch, what only its CUDA build needs, and their continuation lines
  awk '/^(torch|triton|nvidia-[a-z0-9-]*cu[0-9]+|cuda-[a-z]+)==/ {skip = 1} !/^ / && !/^(torch|triton|nvidia-[a-z0-9-]*cu[0-9]+|cuda-[a-z]+)==/ {skip = 0} !skip'
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$bin/pip-compile" "${options[@]}" --extra pipeline --extra llm --extra dev -o "$work/all.txt" pyproject.toml
{
  echo "# Pins of the pipeline, compiled by 'make lock'; torch is installed before them by scripts/setup.sh."
  without_torch < "$work/all.txt"
} > constraints.txt
sed -E '/^ /d; s/ \\$//' "$work/all.txt" > "$work/pins.txt"
"$bin/pip-compile" "${options[@]}" --extra frameworks -c "$work/pins.txt" -o "$work/frameworks.txt" pyproject.toml
{
  echo "# What only the framework tests need, compiled by 'make lock'."
  without_torch < "$work/frameworks.txt" | awk -v pins=constraints.txt '
    BEGIN {while ((getline line < pins) > 0) if (match(line, /^[A-Za-z0-9._-]+==/)) known[substr(line, 1, RLENGTH)] = 1}
    /^[A-Za-z0-9._-]+==/ {match($0, /^[A-Za-z0-9._-]+==/); skip = (substr($0, 1, RLENGTH) in known)}
    !skip'
} > constraints-frameworks.txt
