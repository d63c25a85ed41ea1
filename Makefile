# Everything a developer runs. Needs Python >= 3.10, pip and make; each target sets up .venv by itself.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
TORCH ?= newest
SETS ?= native   # instruction sets: native (the best one here and the baseline), all, or names with ; between them

.PHONY: help docs test tests test-library test-lab test-all test-torch test-arm mca weight torture lint types types-as-editors-see-them play-test demo sanitize setup clean always
help:
	@echo "make setup  .venv, with all that the tests and the other commands here need"
	@echo "make test   lint, types and the tests"
	@echo "make test-library, make test-lab  the tests of one package"
	@echo "make test-all  the same in one process on all cores, with the tests that take long and find little"
	@echo "make test-torch TORCH=2.15.0  the tests with another PyTorch, in an environment of its own"
	@echo "make test-arm  the C++ library on Arm, under emulation on an x86 machine; PART=whole with the tests (hours)"
	@echo "make mca    the kernels' loops through a model of processors, for sets whose machine is not at hand"
	@echo "make weight the tree's lines by room, words, bytes and packages"
	@echo "make torture MINUTES=10  attacks with cases drawn at random (docs/reliability.md)"
	@echo "make torture CAMPAIGN='checkpoints races' CASES=100  so many cases of these; CAMPAIGN=races CASE=17  one again"
	@echo "make demo   the first experiment on scikit-learn's digits, with its report (a few minutes)"
	@echo "make lint   ruff, mypy and pyright alone"
	@echo "make play-test  the pages of 'layernorm play' in a headless Chromium"
	@echo "make docs   the site, in build/docs; warnings are errors"
	@echo "make sanitize  the C++ kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer (GCC)"
	@echo "make clean  removes the virtual environment, caches and build folders (never runs/)"

# pip's progress, the compiler's among it, in a line for each step, and after 9 s without one; everything only if it fails.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PIP = $(BIN)/pip install --verbose --no-compile   # Python compiles what it imports; all of it takes a core half a minute
unexport PYTHONDONTWRITEBYTECODE   # images of containers set it: each process would compile PyTorch's Python again, 4 s
TOLD = 2>&1 | tee $(VENV)/setup.log | grep --line-buffered -oE '(Collecting [a-z]|Installing build dep|Building CXX|Linking CXX|Installing collected|Successfully installed).{0,70}' \
  | { while line=; IFS= read -r -t 9 line || [ $$? -gt 128 ]; do echo "$${line:-...}"; done; cat; } \
  || { tail -40 $(VENV)/setup.log; false; }

setup: $(VENV)/.ready
NATIVE = src/layernorm/engines/native
$(VENV)/.ready: WITH = --config-settings=cmake.define.LAYERNORM_TESTED=ON --editable '.[onnx,test]'
$(VENV)/.usable: WITH = --editable .
$(VENV)/.ready $(VENV)/.usable: pyproject.toml lab/pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)/CMakeLists.txt \
  $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.h $(NATIVE)/sets/*.h tests/native/sets/*.h) $(VENV)/.files
	@echo "setting up $(VENV): packages, then the CPU engine is compiled (a minute)"
	$(PYTHON) -m venv $(VENV)
	@$(PIP) --constraint $(CONSTRAINTS) --config-settings=cmake.define.LAYERNORM_SETS="$(strip $(SETS))" $(WITH) \
	  --editable ./lab $(TOLD)
	@touch $@

# An editable installation remembers the package's files: a new or moved one asks for a new installation.
$(VENV)/.files: always
	@mkdir -p $(VENV)
	@find src lab/src -name '*.py' | sort > $@.now; cmp -s $@.now $@ || cp $@.now $@
always:

# A process a core, with one thread each: two that wait for each other on busy cores are many times slower. Each begins
# with a part of the files, so that one process makes what a file's tests share; who is done first takes tests of another's.
SHARED = -m 'not long' --numprocesses auto --maxprocesses 8 --dist worksteal
TEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SHARED)
test: setup  # side by side: the tests wait now and then
	$(MAKE) -j2 lint tests

tests: setup
	$(TEST) tests lab/tests

test-library: setup
	$(TEST) tests

test-lab: setup
	$(TEST) lab/tests

# In one process, with torch's own number of threads.
test-all: setup lint
	$(BIN)/python -m pytest

# In an environment of its own, which a second call takes again: that of `setup`, with a pin of its own. PyTorch with
# CUDA is 5 GB. PIP_CONSTRAINT: a machine's own cap on versions does not hold here.
OTHER = build/torch-$(TORCH)-python-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
test-torch:
	@echo "PyTorch $(TORCH) in $(OTHER): the first call installs it there"
	@mkdir -p $(OTHER)
	@sed 's/^torch==.*/torch$(if $(filter newest,$(TORCH)),>=0,==$(TORCH))/' constraints.txt > $(OTHER)/constraints.txt
	PIP_CONSTRAINT=/dev/null $(MAKE) VENV=$(OTHER) CONSTRAINTS=$(OTHER)/constraints.txt setup
	@$(OTHER)/bin/python -c 'import torch; print("PyTorch", torch.__version__)'
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest $(SHARED) --junitxml=$(OTHER).xml $(TESTS)

