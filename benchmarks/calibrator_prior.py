"""How the prior of the calibrator was chosen, on simulated models: ``python benchmarks/calibrator_prior.py``.

In each world the given probabilities are right as they are, or after a temperature, a curve of the top label's
confidence, or both; in two of them, the other labels would need another temperature than the top label. A calibrator is
fitted to 10 to 100 labelled images, under each candidate of a prior. Numbers are the excess of the expected log-loss of
the top label over that of the truth, in thousandths of a nat, mean over draws of the labelled images; the expectation
over other images is exact. The rule: of the candidates that cost at most 3 in every calibrated world and for every
number of labels, one with the lowest mean. No dataset is used.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

import numpy as np
from scipy import special

from poise.calibration import Calibrator, Curve, fit_calibrator
from poise.calibration.posterior import Prior

TRUTHS = {  # what would be right, and the temperature of the other labels where it differs
    "as it is": (Curve(1.0), None),
    "T = 0.5": (Curve(1.0, 0.5), None),
    "T = 0.7": (Curve(1.0, 0.7), None),
    "T = 1.4": (Curve(1.0, 1.4), None),
    "T = 2": (Curve(1.0, 2.0), None),
    "T = 4": (Curve(1.0, 4.0), None),
    "lower": (Curve(1.0, m=-1.0), None),
    "higher": (Curve(1.0, m=1.0), None),
    "flat": (Curve(1.0, 1.0, 0.5, 0.5), None),
    "low and flat": (Curve(1.0, 1.0, 0.5, 0.5, -2.0), None),
    "T = 1.5, lower": (Curve(1.0, 1.5, m=-0.7), None),
    "T = 2, others 4": (Curve(1.0, 2.0), 4.0),
    "lower, others 2": (Curve(1.0, m=-1.0), 2.0),
}
CLASSES = (10, 100)
IMAGES = (10, 25, 50, 100)
TEST = 1500
MOST = 3.0  # thousandths of a nat that a calibrated model may lose
SCALES = (0.2, 0.4, 0.27)  # of log T, shift and log slope; candidates multiply them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--unchanged", type=float, nargs="+", default=[0.0, 0.5, 0.65, 0.8])
    parser.add_argument("--factors", type=float, nargs="+", default=[0.7, 1.0, 1.5])
    parser.add_argument("--others", type=float, nargs="+", default=[0.0, 10.0, 1000.0])
    options = parser.parse_args()
    priors = [
        Prior(unchanged, (SCALES[0] * factor, SCALES[1] * factor, SCALES[2] * factor), others)
        for others, factor, unchanged in itertools.product(options.others, options.factors, options.unchanged)
    ]
    found = {}
    for classes, world, images in itertools.product(CLASSES, TRUTHS, IMAGES):
        before, excess = one_world(world, images, classes, priors, options.draws)
        found[classes, world, images] = before, excess
        print(f"{classes:4d} {world:15s} {images:4d}  before {before:6.1f}  {np.round(excess, 1)}", flush=True)
    harm = np.max([excess for (_, world, _), (_, excess) in found.items() if world == "as it is"], axis=0)
    print("\nothers  scale  unchanged  harm  mean excess with 10, 25, 50, 100 labels, and of all")
    for at, prior in enumerate(priors):
        by_images = [np.mean([found[key][1][at] for key in found if key[2] == images]) for images in IMAGES]
        mark = " " if harm[at] <= MOST else "x"
        row = f"{prior.others:6.0f}  {prior.scales[0]:5.3f}  {prior.unchanged:9.2f} {mark}{harm[at]:5.2f}"
        print(f"{row}  {np.round(by_images, 1)}  {np.mean(by_images):.2f}")


def one_world(world: str, images: int, classes: int, priors: list[Prior], draws: int) -> tuple[float, np.ndarray]:
    """Return the excess before calibration, and under each prior."""
    test = given(TEST, classes, np.random.default_rng(classes))
    right, before = truth(world, test).max(1), test.max(1)
    total = np.zeros(len(priors))
    for draw in range(draws):
        generator = np.random.default_rng([draw, images, classes])
        probs = given(images, classes, generator)
        labels = drawn(truth(world, probs), generator)
        for scales, others in dict.fromkeys((prior.scales, prior.others) for prior in priors):
            fit = fit_calibrator(probs, labels, prior=Prior(0.5, scales, others))
            after = changed(fit.calibrator.curves[1:]).apply(test).max(1)
            for at, prior in enumerate(priors):
                if (prior.scales, prior.others) == (scales, others):
                    # Odds of "unchanged" are those of the prior times what the labels say.
                    odds = fit.unchanged / (1 - fit.unchanged) * prior.unchanged / (1 - prior.unchanged)
                    total[at] += divergence(right, (odds * before + after) / (odds + 1))
    return divergence(right, before), total / draws


def truth(world: str, probs: np.ndarray) -> np.ndarray:
    """Return the probabilities that labels are drawn with."""
    curve, temperature = TRUTHS[world]
    out = Calibrator((curve,)).apply(probs)
    if temperature is not None:
        others, top = Calibrator((Curve(1.0, temperature),)).apply(probs), probs.argmax(1)[:, None]
        chance = np.take_along_axis(out, top, axis=1)
        np.put_along_axis(others, top, 0, axis=1)
        out = others * (1 - chance) / others.sum(1, keepdims=True)
        np.put_along_axis(out, top, chance, axis=1)
    return out


def changed(curves: Sequence[Curve]) -> Calibrator:
    """Return the calibrator without the possibility that nothing is to be changed."""
    total = sum(curve.weight for curve in curves)
    return Calibrator(tuple(curve._replace(weight=curve.weight / total) for curve in curves) or (Curve(1.0),))


def given(images: int, classes: int, generator: np.random.Generator) -> np.ndarray:
    """Draw probabilities; some images are easy, others hard."""
    return np.asarray(
        special.softmax(generator.standard_normal((images, classes)) * generator.uniform(1, 5, (images, 1)), axis=1)
    )


def drawn(probs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return (np.cumsum(probs, axis=1) < generator.random((len(probs), 1))).sum(1).clip(max=probs.shape[1] - 1)


def divergence(right: np.ndarray, stated: np.ndarray) -> float:
    """Return the mean excess, in thousandths of a nat, of confidences over the chances to be right."""
    p, q = (np.clip(part, 1e-6, 1 - 1e-6) for part in (right, stated))
    return float(1000 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean())


if __name__ == "__main__":
    main()
