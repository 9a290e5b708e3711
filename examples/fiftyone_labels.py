"""Calibrated labels in a FiftyOne dataset: a `Classification` with confidence and logits, and a field of the decision.

    pip install fiftyone
    python examples/fiftyone_labels.py DATASET --labels cat,dog [--calibration FILE --max-error 0.05]

In the app, filter `poise_decision == "abstain"` to see what is left to people.
"""

from __future__ import annotations

import argparse
from typing import Any

import poise
from poise.results import Failure


def add_labels(samples: Any, classifier: poise.Classifier, fo: Any, field: str = "poise") -> int:
    """Write the answers into the samples, and return how many got one."""
    chosen = list(samples)
    written = 0
    for sample, outcome in zip(chosen, classifier.each([one.filepath for one in chosen], details=True), strict=True):
        if isinstance(outcome, Failure):
            sample[f"{field}_error"] = outcome.message
        else:
            result = next(iter(outcome.values()))
            logits = [result.details.logits[label] for label in classifier.labels] if result.details else None
            sample[field] = fo.Classification(label=result.label, confidence=result.confidence, logits=logits)
            sample[f"{field}_decision"] = result.decision or "answer"
            written += 1
        sample.save()
    return written


def main() -> None:
    import fiftyone

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--labels")
    parser.add_argument("--calibration")
    parser.add_argument("--max-error", type=float)
    options = parser.parse_args()
    if not options.calibration and not options.labels:
        parser.error("Give --labels or --calibration.")
    if options.calibration:
        classifier = poise.Classifier.from_calibration(options.calibration, max_error=options.max_error)
    else:
        classifier = poise.Classifier(options.labels.split(","))
    samples = fiftyone.load_dataset(options.dataset)
    print(f"{add_labels(samples, classifier, fiftyone)} samples labelled")


if __name__ == "__main__":
    main()
