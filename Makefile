# Two commands on a fresh machine: `make demo` and `make test`. Only Python (>= 3.11) and pip are needed.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo quick test attack bench docs papers coverage lint types hops clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.installed  ## private models on real data, and a plan
	$(BIN)/tacit demo
	@mkdir -p out
	$(BIN)/tacit plan --n 60000 --batch 1000 --epochs 400 --sigma 15 --clip 1 --lr 0.1 --l2 1e-3 \
	    --smoothness 0.5 --delta 1e-5 --adjacency replace-one --target-epsilon 1 --plot out/plan.png

quick: lint types  ## while typing: lint, types and the tests that are not marked slow (two minutes)
	$(PYTEST) -q -m "not slow and not attack"

test: lint types  ## what CI runs: lint, types and all tests but those marked attack
	$(PYTEST)

attack: .venv/.installed-test  ## audits with many more runs than CI's; finished ones are skipped
	$(PYTEST) -m attack --results benchmarks/results/attacks.jsonl || [ $$? -eq 5 ]  # 5: all were done before

bench: .venv/.installed  ## all benchmarks; results are appended to benchmarks/results
	$(BIN)/python benchmarks/run.py

docs: .venv/.installed-test  ## the examples in documents and docstrings
	$(PYTEST) -q tests/test_documents.py tests/test_scripts.py

papers: .venv/.installed  ## the papers' figures
	@for name in $(basename $(notdir $(wildcard benchmarks/papers/[a-z]*.py))); do \
	    (cd benchmarks && $(abspath $(BIN))/python -m papers.$$name) || exit 1; done

coverage: .venv/.installed-test  ## all tests of CI, and the lines of the package that none of them runs
	$(PYTEST) -q --cov --cov-report=term:skip-covered

lint: .venv/.installed-test  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-test  ## mypy, strict
	$(BIN)/mypy

hops: .venv/.installed-test  ## functions, files and folders that a fit passes, before and after
	$(BIN)/python tools/hops.py --check
	$(BIN)/python tools/lines.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

# The stamps make a second run fast: pip is called again only when the project's own files change.
.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable .
	@touch $@

.venv/.installed-test: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[test]'
	@touch $@ .venv/.installed

clean:  ## remove everything that these commands made
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
