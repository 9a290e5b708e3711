"""The panels are functions of results: what they show, and that nobody can put HTML into them."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import poise
from poise.demo.advice import Basis, advice_card
from poise.demo.bars import answer_card
from poise.demo.kept_views import thumbnails, views_block
from poise.demo.markup import MINUS, percent, text
from poise.inference.predictor import Predictor
from poise.views import ViewRecipe
from poise.views.pixels import pixels_of, to_image

LABELS = ["cat", "dog", "fox", "owl", "bee", "ant"]
HOSTILE = '<img src=x onerror="alert(1)">${alert(2)}{{value}}`\\'


class Reader(HTMLParser):
    """Collects the tags, the text and the values of <data>; refuses unbalanced HTML."""

    VOID = ("img", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def answers(service, image):
    classify = poise.Classifier(LABELS, service.encoder, ["zero-shot", "kld+cats", "tpt", "zero", "mta"], views=16)
    return classify(image, details=True)


def test_bars_contain_each_method_s_probabilities_and_the_change(answers) -> None:
    zero, main = answers["zero-shot"], answers["kld+cats"]
    page = Reader(answer_card([zero, main], main))
    bars = [attrs for tag, attrs in page.tags if attrs.get("class") == "bar"]
    labels = [label for label, _ in main.top(5)]
    assert [(bar["data-label"], bar["data-method"]) for bar in bars][:10] == [
        (label, name) for label in labels for name in ("zero-shot", "kld+cats")
    ]
    values = [float(attrs["value"]) for tag, attrs in page.tags if tag == "data"]
    assert values[0] == main.confidence
    want = [result.probabilities[label] for label in labels for result in (zero, main)]
    assert values[1:11] == want
    change = 100 * (main.probabilities[labels[0]] - zero.probabilities[labels[0]])
    shown = re.search(rf"([+{MINUS}±]\d+\.\d) points", page.words)
    assert shown is not None
    assert float(shown[1].replace(MINUS, "-").replace("±", "")) == pytest.approx(change, abs=0.101)


def test_methods_that_are_still_computed_have_empty_bars(answers) -> None:
    zero = answers["zero-shot"]
    page = answer_card([zero], zero, ["kld+cats"])
    assert page.count('class="bar waiting"') == 5
    assert "kld+cats" in Reader(page).words


def test_views_are_those_of_the_answer(service, image) -> None:
    recipe = ViewRecipe(views=8, seed=3)
    (views,) = Predictor(service.encoder, views=recipe).views([image])
    shown = thumbnails(image, recipe, service.encoder, [0, 5])
    assert set(shown) == {0, 5}
    for at, uri in shown.items():
        assert uri.startswith("data:image/webp;base64,")
        thumbnail = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
        small = to_image(pixels_of(views[at], service.encoder.image)).resize(thumbnail.size)
        difference = np.asarray(thumbnail, float) - np.asarray(small, float)
        assert np.abs(difference).mean() < 12  # grey levels: WebP loses some, and another crop differs by more


def test_kept_views_have_their_vote_confidence_and_temperature(service, image, answers) -> None:
    details = answers["kld+cats"].details
    shown = thumbnails(image, ViewRecipe(16), service.encoder, details.selected_views)
    page = Reader(views_block(answers["kld+cats"], shown))
    assert [int(attrs["data-view"]) for tag, attrs in page.tags if tag == "li"] == list(details.selected_views)
    at = details.selected_views[0]
    assert details.view_labels[at] in page.words
    assert f"temperature {details.view_temperatures[at]:.2f}" in page.words
    assert percent(details.view_confidences[at]) in page.words
    best, aim = max(details.logits, key=details.logits.__getitem__), details.target_probabilities
    values = [float(attrs["value"]) for tag, attrs in page.tags if tag == "data"][len(details.selected_views) :]
    want = [details.init_probabilities[best], aim[best], answers["kld+cats"].probabilities[best]]
    assert values[:3] == pytest.approx(want, abs=1e-6)


def test_rules_show_views_only_if_they_choose_some(answers) -> None:
    shown = dict.fromkeys(range(16), "data:,")
    assert "<li" in views_block(answers["zero"], shown)
    assert "all 16 views" in views_block(answers["mta"], shown)
    assert "p_aug, the mean" not in views_block(answers["zero"], shown)


def test_advice_promises_nothing_without_a_calibration(answers) -> None:
    page = Reader(advice_card(answers["kld+cats"], Basis()))
    assert "guaranteed" not in page.words
    assert page.words.count("not known") == 2
    assert f"{answers['kld+cats'].match:.3f}" in page.words
    assert "poise calibrate" in page.words


@pytest.mark.filterwarnings("ignore:.*labels have no image")
def test_advice_says_what_a_calibration_guarantees(service, image) -> None:
    rng = np.random.default_rng(1)
    images = list(rng.integers(0, 256, (60, 24, 24, 3), np.uint8))
    plain = poise.Classifier(LABELS[:3], service.encoder, "zero-shot")
    calibration = plain.calibrate(images, [plain(one).label for one in images[:50]] + ["cat"] * 10)
    options = {"calibration": calibration, "coverage": 0.8, "max_error": 0.5}
    result = poise.Classifier(LABELS[:3], service.encoder, "zero-shot", **options)(image)
    page = Reader(advice_card(result, Basis(60, 0.8)))
    assert page.words.count("guaranteed") == 2
    assert "80 of 100" in page.words
    assert result.guarantee in page.words
    unsure = Reader(advice_card(replace(result, decision="abstain", raw_confidence=0.4, threshold=0.5), Basis(60, 0.8)))
    assert "Abstain: leave it to a person. The model's own" in " ".join(unsure.words.split())
    assert "own confidence, 40.0 %, is below the certified threshold of 50.0 %" in " ".join(unsure.words.split())
    assert all(label in page.words for label in result.prediction_set)
    assert "poise calibrate" not in page.words
    assert f"{100 * result.confidence:.0f} in 100" in page.words


def test_user_text_is_inert(service, image) -> None:
    labels = [HOSTILE, "**bold** [link](javascript:1)", "</section><script>alert(3)</script>"]
    answers = poise.Classifier(labels, service.encoder, ["zero-shot", "kld+cats"], views=8, on_long_label="truncate")(
        image, details=True
    )
    main = answers["kld+cats"]
    shown = dict.fromkeys(range(8), "data:,")
    for page in (answer_card(list(answers.values()), main), views_block(main, shown), advice_card(main, Basis())):
        read = Reader(page)
        assert not {"script", "a"} & {tag for tag, _ in read.tags}
        assert all(not attrs.get("src", "data:,").startswith("x") for _, attrs in read.tags)
        assert not re.search(r"[{}$`\\]", page)
    assert HOSTILE in Reader(answer_card(list(answers.values()), main)).words


def test_text_is_escaped_in_attributes_too() -> None:
    assert text('"><b>') == "&quot;&gt;&lt;b&gt;"
    assert Reader(f'<p title="{text(HOSTILE)}">{text(HOSTILE)}</p>').tags == [("p", {"title": HOSTILE})]


def test_a_single_label_is_explained(service, image) -> None:
    result = poise.Classifier(["cat"], service.encoder, "zero-shot", one_label=True)(image)
    assert "only one label" in Reader(answer_card([result], result)).words
