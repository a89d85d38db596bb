# Two commands for a newcomer: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

AXE := $(VENV)/axe/node_modules/axe-core/axe.min.js

# What needs more than this clone: tools, a browser, the built wheel, the built site; and real data.
MORE := integration or browser or clusters or dist or site
ELSEWHERE := shared_data or $(MORE)
SIDE_BY_SIDE := -n auto
# Asserts are rewritten once, and not by every process in every run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-docs test-faults test-shared test-integration test-browser test-clusters \
	test-dist dist \
	lint types size docs format bench clean

demo: $(INSTALLED)
	rm -rf labelguard-demo
	$(BIN)/labelguard demo

test: $(DEV)
	$(BIN)/pytest -m "not (slow or docs or $(ELSEWHERE))" $(SIDE_BY_SIDE) --durations=25

# Hypothesis searches here, and only here, among new examples.
test-slow: $(DEV)
	$(BIN)/pytest -m "(slow or hypothesis) and not (docs or $(MORE))" $(SIDE_BY_SIDE) \
		--hypothesis-profile=search --durations=25

test-docs: $(DEV)
	$(BIN)/pytest -m "docs and not ($(ELSEWHERE))" $(SIDE_BY_SIDE)

# Whether the tests of `make test` notice mistakes that are made on purpose.
test-faults: $(DEV)
	$(BIN)/python tests/faults/run.py

test-shared: $(DEV)
	$(BIN)/pytest -m "shared_data and not slow"

test-integration: $(DEV)
	$(BIN)/pytest -m integration

# Ray, in an environment of its own: it holds back what others need.
test-clusters: pyproject.toml
	$(PYTHON) -m venv $(VENV)-clusters
	$(VENV)-clusters/bin/pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(VENV)-clusters/bin/pip install --quiet --disable-pip-version-check -e ".[ray,encoders]" --group clusters
	$(VENV)-clusters/bin/python -m pytest -m clusters tests/integration/test_clusters.py

test-browser: $(DEV) $(AXE)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group browser
	LABELGUARD_AXE=$(AXE) $(BIN)/pytest -m browser

# The sdist, and from it the wheel, each in an environment of its own.
dist: $(DEV)
	rm -rf dist
	$(BIN)/python -m build

test-dist: dist
	$(BIN)/pytest tests/wheel -m dist

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec examples/compose.yaml

types: $(DEV)
	$(BIN)/mypy
	$(BIN)/mypy --config-file bench/mypy.ini bench

size:
	$(PYTHON) tests/size.py

# Pages that only the site has come first. mkdocs reads sources and imports none of them; the site is
# opened at site/index.html.
docs: $(DEV)
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_configuration.py
	$(BIN)/python docs/generate_licences.py
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/pytest -m site tests/cli/test_built_site.py

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV)
	$(BIN)/python bench/privatize_rr.py --quick

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# torch alone and first: resolved with everything else, a later CUDA build could win.
$(DEV): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,encoders,argilla,argilla-push,jobs,label-studio,serve]" --group dev
	touch $@ $(INSTALLED)

# It judges whether everybody can read a page; nothing of it is part of labelguard.
$(AXE): | $(VENV)/bin/python
	npm install --silent --no-audit --no-fund --prefix $(VENV)/axe axe-core@4.14.1

clean:
	rm -rf $(VENV) dist site labelguard-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
