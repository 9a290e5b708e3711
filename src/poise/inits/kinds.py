"""Where tuning starts, one row per kind: the template's words, or a fitted prompt and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from poise.encoding.coupled import Coupled
from poise.errors import InvalidCheckpointError, InvalidOptionError
from poise.inits import fpp
from poise.prompts.conditional import Conditional
from poise.prompts.files import StoredPrompt, load
from poise.registry import Registry
from poise.types import ClassTokens, DualEncoder, Prompt

InitParameters = Prompt | Conditional | Coupled


@dataclass(frozen=True, kw_only=True)
class InitKind:
    """One kind of init."""

    name: str
    description: str
    read: Callable[[StoredPrompt, DualEncoder], InitParameters] | None = None  # None: not a file
    fit: Callable[[DualEncoder, ClassTokens], StoredPrompt] | None = None  # on the spot, without data


@dataclass(frozen=True)
class Init:
    """Where tuning starts: the classes under the init's own template, and its tensors on the encoder's device."""

    kind: str
    classes: ClassTokens
    parameters: InitParameters | None  # None: the template's words


def _context(stored: StoredPrompt, encoder: DualEncoder) -> Prompt:
    dtype = torch.promote_types(encoder.dtype, torch.float32)
    return stored.prompt().map(lambda part: part.to(encoder.device, dtype))


def _conditional(stored: StoredPrompt, encoder: DualEncoder) -> Conditional:
    width = int(stored.tensors["weight1"].shape[1]) if "weight1" in stored.tensors else 0
    return Conditional.of(stored, width, _context(stored, encoder).context)


def _fit_fpp(name: str) -> Callable[[DualEncoder, ClassTokens], StoredPrompt]:
    return lambda encoder, classes: fpp.fit(encoder, classes.labels, classes.template, recipe=fpp.PUBLISHED[name])


inits: Registry[InitKind] = Registry("init")
for _kind in (
    InitKind(name="template", description="the template's words"),
    InitKind(name="fpp", description="a flat context, fitted on the spot without data, or a file of one",
             read=_context, fit=_fit_fpp("fpp")),
    InitKind(name="fpp-shift", description="the same with the weight published for natural distribution shifts",
             fit=_fit_fpp("fpp-shift")),
    InitKind(name="coop", description="a context fitted to a few labelled images per class", read=_context),
    InitKind(name="cocoop", description="a context that follows the image", read=_conditional),
    InitKind(name="maple", description="prompts in both towers", read=Coupled.of),
):  # fmt: skip
    inits.add(_kind.name)(_kind)


def init_file(init: str) -> str | None:
    """The file that ``init`` names, without its kind in front; None for 'template' and 'fpp'.

    >>> init_file("coop:prompt.safetensors")
    'prompt.safetensors'
    """
    if init in inits and (init == "template" or inits.get(init).fit is not None):
        return None
    kind, _, path = init.partition(":")
    return path if path and kind in inits and inits.get(kind).read is not None else init


def check_template(init: str, template: str | None) -> None:
    """Refuse a template beside a fitted prompt, which brings its own."""
    file = init_file(init)
    if file is not None and template:
        raise InvalidOptionError(
            f"The template {template!r} was given beside the fitted prompt '{file}'.",
            hint="A fitted prompt brings its own template: leave yours out, or start from the template's words.",
        )


def read_init(init: str, encoder: DualEncoder, classes: ClassTokens, *, on_long_label: str = "error") -> Init:
    """Where tuning starts.

    Args:
        init: "template" (its words), "fpp" (fitted here, without data), or the file of a fitted prompt, optionally with
            its kind in front ("coop:prompt.safetensors").
        encoder: the model.
        classes: the labels, under the template that holds where the init doesn't bring its own.
        on_long_label: as in `poise.prompts.tokenise`, for the init's own template.
    """
    if init == "template":
        return Init(init, classes, None)
    path = init_file(init)
    fit = inits.get(init).fit if path is None else None
    stored = fit(encoder, classes) if fit is not None else load(path or init)
    kind = stored.facts.kind
    if path is not None and path != init and not init.startswith(f"{kind}:"):
        raise InvalidCheckpointError(
            f"'{path}' holds a prompt of kind '{kind}', but '{init.partition(':')[0]}' was asked for.",
            hint=f"Write '{kind}:{path}', or give the right file.",
        )
    read = inits.get(kind).read
    if read is None:
        raise InvalidCheckpointError(f"'{path}' holds a prompt of kind '{kind}'.", hint="That kind is not a file's.")
    own = stored.classes(encoder, classes.labels, on_long_label=on_long_label, repeats=True)
    return Init(kind, own, read(stored, encoder))
