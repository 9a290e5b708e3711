# `make check` is what CI runs: tests, lint, types, layers (the last three are tests too, in tests/test_quality.py).
PYTHON ?= python

.PHONY: check format
check:
	$(PYTHON) -m pytest -n 2

format:
	$(PYTHON) -m ruff format src tests benchmarks tools
	$(PYTHON) -m ruff check --fix src tests benchmarks tools
