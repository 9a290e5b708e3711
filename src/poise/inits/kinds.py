"""The registry of inits: the template's words, or a kind of fitted prompt and how to read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poise.backbones.encoder import wide
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
    read: Callable[[StoredPrompt, DualEncoder], InitParameters] | None = None  # None: there is no file of this kind
    fit: Callable[[DualEncoder, ClassTokens], StoredPrompt] | None = None  # fits the init when it is used, without data


@dataclass(frozen=True)
class Init:
    """The prompt from which tuning starts."""

    kind: str
    classes: ClassTokens  # under the init's template
    parameters: InitParameters | None  # on the encoder's device; None: the template's words


def _context(stored: StoredPrompt, encoder: DualEncoder) -> Prompt:
    return stored.prompt().map(lambda part: part.to(encoder.device, wide(encoder.dtype)))


def _conditional(stored: StoredPrompt, encoder: DualEncoder) -> Conditional:
    return Conditional.of(stored, _context(stored, encoder).context)


def _fit_fpp(name: str) -> Callable[[DualEncoder, ClassTokens], StoredPrompt]:
    return lambda encoder, classes: fpp.fit(encoder, classes.labels, classes.template, recipe=fpp.PUBLISHED[name])


inits: Registry[InitKind] = Registry("init", of=InitKind)
for _kind in (
    InitKind(name="template", description="the template's words"),
    InitKind(
        name="fpp",
        description="a flat context, fitted without data when it is used, or a file of one",
        read=_context,
        fit=_fit_fpp("fpp"),
    ),
    InitKind(
        name="fpp-shift",
        description="the same with the weight published for natural distribution shifts",
        fit=_fit_fpp("fpp-shift"),
    ),
    InitKind(name="coop", description="a context fitted to a few labelled images per class", read=_context),
    InitKind(name="cocoop", description="a context that depends on the image", read=_conditional),
    InitKind(name="maple", description="prompts in both towers", read=Coupled.of),
):
    inits.add(_kind.name)(_kind)


def init_file(init: str) -> str | None:
    """Return the path in ``init`` without the kind before it; None if the init is not a file.

    >>> init_file("coop:prompt.safetensors")
    'prompt.safetensors'
    """
    if init in inits and (init == "template" or inits.get(init).fit is not None):
        return None
    kind, _, path = init.partition(":")
    return path if path and kind in inits and inits.get(kind).read is not None else init


def check_template(init: str, template: str | None) -> None:
    """Raise an error if a template is given together with a fitted prompt, which has its own."""
    file = init_file(init)
    if file is not None and template:
        raise InvalidOptionError(
            f"The template {template!r} was given beside the fitted prompt '{file}'.",
            hint="A fitted prompt brings its own template: leave yours out, or use init='template'.",
        )


def read_init(init: str, encoder: DualEncoder, classes: ClassTokens, *, on_long_label: str = "error") -> Init:
    """Return the init of a given name or file; ``classes`` have the template that is used unless it has its own."""
    if init == "template":
        return Init(init, classes, None)
    path = init_file(init)
    fit = inits.get(init).fit if path is None else None
    stored = fit(encoder, classes) if fit is not None else load(path or init)
    kind = stored.facts.kind
    if path is not None and path != init and not init.startswith(f"{kind}:"):
        raise InvalidCheckpointError(
            f"'{path}' is a prompt of kind '{kind}', but '{init.partition(':')[0]}' was requested.",
            hint=f"Use '{kind}:{path}' or another file.",
        )
    read = inits.get(kind).read
    if read is None:
        raise InvalidCheckpointError(f"'{path}' is a prompt of kind '{kind}'.", hint="Files of it can't be read.")
    classes = stored.classes(encoder, classes.labels, on_long_label=on_long_label, repeats=True)
    return Init(kind, classes, read(stored, encoder))
