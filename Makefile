# Every target first sets up what it needs: a .venv with torch and the tools, and the extension
# built against that torch. `make` alone lists the targets, from the comments beside them.
.DEFAULT_GOAL := help
PYTHON ?= python3
USUAL := torch==2.13.0
TORCH ?= $(USUAL)
VENV := .venv
BIN := $(VENV)/bin
# pip shows its progress on a terminal.
QUIET := $(shell test -t 2 || echo --quiet)
# Python compiles what it imports; pip would compile all of torch.
export PIP_NO_COMPILE := 1
SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h') setup.py pyproject.toml

TARGETS := demo wheel wheels notebooks build-time test test-full mutants gpu lint format bench sanitize \
  docs docs-serve
.PHONY: $(TARGETS) copy help times test-versions clean

# What a newcomer runs comes first, the rest in the order of this file.
help: ## this list
	@echo "make TARGET, where TARGET is one of these. The first that is made also makes .venv, installs"
	@echo "torch 2.13 (CPU) and the tools in it, and builds the extension: 4 to 10 minutes more."
	@echo
	@awk -F ':.* ## ' 'NF == 2 && /^[a-z]/ { line[$$1] = sprintf("  %-14s %s", $$1, $$2); \
	    if ($$1 !~ /^(demo|test|lint|docs)$$/) order[++n] = $$1 } \
	  END { split("demo test lint docs", first, " "); \
	    for (i = 1; i <= 4; i++) print line[first[i]]; \
	    for (i = 1; i <= n; i++) print line[order[i]] }' Makefile
	@echo
	@echo "Times are of two cores. With TORCH=torch==2.15.0, a target runs in a copy of these files with"
	@echo "that torch, which may have to be downloaded with CUDA: gigabytes (docs/versions.md)."

# The oldest and the newest supported torch (docs/versions.md). The package registry has them with
# CUDA's libraries, without which they can't be imported.
test-versions: ## the tests with the oldest and the newest torch: 1 hour, downloads gigabytes
	$(MAKE) test TORCH=torch==2.11.0
	$(MAKE) test TORCH=torch==2.15.0

ifneq ($(TORCH),$(USUAL))

# Every other torch gets a copy of these files, with its own .venv and build, where all targets work
# as they do here. Files compiled there that have not changed are not compiled again.
COPY := .$(subst ==,-,$(firstword $(TORCH)))

$(TARGETS): copy
	$(MAKE) -C $(COPY) USUAL="$(TORCH)" TORCH="$(TORCH)" $@

copy:
	mkdir -p $(COPY)
	find $(COPY) -mindepth 1 -maxdepth 1 ! -name .venv ! -name build -exec rm -rf {} +
	tar -c --exclude='./.[tvg]*' --exclude=./build --exclude=./dist --exclude='_C*.so' \
	  --exclude=_C.torch.txt --exclude=__pycache__ --exclude='*.egg-info' . | tar -x -C $(COPY)
	rm -f $(COPY)/.venv/built

else

$(VENV)/tools: pyproject.toml Makefile
	@echo "Installing $(TORCH) and what builds the extension in $(VENV): 1 to 2 minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install $(QUIET) "$(TORCH)"
	@$(BIN)/pip install --quiet "setuptools>=77" wheel ninja
	@touch $@

$(VENV)/built: $(VENV)/tools $(SOURCES)
	@echo "Building the extension, and installing what the demo needs: 3 to 8 minutes on two cores."
	@$(BIN)/pip install --quiet $$($(BIN)/python -c "$(NAMES)" demo) & installing=$$!; \
	  $(BIN)/python .ci/build.py; built=$$?; wait $$installing && exit $$built
	@touch $@

$(VENV)/developing: $(VENV)/tools | $(VENV)/built
	@echo "Installing what tests, linters and the site need."
	@$(BIN)/pip install --quiet $$($(BIN)/python -c "$(NAMES)" test lint docs)
	@touch $@

# For the installed torch and Python. The files of an older wheel are removed first.
wheel: $(VENV)/built ## a wheel for this Python and torch, in dist: seconds
	rm -rf build/lib*
	$(BIN)/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

# For each Python (3.10 to 3.14) and torch (2.11 to 2.15) that there is, with a table of what was built
# and tried. LIMIT is how many gigabytes to download at most for one: 8 allows torch with CUDA.
LIMIT := 1
wheels: $(VENV)/built ## one for each Python and torch that this machine can get: 3 minutes each
	$(BIN)/python .ci/wheels.py --limit $(LIMIT)

# The scripts of examples/ as notebooks with their results, in build/notebooks.
notebooks: $(VENV)/notebooks ## the examples as notebooks, run: 15 minutes
	$(BIN)/python -m examples.notebooks

# The CPU time of compiling each unit, and of each file in it.
build-time: $(VENV)/built ## what each file costs to compile: 10 minutes
	$(BIN)/python -m benchmarks.build_time

demo: $(VENV)/built ## which images shape a small network, and how: 1 minute
	@$(BIN)/python examples/digits.py

# OPTIONS are pytest's: `make test OPTIONS=--exitfirst`.
test: times $(VENV)/developing ## the tests: 10 to 20 minutes
	$(BIN)/python -m pytest -n 2 $(OPTIONS)

times:
	@echo "On two cores: 1 to 2 minutes to install torch and the tools, 3 to 8 to build, 10 to 20 to test."
	@echo "Steps that are already done are skipped. make test-full takes an hour."

