# Everything from a fresh clone: make demo, make test, make test-all, make lint, make docs, make bench, make wheel.
#   PYTHON  the interpreter to use (3.11 or later)       VENV  where its environment is kept
#   TESTS   what pytest is to run                        MARKS  which of it, as in pytest -m "..."
# make test alone:
#   VIRTUAL_TESTS  what is run in virtual time too, after all of TESTS
# make test-all alone:
#   JOBS    how many tests at a time; they mostly wait   HEAVY_JOBS  how many of the heavy ones, after the others
#   UVLOOP_TESTS  what of it is run on uvloop's event loop once more, after all of TESTS
# make campaign alone:
#   SERVERS  single, replicated, sentinel or cluster     MINUTES  how long     SEED  of the faults

PYTHON ?= python3
VENV ?= .venv
TESTS ?= tests
JOBS ?= 7
HEAVY_JOBS ?= 3
MARKS ?=
UVLOOP_TESTS ?= tests/api
VIRTUAL_TESTS ?= tests/api tests/faults
PYTEST_ARGS ?=
SERVERS ?= single
MINUTES ?= 10

BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DOCS_STAMP := $(VENV)/.docs
CORE := $(wildcard _core/*.pyx) setup.py pyproject.toml
CHECKED := $(wildcard pyredisson pyredisson_pytest.py tests benchmarks demo tools setup.py)

.PHONY: help venv demo test test-all campaign lint format twins docs pictures bench wheel clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \{0,2\}//p' Makefile | head -10

venv: $(STAMP)

# A venv from the interpreter; where Debian left that out, from virtualenv, through pip or as it is installed.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "pyredisson needs Python 3.11 or later: make PYTHON=python3.12" >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		$(PYTHON) -m venv --clear $(VENV); \
	elif $(PYTHON) -c 'import virtualenv' 2>/dev/null; then \
		$(PYTHON) -m virtualenv --quiet --clear $(VENV); \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		$(PYTHON) -m pip install --quiet --target $(VENV)-virtualenv virtualenv \
			&& PYTHONPATH=$(VENV)-virtualenv $(PYTHON) -m virtualenv --quiet --clear $(VENV); \
	else \
		echo "$(PYTHON) can't make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; \
	fi

# Compiled in place, so the environment and the working tree are one.
$(STAMP): $(BIN)/python $(CORE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'setuptools>=77' 'cython>=3.3' wheel
	@$(BIN)/python setup.py --quiet check_compiler
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/python demo/demo.py

SELECTED := $(if $(MARKS), and ($(MARKS)))

# The tests that give the same result every time. None of them is run again.
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 3 --dist loadgroup $(PYTEST_ARGS) -m "not real$(SELECTED)" $(TESTS)
ifeq ($(TESTS),tests)
	$(BIN)/python -m pytest -q -n 2 --virtual $(PYTEST_ARGS) $(if $(MARKS),-m "$(MARKS)") $(VIRTUAL_TESTS)
endif

# All others: real time and real faults.
test-all: $(STAMP)
	@sh .ci/server
ifneq ($(filter tests tests/interop%,$(TESTS)),)
	@$(BIN)/python -m tests.interop.jvm
endif
	@PYTEST_ARGS="$(PYTEST_ARGS)" $(BIN)/python -m tests.run_all --jobs $(JOBS) --heavy-jobs $(HEAVY_JOBS) \
		--marks "$(MARKS)" $(if $(filter tests,$(TESTS)),--uvloop $(UVLOOP_TESTS)) $(TESTS)

# Processes acquire locks while networks, processes and servers fail. CI runs a short form (tests/campaign).
campaign: $(STAMP)
	$(BIN)/python -m tests.campaign --servers $(SERVERS) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

lint: $(STAMP)
	$(BIN)/python tools/async_to_sync.py --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(filter-out setup.py,$(CHECKED))
	PATH="$(abspath $(BIN)):$$PATH" cython-lint _core/*.pyx

# Generates pyredisson/_api/sync from pyredisson/_api/aio.
twins: $(STAMP)
	$(BIN)/python tools/async_to_sync.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site in build/site. Its tools read the sources: the core need not be compiled.
$(DOCS_STAMP): $(BIN)/python pyproject.toml
	@$(BIN)/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $@.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $@.txt
	@touch $@

# Not --quiet, which hides warnings from --strict as well. The variable silences the theme's word on its successor.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean

# The pictures of README.md and the site that programs make. CI doesn't: two runs never show the same.
pictures: $(STAMP)
	$(BIN)/python tools/terminal_svg.py docs/assets/demo.svg --title "make demo" -- $(BIN)/python demo/demo.py
	$(BIN)/python tools/benchmark_chart.py docs/assets/benchmarks.json docs/assets/benchmarks.svg

bench: $(STAMP)
	$(BIN)/python -m benchmarks

wheel: $(STAMP)
	$(BIN)/python -m build --no-isolation --outdir dist
ifeq ($(shell uname),Linux)
	$(BIN)/python tools/repair_wheel.py dist
endif

clean:
	rm -rf .venv* build dist *.egg-info pyredisson/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
