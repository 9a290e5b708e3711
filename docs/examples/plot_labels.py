"""
What 100 labelled images do
===========================

An overconfident classifier is calibrated with a curve that is fitted on 100 labelled images, and the rest is used
to see how well this worked. The numbers are generated; ``poise calibrate`` does the same for your images.
"""

# %%
# Logits of 10 classes, of which the correct one is higher on average. Multiplying them by 2.5 makes the classifier
# overconfident without changing a single answer.
import matplotlib.pyplot as plt
import numpy as np

from poise.calibration import fit_calibrator
from poise.metrics import ece, ece_floor, equal_width

generator = np.random.default_rng(1)
truth = generator.integers(0, 10, 2100)
logits = generator.standard_normal((2100, 10))
logits[np.arange(2100), truth] += 2.0


def softmax(values):
    shifted = np.exp(values - values.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


raw = softmax(2.5 * logits)
labelled, others = slice(0, 100), slice(100, None)
fit = fit_calibrator(raw[labelled], truth[labelled])
calibrated = fit.calibrator.apply(raw[others])
print(fit)

# %%
# Points on the diagonal are right as often as they say. Bins with few images are noisy, and the floor says how much of
# the ECE such noise explains.
figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained", sharey=True)
for axis, title, probabilities in zip(axes, ("before", "after"), (raw[others], calibrated), strict=True):
    confidence, correct = probabilities.max(-1), probabilities.argmax(-1) == truth[others]
    bins = equal_width(confidence, correct, 10)
    filled = bins.count > 0
    axis.plot([0, 1], [0, 1], "k:", linewidth=1)
    axis.scatter(bins.confidence[filled], bins.accuracy[filled], s=bins.count[filled] / 2)
    number, floor = 100 * ece(confidence, correct), 100 * ece_floor(confidence)
    axis.set(title=f"{title}: ECE {number:.1f} % (floor {floor:.1f} %)", xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
axes[0].set_ylabel("share of right answers")
plt.show()
