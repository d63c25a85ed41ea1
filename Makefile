# Everything a developer runs. Needs Python >= 3.10, pip and make; each target sets up .venv by itself.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help test lint demo setup clean
help:
	@echo "make test   lint, types and all tests"
	@echo "make demo   the first experiment on scikit-learn's digits, with its report (a few minutes)"
	@echo "make lint   ruff and mypy alone"
	@echo "make clean  removes the virtual environment, caches and build folders (never runs/)"

setup: $(VENV)/.ready
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[experiments,test]'
	@touch $@

test: setup lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: setup
	$(BIN)/layernorm run digits --norm none layer batch --batch-size 128 4 --seeds 0 1 2 --out runs/digits

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis src/*.egg-info
