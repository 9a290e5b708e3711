"""A classifier in another process than the one that made it: a clear error at once, and never a hang."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import poise
from poise.errors import WrongProcessError

_FORK = """
import os, sys
import numpy as np, torch
import poise
torch.set_num_threads(2)
images = list(np.zeros((2, 32, 32, 3), np.uint8))
made = lambda: poise.Classifier(["cat", "dog"], "tiny", views=4, device="cpu")
first = made()
first(images)
for other in (lambda: first, made):
    child = os.fork()
    if child == 0:
        try:
            other()(images)
        except poise.errors.WrongProcessError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes can't be forked here")
def test_a_forked_process_is_refused_at_once() -> None:
    """With the same classifier, and with a new one."""
    done = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, timeout=240)
    same, new = done.stdout.splitlines()
    for said in (same, new):
        assert "was forked from one that has loaded a model" in said, done.stderr
        assert "spawn" in said


def test_copies() -> None:
    classify = poise.Classifier(["cat", "dog"], "tiny", "zero-shot", device="cpu")
    image = np.zeros((32, 32, 3), np.uint8)
    shared = copy.copy(classify)
    assert shared.encoder is classify.encoder
    assert shared(image).probabilities == classify(image).probabilities
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(WrongProcessError, match="from the same arguments"):
            copied(classify)
