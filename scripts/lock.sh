#!/usr/bin/env bash
# Compile the pins with hashes. torch is left out: which build fits is the machine's to say (scripts/setup.sh).
set -euo pipefail
bin=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
constraint=()

compile() { # OUTPUT EXTRA... : name==version, markers and hashes, without torch and what its CUDA build brings
  local output=$1 options=(--universal --python-version 3.11 --generate-hashes --quiet --no-header --no-annotate --no-emit-index-url --no-emit-find-links)
  shift
  for extra in "$@"; do options+=(--extra "$extra"); done
  "$bin/uv" pip compile "${options[@]}" "${constraint[@]}" -o "$work/out" pyproject.toml
  awk '/^[a-z]/ {skip = /^(torch|triton|setuptools|pip|nvidia-[a-z-]+(-cu[0-9]+)?|cuda-[a-z]+)==/ && !/^nvidia-ml-py==/} !skip' "$work/out" > "$output"
}

compile "$work/everything" pipeline llm dev frameworks
# The pipeline's pins are those that the frameworks can live with too.
sed -nE 's/^([a-z0-9][^ ]*==[^ ]+)( ; [^\\]+)? \\$/\1\2/p' "$work/everything" > "$work/pins"
constraint=(--constraint "$work/pins")
compile "$work/pipeline" pipeline llm dev
{
  echo "# Pins of the pipeline, compiled by 'make lock'; torch is installed before them by scripts/setup.sh."
  cat "$work/pipeline"
} > constraints.txt
{
  echo "# What only the framework tests need on top, compiled by 'make lock'."
  awk -F'[ =;]' 'NR == FNR {if (/^[a-z]/) known[$1]; next} /^[a-z]/ {skip = ($1 in known)} !skip' "$work/pipeline" "$work/everything"
} > constraints-frameworks.txt
