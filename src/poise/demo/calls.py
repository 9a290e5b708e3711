"""The call that the page made, in Python, on the command line and over HTTP."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from poise.defaults import DEFAULT_METHOD, DEFAULT_MODEL, DEFAULT_VIEWS
from poise.demo.markup import card, text

_SEED = 0  # the default of `Classifier` and of `poise classify`
_WIDTH = 50  # characters of arguments in one line
CALIBRATION = "calibration.json"  # what the file is called in the calls


@dataclass(frozen=True)
class Call:
    """What was asked.

    Attributes:
        file: name of the image's file.
        labels, methods, template, views, seed, init, augmix, on_long_label: as in `Classifier`.
        model: the server's model.
        url: where the server is, without a slash at the end.
        coverage, max_error: of the calibration.
        calibrated: whether the answers are calibrated.
        switched_off: whether the server has a calibration that was not used.
    """

    file: str
    labels: tuple[str, ...]
    methods: tuple[str, ...]
    template: str | None = None
    views: int = DEFAULT_VIEWS
    seed: int = _SEED
    init: str = "template"
    augmix: bool = False
    on_long_label: str = "error"
    model: str = DEFAULT_MODEL
    url: str = "http://127.0.0.1:8000"
    coverage: float | None = None
    max_error: float | None = None
    calibrated: bool = False
    switched_off: bool = False

    @property
    def path(self) -> str:
        """The file's name in a form that no command takes for an option."""
        name = PurePosixPath(self.file.replace("\\", "/")).name or "image.png"
        return f"./{name}" if name.startswith("-") else name

    def options(self) -> dict[str, object]:
        """Return the options of `Classifier` beside the labels that differ from the defaults."""
        given: dict[str, object] = {"model": self.model} if self.model != DEFAULT_MODEL else {}
        if self.methods != (DEFAULT_METHOD,):
            given["method"] = list(self.methods) if len(self.methods) > 1 else self.methods[0]
        given |= {"template": self.template} if self.template else {}
        given |= {"views": self.views} if self.views != DEFAULT_VIEWS else {}
        given |= {"seed": self.seed} if self.seed != _SEED else {}
        given |= {"init": self.init} if self.init != "template" else {}
        given |= {"augmix": True} if self.augmix else {}
        given |= {"on_long_label": self.on_long_label} if self.on_long_label != "error" else {}
        if self.calibrated:
            given |= {"calibration": CALIBRATION, "coverage": self.coverage, "max_error": self.max_error}
        return {name: value for name, value in given.items() if value is not None}


def in_python(call: Call) -> str:
    """Return the call as a Python program."""
    given = [repr(list(call.labels)), *(f"{name}={value!r}" for name, value in call.options().items())]
    inside = ", ".join(given)
    if len(inside) > _WIDTH:
        inside = "\n    " + ",\n    ".join(given) + ",\n"
    lines = ["import poise", "", f"classify = poise.Classifier({inside})"]
    if len(call.methods) > 1:
        lines += [
            f"for method, result in classify({call.path!r}).items():",
            "    print(method, result.label, result.confidence)",
        ]
    else:
        lines += [f"result = classify({call.path!r})", "print(result.label, result.confidence)"]
    return "\n".join(lines)


def in_shell(call: Call) -> str:
    """Return the call as a command."""
    options = call.options()
    if "method" in options:
        options["method"] = ",".join(call.methods)
    words = ["poise", "classify", call.path, "--labels", ",".join(call.labels)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def in_curl(call: Call) -> str:
    """Return the call as an HTTP request of the command curl."""
    name = call.path
    if set(name) & set(',;"'):  # which have a meaning in -F
        name = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    words = ["curl", f"{call.url}/v1/classify", "-F", f"image=@{name}"]
    fields: list[tuple[str, object]] = [("labels", label) for label in call.labels]
    fields += [("methods", name) for name in call.methods]
    fields += [("template", call.template)] if call.template else []
    fields += [("views", call.views), ("seed", call.seed)]  # the server may have been started with others
    fields += [] if call.calibrated or not call.switched_off else [("uncalibrated", "true")]
    for field, value in fields:
        words += ["--form-string", f"{field}={value}"]  # unlike -F, no sign in the value has a meaning
    return shlex.join(words)


def calls_card(call: Call) -> str:
    """Return the panel with the three calls."""
    written = {"Python": in_python(call), "Command line": in_shell(call), "HTTP": in_curl(call)}
    blocks = "".join(
        f'<div class="call"><h3>{name}</h3><button type="button" class="copy" aria-label="Copy the {name} call">Copy'
        f'</button><pre tabindex="0">{text(code)}</pre></div>'
        for name, code in written.items()
    )
    return card(
        "The same call", blocks, about="Run next to the image, these give the numbers above.", name="poise-calls"
    )
