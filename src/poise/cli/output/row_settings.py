"""The settings of a file of JSON lines, stored beside it: `--resume` appends no rows that were made otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poise.errors import RunConflictError, reason_of
from poise.files import checksum, read_bounded, write_atomic
from poise.options import Options
from poise.options import rows as option_rows

FORMAT = "poise-rows/1"
_NOT_COMPARED = ("device", "batch_size", "method", "calibration")  # differ by rounding only, or are stored otherwise


def settings_file(rows: Path) -> Path:
    """Return the file beside the rows that has their settings.

    >>> settings_file(Path("answers.jsonl")).as_posix()
    'answers.jsonl.settings.json'
    """
    return rows.with_name(f"{rows.name}.settings.json")


def settings(options: Mapping[str, Any], classifier: Any, **shown: Any) -> dict[str, Any]:
    """Return what rows depend on beside the images.

    Args:
        options: those of `poise.Classifier`.
        classifier: made with them, which identifies the model.
        shown: options of the rows alone, such as the number of probabilities.
    """
    from poise import methods
    from poise.inference.guarantees import conditions_of

    calibration = options.get("calibration")
    found = {
        "format": FORMAT,
        **{row.name: options.get(row.name) for row in option_rows(Options) if row.name not in _NOT_COMPARED},
        "methods": {name: methods.get(name).settings() for name in options["method"]},
        "calibration": calibration and checksum(json.dumps(calibration.to_dict(), sort_keys=True).encode()),
        **shown,
    }
    now = conditions_of(classifier)
    found |= {"fingerprint": now.fingerprint, "init_hash": now.init_hash, "template": now.template}
    return dict(json.loads(json.dumps(found, default=str)))


def begin(rows: Path, now: Mapping[str, Any], *, resume: bool) -> None:
    """Store the settings of a new file, or refuse to append to rows that have other ones.

    Raises:
        RunConflictError: The rows were made with other settings, or it is not known with which.
    """
    if rows.exists() and not rows.is_file():
        return  # a device, such as /dev/stdout, which is never resumed
    if not (resume and rows.exists() and rows.stat().st_size):
        write_atomic(settings_file(rows), (json.dumps(now, indent=2, ensure_ascii=False) + "\n").encode())
        return
    from poise.evaluate.storage.run_folder import differences

    if changed := differences(now, _read(rows)):
        raise RunConflictError(
            f"The rows of '{rows}' were made with other settings (stored -> now): {'; '.join(changed)}.",
            hint="Repeat the first command, or give another --out.",
        )


def _read(rows: Path) -> dict[str, Any]:
    place = settings_file(rows)
    try:
        stored = json.loads(read_bounded(place))
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise ValueError(f"its format is not '{FORMAT}'")
    except (OSError, ValueError, RecursionError) as problem:
        raise RunConflictError(
            f"It is not known how the rows of '{rows}' were made: '{place.name}' can't be read: {reason_of(problem)}.",
            hint="Give another --out, or --overwrite in place of --resume to write the file anew.",
        ) from None
    return stored
