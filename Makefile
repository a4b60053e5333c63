# Each of these is all the set-up there is: `make demo`, `make test`, `make test-sanitizers`, `make check`. A second run does only what changed.

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
# Most tests wait for others most of the time.
JOBS ?= $(shell echo $$((2 * $$(nproc))))
CTEST := --parallel $(JOBS) --output-junit ctest.xml

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup-demo $(INSTALLED) ## Train the digits classifier on four PEs (PES=n for another number)
	$(VENV)/bin/mori run -n $(PES) $(PYTHON_BIN) examples/digits_training.py

# One build, of which the Python tests use the Python package, the command and the examples as they lie in the build folder.
.PHONY: test
test: test-cpp test-python ## Run the tests, in C++ and Python

TESTED := build/host-debug
.PHONY: build-tested
build-tested: setup-test
	cmake --preset host-debug -D MORI_BUILD_PYTHON=ON -D Python_EXECUTABLE=$(CURDIR)/$(PYTHON_BIN)
	cmake --build --preset host-debug

.PHONY: test-cpp
test-cpp: build-tested ## Run the C++ tests
	ctest --preset host-debug $(CTEST)

.PHONY: test-python
test-python: build-tested ## Run the Python tests
	@# A file's tests in one worker: they may share what one of them has built.
	PYTHONPATH=$(CURDIR)/$(TESTED)/python MORI_COMMAND=$(CURDIR)/$(TESTED)/tools/mori MORI_BUILD_DIR=$(CURDIR)/$(TESTED) \
	  $(PYTHON_BIN) -m pytest -n $(JOBS) --dist loadfile --junit-xml=$(TESTED)/pytest.xml

.PHONY: test-sanitizers
test-sanitizers: coverage tsan fuzz-briefly ## Run the C++ tests twice more, under sanitizers and with coverage, and the fuzzers briefly

.PHONY: coverage
coverage: asan ## Run the C++ tests under the address sanitizer and report line coverage of src/
	@mkdir -p build/coverage
	$(VENV)/bin/gcovr --root . --filter src/ --exclude src/pybind/ --gcov-ignore-parse-errors=negative_hits.warn_once_per_file \
	  --txt --print-summary --html-details build/coverage/index.html build/host-asan

.PHONY: asan
asan: setup-test-sanitizers ## Run the C++ tests under the address and undefined-behaviour sanitizers
	@find build/host-asan -name '*.gcda' -delete 2>/dev/null || true
	cmake --preset host-asan
	cmake --build --preset host-asan
	ctest --preset host-asan $(CTEST)

.PHONY: tsan
tsan: setup-test-sanitizers ## Run the C++ tests under the thread sanitizer
	cmake --preset host-tsan
	cmake --build --preset host-tsan
	ctest --preset host-tsan $(CTEST)

.PHONY: fuzz-briefly
fuzz-briefly: setup-test-sanitizers
	tools/fuzz.sh 5

.PHONY: fuzz
fuzz: setup-test-sanitizers ## Fuzz everything that reads foreign bytes (SECONDS_EACH=n, 60 by default)
	tools/fuzz.sh $(SECONDS_EACH)

.PHONY: check
check: setup-check ## Check format, include directions, spelling and lint
	tools/check.sh

.PHONY: bench
bench: setup-bench ## Run the benchmarks beside a peer, into docs/results (BENCH=--quick for a look)
	$(PYTHON_BIN) benchmarks/run.py $(BENCH)

.PHONY: bench-hosts
bench-hosts: setup-bench ## Run the benchmarks between hosts, into docs/results (BENCH=--quick for a look)
	$(PYTHON_BIN) benchmarks/network.py $(BENCH)

.PHONY: wheel
wheel: setup-demo ## Build the wheel into dist/
	$(PYTHON_BIN) -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .

SETUPS := setup-demo setup-test setup-test-sanitizers setup-check setup-bench
.PHONY: $(SETUPS)
$(SETUPS): setup-%:
	@tools/setup.sh $*

$(INSTALLED): $(PACKAGE_SOURCES)
	$(PYTHON_BIN) -m pip install --quiet --no-build-isolation --no-deps --force-reinstall .
	@touch $@

.PHONY: clean
clean: ## Remove what was built; .venv stays
	rm -rf build dist
