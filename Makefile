# `make train` sets everything up, trains and shows the report; `make test` passes the tests.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?= python3
PROFILE ?= digits-local
CHAOS ?=
CASES ?=
KUBE ?=
TAKE_OVER ?=
NIGHTLY ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help train up down check format test e2e bench observe chaos cluster-up cluster-down cluster-status lock

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

train: .venv/.locked ## train PROFILE (digits-local) and show the report
	@$(BIN)/python scripts/yard.py train $(PROFILE) $(if $(TAKE_OVER),--take-over)

up: .venv/.locked ## start server, worker and deployments, without a run; TAKE_OVER=1 takes another folder's, NIGHTLY=1 runs nightly
	@$(BIN)/python scripts/yard.py up $(if $(TAKE_OVER),--take-over) $(if $(NIGHTLY),--nightly)

down: ## stop what `make train` or `make up` started, and only that
	@if [ -x $(BIN)/python ]; then $(BIN)/python scripts/yard.py down; else echo "nothing was running"; fi

check: .venv/.locked ## run ruff, mypy and the import contracts
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: .venv/.locked ## fix and format with ruff
	@$(BIN)/ruff check --fix -q .
	@$(BIN)/ruff format -q .

test: check ## run check and the unit tests
	@$(BIN)/pytest -n 2 --dist loadfile -rs tests/unit

e2e: .venv/.locked ## play whole runs here, then on a cluster: cluster-up's, one made for it, or KUBE=KUBECONFIG_FILE
	@TORCHYARD_MAY_SKIP="$${TORCHYARD_MAY_SKIP-$$($(BIN)/python tests/skips.py)}" \
		$(BIN)/pytest -n 2 --dist loadfile -rs tests/local
	@$(if $(KUBE),TORCHYARD_TEST_KUBECONFIG=$(KUBE)) $(BIN)/python tests/cluster/e2e.py

bench: .venv/.locked ## measure what a run costs compared with bare torchrun
	@$(BIN)/python tests/bench.py

observe: .venv/.locked ## record again what the cluster's controllers report about a job; CASES=volcano-ok for some
	@$(BIN)/python tests/observe.py $(CASES)

chaos: .venv/.locked ## inject every fault at every step, on `make cluster-up`; CHAOS='--only "volcano submit"' for some
	@$(BIN)/python -m tests.chaos $(CHAOS)

cluster-up: .venv/.locked ## start a Kubernetes control plane with the real job controllers and fake nodes, on this machine
	@$(BIN)/python tests/cluster/cluster.py up

cluster-down: ## stop everything that `make cluster-up` started
	@if [ -x $(BIN)/python ]; then $(BIN)/python tests/cluster/cluster.py down; else echo "no test cluster was running"; fi

cluster-status: .venv/.locked ## show its nodes, controllers, memory and kubeconfig
	@$(BIN)/python tests/cluster/cluster.py status

.venv/.locked: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' || { \
		echo "torchyard needs Python 3.11.4 or newer, and $(PYTHON) is `$(PYTHON) -V 2>&1`: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "making .venv from requirements.lock (about 3 GB where pip has no copy yet)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements.lock | sed -un 's/^Downloading //p; s/^Installing.*/installing/p'
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps -e .
	@$(BIN)/python -m pip check
	@touch $@

lock: ## write requirements.lock again from pyproject.toml
	@tools=$$(mktemp -d) && $(PYTHON) -m venv $$tools && $$tools/bin/pip install -q uv && \
		$$tools/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-annotate --all-extras pyproject.toml -o requirements.lock; rm -rf $$tools
