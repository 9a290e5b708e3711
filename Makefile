# `make check` is what CI runs: tests, lint, types, layers (the last three are tests too, in tests/test_quality.py).
PYTHON ?= python

.PHONY: check format matrix
check:
	$(PYTHON) -m pytest -n 2

format:
	$(PYTHON) -m ruff format src tests benchmarks tools
	$(PYTHON) -m ruff check --fix src tests benchmarks tools

matrix: # the same tests with other instruction sets and numbers of threads; ARGS are pytest's
	PYTHON=$(PYTHON) bash tools/test_matrix.sh $(ARGS)
