# Every command of the project. The first run of one that needs Python makes .venv; later runs need no network.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
# An environment named here (VENV=/some/venv) is used as it is; only .venv is made and kept current.
VENV := .venv
ROOT := $(CURDIR)
BIN := $(if $(filter /%,$(VENV)),$(VENV),$(ROOT)/$(VENV))/bin
READY := $(if $(filter .venv,$(VENV)),.venv/.ready)

export PATH := $(BIN):$(PATH)
export PYTHONPATH := $(ROOT):$(ROOT)/protos/gen
CODE := shared services infra tests $(wildcard benchmarks/*.py)

.PHONY: help
help: ## list these commands
	@sed -nE 's/^([a-z.-]+):.*## (.*)$$/  make \1\t\2/p' Makefile | expand -t 30

.PHONY: demo
demo: $(READY) ## one play to that listener's next daily list, before your eyes
	@python -m infra.local.program infra.demo

.PHONY: up
up: $(READY) ## run the whole system until Ctrl-C, with a token and lines to paste
	@python -m infra.local.program infra.local.up

.PHONY: test
test: $(READY) ## every test, on real Kafka and PostgreSQL
	@mkdir -p build/tmp && TMPDIR=$(ROOT)/build/tmp python -m pytest -n 2 --dist loadfile

.PHONY: chaos
chaos: $(READY) ## kill -9 every service and the broker, twice each, while 20,000 plays flow
	@MEIRI_KILL_ROUNDS=2 python -m pytest tests/e2e/test_one_path.py

.PHONY: check
check: $(READY) ## linters, types, layers, contracts, generated code
	ruff check .
	ruff format --check .
	mypy $(CODE)
	lint-imports
	buf lint
	buf format --diff --exit-code
	@$(MAKE) --no-print-directory contracts-compatible generated-current

.PHONY: contracts-compatible
contracts-compatible: $(READY) ## protos break nothing that the branch main has
	@bash infra/breaking.sh

.PHONY: generated-current
generated-current: $(READY) ## protos/gen is what the protos generate
	@mkdir -p build && rm -rf build/generated && bash infra/generate.sh build/generated >/dev/null 2>build/generate.log || { cat build/generate.log; exit 1; }
	@diff -rq --exclude=__pycache__ protos/gen build/generated \
	  || { echo "protos/gen is not current: run make protos and commit it."; exit 1; }

.PHONY: protos
protos: $(READY) ## generate protos/gen from the protos
	bash infra/generate.sh protos/gen

.PHONY: format
format: $(READY) ## format Python and protos, mend what ruff can mend
	ruff check --fix .
	ruff format .
	buf format --write

PIN := uv pip compile pyproject.toml --python-version 3.11 --no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet

.PHONY: lock
lock: $(READY) ## pin every package exactly: requirements.lock of pyproject.toml, and what of it each image gets
	$(PIN) --all-extras --output-file requirements.lock
	$(PIN) --constraints requirements.lock --output-file infra/images/requirements-slim.lock
	$(PIN) --constraints requirements.lock --extra setup --output-file infra/images/requirements-setup.lock
	$(PIN) --constraints requirements.lock --extra torch --output-file infra/images/requirements-torch.lock

.PHONY: docker-env
docker-env: ## write .env with new passwords and a cluster id for docker-compose.yml; one that is there stays
	@bash infra/images/env.sh

.PHONY: clean
clean: ## remove what was built and what runs left; .venv stays
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# Made beside its final state and marked last, so that a broken install is begun anew.
.venv/.ready: requirements.lock
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed, and $(PYTHON) is not there: install it, or set PYTHON to its path."; exit 2; }
	@echo "Installing what Meiri needs into .venv (once; it needs a network and some minutes)."
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock \
	  || { echo "The packages of requirements.lock could not be installed: look at pip's message above, then run this again."; exit 2; }
	@printf '%s\n' '$(ROOT)' '$(ROOT)/protos/gen' > "$$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/meiri.pth"
	@.venv/bin/python -m infra.local.jars
	@touch $@
