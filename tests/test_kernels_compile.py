"""Every kernel compiles for the GPUs that are supported, and fits their memory: no GPU is needed to know."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="no Triton for this platform")

# In a process of its own: this one has Triton's interpreter, which compiles nothing.
SCRIPT = """
import inspect, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from poise.backbones.triton import block_kernels as blocks
from poise.backbones.triton import float8_kernels as float8
from poise.views.triton import view_kernels as views

HALF, BYTE, WORD, WIDE, SINGLE = "*fp16", "*u8", "*i32", "*fp64", "*fp32"
TYPES = {
    "shared": SINGLE, "shift": SINGLE, "shares": SINGLE, "norms": SINGLE, "scale": "fp32", "epsilon": "fp32",
    "source": WORD, "pixels": WORD, "crops": WORD, "even": WORD, "odd": WORD, "ends": WORD, "items": WORD,
    "tables": WORD, "target": WORD, "matrices": WIDE, "views": WIDE,
    "scales": SINGLE, "update": HALF,
    **{name: HALF for name in ("x", "weight", "bias", "out", "joint", "mask", "cotangent", "gradient", "total")},
    **{name: "i32" for name in ("tiles", "width", "prefix", "rows", "count", "period", "area", "side")},
}
CHOICES = {"HEADS": [8], "SIZE": [16, 64], "BLOCK": [128], "OWN": [0, 1], "KIND": [0, 1], "FREE": [0, 1],
           "CUBIC": [False, True], "CHAINS": [0, 3], "ADD": [False, True], "REST": [64]}
EIGHT = {"out": "*fp8e4nv", "shift": HALF}
SPECIAL = {"pack_kernel": {"source": BYTE, "out": WORD}, "resample_kernel": {"out": WORD},
           "add_norm_float8_kernel": EIGHT, "activation_float8_kernel": EIGHT}
most = {}
for module in (blocks, views, float8):
    for name, kernel in vars(module).items():
        if not name.endswith("_kernel"):
            continue
        names = list(inspect.signature(kernel.fn).parameters)
        signature = {n: "constexpr" if n in CHOICES else {**TYPES, **SPECIAL.get(name, {})}[n] for n in names}
        for pick in (0, -1):
            chosen = {n: CHOICES[n][pick] for n in names if n in CHOICES}
            for target in (89, 90) if module is float8 else (80, 90):
                source = ASTSource(fn=kernel, signature=signature, constexprs=chosen)
                done = triton.compile(source, target=GPUTarget("cuda", target, 32), options={"num_warps": 8})
                most[name] = max(most.get(name, 0), done.metadata.shared)
print(most)
assert len(most) > 8
assert max(most.values()) <= 99 * 1024, most
"""


def test_kernels_compile_and_fit() -> None:
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
