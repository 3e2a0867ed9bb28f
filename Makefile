# Siltstone's one entry for people and CI. `make` alone lists what there is.

PYTHON ?= python3
export PYTHON
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
PACKAGES := $(VENV)/.packages
KERNELS := $(VENV)/.kernels
PYTEST_ARGS ?=
BENCH_KAFKA_ARGS ?=
CASE ?=
# Hundreds of processes of the tests import the package: its byte code is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
SPREAD := --dist loadgroup --no-loadscope-reorder
export CASE

.DEFAULT_GOAL := help
.PHONY: help setup core packages kernels demo test test-long test-long-kafka test-long-stores test-long-console crash adversary test-kafka test-stores test-console lint format bench bench-broker bench-kafka ci clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{printf "  make %-11s %s\n", $$1, $$2}'

# The kernels take longest to compile, the packages to install, and neither needs the other.
setup: ## make .venv, install Java if it is missing, compile the kernels (done once)
	@$(MAKE) --silent --no-print-directory --jobs 2 kernels packages

core: $(CORE)
packages: $(PACKAGES)
kernels: $(KERNELS)

$(CORE): pyproject.toml scripts/make-venv.sh scripts/ensure-java.sh scripts/install.sh
	@bash scripts/ensure-java.sh
	@bash scripts/make-venv.sh $(VENV)
	@bash scripts/install.sh core $(VENV)
	@touch $@

$(PACKAGES): $(CORE)
	@bash scripts/install.sh packages $(VENV)
	@$(BIN)/python -m siltstone.warmup spark
	@touch $@

$(KERNELS): $(CORE)
	@$(BIN)/python -m siltstone.warmup kernels
	@touch $@

demo: setup ## clean a log directory that a real Kafka broker wrote, and show what was removed and why
	$(BIN)/python -m demo

test: setup ## run the tests, except those that need a real broker, and the structure rules, which make lint has
	$(BIN)/python -m pytest --ignore=tests/test_structure.py --ignore=tests/kafka --ignore=tests/stores --ignore=tests/console --numprocesses 3 $(SPREAD) $(PYTEST_ARGS)

test-long: setup ## run what takes too long for make test: all examples and images of random tests, every signal, all looks of the console (an hour)
	SILTSTONE_TESTS=thorough $(BIN)/python -m pytest -m "long or random" --ignore=tests/kafka --ignore=tests/stores --ignore=tests/console --numprocesses 3 $(SPREAD) $(PYTEST_ARGS)
	@$(MAKE) --jobs 2 --keep-going --output-sync=target test-long-kafka test-long-stores test-long-console

# Their servers and browsers wait for a part of their time: two of them share the cores.
test-long-kafka: setup
	$(BIN)/python -m pytest -m long tests/kafka --numprocesses 2 $(SPREAD) $(PYTEST_ARGS)

test-long-stores: setup
	SILTSTONE_TESTS=thorough $(BIN)/python -m pytest -m "long or not long" tests/stores $(PYTEST_ARGS)

test-long-console: setup
	@bash scripts/ensure-console-tools.sh
	SILTSTONE_TESTS=thorough $(BIN)/python -m pytest -m "long or not long" tests/console $(PYTEST_ARGS)

crash: setup ## crash an open log at every step, with many more images than make test (half an hour)
	SILTSTONE_CRASH=all $(BIN)/python -m pytest tests/crash --numprocesses auto --dist worksteal $(PYTEST_ARGS)

adversary: setup ## attack logs for an hour (SILTSTONE_ADVERSARY_SECONDS), or do one case again (CASE=…)
	$(BIN)/python -m tests.adversary

test-kafka: setup ## run the tests against a real Kafka broker (needs Maven and a JDK)
	$(BIN)/python -m pytest tests/kafka --numprocesses 2 $(SPREAD) $(PYTEST_ARGS)

test-stores: setup ## run the tests of object stores against servers of S3, Azure and others (needs Maven and a JDK)
	$(BIN)/python -m pytest tests/stores $(PYTEST_ARGS)

test-console: setup ## run the console in a browser, pictures in build/screens, and the alert rules in promtool (needs Chromium and Prometheus)
	@bash scripts/ensure-console-tools.sh
	$(BIN)/python -m pytest tests/console $(PYTEST_ARGS)

lint: packages ## check style, types, the imports between packages and the structure rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src/siltstone
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_structure.py

format: packages ## sort the imports and format the code
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

bench: setup ## measure the cleaner on generated logs
	$(BIN)/python -m bench

bench-broker: setup ## measure the broker and a real Kafka with the same clients (needs Maven and a JDK)
	$(BIN)/python -m bench.broker $(BENCH_BROKER_ARGS)

bench-kafka: setup ## measure the cleaner and Kafka's own on copies of one directory (needs Maven and a JDK)
	$(BIN)/python -m bench.beside_kafka $(BENCH_KAFKA_ARGS)

ci: ## what the CI runs
	bash .ci/run

clean: ## remove caches and the demo's output; .venv stays
	rm -rf demo/out build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
