"""
Is an ECE of 5 % bad?
=====================

Even perfectly calibrated confidences have a calibration error above 0, because the number of images in a bin is finite.
The floor of ECE is what answers with the same confidences would have on average if each were right exactly as often as
it says.
"""

# %%
# Here every answer is right with the probability that it states, so its true calibration error is 0. The measured ECE
# follows the floor and falls with the number of images.
import matplotlib.pyplot as plt
import numpy as np

from poise.metrics import ece, ece_floor

generator = np.random.default_rng(0)
counts = [50, 100, 200, 500, 1000, 2000, 5000, 10_000]
floors, measured = [], []
for count in counts:
    confidence = generator.beta(4, 2, count)
    floors.append(100 * ece_floor(confidence))
    draws = generator.random((200, count)) < confidence
    measured.append(100 * np.quantile([ece(confidence, correct) for correct in draws], [0.05, 0.5, 0.95]))
low, middle, high = np.transpose(measured)

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
axis.fill_between(counts, low, high, alpha=0.25, label="ECE of perfectly calibrated confidences, 90 % of draws")
axis.plot(counts, middle, label="median")
axis.plot(counts, floors, "k--", label="floor (ece_floor)")
axis.set(xscale="log", xlabel="images", ylabel="ECE, percent", ylim=(0, None))
axis.legend()
plt.show()

# %%
# With 100 images, an ECE of 9 % is no evidence of miscalibration; with 10,000 images, it is.
print({count: round(floor, 1) for count, floor in zip(counts, floors, strict=True)})
