# Two commands on a fresh machine: `make demo` and `make test`. Only Python (>= 3.11) and pip are needed.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint types bench clean

demo: .venv/.installed
	$(BIN)/tacit demo
	@mkdir -p out
	$(BIN)/tacit plan --n 60000 --batch 1000 --epochs 400 --sigma 15 --clip 1 --lr 0.1 --l2 1e-3 \
	    --smoothness 0.5 --delta 1e-5 --adjacency replace-one --target-epsilon 1 --plot out/plan.png

test: lint types
	$(BIN)/python -m pytest -n 2

lint: .venv/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-test
	$(BIN)/mypy

bench: .venv/.installed
	$(BIN)/python benchmarks/run.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

# The stamps make a second run fast: pip is called again only when the project's own files change.
.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable .
	@touch $@

.venv/.installed-test: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[test]'
	@touch $@ .venv/.installed

clean:
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