# Packages run in one process each, because each may replace functions of torch.func.
test-full: $(VENV)/packages $(VENV)/notebooks ## all tests, with long sweeps and other packages: 1 hour
	$(BIN)/python -m pytest -n 2 --full
	for tests in tests/packages/test_*.py; do $(BIN)/python -m pytest $$tests || exit 1; done

# Makes each of a hundred faults in a copy of these files, and runs the tests that concern it
# (CONTRIBUTING.md). OPTIONS=--resume goes on after an interruption, --full adds the long sweeps.
mutants: $(VENV)/developing ## whether the tests see a hundred faults of the product: 2 hours
	$(BIN)/python -m tests.mutants $(OPTIONS)

# Everything to test and measure on a GPU. torch is then the registry's, with CUDA's libraries,
# unless .venv has one. `make gpu DEVICE=second` runs the same on the simulated device, quickly.
DEVICE := cuda
SURVEYS := first_table forward_mode reverse_mode batching workloads
gpu: $(VENV)/peers ## tests and benchmarks on a GPU
	$(BIN)/python -m benchmarks.device $(DEVICE)
	$(BIN)/python -m pytest --device $(DEVICE)
	$(BIN)/python -m examples.cuda_graph
	for survey in $(SURVEYS); do $(BIN)/python -m benchmarks.$$survey --device $(DEVICE) \
	  $(if $(filter second,$(DEVICE)),--quick) || exit 1; done

lint: $(VENV)/developing ## ruff, mypy and clang-format: 1 minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(find csrc -name '*.cpp' -o -name '*.h')

format: $(VENV)/developing ## formats Python and C++
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find csrc -name '*.cpp' -o -name '*.h')

# The site, in build/site: a warning is an error. docs-serve shows it while pages are edited, at the
# address that it prints.
docs: $(VENV)/developing ## the site, in build/site: half a minute
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/developing ## the site, served and kept up to date
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --livereload --watch torchlayers

# The packages of extras, by name: installing torchlayers[extra] would build the package again.
NAMES := import sys; from setuptools.config.pyprojecttoml import load_file; \
  extras = load_file('pyproject.toml')['project']['optional-dependencies']; \
  print(*(name for extra in sys.argv[1:] for name in extras[extra]))
CURVATURE := backpack-for-pytorch curvlinops-for-pytorch laplace-torch

# Benchmarks run without the peers that can't be installed, and say so.
$(VENV)/peers: $(VENV)/developing
	-$(BIN)/pip install --quiet $$($(BIN)/python -c "$(NAMES)" bench curvature)
	-$(BIN)/pip install --quiet --no-deps $(CURVATURE)
	touch $@

# The packages that tests/packages runs, and the driver of a browser. torch is named too, so that pip
# keeps the installed one.
$(VENV)/packages: $(VENV)/developing
	$(BIN)/pip install --quiet "$(TORCH)" $$($(BIN)/python -c "$(NAMES)" packages curvature browser cpp)
	$(BIN)/pip install --quiet --no-deps $(CURVATURE)
	touch $@

$(VENV)/notebooks: $(VENV)/developing
	$(BIN)/pip install --quiet $$($(BIN)/python -c "$(NAMES)" notebooks)
	touch $@

bench: $(VENV)/peers ## all benchmarks, whose tables docs/ shows: hours
	$(BIN)/python -m benchmarks.first_table
	$(BIN)/python -m benchmarks.forward_mode
	$(BIN)/python -m benchmarks.reverse_mode
	$(BIN)/python -m benchmarks.batching
	$(BIN)/python -m benchmarks.writes
	$(BIN)/python -m benchmarks.taylor
	$(BIN)/python -m benchmarks.python_layers
	$(BIN)/python -m benchmarks.hooks
	$(BIN)/python -m benchmarks.modules
	$(BIN)/python -m benchmarks.control_flow
	$(BIN)/python -m benchmarks.compiled_calls
	$(BIN)/python -m benchmarks.packages
	$(BIN)/python -m benchmarks.norms
	$(BIN)/python -m benchmarks.costs
	$(BIN)/python -m benchmarks.laplacian
	$(BIN)/python -m benchmarks.over_ranks
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m benchmarks.compiled_passes
	$(BIN)/python -m benchmarks.pinn_training
	$(BIN)/python -m benchmarks.workloads
	$(BIN)/python -m benchmarks.workloads --threads all
	$(BIN)/python -m benchmarks.workloads --size real
	$(BIN)/python -m benchmarks.workloads --size real --threads all
	$(BIN)/python -m benchmarks.first_calls
	$(BIN)/python -m benchmarks.no_waiting
	$(BIN)/python -m benchmarks.first_call_parts

# The C++ code under the address sanitizer, in a separate build. Leaks are not checked: Python and
# torch keep memory until exit on purpose, and tests/core/test_stack.py counts bytes instead.
sanitize: $(VENV)/developing ## the C++ code under the address sanitizer: 15 minutes
	SANITIZE=address $(BIN)/python setup.py build_py --build-lib build/sanitized \
	  build_ext --build-lib build/sanitized --build-temp build/sanitizing
	PYTHONPATH=build/sanitized ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so.6)" \
	  $(BIN)/python -P -m pytest -p no:xdist --import-mode=append -k "not leak and not environment" \
	  tests/core/test_stack.py tests/core/test_nesting.py tests/core/test_escaped.py \
	  tests/custom_operators/test_custom_op.py \
	  tests/autograd_function/test_errors.py tests/autograd_function/test_old_style.py

endif

clean: ## removes .venv and everything that was built
	rm -rf .torch-*
	rm -rf $(VENV) build dist *.egg-info torchlayers/_C*.so torchlayers/_C.torch.txt
