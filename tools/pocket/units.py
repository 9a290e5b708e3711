"""CLIP's units (`python tools/pocket/units.py FOLDER`): token vectors of RMS 0.02.

A learning rate published for CLIP's prompts then means the same here.

A pre-norm tower reads its residual stream through layer norms alone, and these undo its scale. So everything that is
written into the stream (token vectors, positions, the outputs of attention and MLP) may be multiplied by one number: no
feature changes, but for the epsilon of the norms.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS, CONFIG, HASHES = "open_clip_model.safetensors", "open_clip_config.json", "SHA256SUMS"
RMS = 0.02
WRITES = ("attn.out_proj.weight", "attn.out_proj.bias", "mlp.c_proj.weight", "mlp.c_proj.bias")


def rms(text: dict[str, Tensor]) -> float:
    """Root mean square of the token vectors."""
    return float(text["token_embedding.weight"].double().square().mean().sqrt())


def rescale(text: dict[str, Tensor], wanted: float = RMS) -> dict[str, Tensor]:
    """The same tower with token vectors of this RMS."""
    factor = wanted / rms(text)
    scaled = ("token_embedding.weight", "positional_embedding")
    return {k: v * factor if k in scaled or k.endswith(WRITES) else v for k, v in text.items()}


def write_hashes(folder: Path) -> None:
    """Record the hashes of both files of a model."""
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in (CONFIG, WEIGHTS)]
    (folder / HASHES).write_text("".join(sums))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a model in open_clip's local-dir format, rewritten in place")
    folder = parser.parse_args().folder
    state = load_file(folder / WEIGHTS)
    before = rms(state)
    state = {k: v.to(state[k].dtype) for k, v in rescale({k: v.float() for k, v in state.items()}).items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    write_hashes(folder)
    print(f"RMS of the token vectors: {before:.4f} before, {rms(state):.4f} now")


if __name__ == "__main__":
    main()
