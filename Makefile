# `make check` is what CI runs: tests, lint, types, layers (the last three are tests too, in tests/test_quality.py).
PYTHON ?= python

.PHONY: check docs format matrix
check:
	$(PYTHON) -m pytest -n 2

docs: # the site, in build/docs; needs no network
	PYTHONPATH=src $(PYTHON) docs/facts.py
	$(PYTHON) -m sphinx -q -E -W --keep-going -d build/doctrees docs build/docs

format:
	$(PYTHON) -m ruff format src tests benchmarks tools docs
	$(PYTHON) -m ruff check --fix src tests benchmarks tools docs

matrix: # the same tests with other instruction sets and numbers of threads; ARGS are pytest's
	PYTHON=$(PYTHON) bash tools/test_matrix.sh $(ARGS)
