"""`poise fit` and `poise convert`: starting prompts and baselines, fitted here or imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poise.errors import InvalidOptionError, UnknownNameError

if TYPE_CHECKING:
    from poise.data import ImageSet
    from poise.inits.few_shot import FewShot
    from poise.prompts.files import StoredPrompt
    from poise.types import DualEncoder

app = typer.Typer(no_args_is_help=True, help="Fit a starting prompt, token statistics, or a temperature.")
convert_app = typer.Typer(no_args_is_help=True, help="Import published prompts (.pth.tar), reading their tensors only.")

Out = Annotated[Path, typer.Option(help="The file to write.")]
Data = Annotated[Path | None, typer.Option(help="The folder that holds the datasets.")]
Dataset = Annotated[str, typer.Option(help="A name of `poise data list`, or folder:PATH.")]
Model = Annotated[str, typer.Option(help="See `poise list models`.")]
Shots = Annotated[int, typer.Option(help="Images per class; 0 = all.")]
Seed = Annotated[int, typer.Option(help="Of the draw of images, the crops, the order and the beginning.")]
Augment = Annotated[int, typer.Option(help="Crops per image, all encoded before training; 0 = the plain view (fast).")]
Epochs = Annotated[int, typer.Option(help="Passes over the images.")]
CoopEpochs = Annotated[int, typer.Option(help="Passes over the images; 0 = as published for the dataset and shots.")]
Lr = Annotated[float, typer.Option(help="Learning rate of SGD.")]
BatchSize = Annotated[int, typer.Option(help="Images per step.")]
Cache = Annotated[Path | None, typer.Option(help="Folder in which features are kept.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, ...")]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16, ...")]
LabelsFile = Annotated[Path | None, typer.Option(help="A text file with one label a line.")]


@app.command()
def coop(
    dataset: Dataset, out: Out, data: Data = None, model: Model = "pocket", shots: Shots = 16, seed: Seed = 1,
    tokens: Annotated[int, typer.Option(help="Length of the context.")] = 16,
    position: Annotated[str, typer.Option(help="Of the class name: end, middle, front.")] = "end",
    class_specific: Annotated[bool, typer.Option(help="A context for each class.")] = False,
    words: Annotated[str, typer.Option(help="Begin at these words instead of at random.")] = "",
    augment: Augment = 50, epochs: CoopEpochs = 0, lr: Lr = 2e-3, batch_size: BatchSize = 32, cache: Cache = None,
    device: Device = "auto", dtype: Dtype = "auto",
) -> None:  # fmt: skip
    """CoOp: a context fitted to a few labelled images per class."""
    from poise.inference.features import TRAINING_CROPS, encode
    from poise.inits import coop as init
    from poise.views import ViewRecipe

    encoder, images = _load(model, device, dtype), _open(dataset, data, shots, seed)
    found = encode(images, encoder, ViewRecipe(augment + 1, seed, crops=TRAINING_CROPS), cache=cache)
    shape = init.Shape(tokens=tokens, position=position, class_specific=class_specific, words=words)
    recipe = _recipe(epochs or init.published_epochs(shots, images.name), lr, batch_size, seed)
    _save(out, init.fit(
        encoder, images.classes, found.crops(), found.labels, shape=shape, recipe=recipe, report=_report,
    ))  # fmt: skip


@app.command()
def cocoop(
    dataset: Dataset, out: Out, data: Data = None, model: Model = "pocket", shots: Shots = 16, seed: Seed = 1,
    words: Annotated[str, typer.Option(help="The context's beginning.")] = "a photo of a",
    augment: Augment = 10, epochs: Epochs = 10, lr: Lr = 2e-3, batch_size: BatchSize = 1, cache: Cache = None,
    device: Device = "auto", dtype: Dtype = "auto",
) -> None:  # fmt: skip
    """CoCoOp: a context and a small network that moves it for each image."""
    from poise.inference.features import TRAINING_CROPS, encode
    from poise.inits import cocoop as init
    from poise.views import ViewRecipe

    encoder, images = _load(model, device, dtype), _open(dataset, data, shots, seed)
    found = encode(images, encoder, ViewRecipe(augment + 1, seed, crops=TRAINING_CROPS), cache=cache)
    recipe = _recipe(epochs, lr, batch_size, seed)
    _save(out, init.fit(
        encoder, images.classes, found.crops(), found.labels, words=words, recipe=recipe, report=_report
    ))  # fmt: skip


@app.command()
def maple(
    dataset: Dataset, out: Out, data: Data = None, model: Model = "pocket", shots: Shots = 16, seed: Seed = 1,
    recipe: Annotated[str, typer.Option(help="few-shot, or transfer (from ImageNet to other datasets).")] = "few-shot",
    tokens: Annotated[int, typer.Option(help="Context tokens, of 'a photo of a'.")] = 2,
    depth: Annotated[int | None, typer.Option(help="Layers of each tower with prompts.", show_default="9; 3")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.", show_default="5; 2")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="0.0035; 0.0026")] = None,
    batch_size: BatchSize = 4, device: Device = "auto", dtype: Dtype = "auto",
) -> None:  # fmt: skip
    """MaPLe: coupled prompts in several layers of both towers."""
    import torch

    from poise.inference.features import epoch_crops
    from poise.inits import maple as init

    if recipe not in init.RECIPES:
        raise UnknownNameError.of("recipe", recipe, init.RECIPES)
    published = init.RECIPES[recipe]
    chosen = _recipe(
        published.recipe.epochs if epochs is None else epochs, published.recipe.lr if lr is None else lr,
        batch_size, seed,
    )  # fmt: skip
    encoder, images = _load(model, device, dtype), _open(dataset, data, shots, seed)
    targets = torch.tensor([item.label for item in images.items])
    _save(out, init.fit(
        encoder, images.classes, epoch_crops(images, encoder, seed=seed), targets, tokens=tokens,
        depth=published.depth if depth is None else depth, recipe=chosen, report=_report,
    ))  # fmt: skip


@app.command()
def fpp(
    out: Out, dataset: Annotated[str, typer.Option(help="Whose labels; or give --labels-file.")] = "",
    labels_file: LabelsFile = None, data: Data = None, model: Model = "pocket",
    template: Annotated[str, typer.Option(help="Its features are kept.")] = "a photo of a {}.",
    steps: Annotated[int, typer.Option(help="AdamW steps.")] = 1000,
    weight: Annotated[float, typer.Option(help="Of flatness; 0 = 1 + 15 / classes; published for shifts: 1.25.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of beginning and noise.")] = 0,
    device: Device = "auto", dtype: Dtype = "auto",
) -> None:  # fmt: skip
    """FPP: a start whose text features hardly move under noise, fitted without images."""
    from poise.inits import fpp as init
    from poise.prompts.labels import read_labels

    labels = read_labels(labels_file) if labels_file else list(_open(dataset, data, 0, 1, split="test").classes)
    encoder = _load(model, device, dtype)
    recipe = init.Flatness(steps=steps, weight=weight or None, seed=seed)

    def show(step: int, alignment: float, cosine: float) -> None:
        if step % 100 == 0 or step == steps - 1:
            typer.echo(f"step {step}: alignment {alignment:.4f}, cosine under noise {cosine:.4f}", err=True)

    stored = init.fit(encoder, labels, template, recipe=recipe, report=show)
    typer.echo(f"sharpness {init.sharpness(encoder, labels, stored):.4f}", err=True)
    _save(out, stored)


@app.command()
def temperature(
    dataset: Dataset, out: Out, data: Data = None, model: Model = "pocket",
    split: Annotated[str, typer.Option(help="Held-out labelled images: val or train.")] = "val",
    init: Annotated[str, typer.Option(help="template, or the file of a fitted prompt.")] = "template",
    cache: Cache = None, device: Device = "auto", dtype: Dtype = "auto",
) -> None:  # fmt: skip
    """Temperature scaling: one number, fitted to the plain views' logits of held-out images."""
    from poise import methods
    from poise.inference.features import encode
    from poise.inits import temperature as scaling
    from poise.prompts import tokenise
    from poise.tuning import make_tuner
    from poise.views import ViewRecipe

    encoder, images = _load(model, device, dtype), _open(dataset, data, 0, 1, split=split)
    found = encode(images, encoder, ViewRecipe(1, seed=1), cache=cache)
    classes = tokenise(encoder, images.classes, images.template, repeats=True)
    tuner = make_tuner(encoder, classes, [methods.get("zero-shot")], init=init)
    if tuner.reads != "features":
        raise InvalidOptionError(
            f"'{init}' has image prompts.", hint="Temperature scaling reads plain features: use coop."
        )
    logits = tuner.predict(found.features)["zero-shot"].logits.cpu()
    best = scaling.fit(logits, found.labels)
    facts = {
        "temperature": best, "model": encoder.name, "dataset": dataset, "split": split, "init": init,
        "images": len(images), "nll_before": scaling.negative_log_likelihood(logits, found.labels),
        "nll_after": scaling.negative_log_likelihood(logits, found.labels, best),
    }  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"{out}: temperature {best:.4f}, NLL {facts['nll_before']:.4f} -> {facts['nll_after']:.4f}")


