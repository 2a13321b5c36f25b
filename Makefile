# Two commands for everybody: `make demo` shows what this is, `make test` runs every check. Both need Python 3.11 or newer
# and nothing else; they make their own virtual environment in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported, which most never are: that halves the time of an installation. What
# was compiled is kept, whatever the shell says: hundreds of processes of the tests would compile it again, a second each.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt
JOBS ?= auto

PYTHONS ?= python3.12 python3.13 python3.14

unexport PYTHONDONTWRITEBYTECODE

# Pictures with the fonts and settings of this environment: a list of fonts that another one left in the user's cache may
# name files that are gone, and the user's own settings would change pictures.
export MPLCONFIGDIR := $(abspath $(VENV))/matplotlib

.PHONY: demo test pytest notebooks notebooks-write test-long lint bench coverage lowest smoke wheel measured docs clean

demo: $(VENV)/run-installed
	$(BIN)/simulator run ring_vs_parameter_server

test: lint pytest

# Whoever is through takes over tests from the others; the slowest are printed.
pytest: $(VENV)/test-installed
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations 20

# Every notebook against the outputs that it is stored with; `make test` runs the shortest.
notebooks: $(VENV)/test-installed
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "long or not long" tests/test_notebooks.py

# Run notebooks and store them with their outputs; ONLY="01 07" names some.
notebooks-write: $(VENV)/test-installed
	$(BIN)/python -m tools.notebooks $(ONLY)

lint: $(VENV)/test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What takes minutes: the same tests with more cases. PART=2/6 runs the second of six parts; without it, the parts run that
# have not passed yet at this commit. CASES=all draws all cases of a release, five times as many.
test-long: $(VENV)/test-installed
	JOBS=$(JOBS) CASES=$(CASES) $(BIN)/python -m tools.long_tests $(PART)

bench: $(VENV)/test-installed
	$(BIN)/python -m benchmarks

coverage: $(VENV)/test-installed
	$(BIN)/python -m pytest -n $(JOBS) --cov=simulator --cov-branch --cov-report=term-missing:skip-covered

# One of everything on exactly the lower bounds of pyproject.toml, with the oldest Python that it allows: PYTHON=python3.11.
# Minutes, most of them pip's: .ci/run, whose time `make test` takes up, leaves this and the next to people.
lowest:
	$(PYTHON) tools/environments.py lowest

# The same on every later Python that is here and runs, each in an environment of its own; their reports are compared.
smoke:
	$(PYTHON) tools/environments.py pythons $(PYTHONS)

wheel: $(VENV)/test-installed
	$(BIN)/python -m build --wheel

# Fit the shipped machines again, and write the page that compares measured with simulated collectives, with its picture.
measured: $(VENV)/test-installed
	$(BIN)/python -m tools.validation.shipped_machines
	$(BIN)/python -m tools.validation.machines_page

# The site in build/site/html. Scenarios whose runs are not kept there are played, which takes minutes at first.
docs: $(VENV)/test-installed
	$(BIN)/python -m tools.site

clean:
	rm -rf $(VENV) .venv-lowest .venv-smoke-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	touch $@

# HolisticTraceAnalysis asks for JupyterLab too, which it never imports.
$(VENV)/test-installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps HolisticTraceAnalysis
	touch $@ $(VENV)/run-installed
