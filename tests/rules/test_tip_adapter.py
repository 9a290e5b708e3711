"""Tip-Adapter: its file fits one model and label set, and its weights are chosen on the labelled images alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from typer.testing import CliRunner

from poise import methods
from poise.backbones import load_model
from poise.cli.app import app
from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidCheckpointError, InvalidOptionError
from poise.files import hash_names
from poise.prompts import init_prompt, tokenise
from poise.rules.tip_adapter import (
    ALPHAS,
    BETAS,
    START,
    LabelledCache,
    LabelledCacheAdapter,
    choose_weights,
    load_cache,
    make_cache,
    save_cache,
)
from poise.testing import RULE_CHECKS, example_images
from poise.tuning import Tuner
from tests.evaluate.attempt import arguments, make_images

LABELS = ["cat", "dog", "cup"]


def tuner(file: Path | str, labels: list[str] = LABELS) -> Tuner:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    return Tuner(encoder, tokenise(encoder, labels), [methods.get("tip-adapter", file=str(file))])


def labelled(shots: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    centres = torch.randn(3, 1, 32, dtype=torch.float64, generator=generator).repeat_interleave(shots, 0)
    noise = torch.randn(3 * shots, 4, 32, dtype=torch.float64, generator=generator)
    return normalize(centres + 0.5 * noise, dim=-1), torch.arange(3).repeat_interleave(shots)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    classes = tokenise(encoder, LABELS)
    features, targets = labelled()
    save_cache(
        tmp_path / "a.safetensors",
        make_cache(ClassTexts(encoder, classes, init_prompt(encoder, classes)), features, targets),
    )
    return tmp_path / "a.safetensors"


def test_the_plain_formula(file: Path) -> None:
    features, targets = labelled()
    answers, cache = tuner(file).predict(features), load_cache(file)
    encoder = load_model("tiny", device="cpu", dtype="float64")
    keys = normalize(features[:, 1:].mean(1), dim=-1)
    texts = tuner(file).texts.init_features()[0]
    for row, feature in enumerate(features[:, 0]):
        logits = encoder.scale * (texts @ feature)
        for key, target in zip(keys, targets, strict=True):
            vote = torch.exp(-cache.beta * (1 - key @ feature))
            logits[target] += cache.alpha * encoder.scale / 100 * vote
        torch.testing.assert_close(answers["tip-adapter"].logits[row], logits, atol=1e-9, rtol=0)


def test_weights_are_those_of_the_best_grid_point() -> None:
    features, targets = labelled()
    keys, plain = normalize(features[:, 1:].mean(1), dim=-1), features[:, 0]
    logits = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    losses = {}
    for beta in BETAS:
        for alpha in ALPHAS:
            rows = logits.clone()
            for row in range(9):
                for other in range(9):
                    if other != row:
                        cosine = float(plain[row] @ keys[other])
                        rows[row, targets[other]] += alpha * torch.exp(torch.tensor(-beta * (1 - cosine)))
            losses[alpha, beta] = float(cross_entropy(rows, targets))
    found = choose_weights(keys, targets, plain, logits, 100.0)
    assert losses[found] == pytest.approx(min(losses.values()), abs=1e-9)


def test_one_image_per_class_has_the_published_start_values() -> None:
    features, targets = labelled(shots=1)
    assert choose_weights(features[:, 1], targets, features[:, 0], torch.zeros(3, 3).double(), 100.0) == START


def test_a_missing_last_label_is_no_problem(tmp_path: Path) -> None:
    """The published code takes the number of classes from the largest label seen."""
    features, targets = labelled()
    keys = normalize(features[:6, 1:].mean(1), dim=-1)
    cache = LabelledCache(keys, targets[:6], tuner_name(), hash_names(LABELS), 1.0, 1.0)
    save_cache(tmp_path / "b.safetensors", cache)
    assert tuner(tmp_path / "b.safetensors").predict(features)["tip-adapter"].logits.shape == (9, 3)


def test_it_conforms(tmp_path: Path) -> None:
    out = example_images(images=6)
    cache = LabelledCache(out.image_features[:, 0], torch.arange(6) % 5, "", "", 2.0, 3.0)
    save_cache(tmp_path / "c.safetensors", cache)
    for check in RULE_CHECKS[2:]:  # the first of shapes has other labels too
        check(LabelledCacheAdapter(str(tmp_path / "c.safetensors")))


def tuner_name() -> str:
    return load_model("tiny", device="cpu").name


def test_other_labels_models_and_files_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpointError, match=r"The cache's labels \(hash\) is"):
        tuner(file, ["dog", "cat", "cup"])
    cache = load_cache(file)
    other = LabelledCache(cache.keys, cache.targets, "other", cache.labels_hash, 1.0, 1.0)
    save_cache(tmp_path / "other.safetensors", other)
    with pytest.raises(InvalidCheckpointError, match="The cache's model is 'other', but 'tiny' is needed"):
        tuner(tmp_path / "other.safetensors")
    with pytest.raises(InvalidOptionError, match=r"tip-adapter has no file of labelled images.*poise fit"):
        tuner("")
    (tmp_path / "text").write_text("no")
    for path in (tmp_path / "text", tmp_path / "absent"):
        with pytest.raises(InvalidCheckpointError, match="is not a readable cache of labelled images"):
            tuner(path)


def test_from_the_command_line(tmp_path: Path) -> None:
    images, cache = make_images(tmp_path / "images"), tmp_path / "cache.safetensors"
    fit = [
        "fit",
        "tip-adapter",
        "--dataset",
        f"folder:{images}",
        "--model",
        "tiny",
        "--augment",
        "2",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(app, [*fit, "--out", str(cache)])
    assert result.exit_code == 0, result.output
    assert "12 images for tiny, alpha" in result.output
    options = ["--method", "zero-shot,tip-adapter", "--set", f"options.tip-adapter.file={cache}"]
    result = CliRunner().invoke(app, arguments(images, tmp_path / "runs", *options))
    assert result.exit_code == 0, result.output
