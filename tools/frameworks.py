"""Measure the frameworks on real images: CoOp against zero-shot, FPP and calibration, DynaPrompt along a stream.

    python tools/frameworks.py coop tuned fpp dynaprompt baselines --data DATA --work WORK --out frameworks.md

Features are encoded once and kept in WORK, in batch on a GPU; a processor is enough, but slow. Results are printed as
Markdown, written to --out, and appended as numbers to WORK/results.jsonl. Test images are the whole test split, or
--limit of them. `features` alone encodes the plain views of test and train images, for a machine that has only one of
the two. CoOp's prompts that are in WORK already are not fitted again, so runs with other --seeds or --methods may share
the work and go side by side; with another --model, --augment or --epochs give another WORK.
"""

from __future__ import annotations

import argparse
import time
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import torch
from paired import Report, Row, Scores, mean, scores

from poise import data, methods
from poise.backbones import load_model
from poise.data import ImageSet
from poise.inits import coop, fpp
from poise.loading.features import TRAINING_CROPS, Shots, encode
from poise.methods import Method
from poise.prompts import init_prompt, tokenise
from poise.prompts.files import Facts, StoredPrompt, save
from poise.tuning import make_tuner, temperature

BATCH = 16
SLOTS = {"described": 10, "as-published": 12}  # of DynaPrompt's memory: in its paper, in its code
PLAIN = "zero-shot"
BASELINES = (PLAIN, "tpt", "kld+cats")  # the methods that are shown with an ensemble and with a temperature


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="Markdown file")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--dataset", default="caltech101")
    parser.add_argument("--limit", type=int, default=0, help="test images; 0 = all")
    parser.add_argument("--first", type=int, default=0, help="of these, how many of the stream; 0 = all")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of CoOp")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16], help="of CoOp; several = one after the other")
    parser.add_argument("--augment", type=int, default=50, help="crops per train image")
    parser.add_argument("--epochs", type=int, default=0, help="of CoOp; 0 = as published")
    parser.add_argument("--fpp-steps", type=int, default=1000)
    parser.add_argument("--fpp-seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", choices=methods.names(), default=methods.names())
    parser.add_argument("--variants", nargs="+", choices=SLOTS, default=list(SLOTS), help="of DynaPrompt")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.allow_tf32 = False  # float32 is to mean float32
    setting = Setting(options)
    for part in options.parts:
        began = time.perf_counter()
        PARTS[part](setting)
        setting.report.say(f"<!-- {part}: {time.perf_counter() - began:.0f} s -->")


