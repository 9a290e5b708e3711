"""The options of a classifier, each written once.

Command line, environment, TOML files, server, client, demo page, `pipeline`, calibrations and exported files are made
from these fields.

A field has a type, a default and an `About`: its help text, the commands that take it and its name in a request. Its
class says more: a calibration stores `AnswerOptions`, `pipeline` takes those and `ComputeOptions`, and a benchmark run
has `ModelOptions` and `MachineOptions`. The keywords of `Classifier` are the only second copy, for people and editors;
a test compares them.

This module imports neither torch nor fastapi, so that `poise --help` and the client can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_type_hints

from poise.defaults import DEFAULT_METHOD, DEFAULT_MODEL, DEFAULT_VIEWS
from poise.errors import UnknownNameError

COMMANDS = ("classify", "calibrate", "serve", "demo", "export")
_COMPUTING = (*COMMANDS[:-1], "evaluate", "embed", "monitor")  # a file is exported from the CPU
_CALIBRATED = ("classify", "serve", "demo", "export")
_KEY = "option"  # of an option's facts in the metadata of its field


@dataclass(frozen=True, kw_only=True)
class About:
    """What is known about an option beside its name, type and default.

    Attributes:
        help: what it means, for the command line and the schema of requests.
        commands: those that take it.
        shown: its default in the help, where the value itself does not say it.
        request: its name in a request to the server; "": requests can't give it.
        bounds: of its value in a request, by the names of pydantic: ge, gt, le, lt.
        views: whether it matters only to methods that read augmented views.
        later: whether it is younger than the first calibrations and runs; those without it were made with its default.
    """

    help: str
    commands: tuple[str, ...] = COMMANDS
    shown: str = ""
    request: str = ""
    bounds: Mapping[str, float] = field(default_factory=dict)
    views: bool = False
    later: bool = False


def option(default: Any, help: str, **facts: Any) -> Any:
    """Return the field of an option; ``facts`` are those of `About`."""
    return field(default=default, metadata={_KEY: About(help=help, **facts)})


@dataclass(frozen=True, kw_only=True)
class LabelOptions:
    """What is asked about an image."""

    labels: tuple[str, ...] = option((), "Class names.", commands=(), request="labels")
    parents: tuple[str, ...] = option(
        (),
        "Paths from the root of a tree to each label, such as 'animal > cat > tabby cat'; the answer may be a node.",
        commands=(),
        request="parents",
        later=True,
    )
    groups: tuple[str, ...] = option(
        (),
        "Name of each label's group, one per label: probabilities are then shared inside each group only.",
        commands=(),
        request="groups",
        later=True,
    )
    independent: bool = option(
        False, "Answer each label by itself: any number of them may apply.", request="independent", later=True
    )


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What answers depend on in a classifier and in a benchmark run alike."""

    model: str = option(
        DEFAULT_MODEL, "Model (see `poise list models`).", commands=(*COMMANDS, "evaluate", "embed", "monitor")
    )
    template: str | None = option(None, "Prompt with {} for the label.", shown="a photo of a {}.", request="template")
    init: str = option("template", "Where tuning starts: a name of `poise list inits`, or a prompt file.")
    views: int = option(
        DEFAULT_VIEWS,
        "Views per image, including the plain view; the paper has 64.",
        commands=(*COMMANDS, "embed"),
        request="views",
        bounds={"ge": 1, "le": 2**31},
        views=True,
    )


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(ModelOptions, LabelOptions):
    """What answers depend on beside the image and the method; a calibration is valid under the same ones only."""

    context: str = option("auto", "Which words of the template are tuned.", commands=(), views=True)
    augmix: bool = option(False, "Mix the augmented views with AugMix.", commands=(*COMMANDS, "embed"), views=True)
    seed: int = option(
        0,
        "Seed of the augmented views.",
        commands=(*COMMANDS, "embed"),
        request="seed",
        bounds={"ge": 0, "lt": 2**63},
        views=True,
    )


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """How answers are made."""

    method: str | tuple[str, ...] = option(
        DEFAULT_METHOD,
        "Methods, such as kld+cats or zero-shot (see `poise list methods`).",
        commands=(*COMMANDS, "evaluate"),
        request="methods",
    )


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Where and how answers are computed, in a classifier and in a benchmark run alike."""

    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps or openvino.", commands=_COMPUTING)
    dtype: str = option(
        "auto",
        "auto, float32, float16, bfloat16 (CUDA, openvino), float8 (CUDA), float64.",
        commands=_COMPUTING,
    )
    batch_size: int | None = option(
        None,
        "Images computed together; changes results by rounding at most.",
        commands=_COMPUTING,
        shown="by device",
    )
    on_long_label: Literal["error", "truncate"] = option(
        "error",
        "Reject or truncate labels that are longer than the model reads.",
        commands=(*COMMANDS, "evaluate"),
        later=True,
    )
    logit_scale: float | None = option(
        None,
        "Factor from cosine to logit, for a model whose checkpoint has none; it is never guessed.",
        commands=(*COMMANDS, "evaluate", "embed"),
        shown="the model's own",
        later=True,
    )


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(MachineOptions, MethodOptions):
    """How and where answers are computed."""

    one_label: bool = option(False, "Accept a single label, whose probability is 1 for any image.", commands=())


@dataclass(frozen=True, kw_only=True)
class PromiseOptions:
    """What is said about answers: with a calibration as a guarantee, with ``reject`` as a heuristic."""

    calibration: Any = option(
        None,
        "File of `poise calibrate`. Labels, model, method, template, init, views, AugMix and seed are taken from it, "
        "unless you give them.",
        commands=_CALIBRATED,
    )
    coverage: float | None = option(
        None,
        "With a calibration: add prediction sets with this coverage, such as 0.9.",
        commands=(*_CALIBRATED, "evaluate"),
        request="coverage",
        bounds={"gt": 0, "lt": 1},
    )
    max_error: float | None = option(
        None,
        "With a calibration: abstain so that at most this share of the answers is wrong.",
        commands=(*_CALIBRATED, "evaluate"),
        request="max_error",
        bounds={"gt": 0, "lt": 1},
    )
    precision: float | None = option(
        None,
        "With independent labels and a calibration: say yes so that at least this share of each label's yes is right.",
        commands=(*_CALIBRATED, "evaluate"),
        request="precision",
        bounds={"gt": 0, "lt": 1},
    )
    recall: float | None = option(
        None,
        "Likewise: say no so that at least this share of the images with a label gets yes or unsure for it.",
        commands=(*_CALIBRATED, "evaluate"),
        request="recall",
        bounds={"gt": 0, "lt": 1},
    )
    reject: float | None = option(
        None,
        "Give the label 'unknown' to images whose match is below this number (heuristic; no number suits all labels "
        "and models, see docs/unknown.md).",
        commands=("classify",),
        shown="never",
    )


@dataclass(frozen=True, kw_only=True)
class Options(PromiseOptions, ComputeOptions, AnswerOptions):
    """All options of a classifier; see `poise.Classifier` for what they mean."""


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What a request to the server may ask for beside the options of a classifier."""

    details: bool = option(False, "Whether to return intermediate results.", request="details")
    deadline: float | None = option(
        None, "Seconds after which the answer is of no use.", request="deadline", bounds={"gt": 0}
    )
    uncalibrated: bool = option(False, "Answer without the server's calibration.", request="uncalibrated")


@dataclass(frozen=True)
class Row:
    """One option: its name, type, default and what is known about it."""

    name: str
    kind: Any
    default: Any
    about: About


def rows(*kinds: type[Any]) -> list[Row]:
    """Return the options that these classes have, in order."""
    found = []
    for kind in kinds:
        hints = get_type_hints(kind)
        found += [
            Row(row.name, hints[row.name], None if row.default is MISSING else row.default, row.metadata[_KEY])
            for row in fields(kind)
            if _KEY in row.metadata
        ]
    return found


def request_rows() -> list[Row]:
    """Return the options that a request may give."""
    return [row for row in rows(Options, RequestOptions) if row.about.request]


def promise_rows() -> list[Row]:
    """Return what a calibration can be asked to promise."""
    return [row for row in rows(PromiseOptions) if row.about.request]


def option_values(options: Any, kind: type[Any] = Options) -> dict[str, Any]:
    """Return the values of the options of a class, by name."""
    return {row.name: getattr(options, row.name) for row in rows(kind)}


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise an error that names the nearest option if one does not exist."""
    names = list(known)
    for name in given:
        if name not in names:
            raise UnknownNameError.of("option", name, names)
