"""What a tokenizer was made from, as bytes for a model's fingerprint."""

from __future__ import annotations

import json
from typing import Any

_PARTS = ("added_tokens", "model", "normalizer", "pre_tokenizer", "post_processor")  # of tokenizer.json


def vocabulary(tokenizer: Any) -> bytes:
    """Return the words, merges and rules of a tokenizer of open_clip or transformers."""
    if hasattr(tokenizer, "bpe_ranks"):  # CLIP's own
        content: object = [sorted(tokenizer.encoder.items()), sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.get)]
    elif hasattr(inner := getattr(tokenizer, "tokenizer", tokenizer), "sp_model"):
        return bytes(inner.sp_model.serialized_model_proto())
    elif hasattr(inner, "backend_tokenizer"):
        stored = json.loads(inner.backend_tokenizer.to_str())
        content = {part: stored.get(part) for part in _PARTS}
    else:
        content = sorted(inner.get_vocab().items())
    return json.dumps(content, sort_keys=True).encode()
