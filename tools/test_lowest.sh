#!/usr/bin/env bash
# Installs poise with the lowest versions of torch and torchvision that pyproject.toml accepts, and runs the core tests.
set -euo pipefail
python=$(command -v "${1:-python}")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
lowest() { sed -n "s/^  \"$1>=\([0-9.]*\)\".*/\1/p" "$root/pyproject.toml"; }
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "torch==$(lowest torch).*" "torchvision==$(lowest torchvision).*" -e "$root[test]"
cd "$root"
# Triton's interpreter of that time does not work with today's NumPy, which has nothing to do with poise's kernels.
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider tests/tuning tests/objectives tests/metrics tests/prompts \
  tests/views tests/inference tests/rules tests/posthoc tests/test_images.py tests/test_methods.py \
  --deselect tests/views/test_resample.py::test_kernels_in_the_interpreter_equal_the_pil_views
