#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh environment that sees the packages of this one, and runs it from elsewhere.
set -euo pipefail
python=$(command -v "${1:-python}")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m build --wheel --outdir "$work" "$root" >"$work/log" 2>&1 || { tail -20 "$work/log"; exit 1; }
"$python" -m venv --without-pip "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$python" -m pip install --quiet --no-deps --no-index --target "$site" "$work"/poise-*.whl
"$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/packages.pth" # after the wheel's folder
cd "$work"
unset PYTHONPATH
"$work/venv/bin/python" - <<'CODE'
import sysconfig
from pathlib import Path

import poise
from poise.images.samples import sample_images

assert Path(poise.__file__).is_relative_to(sysconfig.get_paths()["purelib"]), poise.__file__
for model in ("tiny", "pocket"):
    result = poise.Classifier(["cat", "rocket"], model=model, views=4, device="cpu")(
        str(sample_images()[0])
    )
    print(model, result.label, f"{result.confidence:.3f}")
CODE
"$work/venv/bin/python" -m poise classify samples --labels cat,rocket,coffee --views 2 --device cpu --format csv >rows.csv
test "$(wc -l <rows.csv)" -eq 6
"$work/venv/bin/python" -m poise list methods >/dev/null
echo "The wheel works: $(basename "$work"/poise-*.whl)"