# Emulated, on an x86 machine, with a cross compiler: the script says what it needs.
test-arm:
	TESTS="$(TESTS)" PYTHON=$(PYTHON) tests/arm.sh $(PART)

mca:
	$(PYTHON) benchmarks/mca.py

weight:
	$(PYTHON) benchmarks/weight.py

torture: setup
	PYTHONPATH=tests:lab/tests $(BIN)/python -m torture $(if $(MINUTES),--minutes $(MINUTES)) $(if $(CASES),--cases $(CASES)) \
	  $(if $(CAMPAIGN),--campaign $(CAMPAIGN)) $(if $(CASE),--case $(CASE))

lint: setup
	$(BIN)/ruff check --no-cache .  # the cache does not see that a module came or went, by which imports are sorted
	$(BIN)/ruff format --check .
	$(MAKE) types types-as-editors-see-them

types:
	$(BIN)/mypy
	$(BIN)/mypy tests/support/user.py

types-as-editors-see-them:
	$(BIN)/pyright --pythonpath $(BIN)/python tests/support/user.py

# Needs Chromium and its driver (Debian: apt-get install chromium chromium-driver).
play-test: setup
	$(BIN)/pip install --quiet --constraint constraints.txt selenium
	$(BIN)/python -m pytest -q -p no:cacheprovider lab/tests/browser/play.py

# What the tests need is left out, unless it is there.
demo: $(if $(wildcard $(VENV)/.ready),setup,$(VENV)/.usable)
	$(BIN)/layernorm run digits --norm none layer batch --batch-size 128 4 --seeds 0 1 2 --jobs 2 --out runs/digits

# Here the notebook runs; the code on the other pages, their links and anchors are lab/tests/test_docs.py.
docs: $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --fail-on-warning --fresh-env --write-all --quiet docs build/docs
	@echo "build/docs/index.html"
$(VENV)/.docs: $(VENV)/.ready
	@$(PIP) --constraint constraints.txt --config-settings=cmake.define.LAYERNORM_TESTED=ON --editable '.[docs]' $(TOLD)
	@touch $@

# The library is built anew, in a virtual environment of its own; Python itself is not instrumented, so that the
# sanitizer has to be there first. Leaks: the interpreter's own would be reported (a test counts ours).
THREADS = $(CXX) -std=c++17 -O1 -g -fsanitize=thread -march=native -Wno-psabi \
  -I$(NATIVE) -Itests/native tests/native/threads.cpp -o build/threads
SANITIZED = OMP_NUM_THREADS=2 ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONPATH=tests \
  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" build/sanitize/bin/python
sanitize:
	$(PYTHON) -m venv build/sanitize
	build/sanitize/bin/pip install --quiet --constraint constraints.txt \
	  --config-settings=cmake.define.LAYERNORM_SANITIZE=address,undefined --config-settings=cmake.define.LAYERNORM_SETS="$(strip $(SETS))" \
	  --config-settings=cmake.define.LAYERNORM_TESTED=ON --config-settings=build-dir=build/sanitized '.[test]'
	for isa in $$($(SANITIZED) -m support.instruction_sets); do \
	  $(THREADS) -DLAYERNORM_ISA=$$isa && build/threads || exit 1; \
	  LAYERNORM_ISA=$$isa $(SANITIZED) -m pytest -q -s -p no:cacheprovider -m 'not long' tests/native tests/nn/test_stepper.py \
	  || exit 1; done

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis src/*.egg-info
