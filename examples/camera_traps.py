"""Observations of a camera-trap data package (Camtrap DP 1.0) from the answers of `poise classify`.

    poise classify images/ --labels "red fox,badger,person,empty" --calibration fox.json --max-error 0.05 \\
        --format jsonl --out answers.jsonl
    python examples/camera_traps.py answers.jsonl --media media.csv --out observations.csv

`media.csv` is the package's own table: an image gets the `mediaID`, `deploymentID` and time of the row with its path.
`classificationProbability` is the probability of the label; it is calibrated if `poise classify` had a calibration. An
image for which the classifier abstains, or whose label is "unknown", gets the observation type "unclassified" and no
probability, so that a person looks at it. There is one row per image; events of several images have to be added.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

COLUMNS = (  # all of the table, in its order, which validators expect
    *("observationID", "deploymentID", "mediaID", "eventID", "eventStart", "eventEnd", "observationLevel"),
    *("observationType", "cameraSetupType", "scientificName", "count", "lifeStage", "sex", "behavior", "individualID"),
    *("individualPositionRadius", "individualPositionAngle", "individualSpeed"),
    *("bboxX", "bboxY", "bboxWidth", "bboxHeight"),
    *("classificationMethod", "classifiedBy", "classificationTimestamp", "classificationProbability"),
    *("observationTags", "observationComments"),
)
TYPES = {"empty": "blank", "blank": "blank", "person": "human", "human": "human", "vehicle": "vehicle"}


class Media:
    """The rows of media.csv by the ends of their paths: an answer has the path of the file on this machine."""

    def __init__(self, rows: Iterable[dict[str, str]]) -> None:
        self.by_end: dict[str, list[dict[str, str]]] = {}
        for row in rows:
            for end in _ends(row["filePath"]):
                self.by_end.setdefault(end, []).append(row)

    def of(self, source: str) -> dict[str, str]:
        """Return the row with the longest common end."""
        found = next((self.by_end[end] for end in _ends(source) if end in self.by_end), [])
        if len(found) != 1:
            raise ValueError(f"{len(found)} rows of media.csv have the path of '{source}'; one is needed.")
        return found[0]


def _ends(path: str) -> list[str]:
    parts = path.replace("\\", "/").split("/")
    return ["/".join(parts[at:]) for at in range(len(parts))]


def observations(
    lines: Iterable[str], media: Media, *, names: dict[str, str], types: dict[str, str], when: str
) -> Iterator[dict[str, str]]:
    """Yield one observation per answer.

    Args:
        lines: the answers, as JSON.
        media: the package's images.
        names: labels to scientific names.
        types: labels to observation types, of those that are no animals.
        when: the time of the classification.
    """
    for line in lines:
        answer = json.loads(line)
        if answer.get("error") or "label" not in answer:
            continue
        row, label, probability = media.of(answer["source"]), answer["label"], f"{answer['confidence']:.4f}"
        found = dict.fromkeys(COLUMNS, "") | {
            "observationID": f"{row['mediaID']}-poise",
            "deploymentID": row["deploymentID"],
            "mediaID": row["mediaID"],
            "eventStart": row["timestamp"],
            "eventEnd": row["timestamp"],
            "observationLevel": "media",
        }
        if answer.get("decision") == "abstain" or label == "unknown":
            likely = answer.get("rejected") or label
            yield found | {
                "observationType": "unclassified",
                "observationComments": f"poise abstains; most probable: {likely} ({probability})",
            }
            continue
        kind = types.get(label, "animal")
        yield found | {
            "observationType": kind,
            "scientificName": names.get(label, label) if kind == "animal" else "",
            "classificationMethod": "machine",
            "classifiedBy": f"poise, {answer['method']}",
            "classificationTimestamp": when,
            "classificationProbability": probability,
        }


def _pairs(file: Path | None) -> dict[str, str]:
    return dict(csv.reader(file.read_text(encoding="utf-8").splitlines())) if file else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--media", type=Path, required=True, help="media.csv of the package")
    parser.add_argument("--names", type=Path, help="CSV file without a header: label,scientific name")
    parser.add_argument("--types", type=Path, help="CSV file without a header: label,observation type, if no animal")
    parser.add_argument("--out", type=Path, default=Path("observations.csv"))
    options = parser.parse_args()
    media = Media(csv.DictReader(options.media.read_text(encoding="utf-8").splitlines()))
    when = datetime.fromtimestamp(int(options.answers.stat().st_mtime), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = options.answers.read_text(encoding="utf-8").splitlines()
    try:
        rows = list(
            observations(lines, media, names=_pairs(options.names), types=TYPES | _pairs(options.types), when=when)
        )
    except ValueError as problem:
        sys.exit(str(problem))
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
