# Five words: `make run`, `make test`, `make demo`, `make check`, `make bench`.
# Each stands on `make setup`, which runs again only when the requirements change.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done)
TESTS ?=
QUICK ?=
ONLY ?=
# One more than there are cores, since tests wait for servers and browsers at times.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Tests start laco some hundred times over, and each start would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run demo test check bench docs chromium
.DEFAULT_GOAL := run

setup: $(STAMP)

$(STAMP): requirements.txt requirements-dev.txt requirements-offline.txt pyproject.toml
	@test -n "$(PYTHON)" || { \
		echo "laco needs Python 3.11, 3.12 or 3.13; name one: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(BIN)/python -c '$(SUPPORTED)' 2>/dev/null || { \
		echo "Creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing requirements; the first time takes a few minutes"
	@$(BIN)/python -m pip install -q -r requirements-dev.txt
	@$(BIN)/python -m pip install -q --no-deps -r requirements-offline.txt
	@$(BIN)/python -m pip install -q --no-deps -e .
	@touch $@

run: setup
	@$(BIN)/laco app

demo: setup
	@$(BIN)/laco demo

test: setup chromium
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/bandit -q -c pyproject.toml -r laco pages app.py
	@$(BIN)/python .ci/audit.py

bench: setup
	@$(BIN)/python docs/make_performance.py $(if $(QUICK),--quick) $(ONLY)

docs: setup
	@$(BIN)/python docs/generate.py
	@$(BIN)/python docs/make_families.py

# The browser tests need Chromium; they are skipped, and it is said, where it cannot be had.
chromium:
	@sh .ci/chromium
