"""Checks the rules of a tokenizer.json: what they may do to a text is bounded before the tokenizers library reads them.

A file may repeat a rule that doubles a text until memory is gone, or announce a table of any size; the library then
ends the process. Known kinds of rules, a bound on how much longer a text may become, and one on their number prevent
it.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from poise.errors import InvalidCheckpointError

_MOST_RULES = 32
_LONGEST_PATTERN = 1000  # characters of a regular expression
_LONGEST_PIECE = 100  # characters that a rule inserts
_LARGEST_TABLE = 4 * 2**20  # bytes of a table of characters; those in use have 240 kB
_MOST_GROWTH = 10_000  # how many times as long a text may become
_DECOMPOSED = 18  # times as long as a character that Unicode's decompositions may make of it
_MOST_PIECES = 64  # of a template for the tokens around a text
_MOST_ADDED = 20_000  # words beside the vocabulary
_KINDS = {
    "normalizer": "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Sequence Strip "
    "StripAccents",
    "pre_tokenizer": "BertPreTokenizer ByteLevel Delimiter Digits Metaspace Punctuation Sequence Split UnicodeScripts "
    "Whitespace WhitespaceSplit",
    "post_processor": "BertProcessing ByteLevel RobertaProcessing Sequence TemplateProcessing",
    "decoder": "BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Sequence Strip WordPiece",
}


def check_rules(content: dict[str, Any], file: Path) -> None:
    """Raise an error for a tokenizer.json whose rules are unknown, too many, random, or make texts too long."""
    for part, kinds in _KINDS.items():
        rules = list(_rules(content.get(part), file))
        if len(rules) > _MOST_RULES:
            _refuse(file, f"{part} has more than {_MOST_RULES} rules", "fewer")
        growth = 1.0
        for rule in rules:
            kind = rule.get("type")
            if kind not in kinds.split():
                _refuse(file, f"{part} has the rule {str(kind)[:40]!r}", kinds.replace(" ", ", "))
            growth *= _growth(rule, file)
            _check_pattern(rule, file)
        if growth > _MOST_GROWTH:
            _refuse(file, f"{part} may make a text {growth:.0e} times as long", f"at most {_MOST_GROWTH:,}")
    model = content.get("model")
    if isinstance(model, dict) and model.get("dropout"):
        _refuse(file, f"model.dropout is {str(model['dropout'])[:40]}, so that tokens would be random", "no dropout")
    added = content.get("added_tokens")
    if isinstance(added, list) and len(added) > _MOST_ADDED:
        _refuse(file, f"it has {len(added):,} added tokens", f"at most {_MOST_ADDED:,}")


def _rules(part: object, file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rules of a part, those of sequences one by one."""
    pending, count = [part], 0
    while pending:
        rule = pending.pop()
        if not isinstance(rule, dict):
            continue
        count += 1
        inner = next((rule[key] for key in _INNER if isinstance(rule.get(key), list)), None)
        if rule.get("type") == "Sequence" and inner is not None:
            pending += inner[: _MOST_RULES + 1]
        else:
            yield rule
        if count > 2 * _MOST_RULES:
            _refuse(file, f"it has more than {_MOST_RULES} rules", "fewer")


_INNER = ("normalizers", "pretokenizers", "processors", "decoders")


def _growth(rule: dict[str, Any], file: Path) -> float:
    """Return how many times as long a rule may make a text."""
    for key in ("content", "prepend", "replacement", "prefix", "suffix"):
        if isinstance(rule.get(key), str) and len(rule[key]) > _LONGEST_PIECE:
            _refuse(file, f"a rule inserts {len(rule[key]):,} characters", f"at most {_LONGEST_PIECE}")
    if rule.get("type") == "Precompiled":
        return max(1, _longest_replacement(rule.get("precompiled_charsmap"), file))
    if rule.get("type") in ("NFD", "NFKD", "NFKC", "NFC", "BertNormalizer"):
        return 1 if rule["type"] in ("NFC", "BertNormalizer") else _DECOMPOSED
    if rule.get("type") == "TemplateProcessing":
        for key in ("single", "pair"):
            if isinstance(rule.get(key), list) and len(rule[key]) > _MOST_PIECES:
                _refuse(file, f"a template has {len(rule[key]):,} pieces", f"at most {_MOST_PIECES}")
        special = rule.get("special_tokens")
        for token in special.values() if isinstance(special, dict) else ():
            ids = token.get("ids") if isinstance(token, dict) else None
            if isinstance(ids, list) and len(ids) > _MOST_PIECES:
                _refuse(file, f"a special token has {len(ids):,} ids", f"at most {_MOST_PIECES}")
    inserted = len(rule["content"]) if isinstance(rule.get("content"), str) else 1
    return max(1, inserted, len(rule["prepend"]) if isinstance(rule.get("prepend"), str) else 1)


def _longest_replacement(table: object, file: Path) -> int:
    """Return the length of the longest replacement of a precompiled table, after checking its form."""
    try:
        data = (
            base64.b64decode(table, validate=True)
            if isinstance(table, str) and len(table) <= 2 * _LARGEST_TABLE
            else b""
        )
    except (binascii.Error, ValueError):
        data = b""
    size = struct.unpack("<I", data[:4])[0] if len(data) >= 4 else -1
    if not 0 <= size <= len(data) - 4 or size % 4 or len(data) > _LARGEST_TABLE:
        _refuse(file, "its precompiled_charsmap is damaged", f"a table of at most {_LARGEST_TABLE >> 20} MiB")
    return max((len(part) for part in data[4 + size :].split(b"\0")), default=0)


def _check_pattern(rule: dict[str, Any], file: Path) -> None:
    """Refuse regular expressions that could run for ever: repeated groups, very long ones."""
    pattern = rule.get("pattern")
    text = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(text, str) and (len(text) > _LONGEST_PATTERN or re.search(r"\)[*+{]", text)):
        _refuse(
            file,
            f"it has the regular expression {text[:80]!r}",
            f"at most {_LONGEST_PATTERN} characters, without repeated groups",
        )


def _refuse(file: Path, why: str, accepted: str) -> NoReturn:
    raise InvalidCheckpointError(f"'{file}' is refused: {why}.", hint=f"Accepted: {accepted}.")
