"""Measure the frameworks on real images: CoOp against zero-shot, FPP and calibration, DynaPrompt along a stream.

    python tools/frameworks.py --data DATA --model pocket --work WORK coop
    python tools/frameworks.py --data DATA --model pocket --work WORK fpp
    python tools/frameworks.py --data DATA --model pocket --work WORK dynaprompt
    python tools/frameworks.py --data DATA --model pocket --work WORK baselines

Features are encoded once and kept in WORK, so a processor is enough. Results are printed as Markdown and appended to
WORK/results.jsonl. Test images are the whole test split, or --limit of them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from poise import data, methods, metrics
from poise.backbones import load
from poise.inits import coop, fpp, temperature
from poise.metrics.bootstrap import resamples
from poise.prompts import start_prompt, tokenise
from poise.prompts.store import Facts, StoredPrompt, save
from poise.shots import encode
from poise.tuning import Options, make_tuner

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted(PARTS))
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--dataset", default="caltech101")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--augment", type=int, default=50)
    parser.add_argument("--fpp-steps", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    PARTS[options.what](Setting(options))


class Setting:
    """The model, the test images and their features."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.encoder = load(options.model, device=options.device, dtype=options.dtype)
        self.images = data.open(options.dataset, options.data)
        if options.limit:
            self.images = self.images.subset(options.limit)
        self.classes = tokenise(self.encoder, self.images.classes, self.images.template)

    def test(self, views: int) -> tuple[torch.Tensor, np.ndarray]:
        began = time.perf_counter()
        found = encode(
            self.images,
            self.encoder,
            views=views,
            seed=1,
            augmix=self.images.augmix,
            cache=self.options.work / "features",
        )
        print(f"<!-- features of {len(self.images)} images x {views} views: {time.perf_counter() - began:.1f} s -->")
        return found.features, found.labels.numpy()

    def answers(self, features: torch.Tensor, chosen: list[methods.Method], **how: object) -> dict[str, np.ndarray]:
        tuner = make_tuner(self.encoder, self.classes, chosen, **how)  # type: ignore[arg-type]
        parts: dict[str, list[np.ndarray]] = {method.name: [] for method in chosen}
        for rows in features.split(BATCH):
            for name, answer in tuner.predict(rows).items():
                parts[name].append(answer.probs.double().cpu().numpy())
        return {name: np.concatenate(each) for name, each in parts.items()}

    def tell(self, title: str, rows: dict[str, dict[str, float]]) -> None:
        columns = list(next(iter(rows.values())))
        print(f"\n### {title}\n\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
        for name, values in rows.items():
            print(f"| {name} | {' | '.join(f'{values[column]:.2f}' for column in columns)} |")
        record = {"title": title, "options": {k: str(v) for k, v in vars(self.options).items()}, "rows": rows}
        with (self.options.work / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def scores(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """In percent, with a 95 % bootstrap interval of the accuracy over images."""
    right = (probs.argmax(1) == labels).astype(float)
    low, high = np.quantile(drawn_means(right), [0.025, 0.975])
    error = metrics.ece(probs.max(1), right.astype(bool))
    return {"accuracy": 100 * right.mean(), "low": 100 * low, "high": 100 * high, "ECE": 100 * error}


def drawn_means(values: np.ndarray) -> np.ndarray:
    return np.concatenate([block @ values / len(values) for block in resamples(len(values), 2000)])


def gain(probs: np.ndarray, before: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Difference of accuracy on the same images, in points, with its paired 95 % interval."""
    each = (probs.argmax(1) == labels).astype(float) - (before.argmax(1) == labels)
    low, high = np.quantile(drawn_means(each), [0.025, 0.975])
    return {"gain": 100 * each.mean(), "gain low": 100 * low, "gain high": 100 * high}


def measure_coop(setting: Setting) -> None:
    """CoOp from a few shots, each seed's draw of its own, against the template's words."""
    options, (features, labels) = setting.options, setting.test(1)
    plain = [methods.get("zero-shot")]
    before = setting.answers(features, plain)["zero-shot"]
    rows = {"zero-shot": scores(before, labels) | gain(before, before, labels)}
    for seed in options.seeds:
        shots = data.open(options.dataset, options.data, split="train", shots=options.shots, seed=seed)
        found = encode(shots, setting.encoder, views=options.augment + 1, seed=seed, cache=options.work / "features")
        shape, recipe = coop.Shape(tokens=options.tokens), coop.FewShot(seed=seed)
        stored = coop.fit(setting.encoder, shots.classes, found.crops(), found.labels, shape=shape, recipe=recipe)
        path = options.work / f"coop-{options.dataset}-{options.shots}-seed{seed}.safetensors"
        save(path, stored)
        probs = setting.answers(features, plain, init=str(path))["zero-shot"]
        rows[f"CoOp {options.shots}-shot, seed {seed}"] = scores(probs, labels) | gain(probs, before, labels)
    mean = float(np.mean([rows[name]["gain"] for name in rows if name != "zero-shot"]))
    print(f"<!-- mean gain over seeds: {mean:.2f} points -->")
    setting.tell(f"CoOp on {options.dataset}", rows)


def measure_fpp(setting: Setting) -> None:
    """FPP as a start, against the words: sharpness of the texts, accuracy and ECE of all methods."""
    options, (features, labels) = setting.options, setting.test(setting.options.views)
    path = options.work / f"fpp-{options.dataset}.safetensors"
    seen: list[tuple[int, float, float]] = []
    recipe = fpp.Flatness(steps=options.fpp_steps)
    stored = fpp.fit(
        setting.encoder, setting.images.classes, setting.images.template, recipe=recipe,
        report=lambda *step: seen.append(step),
    )  # fmt: skip
    save(path, stored)
    words = StoredPrompt(
        {"context": start_prompt(setting.encoder, setting.classes).context[0]},
        Facts(kind="template", model=setting.encoder.name, template=setting.images.template),
    )
    for name, prompt in {"words": words, "FPP": stored}.items():
        print(f"<!-- sharpness of {name}: {fpp.sharpness(setting.encoder, setting.images.classes, prompt):.5f} -->")
    print(f"<!-- alignment {seen[0][1]:.4f} -> {seen[-1][1]:.4f}, cosine {seen[0][2]:.4f} -> {seen[-1][2]:.4f} -->")
    chosen = [methods.get(name) for name in methods.names()]
    rows = {}
    for start, init in {"words": "template", "FPP": str(path)}.items():
        for name, probs in setting.answers(features, chosen, init=init).items():
            rows[f"{name} from {start}"] = scores(probs, labels)
    setting.tell(f"FPP on {options.dataset}", rows)


def measure_dynaprompt(setting: Setting) -> None:
    """The stream in an order that depends on the images' ids alone, both variants, all objectives."""
    options = setting.options
    setting.images = setting.images.subset(len(setting.images))  # class after class would be no stream
    features, labels = setting.test(options.views)
    chosen = [methods.get(name) for name in methods.names()]
    rows = {f"{name}, each for itself": scores(p, labels) for name, p in setting.answers(features, chosen).items()}
    for variant in ("described", "as-published"):
        began = time.perf_counter()
        how = Options(variant=variant)
        for name, probs in setting.answers(features, chosen[1:], framework="dynaprompt", options=how).items():
            rows[f"{name}, {variant}"] = scores(probs, labels)
        print(f"<!-- {variant}: {time.perf_counter() - began:.1f} s -->")
    setting.tell(f"DynaPrompt on {options.dataset}", rows)


def measure_baselines(setting: Setting) -> None:
    """The four-template ensemble, and temperature scaling fitted on images of the train split."""
    options, (features, labels) = setting.options, setting.test(setting.options.views)
    chosen = [methods.get("zero-shot"), methods.get("tpt"), methods.get("kld+cats")]
    rows = {}
    for framework in ("tpt", "ensemble"):
        for name, probs in setting.answers(features, chosen, framework=framework).items():
            rows[f"{name}, {framework}"] = scores(probs, labels)
    held = data.open(options.dataset, options.data, split="train", shots=options.shots, seed=1)
    found = encode(held, setting.encoder, views=1, cache=options.work / "features")
    tuner = make_tuner(setting.encoder, setting.classes, chosen[:1])
    logits = torch.cat([tuner.predict(rows)["zero-shot"].logits.cpu() for rows in found.features.split(BATCH)])
    best = temperature.fit(logits, found.labels)
    print(f"<!-- temperature {best:.4f} from {len(held)} labelled train images -->")
    for name, probs in setting.answers(features, chosen, options=Options(temperature=best)).items():
        rows[f"{name}, T = {best:.3f}"] = scores(probs, labels)
    setting.tell(f"Baselines on {options.dataset}", rows)


PARTS = {"coop": measure_coop, "fpp": measure_fpp, "dynaprompt": measure_dynaprompt, "baselines": measure_baselines}

if __name__ == "__main__":
    main()
