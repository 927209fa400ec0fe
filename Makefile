# People, pre-commit and CI all run these. `make help` lists them.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed
.DEFAULT_GOAL := help

.PHONY: help demo up test check bench fmt docs lock clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidegate needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what requirements.lock names (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

demo: $(STAMP) ## the whole story on this machine, under two minutes
	@$(BIN)/tidegate demo

up: $(STAMP) ## the embedded stack, left running in the foreground
	@$(BIN)/tidegate up

test: $(STAMP) ## everything, on real servers
	@$(BIN)/pytest $(ARGS)

check: $(STAMP) ## format, lint, types, imports and the fast tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -q -m 'not e2e' $(ARGS)

fmt: $(STAMP) ## format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## every benchmark, or one: make bench ROW=name
	@$(BIN)/python -m bench $(ROW)

docs: $(STAMP) ## write anew what is rendered from code: states, settings, schema, OpenAPI
	@$(BIN)/python -m gateway.rendered

lock: $(STAMP) ## write requirements.lock anew
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --all-extras -o requirements.lock pyproject.toml

clean: ## what was built here, the virtual environment included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