class Setting:
    """The model, the test images and their features; what several parts need is computed once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.report = Report(options.out, options.work / "results.jsonl")
        self.encoder = load_model(options.model, device=options.device, dtype=options.dtype)
        images = data.open(options.dataset, options.data)
        # Split files go class after class, which would be no stream.
        self.images = images.subset(options.limit or len(images))
        self.methods = [methods.get(name) for name in options.methods]
        self.labels = np.array([item.label for item in self.images.items])[: options.first or None]
        self.classes = tokenise(self.encoder, self.images.classes, self.images.template, repeats=True)
        where = torch.cuda.get_device_name() if self.encoder.device.type == "cuda" else "CPU"
        self.report.say(f"<!-- {self.encoder.name}, {self.encoder.dtype}, {where}, {len(self.images)} test images -->")

    def encode(self, images: ImageSet, views: int, **how: object) -> Shots:
        began = time.perf_counter()
        found = encode(images, self.encoder, views=views, cache=self.options.work / "features", **how)  # type: ignore[arg-type]
        seconds = time.perf_counter() - began
        self.report.say(f"<!-- {images.split}: {len(images)} images x {views} views in {seconds:.1f} s -->")
        return found

    def train(self, seed: int) -> ImageSet:
        options = self.options
        return data.open(options.dataset, options.data, split="train", shots=options.shots, seed=seed)

    @cached_property
    def plain(self) -> torch.Tensor:
        return self.encode(self.images, 1).features[: len(self.labels)]

    @cached_property
    def views(self) -> torch.Tensor:
        found = self.encode(self.images, self.options.views, augmix=self.images.augmix)
        return found.features[: len(self.labels)]

    def probs(
        self, features: torch.Tensor, chosen: list[Method], more: dict[str, object] | None = None, **how: str
    ) -> dict[str, np.ndarray]:
        """Each method's answers [N, C]."""
        began = time.perf_counter()
        tuner = make_tuner(self.encoder, self.classes, chosen, options=more, **how)
        parts: dict[str, list[np.ndarray]] = {method.name: [] for method in chosen}
        for rows in features.split(BATCH):
            for name, answer in tuner.predict(rows).items():
                parts[name].append(answer.probs.double().cpu().numpy())
        told = (
            ", ".join([*how.values(), *([str(more["variant"])] if more and "framework" in how else [])]) or "from words"
        )
        self.report.say(f"<!-- {len(chosen)} methods, {told}: {time.perf_counter() - began:.1f} s -->")
        return {name: np.concatenate(each) for name, each in parts.items()}

    def scores(
        self, features: torch.Tensor, chosen: list[Method], more: dict[str, object] | None = None, **how: str
    ) -> dict[str, Scores]:
        found = self.probs(features, chosen, more, **how)
        return {name: scores(probs, self.labels) for name, probs in found.items()}

    @cached_property
    def from_words(self) -> dict[str, Scores]:
        """Every method, each image for itself, from the template's words."""
        return self.scores(self.views, self.methods)

    def fitted_temperature(self) -> float:
        """Fitted to the untuned answers on images of the train split."""
        held = self.encode(self.train(1), 1)
        tuner = make_tuner(self.encoder, self.classes, [methods.get(PLAIN)])
        logits = torch.cat([tuner.predict(rows)[PLAIN].logits.cpu() for rows in held.features.split(BATCH)])
        best = temperature.fit(logits, held.labels)
        self.report.say(f"<!-- temperature {best:.4f} from {len(held.labels)} labelled train images -->")
        return best

    def tell(self, title: str, difference: str, rows: list[Row]) -> None:
        facts = {name: str(value) for name, value in vars(self.options).items()}
        self.report.table(f"{title} on {self.options.dataset}", difference, rows, facts)


def encode_plain(setting: Setting) -> None:
    """The plain views of test and train images, kept in WORK."""
    assert len(setting.plain) == len(setting.labels)
    setting.encode(setting.train(1), 1)


def measure_coop(setting: Setting) -> None:
    """CoOp from a few shots, each seed's draw of its own, against the template's words."""
    options, chosen = setting.options, [methods.get(PLAIN)]
    before = setting.scores(setting.plain, chosen)[PLAIN]
    rows = [Row(PLAIN, before)]
    for tokens in options.tokens:
        found = [fitted_coop(setting, tokens, seed) for seed in options.seeds]
        name = f"CoOp, {options.shots} shots, {tokens} tokens"
        rows += [Row(f"{name}, seed {seed}", each, before) for seed, each in zip(options.seeds, found, strict=True)]
        if len(found) > 1:
            rows.append(Row(f"{name}, mean of {len(found)} seeds", mean(found), before))
    setting.tell("CoOp", f"less {PLAIN}", rows)


def fitted_coop(setting: Setting, tokens: int, seed: int) -> Scores:
    options, shots = setting.options, setting.train(seed)
    path = coop_file(options, tokens, seed)
    if not path.exists():
        fit_coop(setting, shots, tokens, seed, path)
    return setting.scores(setting.plain, [methods.get(PLAIN)], init=f"coop:{path}")[PLAIN]


def coop_file(options: argparse.Namespace, tokens: int, seed: int) -> Path:
    file: Path = options.work / f"coop-{options.dataset}-{options.shots}-{tokens}-seed{seed}.safetensors"
    return file


def fit_coop(setting: Setting, shots: ImageSet, tokens: int, seed: int, path: Path) -> None:
    options = setting.options
    found = setting.encode(shots, options.augment + 1, seed=seed, crops=TRAINING_CROPS)
    epochs = options.epochs or coop.published_epochs(options.shots, options.dataset)
    losses: list[float] = []
    stored = coop.fit(
        setting.encoder, shots.classes, found.crops(), found.labels, shape=coop.Shape(tokens=tokens),
        recipe=coop.FewShot(epochs=epochs, seed=seed), report=lambda epoch, loss: losses.append(loss),
    )  # fmt: skip
    setting.report.say(f"<!-- CoOp, {tokens} tokens, seed {seed}: loss {losses[0]:.3f} -> {losses[-1]:.3f} -->")
    save(path, stored)


