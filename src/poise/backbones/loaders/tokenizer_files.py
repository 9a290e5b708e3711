"""Loads tokenizers of transformers from a clean copy of a folder that holds known files and checked keys only."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poise.backbones.loaders import schema
from poise.backbones.loaders.checkpoint import library_errors, read_config
from poise.backbones.loaders.known_keys import SPECIAL_TOKENS, TOKENIZER_CONFIG
from poise.backbones.loaders.tokenizer_rules import check_rules
from poise.errors import InvalidCheckpointError

VOCABULARIES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
)
FILES = (*VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_LARGEST = 128 * 2**20
_HINT = "Add its tokenizer files."


@contextmanager
def clean_copy(folder: Path, configs: Mapping[str, Any], links: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a temporary folder with checked tokenizer files, JSON files ``configs`` and links to large files."""
    with tempfile.TemporaryDirectory(prefix="poise-model-") as made:
        clean = Path(made)
        for name, content in {**_tokenizer_configs(folder), **configs}.items():
            (clean / name).write_text(json.dumps(content), encoding="utf-8")
        for file in (*links, *_data_files(folder)):
            _link(file, clean / file.name)
        if not any((clean / name).exists() for name in VOCABULARIES):  # transformers would create an empty tokenizer
            raise InvalidCheckpointError(
                f"'{folder}' has no tokenizer.", hint=f"Add one of these files: {', '.join(VOCABULARIES)}."
            )
        yield clean


def load_tokenizer(clean: Path, source: Path | str) -> Any:
    """Return the tokenizer of transformers in a clean copy of ``source``."""
    from transformers import AutoTokenizer

    with library_errors(source, _HINT):
        tokenizer = AutoTokenizer.from_pretrained(clean, local_files_only=True, trust_remote_code=False)
    return check_tokenizer(tokenizer, source)


def check_tokenizer(tokenizer: Any, source: Path | str) -> Any:
    """Return the tokenizer after it has read a text."""
    with library_errors(source, _HINT):
        empty, words = tokenizer(["", "a photo of a cat."], padding=False, truncation=False, verbose=False)["input_ids"]
    if len(words) <= len(empty):
        raise InvalidCheckpointError(f"The tokenizer in '{source}' gives no tokens for a text.", hint=_HINT)
    return tokenizer


def _tokenizer_configs(folder: Path) -> dict[str, Any]:
    rows = {"tokenizer_config.json": TOKENIZER_CONFIG, "special_tokens_map.json": SPECIAL_TOKENS}
    found = {name: row for name, row in rows.items() if (folder / name).exists()}
    return {name: schema.read(row, read_config(folder / name), folder / name) for name, row in found.items()}


def _data_files(folder: Path) -> list[Path]:
    """Return the vocabulary files, after checking that they are files of a sensible size and contents."""
    files = [folder / name for name in (*VOCABULARIES, "merges.txt", "added_tokens.json") if (folder / name).exists()]
    for file in files:
        if not file.is_file() or file.stat().st_size > _LARGEST:
            raise InvalidCheckpointError(
                f"'{file}' is not a vocabulary.", hint=f"Accepted: files of at most {_LARGEST >> 20} MiB."
            )
        if file.suffix == ".json":
            content = read_config(file)
            if file.name == "tokenizer.json":
                check_rules(content, file)
            elif not all(type(number) is int for number in content.values()):
                raise InvalidCheckpointError(
                    f"'{file}' is not a vocabulary.", hint="Accepted: words and their numbers."
                )
    return files


def _link(source: Path, target: Path) -> None:
    try:
        os.symlink(source.resolve(), target)
    except OSError:  # not every file system has links
        shutil.copyfile(source, target)
