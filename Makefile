# Everything a fresh machine needs is behind these targets; `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Where there is room in memory the tests' servers and files live there: a run then waits for no disk.
# The full sizes of `make test-long` do wait for it.
ROOM   := $(shell df --output=avail /dev/shm 2>/dev/null | tail -1)
MEMORY := $(shell [ "$(ROOM)" -gt 8000000 ] 2>/dev/null && echo TMPDIR=/dev/shm)

# The tests start hundreds of processes; each would compile dibs again where nobody may keep bytecode.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-stores check screenshots docs site dist bench clean

help: ## list what you can ask for
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup: $(STAMP) ## make the virtual environment and install dibs into it

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[postgres,mysql,redis,sqlalchemy,outbox,alembic,django,otel,fast,serve]' --group dev
	@touch $(STAMP)

demo: $(STAMP) ## watch several processes share jobs on SQLite while one is killed
	@$(BIN)/dibs demo

test: $(STAMP) ## run every test on every engine, in one face, against private servers
	$(MEMORY) $(BIN)/python -m pytest -m "not long" --numprocesses 5 --dist worksteal

test-long: $(STAMP) ## the full product of engines, faces and connections, at full size
	$(BIN)/python -m pytest --numprocesses 5 --dist worksteal
	$(MAKE) test-stores only=pgbouncer

test-stores: $(STAMP) ## conformance and worker on every version of a server; only="galera redis-8" for some
	$(MEMORY) $(BIN)/python -m tools.stores $(only)

check: $(STAMP) ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports

screenshots: $(STAMP) ## take the screenshots of the page again, from the real page
	$(BIN)/python docs/draw_screenshots.py

docs: $(STAMP) ## draw what the documents take from the code: guarantees, states, command line, verbs
	$(BIN)/python docs/draw_guarantees.py
	$(BIN)/python docs/reference/draw_cli.py > docs/reference/cli.md
	$(BIN)/python docs/reference/draw_verbs.py > docs/reference/verbs.md

site: $(VENV)/.site ## build the site into build/site/html, with the reference drawn from the code
	$(BIN)/python -m tools.site

$(VENV)/.site: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group site
	@touch $(VENV)/.site

dist: $(VENV)/.dist ## build and check wheel and source archive; pythons="python3.12 python3.13" tries them there
	$(BIN)/python -m tools.dist $(pythons)

$(VENV)/.dist: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dist
	@touch $(VENV)/.dist

bench: $(STAMP) ## measure dibs beside bare statements and its peers; only="redis --rounds 5" for a part
	$(BIN)/python -m benchmarks $(only)

clean: ## remove the virtual environment and what tools left behind
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
