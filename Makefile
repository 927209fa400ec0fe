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
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(MAKE) --no-print-directory python-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what requirements.lock names (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

# Debian splits venv off its Python. Everything else that the tests need comes in wheels.
.PHONY: python-venv
python-venv:
	@test "$$(id -u)" = 0 && command -v apt-get >/dev/null || { echo "missing: apt-get install python3-venv"; exit 1; }
	@echo "installing the system package python3-venv"
	@apt-get install -y -q --no-install-recommends python3-venv >/dev/null

demo: $(STAMP) ## the whole story on this machine, under two minutes
	@$(BIN)/tidegate demo

up: $(STAMP) ## the embedded stack, left running in the foreground
	@$(BIN)/tidegate up

# Two at a time: most tests wait for a server. A file stays with one worker, so that its fixtures are made once.
PARALLEL ?= -n 2 --dist loadfile
test: $(STAMP) ## everything, on real servers
	@$(BIN)/pytest $(PARALLEL) $(ARGS)

check: $(STAMP) ## format, lint, types, imports and the fast tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -q $(PARALLEL) -m 'not e2e' $(ARGS)

# One live suite per kind of server, each in tests/live; those that exist are part of `make test` too.
LIVE := live-slurm live-kubernetes live-aws live-federation
.PHONY: $(LIVE)
$(LIVE): live-%: $(STAMP)
	@test -d tests/live/$* || { echo "tests/live/$* does not exist: it comes with that backend"; exit 2; }
	@$(BIN)/pytest tests/live/$* $(ARGS)

fmt: $(STAMP) ## format and mend what can be mended
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## every benchmark, or one: make bench ROW=name
	@$(BIN)/python -m bench $(ROW)

KILLS ?= 300
SEED ?= 1
.PHONY: soak
soak: $(STAMP) ## kill -9 every part in turn while jobs run: make soak KILLS=300 SEED=1
	@$(BIN)/python -m soak --kills $(KILLS) --seed $(SEED) $(ARGS)

docs: $(STAMP) ## write anew what is rendered from code: states, settings, schema, OpenAPI
	@$(BIN)/python -m gateway.rendered

lock: $(STAMP) ## write requirements.lock anew
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --all-extras -o requirements.lock pyproject.toml

clean: ## what was built here, the virtual environment included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