def measure_tuned(setting: Setting) -> None:
    """Every method from CoOp's context, against CoOp alone."""
    options = setting.options
    for tokens, seed in product(options.tokens, options.seeds):
        fitted_coop(setting, tokens, seed)
        found = setting.scores(setting.views, setting.methods, init=f"coop:{coop_file(options, tokens, seed)}")
        alone = found[PLAIN]
        rows = [Row(f"{name} from CoOp", each, None if name == PLAIN else alone) for name, each in found.items()]
        setting.tell(f"CoOp, {tokens} tokens, seed {seed}, and tuning", "less CoOp alone", rows)


def measure_fpp(setting: Setting) -> None:
    """FPP as a start, against the words: sharpness of the texts, accuracy and ECE of all methods."""
    words = StoredPrompt(
        {"context": init_prompt(setting.encoder, setting.classes).context[0]},
        Facts(kind="template", model=setting.encoder.name, template=setting.images.template),
    )
    flat = {"words": fpp.sharpness(setting.encoder, setting.images.classes, words)}
    found = []
    for seed in setting.options.fpp_seeds:
        path, flat[f"FPP, seed {seed}"] = fitted_fpp(setting, seed)
        found.append(setting.scores(setting.views, setting.methods, init=path))
    setting.report.say("", "Sharpness: " + ", ".join(f"{name} {value:.4f}" for name, value in flat.items()) + ".")
    rows = []
    for method in setting.from_words:
        before = setting.from_words[method]
        rows += [
            Row(f"{method} from words", before),
            Row(f"{method} from FPP", mean([each[method] for each in found]), before),
        ]
    setting.tell("FPP", "FPP less words", rows)


def fitted_fpp(setting: Setting, seed: int) -> tuple[str, float]:
    """The start's file, and how sharp its texts are."""
    options, seen = setting.options, list[tuple[int, float, float]]()
    stored = fpp.fit(
        setting.encoder, setting.images.classes, setting.images.template,
        recipe=fpp.Flatness(steps=options.fpp_steps, seed=seed), report=lambda *step: seen.append(step),
    )  # fmt: skip
    change = [f"{name} {seen[0][at]:.4f} -> {seen[-1][at]:.4f}" for at, name in ((1, "alignment"), (2, "cosine"))]
    setting.report.say(f"<!-- FPP, seed {seed}: {', '.join(change)} -->")
    path = options.work / f"fpp-{options.dataset}-seed{seed}.safetensors"
    save(path, stored)
    return f"fpp:{path}", fpp.sharpness(setting.encoder, setting.images.classes, stored)


def measure_dynaprompt(setting: Setting) -> None:
    """The stream in an order that depends on the images' ids alone, both variants, all objectives."""
    tuned = [method for method in setting.methods if method.steps]
    streams = {
        name: setting.scores(setting.views, tuned, {"variant": name, "size": SLOTS[name]}, framework="dynaprompt")
        for name in setting.options.variants
    }
    rows = []
    for method in [each.name for each in tuned]:
        before = setting.from_words[method]
        rows.append(Row(f"{method}, each for itself", before))
        rows += [Row(f"{method}, {variant}", found[method], before) for variant, found in streams.items()]
    setting.tell("DynaPrompt", "stream less each for itself", rows)


def measure_baselines(setting: Setting) -> None:
    """The four-template ensemble, and temperature scaling fitted on images of the train split."""
    chosen = [method for method in setting.methods if method.name in BASELINES]
    if not chosen:
        raise SystemExit(f"baselines: --methods has none of {', '.join(BASELINES)}.")
    together = setting.scores(setting.views, chosen, framework="ensemble")
    best = setting.fitted_temperature()
    scaled = setting.scores(setting.views, chosen, {"temperature": best})
    rows = []
    for method in [each.name for each in chosen]:
        before = setting.from_words[method]
        rows.append(Row(f"{method}, one template", before))
        rows.append(Row(f"{method}, ensemble of four", together[method], before))
        rows.append(Row(f"{method}, T = {best:.3f}", scaled[method], before))
    setting.tell("Baselines", "less one template", rows)


PARTS = {
    "coop": measure_coop, "tuned": measure_tuned, "fpp": measure_fpp, "dynaprompt": measure_dynaprompt,
    "baselines": measure_baselines, "features": encode_plain,
}  # fmt: skip

if __name__ == "__main__":
    main()
