"""`poise calibrate apply`: calibrated answers for probabilities of any model, without an image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from poise.cli.input.number_files import (
    Features,
    Logits,
    Probabilities,
    Scale,
    Text,
    check_numbers,
    given_probabilities,
)
from poise.cli.output.result_rows import Columns
from poise.cli.output.sink import LINES, Sink, write_rows
from poise.cli.output.verbose import Quiet
from poise.errors import InvalidLabelsError, InvalidOptionError
from poise.results import Result, Results
from poise.text import as_words

if TYPE_CHECKING:
    from poise.calibration import Applied, Calibration

_FORMATS = {".jsonl": LINES, ".csv": "csv"}


def calibrate_apply(
    *,
    calibration: Annotated[Path, typer.Argument(help="File of `poise calibrate --probabilities`, or of images.")],
    out: Annotated[Path, typer.Option(help="The answers: .jsonl, which `poise monitor` reads, or .csv.")],
    probabilities: Probabilities = None,
    logits: Logits = None,
    features: Features = None,
    text: Text = None,
    scale: Scale = None,
    method: Annotated[
        str | None, typer.Option(help="A method of the calibration.", show_default="the recommended one")
    ] = None,
    coverage: Annotated[float | None, typer.Option(help="Add prediction sets with this coverage.")] = None,
    max_error: Annotated[
        float | None, typer.Option(help="Abstain, so that at most this share of the answers is wrong.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Probabilities per row.")] = 5,
    quiet: Quiet = False,
) -> None:
    """Apply a calibration to given probabilities: one row per image, as `poise classify` writes it."""
    if out.suffix not in _FORMATS:
        raise InvalidOptionError(f"--out is '{out}'.", hint="Give a name that ends in .jsonl or .csv.")
    chosen = {"--probabilities": probabilities, "--logits": logits, "--features": features, "--text": text}
    numbers: dict[str, Any] = {option: file for option, file in chosen.items() if file is not None}
    numbers |= {} if scale is None else {"--scale": scale}
    check_numbers({*numbers})
    from poise.calibration import Calibration
    from poise.calibration.certify import in_words

    stored = Calibration.load(calibration)
    probs, columns = given_probabilities(numbers)
    labels = stored.conditions.labels
    if columns is not None and list(map(as_words, columns)) != list(map(as_words, labels)):
        raise InvalidLabelsError(
            "The columns are not the labels of the calibration, in their order.",
            hint=f"Give {', '.join(labels)[:200]}.",
        )
    found = stored.apply(probs, coverage=coverage, max_error=max_error, method=method)
    rows = _rows(stored, method or stored.recommended, np.asarray(probs, np.float64).max(1), found, top_k)
    shown = Columns([method or stored.recommended], labels, min(top_k, len(labels)))
    write_rows(rows, len(probs), Sink(_FORMATS[out.suffix], shown, out), quiet=quiet)
    if max_error is not None:
        typer.echo(in_words(max_error, stored.confidence, stored.tree is not None))


def _rows(stored: Calibration, method: str, raw: np.ndarray, found: Applied, top_k: int) -> Iterator[Results]:
    """Yield the answers of each row of probabilities; sources are "row 0" and so on."""
    labels, table = np.array(stored.conditions.labels, dtype=object), found.probabilities
    order = np.argsort(-table, axis=1, kind="stable")
    entropy = -np.where(table > 0, table * np.log(np.maximum(table, 1e-300)), 0).sum(1) + 0.0
    for at, ranked in enumerate(order):
        best = table[at, ranked[: max(2, top_k)]].tolist()
        added: dict[str, Any] = {}
        if found.sets is not None:
            added["prediction_set"] = tuple(labels[ranked[found.sets[at, ranked]]])
        if found.answered is not None:
            added |= {"decision": "answer" if found.answered[at] else "abstain", "threshold": found.threshold}
            added |= {} if found.nodes is None else {"node": found.nodes[at]}
        yield {
            method: Result(
                label=labels[ranked[0]],
                confidence=best[0],
                probabilities=dict(zip(labels[ranked[:top_k]], best, strict=False)),
                entropy=float(entropy[at]),
                margin=best[0] - best[1],
                method=method,
                source=f"row {at}",
                fallback=False,
                degenerate=False,
                match=float("nan"),  # not known without features
                raw_confidence=float(raw[at]),
                **added,
            )
        }
