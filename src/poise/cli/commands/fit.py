"""`poise fit` and `poise convert`: inits and baselines, fitted here or imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poise.cli.input.shared_options import Device, Dtype, LabelsFile, Model, Threads
from poise.cli.output.verbose import Quiet, Verbose, remark
from poise.cli.typer_app import Commands
from poise.defaults import DEFAULT_MODEL
from poise.errors import InvalidOptionError, UnknownNameError
from poise.text import counted

if TYPE_CHECKING:
    from poise.data import ImageSet
    from poise.inference.features import LabelledFeatures
    from poise.inits.few_shot import FewShot
    from poise.prompts.files import StoredPrompt
    from poise.types import DualEncoder

app = Commands(help="Fit an init (where tuning starts), or token statistics.")
convert_app = Commands(help="Convert published prompts (.pth.tar) to files for --init, and models to folders.")

Out = Annotated[Path, typer.Option(help="Output file.")]
Data = Annotated[Path | None, typer.Option(help="Folder that contains the datasets.")]
Dataset = Annotated[str, typer.Option(help="Dataset name (see `poise data list`), or folder:PATH.")]
Shots_ = Annotated[int, typer.Option("--shots", min=0, help="Training images per class; 0 = all.")]
Seed = Annotated[int, typer.Option(help="Seed for sampling, crops, batch order and initialisation.")]
Augment = Annotated[
    int, typer.Option(help="Random crops per image, encoded once before training; 0 = plain view only.")
]
Epochs = Annotated[int, typer.Option(help="Training epochs.")]
CoopEpochs = Annotated[
    int, typer.Option(help="Training epochs; 0 = as published for this dataset and number of shots.")
]
Lr = Annotated[float, typer.Option(help="SGD learning rate.")]
BatchSize = Annotated[int, typer.Option(help="Images per SGD step.")]
Cache = Annotated[Path | None, typer.Option(help="Folder for cached image features.")]
Split = Annotated[str, typer.Option(help="Dataset split: train, val or test.")]
Position = Annotated[str, typer.Option(help="Position of the class name in the prompt: end, middle or front.")]
Source = Annotated[Path, typer.Argument(help="Published checkpoint (.pth.tar).")]
Target = Annotated[Path, typer.Argument(help="Output file.")]
TrainedOn = Annotated[str, typer.Option(help="Model that the prompt was trained on (see `poise list models`).")]


@app.command()
def coop(
    dataset: Dataset,
    out: Out,
    data: Data = None,
    model: Model = DEFAULT_MODEL,
    shots: Shots_ = 16,
    seed: Seed = 1,
    tokens: Annotated[int, typer.Option(help="Number of context tokens.")] = 16,
    position: Position = "end",
    class_specific: Annotated[bool, typer.Option(help="Fit a separate context for each class.")] = False,
    words: Annotated[str, typer.Option(help="Initialise the context with these words; default: at random.")] = "",
    augment: Augment = 50,
    epochs: CoopEpochs = 0,
    lr: Lr = 2e-3,
    batch_size: BatchSize = 32,
    cache: Cache = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit CoOp: a context learned from a few labelled images per class."""
    from poise.inits import coop as init

    encoder, images = _load(model, device, dtype), _open(dataset, data, shots, seed, quiet=quiet)
    features = _features(images, encoder, augment, seed, cache)
    shape = init.Shape(tokens=tokens, position=position, class_specific=class_specific, words=words)
    recipe = _recipe(epochs or init.published_epochs(shots, images.name), lr, batch_size, seed)
    labelled = (images.classes, features.crops(), features.labels)
    _save(out, init.fit(encoder, *labelled, shape=shape, recipe=recipe, report=_report(quiet)))


