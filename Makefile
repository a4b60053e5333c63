# Each of these is all the set-up there is: `make demo`, `make test`, `make check`. A second run does only what changed.

.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
PYTHON_BIN := $(VENV)/bin/python
INSTALLED := $(VENV)/installed-mori
PACKAGE_SOURCES := $(shell find CMakeLists.txt pyproject.toml README.md LICENSE cmake include src python tools -type f \
  -not -name '*.pyc' -not -name '*.sh' 2>/dev/null)
PES ?= 4

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup-demo $(INSTALLED) ## Train the digits classifier on four PEs (PES=n for another number)
	$(VENV)/bin/mori run -n $(PES) $(PYTHON_BIN) examples/digits_training.py

.PHONY: test
test: coverage asan tsan fuzz-briefly pytest ## Run every test: C++ with coverage, under sanitizers, fuzzers, Python

.PHONY: coverage
coverage: setup-test ## Run the C++ tests and report line coverage of src/
	@find build/host-coverage -name '*.gcda' -delete 2>/dev/null || true
	cmake --preset host-coverage
	cmake --build --preset host-coverage
	ctest --preset host-coverage
	@mkdir -p build/coverage
	$(VENV)/bin/gcovr --root . --filter src/ --exclude src/pybind/ --gcov-ignore-parse-errors=negative_hits.warn_once_per_file \
	  --txt --print-summary --html-details build/coverage/index.html build/host-coverage

.PHONY: asan
asan: setup-test ## Run the C++ tests under the address and undefined-behaviour sanitizers
	cmake --preset host-asan
	cmake --build --preset host-asan
	ctest --preset host-asan

.PHONY: tsan
tsan: setup-test ## Run the C++ tests under the thread sanitizer
	cmake --preset host-tsan
	cmake --build --preset host-tsan
	ctest --preset host-tsan

.PHONY: pytest
pytest: setup-test $(INSTALLED) ## Run the Python tests against the installed wheel
	cmake --preset host-coverage
	cmake --build --preset host-coverage --target ring_put threads_as_pes mpi_allreduce
	MORI_BUILD_DIR=$(CURDIR)/build/host-coverage $(PYTHON_BIN) -m pytest

.PHONY: fuzz-briefly
fuzz-briefly: setup-check
	tools/fuzz.sh 5

.PHONY: fuzz
fuzz: setup-check ## Fuzz everything that reads foreign bytes (SECONDS_EACH=n, 60 by default)
	tools/fuzz.sh $(SECONDS_EACH)

.PHONY: check
check: setup-check ## Check format, include directions, spelling and lint
	tools/check.sh

.PHONY: bench
bench: setup-bench ## Run the benchmarks beside a peer, into docs/results (BENCH=--quick for a look)
	$(PYTHON_BIN) benchmarks/run.py $(BENCH)

.PHONY: wheel
wheel: setup-demo ## Build the wheel into dist/
	$(PYTHON_BIN) -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .

.PHONY: setup-demo setup-test setup-check setup-bench
setup-demo setup-test setup-check setup-bench: setup-%:
	@tools/setup.sh $*

$(INSTALLED): $(PACKAGE_SOURCES)
	$(PYTHON_BIN) -m pip install --quiet --no-build-isolation --no-deps --force-reinstall .
	@touch $@

.PHONY: clean
clean: ## Remove what was built; .venv stays
	rm -rf build dist
