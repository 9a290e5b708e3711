#!/usr/bin/env bash
# Runs what needs no torch under another version of Python, in a fresh environment: torch and its libraries take 5 GB for each.
# Everything is compiled, the command line answers, and the tests of metrics, calibration, image formats and options run.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
used=$("${1:-python}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
other=""
for version in 3.14 3.13 3.12 3.11; do
  candidates=("python$version" "$HOME/.pyenv/versions/$version".*/bin/python)
  for candidate in "${candidates[@]}"; do # a shim of pyenv may exist for a version that is not selected
    if [ "$version" != "$used" ] && [ -z "$other" ] && "$candidate" -c 'import venv' 2>/dev/null; then other=$candidate; fi
  done
done
if [ -z "$other" ]; then
  echo "No Python other than $used was found, so no second version was tested."
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$other" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet -c "$root/constraints.txt" numpy scipy pillow pyarrow filelock matplotlib typer rich jinja2 \
  safetensors scikit-learn pytest pytest-timeout hypothesis
"$work/venv/bin/pip" install --quiet --no-deps "$root" # also builds the wheel with this Python
"$work/venv/bin/python" -m compileall -q -f "$work"/venv/lib/python*/site-packages/poise
for command in --help "bench run --help" "list metrics" "list datasets"; do
  # shellcheck disable=SC2086 # words of a command
  "$work/venv/bin/poise" $command >/dev/null
done
cd "$root" # tests/conftest.py imports torch
"$work/venv/bin/python" -m pytest -q --noconftest --hypothesis-profile=ci -p no:cacheprovider -m "not slow and not data" \
  tests/metrics tests/calibration tests/test_image_modes.py tests/test_cli_help.py --deselect tests/test_cli_help.py::test_a_variable_has_the_name_of_its_option
echo "$("$work/venv/bin/python" --version) works as far as it needs no torch."
