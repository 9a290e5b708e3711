# `make check` is what CI runs: tests, lint, types, layers (the last three are tests too, in tests/test_quality.py).
PYTHON ?= python

CORE = tests/metrics tests/objectives tests/calibration tests/prompts tests/rules tests/posthoc tests/views tests/tuning \
  tests/inits/test_golden_coop.py tests/test_golden.py tests/test_methods.py tests/test_quality.py

LONG = tests/tuning/test_dynaprompt.py tests/tuning/test_published_frameworks.py tests/views/test_resample.py \
  $(addprefix tests/calibration/,test_guarantees.py test_exact_search.py test_monitor.py test_posterior.py)

.PHONY: check quick docs format matrix coverage audit licences sbom hashes wheel other lowest fuzz chaos mutate
check:
	$(PYTHON) -m pytest -n 2

quick: # the core in less than a minute: no server, no browser, no cluster, no documentation, no reports
	$(PYTHON) -m pytest -n 2 -q $(CORE) $(addprefix --ignore=,$(LONG))

docs: # the site, in build/docs; needs no network
	PYTHONPATH=src $(PYTHON) docs/facts.py
	$(PYTHON) -m sphinx -q -E -W --keep-going -d build/doctrees docs build/docs

format:
	$(PYTHON) -m ruff format src tests benchmarks tools docs examples
	$(PYTHON) -m ruff check --fix src tests benchmarks tools docs examples

matrix: # the same tests with other instruction sets and numbers of threads; ARGS are pytest's
	PYTHON=$(PYTHON) bash tools/test_matrix.sh $(ARGS)

coverage: # the default tests, with the coverage of lines and branches; fails below the floor in pyproject.toml
	$(PYTHON) -m pytest -n 2 --cov --cov-report=term:skip-covered

audit: # bandit reads the code; pip-audit asks a service on the network about known vulnerabilities
	$(PYTHON) -m bandit -q -r src -c pyproject.toml
	$(PYTHON) -m pip_audit -r constraints.txt --no-deps --disable-pip

licences: # writes docs/licences.md
	$(PYTHON) tools/licences.py

sbom: # all installed packages with versions and licences, in CycloneDX's format
	$(PYTHON) -m cyclonedx_py environment --output-reproducible --of JSON -o sbom.json

hashes: # writes constraints-hashes.txt
	$(PYTHON) tools/hashes.py

wheel: # builds the wheel, installs it into a fresh environment over the packages of this one, and runs it
	bash tools/test_wheel.sh $(PYTHON)

other: # what needs no torch, under another version of Python, if one is installed
	bash tools/test_other_python.sh $(PYTHON)

lowest: # the core tests with the lowest supported versions of torch and torchvision, in a fresh environment (5 GB)
	bash tools/test_lowest.sh $(PYTHON)

fuzz: # ARGS are those of the script, such as: images --inputs 100000
	$(PYTHON) tools/fuzz/fuzz.py $(ARGS)

chaos: # ARGS are those of the script, such as: --kills 260
	$(PYTHON) tools/chaos.py $(ARGS)

mutate: # mutation testing of the modules in pyproject.toml; ARGS restricts it, such as: "poise.objectives.*"
	$(PYTHON) -m mutmut run $(ARGS)
	$(PYTHON) -m mutmut results
