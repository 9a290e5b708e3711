"""Seconds per image of every method, alone, from JPEG bytes to probabilities: one table of one machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench import Bench
from inputs import jpegs, labels

from poise import methods
from poise.data.items import Held, Item
from poise.inference.predictor import Predictor
from poise.methods import Method
from poise.prompts import tokenise
from poise.results import Failure
from poise.tuning import make_tuner
from poise.views import ViewRecipe

CLASSES = 47
STEPS = ("tpt | sals", "tpt | cots", "tpt | e-cots")
FRAMEWORKS = (("kld+cats", "dynaprompt"), ("kld+cats", "ensemble"))


def each_method(bench: Bench) -> None:
    """Measure every method, and two in other frameworks; print the table that compares them with zero-shot."""
    options = bench.options
    files = jpegs(min(options.images, 64))
    items = [Item(str(number), -1, Held(files[number % len(files)])) for number in range(options.images)]
    classes = tokenise(bench.encoder, labels(CLASSES))
    lines, base = [], 0.0
    for method, framework in _chosen():
        tuner = make_tuner(bench.encoder, classes, [method], framework=framework)
        # As `poise classify` does: a method that reads one view is not given more.
        recipe = ViewRecipe(options.views if method.reads_views or framework != "tpt" else 1)
        predictor = Predictor(bench.encoder, tuner, recipe, batch_size=options.batch, workers=options.threads)

        def run(number: int, predictor: Predictor = predictor) -> None:
            assert all(not isinstance(outcome, Failure) for outcome in predictor.run(items[:number]))

        run(min(len(items), 2 * options.batch))  # compiles kernels and starts reader processes
        work = partial(run, len(items))
        seconds = bench.milliseconds(work, repeats=options.repeats, warm=0) / 1000 / len(items)
        base = base or seconds
        name = method.name if framework == "tpt" else f"{method.name}, {framework}"
        bench.note("each", method=name, views=recipe.views, classes=CLASSES, seconds=seconds, times=seconds / base)
        lines.append(f"| {name.replace('|', chr(92) + '|')} | {recipe.views} | {seconds:.4f} | {seconds / base:.1f} |")
    print("\n| method | views | seconds per image | relative to zero-shot |\n|---|---:|---:|---:|", *lines, sep="\n")


def _chosen() -> Iterator[tuple[Method, str]]:
    """Yield methods with their framework, zero-shot first; those that need a file of labelled images are left out."""
    for name in dict.fromkeys(("zero-shot", *methods.every_name(), *STEPS)):
        if "labels" not in methods.get(name).needs:
            yield methods.get(name), "tpt"
    for name, framework in FRAMEWORKS:
        yield methods.get(name), framework
