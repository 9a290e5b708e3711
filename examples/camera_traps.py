"""Observations of a camera-trap data package (Camtrap DP) from the answers of `poise classify`.

    poise classify images/ --labels "red fox,badger,roe deer" --calibration fox.json --max-error 0.05 \\
        --format jsonl --out answers.jsonl
    python examples/camera_traps.py answers.jsonl --deployment site-1 --out observations.csv

`classificationProbability` is the calibrated probability of the label. An image for which the classifier abstains, or
whose label is "unknown", gets the observation type "unclassified", so that a person looks at it. One row per image;
events of several images, and times, have to be added from the package's media.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

COLUMNS = (
    "observationID",
    "deploymentID",
    "mediaID",
    "observationLevel",
    "observationType",
    "scientificName",
    "classificationMethod",
    "classifiedBy",
    "classificationProbability",
    "observationComments",
)


def observations(lines: Iterable[str], deployment: str, names: dict[str, str], blank: str) -> Iterator[dict[str, str]]:
    """Yield one observation per answer; ``names`` gives labels their scientific names, ``blank`` means no animal."""
    for at, line in enumerate(lines):
        answer = json.loads(line)
        if answer.get("error") or "label" not in answer:
            continue
        label = answer["label"]
        sure = answer.get("decision") != "abstain" and label != "unknown"
        kind = "unclassified" if not sure else "blank" if label == blank else "animal"
        yield {
            "observationID": f"{deployment}-{at:06d}",
            "deploymentID": deployment,
            "mediaID": answer["source"],
            "observationLevel": "media",
            "observationType": kind,
            "scientificName": names.get(label, label) if kind == "animal" else "",
            "classificationMethod": "machine",
            "classifiedBy": f"poise, {answer['method']}",
            "classificationProbability": f"{answer['confidence']:.4f}" if sure else "",
            "observationComments": "" if sure else f"most probable: {label} ({answer['confidence']:.4f})",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--deployment", required=True)
    parser.add_argument("--names", type=Path, help="CSV file: label,scientific name")
    parser.add_argument("--blank", default="empty", help="label of an image without an animal")
    parser.add_argument("--out", type=Path, default=Path("observations.csv"))
    options = parser.parse_args()
    names = dict(csv.reader(options.names.read_text(encoding="utf-8").splitlines())) if options.names else {}
    with options.answers.open(encoding="utf-8") as lines, options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(observations(lines, options.deployment, names, options.blank))


if __name__ == "__main__":
    main()
