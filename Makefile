# Everything a developer runs. `make help` lists it.
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
JOBS   ?= 2
RUNS   ?= 2000
MINUTES ?= 1
KEEP   ?=
LONG   ?=
WORLDS ?= 8
LOAD   ?= 30
SEED   ?=
SECONDS ?= 120
TARGET ?=
REPLAY ?=
VERSIONS ?=
SINCE  ?= main

# Workers, and the processes that tests start, read what others have compiled.
export PYTHONDONTWRITEBYTECODE :=

PYTEST := $(BIN)/pytest --numprocesses $(JOBS)
# The tests of the core, whose branches are counted. Counting them among all others cost a fifth.
CORE   := tests/unit/core $(wildcard tests/unit/test_*.py) tests/unit/portal/test_source.py \
  tests/property/test_core_properties.py tests/property/test_span_properties.py tests/spark/test_partitions.py

.DEFAULT_GOAL := help
.PHONY: help setup demo check test fast affected cover sim soak walks fuzz reliability compat bench docs wheel lock sbom licences audit clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements.lock pyproject.toml scripts/setup.sh
	@bash scripts/setup.sh $(VENV)

setup: $(READY) ## Create .venv with the locked dependencies (all other targets do this first)

demo: setup ## See it all in a minute: a forking chain, Spark, DuckDB, a check and a picture
	@$(BIN)/headwater demo

check: setup ## Lint, types, layers, docs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/check_docs.py

test: setup ## Run all tests; walks of crashes take a fixed sample; core must keep 100 % branch coverage
	@$(BIN)/python -m tests.jvm & bash scripts/browser.sh & browser=$$!; \
	  $(BIN)/pytest --cov=headwater.core --cov-branch --cov-report=term-missing:skip-covered \
	  --cov-fail-under=100 $(CORE) || { wait; exit 1; }; wait $$browser; \
	  $(PYTEST) $(CORE:%=--ignore=%); passed=$$?; wait; exit $$passed

fast: setup ## Run the tests that need no Spark and no database server: while you write code
	@$(PYTEST) tests/test_tidy.py tests/unit tests/property tests/wire tests/simulation

affected: setup ## Run the tests that reach what has changed SINCE a commit (by imports)
	@files=$$($(BIN)/python -m tests.affected $(SINCE)) && if [ -n "$$files" ]; then $(PYTEST) $$files; fi

cover: setup ## Run all tests under branch coverage; every module is listed
	@$(BIN)/python -m tests.jvm
	@$(PYTEST) --cov --cov-report=term:skip-covered --cov-fail-under=90

sim: setup ## Drive client, core and state through RUNS random scenarios (SEED=n replays one)
	@$(BIN)/python -m tests.simulation.scenarios.campaign --runs $(RUNS) $(if $(SEED),--seed $(SEED))

soak: setup ## Play whole-system worlds for MINUTES: databases, cuts, pauses, kills (SEED=n KEEP=1,2 replays; LONG=1)
	@$(BIN)/python -m tests.simulation.$(if $(LONG),long,soak) --minutes $(MINUTES) \
	  $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep $(KEEP)) $(if $(FREE),--free)

walks: setup ## Take every point of the walks that `make test` samples: crashes, pauses, cuts, seeds
	@$(BIN)/python -m tests.targets.points docs/results/walks.json
	@$(BIN)/python scripts/check_docs.py --write

fuzz: setup ## Throw mutated bytes at decoders and wire parser for SECONDS (TARGET=, SEED=, REPLAY=file)
	@$(BIN)/pip install --quiet --only-binary :all: atheris 2>/dev/null || true
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) \
	  $(if $(TARGET),--target $(TARGET)) $(if $(REPLAY),--replay $(REPLAY))

# About 45 minutes on two cores: scenarios 2, fuzzing 2, walks 5, worlds WORLDS, load LOAD.
reliability: setup ## Measure docs/reliability.md again: scenarios, fuzzing, walks, WORLDS minutes of worlds, LOAD of load
	@$(BIN)/python -m tests.simulation.scenarios.campaign --runs $(RUNS) --results docs/results/sim.json
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --results docs/results/fuzz.json
	@$(BIN)/python -m tests.targets.points docs/results/walks.json
	@$(BIN)/python -m tests.simulation.soak --minutes $(WORLDS) --results docs/results/soak.json
	@$(BIN)/python -m tests.simulation.long --minutes $(LOAD) --results docs/results/long.json \
	  --picture docs/results/long.png
	@$(BIN)/python scripts/check_docs.py --write

compat: setup ## Run on the lowest and newest dependencies, and other Sparks and Pythons (VERSIONS="lowest newest")
	@$(BIN)/python scripts/compat.py $(VERSIONS)
	@$(BIN)/python scripts/check_docs.py --write

bench: setup ## Run the benchmarks; figures and commands are kept in benchmarks/RESULTS.md
	@missed=0; for file in benchmarks/bench_*.py benchmarks/path/bench_*.py; do $(BIN)/python $$file || missed=1; done; \
	  exit $$missed

docs: setup ## Build the documents as a site into build/site; every warning is an error
	@test -x build/docs/bin/mkdocs || { $(BIN)/python -m venv build/docs \
	  && build/docs/bin/pip install --quiet --upgrade pip \
	  && build/docs/bin/pip install --quiet --group docs; }
	@NO_MKDOCS_2_WARNING=1 build/docs/bin/mkdocs build --strict --quiet

wheel: setup ## Build the wheel, install it into an environment of its own, and try it
	@bash scripts/try_wheel.sh $(BIN)/python

lock: setup ## Resolve pyproject.toml again into requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --all-extras --group dev pyproject.toml --output-file requirements.lock

sbom: setup ## List every dependency with hashes and licences: build/sbom.cdx.json (CycloneDX)
	@$(BIN)/python scripts/sbom.py build/sbom.cdx.json

licences: setup ## Print the licence of every dependency
	@$(BIN)/python scripts/sbom.py --licences

audit: setup ## Compare the locked dependencies with known vulnerabilities (needs the network)
	@bash scripts/audit.sh $(BIN)/python

clean: ## Remove the environment and every cache
	@rm -rf $(VENV) .coverage .fuzz .soak .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
