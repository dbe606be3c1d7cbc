# Every target does its own set-up; `make help` lists them.
#
#   make demo                          PyTorch is installed into .venv, as constraints.txt says
#   make demo TORCH_PYTHON=/path/to/python     an interpreter with PyTorch >= 2.4 is used instead
#   make test VENV=/tmp/fresh          another virtual environment
#   make test PYTHON=python3.12        another Python to make it with

PYTHON ?= python3
VENV ?= .venv
TORCH_PYTHON ?=
FRAMEWORKS ?= $(VENV)-frameworks

BIN := $(VENV)/bin
STAMP := $(VENV)/.overnight-installed
# What a training environment has. The tests write real checkpoints with it.
TRAINING := torch numpy

ifneq ($(strip $(TORCH_PYTHON)),)
export TORCH_PYTHON
STAMP := $(VENV)/.overnight-installed-without-torch
TRAINING :=
endif

.PHONY: help setup torch-python demo test test-slow check format bench clean

help:
	@echo "make demo       train a tiny model on the CPU, let it go NaN, watch it being saved"
	@echo "make test       all tests that end within minutes"
	@echo "make test-slow  the others"
	@echo "make check      format, lint, types"
	@echo "make format     rewrite the code in the project's format"
	@echo "make bench      the measurements of benchmarks/"
	@echo "make clean      remove .venv, caches and build outputs"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Overnight needs Python 3.11 or newer. If you have one: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python cannot make virtual environments here: sudo apt-get install python3-venv" >&2; \
	  exit 1; }
	@echo "installing into $(VENV) (the first time takes minutes: PyTorch is large)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable . $(TRAINING)
	@touch $@

# An environment as users have it, without Overnight: PyTorch and what is built on it.
$(FRAMEWORKS)/.installed: constraints-frameworks.txt | $(STAMP)
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint constraints-frameworks.txt \
	  torch transformers accelerate lightning
	@touch $@

torch-python:
ifneq ($(strip $(TORCH_PYTHON)),)
	@$(TORCH_PYTHON) -c 'import torch; v = torch.__version__.split("."); assert (int(v[0]), int(v[1])) >= (2, 4)' 2>/dev/null || { \
	  echo "TORCH_PYTHON=$(TORCH_PYTHON) has no PyTorch >= 2.4" >&2; exit 1; }
endif

demo: $(STAMP) torch-python
	$(BIN)/overnight demo

test: $(STAMP) torch-python
	$(BIN)/python -m pytest -m "not slow"

# pytest says 5 when no test matches; an empty group passes.
test-slow: $(STAMP) torch-python $(FRAMEWORKS)/.installed
	FRAMEWORKS_PYTHON=$(abspath $(FRAMEWORKS))/bin/python $(BIN)/python -m pytest -m slow || { status=$$?; [ $$status -eq 5 ] || exit $$status; }

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix --select I
	$(BIN)/ruff format

bench: $(STAMP)
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

clean:
	rm -rf .venv .venv-frameworks build dist demo-run .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find watchdog trainer tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
