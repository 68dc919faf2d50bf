# `make demo` and `make test` need nothing but Python 3.11+; everything goes into .venv
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The CPU build is far smaller than the CUDA one; where the index has none, the plain wheel is taken.
# With GPUs: `make demo TORCH="torch>=2.13"`, or install your own torch into .venv first.
TORCH ?= torch==2.13.0+cpu
TORCH_FALLBACK ?= torch>=2.13
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test oracle slow-tests smoke lint format types boundaries wheel check clean two-node

help:  ## list the verbs
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

demo: $(VENV)/.installed  ## set up, then search the fastest configuration of a small model here
	$(BIN)/tuner run examples/demo.toml

test: $(VENV)/.dev  ## set up, then run the default tests (under 5 minutes on 2 cores)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

oracle: $(VENV)/.installed  ## every parallel form against the single process (8 minutes on 2 cores)
	$(BIN)/python -m trainer.oracle

slow-tests: $(VENV)/.dev  ## the tests that the default run leaves out
	$(BIN)/python -m pytest -m slow --timeout 600

smoke: $(VENV)/.installed  ## propose, run 2 ranks, measure, store and rank in under a minute
	$(BIN)/tuner smoke

lint: $(VENV)/.dev  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m results_db.diagram --check
	$(BIN)/python -m tuner.cli.reference --check

format: $(VENV)/.dev  ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev  ## mypy --strict
	$(BIN)/mypy

boundaries: $(VENV)/.dev  ## who may import whom
	$(BIN)/lint-imports

wheel: $(VENV)/.dev  ## build the wheel, install it into a clean place and run it from elsewhere
	$(BIN)/python -m benchmarks.check_wheel

check: lint types boundaries test wheel  ## all that CI checks

two-node: $(VENV)/.installed  ## a study over two network namespaces joined by a slow link (root)
	$(BIN)/python -m benchmarks.two_node

clean:  ## remove the environment and caches, never results
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tuner needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(VENV)/bin/python
	@echo "installing torch ..."
	@$(BIN)/python -c 'import torch' 2>/dev/null \
	  || $(PIP) '$(TORCH)' 2>/dev/null || $(PIP) '$(TORCH_FALLBACK)'
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.torch
	@echo "installing tuner and its libraries ..."
	@$(PIP) -e '.'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.torch
	@echo "installing tuner with its development tools ..."
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed
