"""Records for other places: the hub's evaluation results (``.eval_results/*.yaml``), and a section of a model card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poise.files import write_atomic
from poise.report.records.scores import printed
from poise.report.tables.formats import render
from poise.reproduce.board import Board, Entry
from poise.text import file_name

_HUB = ("accuracy", "ece")
_NOTE = (
    "Measured with poise; ECE over 20 bins of equal width. `poise reproduce verify` computes a sample of the answers "
    "again; the record has the hashes of the weights, of all images and of all answers."
)


def hub_results(
    record: Mapping[str, Any], hub_ids: Mapping[str, str], *, date: str = "", url: str = ""
) -> dict[str, str]:
    """Return one YAML text per dataset and metric by file name, for the datasets that have an id on the hub.

    Args:
        record: the record.
        hub_ids: the hub's id of each dataset that has one.
        date: when it was measured, as ISO-8601.
        url: where the record is.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump

    files: dict[str, list[Any]] = {}
    for run in record["runs"].values():
        for dataset, methods in run["results"].items():
            for method, metrics in methods.items() if dataset in hub_ids else ():
                for metric in _HUB:
                    value, low, high, _ = metrics[metric]
                    notes = (
                        f"{method}, {run['config']['views']} views; 95 % interval {printed(metric, low)} to "
                        f"{printed(metric, high)}; {run['datasets'][dataset]['images']} images; "
                        f"record {record['sha256']}"
                    )
                    entry = EvalResultEntry(
                        dataset_id=hub_ids[dataset],
                        task_id=f"{metric}",
                        value=float(printed(metric, value)),
                        date=date or None,
                        source_url=url or None,
                        source_name="poise record" if url else None,
                        notes=notes,
                    )
                    files.setdefault(f"{file_name(dataset, unique=False)}.yaml", []).append(entry)
    return {name: str(yaml_dump(eval_result_entries_to_yaml(entries))) for name, entries in sorted(files.items())}


def model_card(record: Mapping[str, Any], name: str) -> str:
    """Return a section of a model card, in Markdown."""
    (table, *_) = Board((Entry(name, record),), ()).tables()
    return f"## Calibration and accuracy\n\n{_NOTE}\n\n{render([table], 'md')}"


def export(record: Mapping[str, Any], name: str, out: Path, hub_ids: Mapping[str, str], **source: str) -> list[Path]:
    """Write ``.eval_results/*.yaml`` and ``model_card.md``, and return the files."""
    written = []
    for file, text in hub_results(record, hub_ids, **source).items():
        written.append(out / ".eval_results" / file)
        write_atomic(written[-1], text.encode())
    written.append(out / "model_card.md")
    write_atomic(written[-1], model_card(record, name).encode())
    return written
