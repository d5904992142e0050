# make bench    check and compare the stages: timed on a GPU, or counted in the emulator
# make test     run the core of the tests: what a user's machine can get wrong
# make test-all run all tests; make test-rest, those that make test leaves out
# make test-gpu run the tests that need a GPU, in parts: make test-gpu-builds, test-gpu-values, test-gpu-clocks
# make lab      open the notebooks
# make site     write the course as a static site, to site/
# make lint     check style and types: ruff, mypy, clang-format
# make format   write the style
#
# Each makes a virtual environment in .venv first, if there is none. To use a Python that already has the packages of
# pyproject.toml, name it: make test PYTHON=python3 VENV=

PYTHON ?= python3
VENV ?= .venv
RUN := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
BIN := $(if $(VENV),$(VENV)/bin/)
READY := $(if $(VENV),$(VENV)/.ready)
LINTERS := $(if $(VENV),$(VENV)/.linters)
CODE = $(shell find cudaemu kernels common docs examples tests -name '*.cu' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.h' 2>/dev/null | sort)

.PHONY: bench test test-all test-rest test-gpu test-gpu-builds test-gpu-values test-gpu-clocks lab site lint lint-python lint-types lint-cuda format setup importable tools clean
.DEFAULT_GOAL := bench

bench: $(READY)
	@echo "== The ladder: each stage checked, then compared with the one before it"
	$(RUN) -m kernels bench

# The tiers are selections of one suite (tests/tiers.py). On several machines: make test-rest TESTS='--shard 1/4'.
PYTEST = $(RUN) -m pytest -q --dist worksteal --durations 15 $(TESTS)

test: tools $(READY)
	@echo "== Tests, the core: kernels, harness, emulator and notebooks, on every core"
	$(PYTEST) -n auto -m 'not full and not gpu'

test-rest: tools $(READY)
	@echo "== Tests, those that are not in the core"
	$(PYTEST) -n auto -m 'full and not gpu'

test-all: tools $(READY)
	@echo "== Tests, all of them"
	$(PYTEST) -n auto

# What reads clocks or counters runs alone, and last.
test-gpu: test-gpu-builds
	@$(MAKE) --no-print-directory test-gpu-values
	@$(MAKE) --no-print-directory test-gpu-clocks

test-gpu-builds: tools $(READY)
	@echo "== Tests for the GPU, 1 of 3: builds of all kernels, which the other parts run"
	$(PYTEST) -n auto -m 'gpu and builds'

test-gpu-values: tools $(READY)
	@echo "== Tests for the GPU, 2 of 3: values"
	$(PYTEST) -n auto -m 'gpu and not builds and not alone'

test-gpu-clocks: tools $(READY)
	@echo "== Tests for the GPU, 3 of 3: clocks and counters, one test at a time"
	$(PYTEST) -n 0 -m 'gpu and alone'

# Jupyter serves the whole repository: notebooks link to kernels and documents, and practice/ is opened beside them.
lab: $(READY)
	$(RUN) -m jupyterlab --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

site: $(READY)
	$(RUN) docs/site.py

lint: lint-python lint-types lint-cuda

lint-python: $(LINTERS)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check

lint-types: $(LINTERS)
	$(RUN) -m mypy

lint-cuda: $(LINTERS)
	@echo "clang-format --dry-run --Werror, $(words $(CODE)) files"
	@$(BIN)clang-format --dry-run --Werror $(CODE)

format: $(LINTERS)
	$(RUN) -m ruff check --fix-only
	$(RUN) -m ruff format
	$(BIN)clang-format -i $(CODE)

setup: $(READY)

# The tests need tools that pip does not install: nm (binutils) lists the symbols of compiled kernels.
tools:
	@missing=; for tool in bash g++ nm; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -n "$$missing" ]; then echo "error: the tests need$$missing; try: apt install bash g++ binutils"; exit 2; fi

# Without a GPU, torch's CPU build is enough and 20 times smaller. Where its index cannot be reached, PyPI's build is used.
# g++ builds the emulator while pip unpacks torch: the last line finds it built, or says why it cannot be. Python compiles
# what is imported when it is imported.
PIP = $(VENV)/bin/pip install -q --no-compile
LIBRARY = $(VENV)/bin/python -c 'from cudaemu import engine; engine.library()'
$(VENV)/.ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON); install Python 3.10 or newer"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "error: Python 3.10 or newer is needed"; exit 2; }
	@command -v g++ >/dev/null || { echo "error: no g++, which nvcc and the emulator need; try: apt install g++"; exit 2; }
	@echo "== Setting up $(VENV): torch, a CUDA compiler, Jupyter (a few minutes, once)"
	@$(PYTHON) -m venv $(VENV) || { echo "error: cannot make a virtual environment; try: apt install python3-venv"; exit 2; }
	@$(PIP) 'numpy>=1.26'
	@$(LIBRARY) >/dev/null 2>&1 & \
	if nvidia-smi -L >/dev/null 2>&1; then \
	  echo "== torch, for the GPU"; $(PIP) 'torch>=2.11'; \
	else \
	  echo "== torch, for the CPU (no GPU found)"; \
	  $(PIP) --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu 'torch>=2.11' 2>/dev/null \
	    || $(PIP) 'torch==2.13.0'; \
	fi; status=$$?; wait; exit $$status
	@echo "== the other packages"
	@$(PIP) -e '.[course,test]'
	@$(MAKE) --no-print-directory importable
	@echo "== the emulator, from its C++ sources"
	@$(LIBRARY)
	@touch $@

# `import kernels` from every folder, in this environment alone. pip installs cudaemu: PyPI has another package kernels.
importable:
	@$(RUN) -c 'import sysconfig; print("$(CURDIR)", file=open(sysconfig.get_path("purelib") + "/gpu_kernels_course.pth", "w"))'

$(VENV)/.linters: $(VENV)/.ready
	@echo "== ruff, mypy, clang-format"
	@$(VENV)/bin/pip install -q -e '.[lint]'
	@touch $@

clean:
	rm -rf .venv *.egg-info build dist figures
