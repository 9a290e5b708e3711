# mypy: ignore-errors
"""Triton, where a kernel can run: it is imported on machines with a GPU, and where its interpreter is asked for."""

from __future__ import annotations

import os
import sys

import torch

# Importing Triton takes a tenth of a second, which a first answer on a CPU need not wait for. The number of devices
# comes from the driver's management library, so that a process which is forked later can still use CUDA.
_wanted = "triton" in sys.modules or os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.device_count() > 0
try:
    if not _wanted:
        raise ImportError
    import triton
    import triton.language as tl
except ImportError:  # or Triton does not support this platform: no kernel is launched
    triton = tl = None

available = triton is not None
jit = triton.jit if available else lambda function: function
