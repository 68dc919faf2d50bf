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
.PHONY: help demo test oracle slow-tests smoke lint format types boundaries wheel check clean two-node round-trip docs

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

# Parsers of other trainers, without what they need for training; each in a folder of its own, since
# some exclude each other. The wheels for 3.13 hold no compiled code that reading a config needs.
ROUND_TRIP ?= .round-trip
FETCH := $(PIP) install --no-deps --no-compile --upgrade --no-build-isolation
FETCH_313 := $(FETCH) --python-version 3.13 --only-binary=:all: --ignore-requires-python
TYRO := tyro docstring-parser shtab typeguard typing_extensions einops

round-trip: $(VENV)/.dev  ## feed the exports to the parsers of the trainers, which it fetches
	$(FETCH_313) --target $(ROUND_TRIP)/megatron-lm megatron-core==0.19.2
	$(FETCH_313) --target $(ROUND_TRIP)/axolotl axolotl==0.21.0
	$(FETCH) --target $(ROUND_TRIP)/megatron-bridge megatron-core==0.16.1 megatron-bridge==0.3.1 \
		hydra-core omegaconf==2.3.0 antlr4-python3-runtime==4.9.3
	DS_BUILD_OPS=0 $(FETCH) --target $(ROUND_TRIP)/deepspeed deepspeed==0.19.8 \
		hjson py-cpuinfo msgpack einops ninja
	$(FETCH) --target $(ROUND_TRIP)/colossalai colossalai==0.5.0 peft einops
	$(FETCH) --target $(ROUND_TRIP)/nanotron nanotron==0.4 dacite
	$(FETCH) --target $(ROUND_TRIP)/torchtitan-toml torchtitan==0.2.2 $(TYRO)
	$(FETCH) --target $(ROUND_TRIP)/torchtitan torchtitan==0.3.0 $(TYRO)
	ROUND_TRIP=$(ROUND_TRIP) $(BIN)/python -m pytest tests/tuner/exporters/test_round_trip.py --timeout 600

docs: $(VENV)/.docs  ## build the documentation site into site/
	$(BIN)/python docs/pictures.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

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

$(VENV)/.docs: pyproject.toml | $(VENV)/.installed
	@echo "installing what the documentation needs ..."
	@$(PIP) -e '.[docs]'
	@touch $@
