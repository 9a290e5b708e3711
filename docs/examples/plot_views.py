"""
What happens to one image
=========================

The default method ``kld+cats`` looks at many views of an image, gives each a temperature by its confidence, and moves
the prediction of the plain image towards the mean of the most confident views. This example shows it for one image,
with the embedded model.
"""

# %%
# ``details=True`` returns the intermediate results.
import matplotlib.pyplot as plt

import poise
from poise.images.samples import sample_images

rocket = next(path for path in sample_images() if path.stem == "rocket")
labels = ["rocket", "lighthouse", "tower", "bird", "motorcycle"]
classify = poise.Classifier(labels, method="kld+cats", views=64, device="cpu")
result = classify(rocket, details=True)
details = result.details
print(f"{result.label}: {details.init_probabilities[result.label]:.3f} before, {result.confidence:.3f} after")

# %%
# Left: every view is a point; sure views have low temperatures, and the views in the target are marked. Right: the
# prediction before and after tuning, and p_aug, towards which it moved.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=[1, 1.3])
left.scatter(details.view_confidences, details.view_temperatures, s=16, label="view")
chosen = list(details.selected_views)
left.scatter(
    [details.view_confidences[view] for view in chosen],
    [details.view_temperatures[view] for view in chosen],
    s=60,
    facecolors="none",
    edgecolors="tab:red",
    label="in the target",
)
left.set(xlabel="confidence of the view", ylabel="temperature")
left.legend()
for offset, (title, values) in enumerate(
    {
        "before": details.init_probabilities,
        "after": result.probabilities,
        "p_aug": details.target_probabilities,
    }.items()
):
    right.bar(
        [place + 0.27 * (offset - 1) for place in range(len(labels))],
        [values[label] for label in labels],
        0.25,
        label=title,
    )
right.set_xticks(range(len(labels)), labels)
right.set_ylabel("probability")
right.legend()
plt.show()
