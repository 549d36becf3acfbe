# `make demo` and `make test` set up what they need; every target can be repeated.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := 2.13.0
SETUP := $(VENV)/.setup
FRAMEWORKS := $(VENV)/.frameworks

.PHONY: help setup demo test lint redteam local-llm lock clean

help: ## this list
	grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(SETUP) ## create .venv with pinned dependencies

$(SETUP): pyproject.toml constraints.txt scripts/setup.sh
	bash scripts/setup.sh "$(PYTHON)" "$(VENV)" "$(TORCH)"
	touch $@

$(FRAMEWORKS): $(SETUP) constraints-frameworks.txt
	echo "installing the frameworks that the parity tests ride in"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r constraints-frameworks.txt
	touch $@

demo: $(SETUP) ## make the demo job faster, and prove it (some minutes)
	WHOLEJOB_NO_TABLES=1 $(BIN)/snakemake --config workload=minigpt
	$(BIN)/python -m scripts.report.show

test: $(SETUP) $(FRAMEWORKS) ## every test, as CI runs them
	$(BIN)/python -m pytest -n 2 --dist loadfile -q tests

lint: $(SETUP) ## ruff, mypy, snakefmt
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile rules

redteam: $(SETUP) ## bad patches against the judge; writes docs/redteam.md
	$(BIN)/python -m tests.redteam.run

local-llm: $(SETUP) ## one proposal by a small model on this machine, recorded and replayed (optional download)
	$(BIN)/python -m scripts.propose.local_llm

lock: ## compile constraints.txt and constraints-frameworks.txt anew
	bash scripts/lock.sh "$(BIN)"

clean: ## remove results and logs, keep .venv
	$(BIN)/python -m scripts.common.clean