@app.command()
def stats(
    dataset: Dataset, init: Annotated[Path, typer.Option(help="A fitted MaPLe prompt.")], out: Out, data: Data = None,
    model: Model = "pocket", split: Annotated[str, typer.Option(help="test, train or val.")] = "train",
    limit: Annotated[int, typer.Option(help="Images, a fixed random subset; 0 = all.")] = 0,
    layers: Annotated[int, typer.Option(help="First layers of the image tower.")] = 2,
    device: Device = "auto", dtype: Dtype = "auto",
) -> None:  # fmt: skip
    """PromptAlign's token statistics of a source dataset under a MaPLe prompt."""
    from safetensors.torch import save_file

    from poise.encoding.coupled import Coupled
    from poise.encoding.token_statistics import token_statistics
    from poise.inference.features import plain_views
    from poise.prompts.files import load

    encoder, images = _load(model, device, dtype), _open(dataset, data, 0, 1, split=split)
    images = images.subset(limit) if limit else images
    coupled = Coupled.of(load(init), encoder)
    found = token_statistics(encoder, coupled, plain_views(images, encoder), layers=layers)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(found, out, metadata={"model": encoder.name, "dataset": dataset, "images": str(len(images))})
    typer.echo(f"{out}: {list(found['mean'].shape)} (layers, tokens, width) over {len(images)} images")


@convert_app.command("coop")
def convert_coop(
    source: Annotated[Path, typer.Argument(help="A published CoOp checkpoint.")],
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    model: Annotated[str, typer.Option(help="The model it was trained on, as poise names it.")] = "ViT-B-16/openai",
    position: Annotated[str, typer.Option(help="Of the class name: end, middle, front.")] = "end",
    labels_file: LabelsFile = None,
) -> None:
    """A published CoOp prompt; class-specific ones need the labels that they are for."""
    from poise.inits.convert import read_coop
    from poise.prompts.labels import read_labels
    from poise.storage import hash_names

    labels_hash = hash_names(read_labels(labels_file)) if labels_file else ""
    _save(out, read_coop(source, model, position=position, labels_hash=labels_hash))


@convert_app.command("maple")
def convert_maple(
    source: Annotated[Path, typer.Argument(help="A published MaPLe checkpoint.")],
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    model: Annotated[str, typer.Option(help="The model it was trained on, as poise names it.")] = "ViT-B-16/openai",
) -> None:
    """Published MaPLe prompts."""
    from poise.inits.convert import read_maple

    _save(out, read_maple(source, model))


def _load(model: str, device: str, dtype: str) -> DualEncoder:
    from poise.backbones import load_model

    return load_model(model, device=device, dtype=dtype)


def _open(dataset: str, data: Path | None, shots: int, seed: int, split: str = "train") -> ImageSet:
    from poise import data as datasets

    if ":" in dataset:  # a folder has no splits and no draw
        return datasets.open_dataset(dataset)
    return datasets.open_dataset(dataset, data, split=split, shots=shots or None, seed=seed)


def _recipe(epochs: int, lr: float, batch_size: int, seed: int) -> FewShot:
    from poise.inits.few_shot import FewShot

    return FewShot(epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)


def _report(epoch: int, loss: float) -> None:
    typer.echo(f"epoch {epoch}: loss {loss:.4f}", err=True)


def _save(out: Path, stored: StoredPrompt) -> None:
    from poise.prompts.files import save

    save(out, stored)
    shape = list(stored.tensors["context"].shape)
    typer.echo(
        f"{out}: {stored.facts.kind} for {stored.facts.model}, context {shape}, template '{stored.facts.template}'"
    )