@app.command()
def cocoop(
    dataset: Dataset,
    out: Out,
    data: Data = None,
    model: Model = DEFAULT_MODEL,
    shots: Shots_ = 16,
    seed: Seed = 1,
    words: Annotated[str, typer.Option(help="Initialise the context with these words.")] = "a photo of a",
    augment: Augment = 10,
    epochs: Epochs = 10,
    lr: Lr = 2e-3,
    batch_size: BatchSize = 1,
    cache: Cache = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit CoCoOp: a context and a small network that shifts it for each image."""
    from poise.inits import cocoop as init

    encoder, images = _load(model, device, dtype), _open(dataset, data, shots, seed, quiet=quiet)
    features = _features(images, encoder, augment, seed, cache)
    labelled, recipe = (images.classes, features.crops(), features.labels), _recipe(epochs, lr, batch_size, seed)
    _save(out, init.fit(encoder, *labelled, words=words, recipe=recipe, report=_report(quiet)))


@app.command()
def maple(
    dataset: Dataset,
    out: Out,
    data: Data = None,
    model: Model = DEFAULT_MODEL,
    shots: Shots_ = 16,
    seed: Seed = 1,
    recipe: Annotated[str, typer.Option(help="few-shot, or transfer (from ImageNet to other datasets).")] = "few-shot",
    tokens: Annotated[int, typer.Option(help="Number of context tokens, initialised with 'a photo of a'.")] = 2,
    depth: Annotated[int | None, typer.Option(help="Layers with prompts per tower.", show_default="by recipe")] = None,
    epochs: Annotated[int | None, typer.Option(help="Training epochs.", show_default="by recipe")] = None,
    lr: Annotated[float | None, typer.Option(help="SGD learning rate.", show_default="by recipe")] = None,
    batch_size: BatchSize = 4,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit MaPLe: coupled prompts in several layers of both towers."""
    import torch

    from poise.inference.features import epoch_crops
    from poise.inits import maple as init

    if recipe not in init.RECIPES:
        raise UnknownNameError.of("recipe", recipe, init.RECIPES)
    published = init.RECIPES[recipe]
    chosen = _recipe(
        published.recipe.epochs if epochs is None else epochs,
        published.recipe.lr if lr is None else lr,
        batch_size,
        seed,
    )
    encoder, images = _load(model, device, dtype), _open(dataset, data, shots, seed, quiet=quiet)
    targets = torch.tensor([item.label for item in images.items])
    _save(
        out,
        init.fit(
            encoder,
            images.classes,
            epoch_crops(images, encoder, seed=seed),
            targets,
            tokens=tokens,
            depth=published.depth if depth is None else depth,
            recipe=chosen,
            report=_report(quiet),
        ),
    )


@app.command()
def fpp(
    out: Out,
    dataset: Annotated[str, typer.Option(help="Dataset with the labels; or give --labels-file.")] = "",
    labels_file: LabelsFile = None,
    data: Data = None,
    model: Model = DEFAULT_MODEL,
    template: Annotated[str, typer.Option(help="Its text features are the alignment target.")] = "a photo of a {}.",
    steps: Annotated[int, typer.Option(help="Number of AdamW steps.")] = 1000,
    weight: Annotated[float, typer.Option(help="Weight of flatness; 0 = 1 + 15 / classes. For shifts: 1.25.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed for initialisation and noise.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit FPP: a context whose text features are robust to noise, learned without images."""
    from poise.inits import fpp as init
    from poise.prompts.labels import read_labels

    if bool(dataset) == bool(labels_file):
        given = "Both --dataset and --labels-file were given" if dataset else "No labels were given"
        raise InvalidOptionError(f"{given}.", hint="Give either --dataset NAME or --labels-file FILE.")
    labels = read_labels(labels_file) if labels_file else list(_open(dataset, data, 0, 1, split="test").classes)
    encoder = _load(model, device, dtype)
    recipe = init.Flatness(steps=steps, weight=weight or None, seed=seed)

    def show(step: int, alignment: float, cosine: float) -> None:
        if step % 100 == 0 or step == steps - 1:
            remark(f"step {step}: alignment {alignment:.4f}, cosine under noise {cosine:.4f}", quiet=quiet)

    stored = init.fit(encoder, labels, template, recipe=recipe, report=show)
    remark(f"sharpness {init.sharpness(encoder, labels, stored):.4f}", quiet=quiet)
    _save(out, stored)


@app.command()
def stats(
    dataset: Dataset,
    out: Out,
    init: Annotated[Path, typer.Option(help="MaPLe prompt file that `poise fit` wrote.")],
    data: Data = None,
    model: Model = DEFAULT_MODEL,
    split: Split = "train",
    limit: Annotated[int, typer.Option(help="Number of images, a fixed random subset; 0 = all.")] = 0,
    layers: Annotated[int, typer.Option(help="Number of image-tower layers, from the first.")] = 2,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compute the token statistics of a source dataset for PromptAlign, under a MaPLe prompt."""
    from poise.encoding.coupled import Coupled
    from poise.encoding.token_statistics import token_statistics
    from poise.files import save_tensors
    from poise.inference.features import plain_views
    from poise.prompts.files import load

    encoder, images = _load(model, device, dtype), _open(dataset, data, 0, 1, split=split, quiet=quiet)
    images = images.subset(limit) if limit else images
    coupled = Coupled.of(load(init), encoder)
    statistics = token_statistics(encoder, coupled, plain_views(images, encoder), layers=layers)
    save_tensors(out, statistics, {"model": encoder.name, "dataset": dataset, "images": str(len(images))})
    typer.echo(f"{out}: {list(statistics['mean'].shape)} (layers, tokens, width) over {counted(len(images), 'image')}")


@app.command("tip-adapter")
def tip_adapter(
    dataset: Dataset,
    out: Out,
    data: Data = None,
    model: Model = DEFAULT_MODEL,
    shots: Shots_ = 16,
    seed: Seed = 1,
    augment: Augment = 10,
    cache: Cache = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Make the cache of Tip-Adapter: the features of a few labelled images per class, and its two weights."""
    from poise.encoding.class_texts import ClassTexts
    from poise.prompts import init_prompt, tokenise
    from poise.rules.tip_adapter import make_cache, save_cache

    encoder, images = _load(model, device, dtype), _open(dataset, data, shots, seed, quiet=quiet)
    features = _features(images, encoder, augment, seed, cache)
    classes = tokenise(encoder, images.classes, images.template, repeats=True)
    made = make_cache(ClassTexts(encoder, classes, init_prompt(encoder, classes)), features.features, features.labels)
    save_cache(out, made)
    typer.echo(f"{out}: {counted(len(made.keys), 'image')} for {made.model}, alpha {made.alpha:g}, beta {made.beta:g}")


@convert_app.command("coop")
def convert_coop(
    source: Source,
    out: Target,
    model: TrainedOn = "ViT-B-16/openai",
    position: Position = "end",
    labels_file: LabelsFile = None,
) -> None:
    """Convert a published CoOp prompt. Class-specific prompts need --labels-file, in the order of training."""
    from poise.files import hash_names
    from poise.inits.convert import read_coop
    from poise.prompts.labels import read_labels

    labels_hash = hash_names(read_labels(labels_file)) if labels_file else ""
    _save(out, read_coop(source, model, position=position, labels_hash=labels_hash))


@convert_app.command("maple")
def convert_maple(source: Source, out: Target, model: TrainedOn = "ViT-B-16/openai") -> None:
    """Convert published MaPLe prompts."""
    from poise.inits.convert import read_maple

    _save(out, read_maple(source, model))


def _load(model: str, device: str, dtype: str) -> DualEncoder:
    from poise.backbones import load_model

    return load_model(model, device=device, dtype=dtype)


def _open(
    dataset: str, data: Path | None, shots: int, seed: int, split: str = "train", quiet: bool = False
) -> ImageSet:
    from poise import data as datasets

    if ":" not in dataset:
        return datasets.open_dataset(dataset, data, split=split, shots=shots or None, seed=seed)
    if split != "test":
        note = f"'{dataset}' has no splits: images are taken from all of it, so evaluate on other images."
        remark(note, quiet=quiet)
    return datasets.open_dataset(dataset, shots=shots or None, seed=seed)


def _features(images: ImageSet, encoder: DualEncoder, augment: int, seed: int, cache: Path | None) -> LabelledFeatures:
    from poise.inference.features import TRAINING_CROPS, encode
    from poise.views import ViewRecipe

    return encode(images, encoder, ViewRecipe(augment + 1, seed, crops=TRAINING_CROPS), cache=cache)


def _recipe(epochs: int, lr: float, batch_size: int, seed: int) -> FewShot:
    from poise.inits.few_shot import FewShot

    return FewShot(epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)


def _report(quiet: bool) -> Callable[[int, float], None]:
    return lambda epoch, loss: remark(f"epoch {epoch}: loss {loss:.4f}", quiet=quiet)


def _save(out: Path, stored: StoredPrompt) -> None:
    from poise.prompts.files import save

    save(out, stored)
    shape = list(stored.tensors["context"].shape)
    typer.echo(
        f"{out}: {stored.facts.kind} for {stored.facts.model}, context {shape}, template '{stored.facts.template}'"
    )
