# `make train` sets everything up, trains and shows the report; `make test` passes the tests.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?= python3
PROFILE ?= digits-local
PROFILES ?=
CHAOS ?=
HANG ?=
MUTATE ?=
STOP ?=
SUITE ?= unit
SOAK ?=
# Processes that run tests, in place of the numbers that keep two cores busy.
WORKERS ?=
# Tests start thousands of processes: none must compile this program again.
unexport PYTHONDONTWRITEBYTECODE
CASES ?=
CHANGED ?=
KUBE ?=
TAKE_OVER ?=
POOL ?=
WORKER ?=
DO ?= install
NIGHTLY ?=
BIN := .venv/bin
YARD_OPTIONS = $(if $(PROFILES),--profiles '$(PROFILES)') $(if $(TAKE_OVER),--take-over) $(if $(WORKER),--worker)

# The name of this installation on a Prefect server that several share (docs/operate.md).
ifneq ($(POOL),)
export TORCHYARD_POOL := $(POOL)
endif

.DEFAULT_GOAL := help
.PHONY: help train up down remove service check format test unit docs picture e2e everything soak bench compare observe chaos hang stop mutate cluster-up cluster-down cluster-status lock

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

train: .venv/.locked ## train PROFILE (digits-local) and show the report
	@$(BIN)/python scripts/yard.py train $(PROFILE) $(YARD_OPTIONS)

up: .venv/.locked ## start server, worker and deployments, without a run; PROFILES=, POOL=, TAKE_OVER=1, WORKER=1, NIGHTLY=1: docs/operate.md
	@$(BIN)/python scripts/yard.py up $(YARD_OPTIONS) $(if $(NIGHTLY),--nightly)

down: ## stop the server and the worker that `make train` or `make up` started
	@if [ -x $(BIN)/python ]; then $(BIN)/python scripts/yard.py down; else echo "nothing was running"; fi

remove: .venv/.locked ## delete what `make up` created on the Prefect server: automations, deployments, work pool; POOL=
	@$(BIN)/python scripts/yard.py remove

service: .venv/.locked ## run server and worker as a systemd user unit, also after a reboot; DO=uninstall, DO=status
	@$(BIN)/python scripts/service.py $(DO) $(if $(TAKE_OVER),--take-over)

check: .venv/.locked ## run ruff, mypy and the import contracts
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: .venv/.locked ## fix and format with ruff
	@$(BIN)/ruff check --fix -q .
	@$(BIN)/ruff format -q .

test: .venv/.locked ## run check and the unit tests, at the same time
	@$(MAKE) --no-print-directory --jobs 2 check unit

unit: .venv/.locked
	@$(BIN)/pytest -n $(or $(WORKERS),4) --dist loadfile -rfEs tests/unit

docs: .venv/.locked ## build the documentation into site/, strictly; a test does the same
	@$(BIN)/zensical build --clean --strict

picture: .venv/.locked ## record the animated picture of the README
	@$(BIN)/python -m tests.tools.demo_animation

e2e: .venv/.locked ## test complete runs on this machine, then on a cluster: cluster-up's, a temporary one, or KUBE=KUBECONFIG_FILE; CHANGED=1: what has not passed for these files
	@$(if $(KUBE),TORCHYARD_TEST_KUBECONFIG=$(KUBE)) $(BIN)/python -m tests.tools.verified $(if $(WORKERS),--workers $(WORKERS)) $(if $(CHANGED),--changed)

everything: test e2e ## run all tests: check, unit tests, complete runs; before a release or a large change

soak: .venv/.locked ## run SUITE (unit, local, cluster) 20 times, 5 of them under load, and count failures per test; SOAK='--rounds 5'
	@$(BIN)/python -m tests.tools.soak $(SUITE) $(SOAK)

bench: .venv/.locked ## measure the overhead of a run compared with bare torchrun
	@$(BIN)/python -m tests.bench

compare: .venv/.locked ## compare torchyard with other launchers, on `make cluster-up`, and write the table of docs/compare.md
	@$(BIN)/python -m tests.tools.compare $(if $(KUBE),--kubeconfig $(KUBE))

observe: .venv/.locked ## record the statuses of jobs by the cluster's controllers; CASES=volcano-ok for some
	@$(BIN)/python -m tests.tools.observe $(CASES)

chaos: .venv/.locked ## inject every fault at every step, on `make cluster-up`; CHAOS='--only "volcano submit"' for some
	@$(BIN)/python -m tests.chaos $(CHAOS)

hang: .venv/.locked ## hang jobs in every way, and judge the reports; HANG='--classes sleep gil --seeds 5' for some
	@$(BIN)/python -m tests.hang $(HANG)

stop: .venv/.locked ## stop jobs that save, in every way, and judge the reports; STOP='--only "local interrupt"' for some
	@$(BIN)/python -m tests.stop $(STOP)

mutate: .venv/.locked ## mutate the changed lines, and print what no unit test notices; MUTATE='--since REF --sample 20'
	@$(BIN)/python -m tests.tools.mutate $(MUTATE)

cluster-up: .venv/.locked ## start a Kubernetes control plane with the real job controllers and fake nodes, on this machine
	@$(BIN)/python tests/cluster/cluster.py up

cluster-down: ## stop everything that `make cluster-up` started
	@if [ -x $(BIN)/python ]; then $(BIN)/python tests/cluster/cluster.py down; else echo "no test cluster was running"; fi

cluster-status: .venv/.locked ## show its nodes, controllers, memory and kubeconfig
	@$(BIN)/python tests/cluster/cluster.py status

.venv/.locked: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 2))' || { \
		echo "torchyard needs Python 3.11.2 or newer, and $(PYTHON) is `$(PYTHON) -V 2>&1`: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "making .venv from requirements.lock (about 3 GB where pip has no copy yet)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements.lock | sed -un 's/^Downloading //p; s/^Installing.*/installing/p'
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps -e .
	@$(BIN)/python -m pip check
	@touch $@

lock: ## write both lists of pinned packages from pyproject.toml: for .venv, and for the launcher's image
	@tools=$$(mktemp -d) && $(PYTHON) -m venv $$tools && $$tools/bin/pip install -q uv && \
		compile="$$tools/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate" && \
		$$compile --extra local --extra dev --extra kubernetes pyproject.toml -o requirements.lock && \
		$$compile --extra kubernetes --extra s3 -c requirements.lock pyproject.toml -o deploy/requirements.lock; rm -rf $$tools
