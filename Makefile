# make bench   check and compare the stages: timed on a GPU, or counted in the emulator
# make test    run the tests
# make lab     open the notebooks
#
# Each makes its own virtual environment first, in .venv, if there is none yet. To use a Python that has everything
# already (see pyproject.toml), name it: make test PYTHON=python3 VENV=

PYTHON ?= python3
VENV ?= .venv
RUN := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
READY := $(if $(VENV),$(VENV)/.ready)

.PHONY: bench test lab setup clean
.DEFAULT_GOAL := bench

bench: $(READY)
	@echo "== The ladder: each stage checked, then compared with the one before it"
	$(RUN) -m kernels bench

# The notebooks come last and alone: each must run within a minute.
test: $(READY)
	@echo "== Tests: kernels, harness and emulator, then the notebooks one by one"
	$(RUN) -m pytest -q -n 2 --dist worksteal --ignore tests/test_notebooks.py
	$(RUN) -m pytest -q tests/test_notebooks.py

lab: $(READY)
	$(RUN) -m jupyterlab notebooks/00_start_here.ipynb

setup: $(READY)

# Without a GPU torch's CPU build is enough, and 20 times smaller; where its own index cannot be reached, PyPI's has to do.
$(VENV)/.ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON); install Python 3.10 or newer"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "error: Python 3.10 or newer is needed"; exit 2; }
	@command -v g++ >/dev/null || { echo "error: no g++, which nvcc and the emulator need; try: apt install g++"; exit 2; }
	@echo "== Setting up $(VENV): torch, a CUDA compiler, Jupyter (a few minutes, once)"
	@$(PYTHON) -m venv $(VENV) || { echo "error: no virtual environment could be made; try: apt install python3-venv"; exit 2; }
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  echo "== torch, for the GPU that is here"; $(VENV)/bin/pip install -q 'torch>=2.11'; \
	else \
	  echo "== torch, for the CPU: there is no GPU here"; \
	  $(VENV)/bin/pip install -q --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu 'torch>=2.11' 2>/dev/null \
	    || $(VENV)/bin/pip install -q 'torch==2.13.0'; \
	fi
	@echo "== the other packages"
	@$(VENV)/bin/pip install -q -e .
	@touch $@

clean:
	rm -rf .venv *.egg-info build figures
