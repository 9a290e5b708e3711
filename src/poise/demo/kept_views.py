"""What a method tuned on: the views that it kept, each one's vote, and the probabilities before, after and aimed at."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence

import torch
from scipy.special import softmax

from poise import methods
from poise.demo.bars import TOP
from poise.demo.markup import number, text
from poise.errors import PoiseError
from poise.inference.predictor import Predictor
from poise.results import Details, Failure, Result
from poise.types import DualEncoder
from poise.views import ViewRecipe
from poise.views.pixels import pixels_of, to_image

SIDE = 112  # pixels of a thumbnail
Thumbnails = Mapping[int, str]  # view -> data URI
_LEGEND = (
    "Below each: the label that it votes for after tuning, how sure the model was before tuning, and the temperature "
    "that divides its logits (above 1, the view counts as less sure)."
)
_MARKS = {"before": "before", "aim": "p_aug", "after": "after"}


def thumbnails(image: bytes, recipe: ViewRecipe, encoder: DualEncoder, chosen: Sequence[int]) -> Thumbnails:
    """Return some views of an image as small images.

    The recipe draws the same crops here as for the answer, because they depend on the seed and the pixels only.
    """
    (views,) = Predictor(encoder, views=recipe, processes=False).views([image])
    if isinstance(views, Failure):
        raise PoiseError(views.message, code=views.code)
    return {at: _data_uri(pixels_of(views[at].cpu(), encoder.image)) for at in dict.fromkeys(chosen)}


def views_block(result: Result, shown: Thumbnails) -> str:
    """Return the block of one method that reads views: thumbnails, and the movement of the probabilities."""
    details = result.details
    assert details is not None, "the views are part of the details"
    method, total = methods.get(result.method), len(details.view_confidences)
    said, parts = f"<p>{text(method.name)}: {text(method.about.description)}.", []
    if method.tunes or "target" in method.shared_with_rule():
        kept = len(details.selected_views)
        said += f" It cut {total} views out of the image and kept the {kept} about which the model is surest. {_LEGEND}"
        parts.append(f'<ul class="views">{"".join(_view(at, details, shown) for at in details.selected_views)}</ul>')
    else:
        said += f" It answers from all {total} views."
    parts.insert(0, f"{said}</p>")
    if method.tunes:
        parts.append(_movement(details, result.raw_confidence is not None))
    return f"<details open><summary>{text(result.method)}</summary>{''.join(parts)}</details>"


def _view(at: int, details: Details, shown: Thumbnails) -> str:
    vote, sure = details.view_labels[at], details.view_confidences[at]
    temperature = details.view_temperatures[at]
    name = "the whole image" if at == 0 else f"view {at}"
    return (
        f'<li data-view="{at}"><img src="{shown[at]}" width="{SIDE}" height="{SIDE}" alt="{name}">'
        f"<b>{text(vote)}</b><span>{number(sure)} sure</span><span>temperature {temperature:.2f}</span></li>"
    )


def _movement(details: Details, calibrated: bool) -> str:
    """Return a table of p before, p_aug and p after, each label with a line on which the three are marked."""
    before, aim = details.init_probabilities, details.target_probabilities
    after = dict(zip(details.logits, softmax(list(details.logits.values())).tolist(), strict=True))
    rows = "".join(
        f'<tr><th scope="row">{text(label)}</th>'
        + "".join(f"<td>{number(probs[label])}</td>" for probs in (before, aim, after))
        + f'<td class="line" aria-hidden="true"><div>{_dots(before[label], aim[label], after[label])}</div></td></tr>'
        for label in sorted(after, key=lambda label: -after[label])[:TOP]
    )
    heads = "".join(f'<th scope="col"><s class="dot {mark}"></s> {name}</th>' for mark, name in _MARKS.items())
    return (
        "<p>The probabilities before and after tuning, and of the target p_aug, the mean of the views above under the "
        f"tuned prompt{', all without calibration' if calibrated else ''}.</p>"
        f'<div class="scroll"><table class="movement"><thead><tr><th scope="col">label</th>{heads}'
        f'<th scope="col" class="scale" aria-hidden="true"><div><span>0</span><span>100 %</span></div></th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _dots(*probs: float) -> str:
    places = zip(_MARKS, probs, strict=True)
    return "".join(f'<s class="dot {mark}" style="left:{100 * prob:.2f}%"></s>' for mark, prob in places)


def _data_uri(pixels: torch.Tensor) -> str:
    buffer = io.BytesIO()
    to_image(pixels).resize((2 * SIDE, 2 * SIDE)).save(buffer, "WEBP", quality=80)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
