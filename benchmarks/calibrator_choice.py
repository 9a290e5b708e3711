"""How clearly beta calibration has to win in cross-validation: ``python benchmarks/calibrator_choice.py``.

In simulated worlds the truth is a temperature or a curve of the top label's confidence. For the rules "0, 1 or 2
standard errors" the table shows how often beta is chosen, and the excess of the test log-loss over that of the better
calibrator (mean over draws, in thousandths of a nat). No dataset is used.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import special

from poise.calibration import Beta, Calibrator, choose, fit_beta, fit_temperature

TEMPERATURES = {"T = 1": 1.0, "T = 2": 2.0, "T = 0.6": 0.6}
CURVES = {"flat": (0.5, 1.0, -1.0), "lower": (1.0, 1.0, -1.5), "higher": (1.0, 0.5, 1.5), "steep": (2.0, 0.3, 0.0)}
RULES = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[5, 10, 20, 50, 200, 1000])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--draws", type=int, default=60)
    options = parser.parse_args()
    print("world    classes images | beta chosen at 0, 1, 2 SE | excess of temperature, beta; of the rules 0, 1, 2 SE")
    for classes in options.classes:
        for world in (*TEMPERATURES, *CURVES):
            for images in options.images:
                found = [one_draw(world, images, classes, seed) for seed in range(options.draws)]
                picks = np.mean([pick for pick, _ in found], axis=0)
                losses = 1000 * np.mean([loss for _, loss in found], axis=0)
                excess = losses - losses[:2].min()
                print(f"{world:8s} {classes:7d} {images:6d} | {np.round(picks, 2)} | {np.round(excess, 1)}", flush=True)


def one_draw(world: str, images: int, classes: int, seed: int) -> tuple[list[bool], list[float]]:
    """Return whether each rule chooses beta, and the test losses of temperature, of beta and of the rules."""
    generator = np.random.default_rng([seed, images, classes])
    probs, labels = draw(world, images, classes, generator)
    test, truth = draw(world, 3000, classes, generator)
    found = choose(probs, labels, resamples=1, seed=seed)
    losses = [log_loss(fit(probs, labels), test, truth) for fit in (fit_temperature, fit_beta)]
    picks = [found.difference > rule * found.standard_error for rule in RULES]
    return picks, [*losses, *(losses[pick] for pick in picks)]


def draw(world: str, images: int, classes: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the given probabilities and the labels of some images."""
    logits = 2 * generator.standard_normal((images, classes)) * generator.uniform(0.5, 1.5, (images, 1))
    probs = special.softmax(logits, axis=1)
    if world in TEMPERATURES:
        return special.softmax(TEMPERATURES[world] * logits, axis=1), drawn(probs, generator)
    top = probs.argmax(1)
    right = generator.random(images) < Beta(*CURVES[world]).apply(probs).max(1)
    others = probs.copy()
    others[np.arange(images), top] = 0
    return probs, np.where(right, top, drawn(others, generator))


def drawn(weights: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    total = np.cumsum(weights, axis=1)
    return (total < generator.random((len(weights), 1)) * total[:, -1:]).sum(1).clip(max=weights.shape[1] - 1)


def log_loss(calibrator: Calibrator, probs: np.ndarray, labels: np.ndarray) -> float:
    confidence = np.clip(calibrator.apply(probs).max(1), 1e-6, 1 - 1e-6)
    return float(-np.log(np.where(probs.argmax(1) == labels, confidence, 1 - confidence)).mean())


if __name__ == "__main__":
    main()
