"""The call that the page made, in Python, on the command line and over HTTP."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from poise.demo.markup import card, text
from poise.options import AnswerOptions, ComputeOptions, Options, promise_rows, rows
from poise.prompts.labels import write_labels

_WIDTH = 50  # characters of arguments in one line
CALIBRATION = "calibration.json"  # what the file is called in the calls


@dataclass(frozen=True)
class Call:
    """What was asked.

    Attributes:
        file: name of the image's file.
        options: those of the classifier; ``method`` is a tuple.
        url: where the server is, without a slash at the end.
        calibrated: whether the answers are calibrated.
        switched_off: whether the server has a calibration that was not used.
    """

    file: str
    options: Options
    url: str = "http://127.0.0.1:8000"
    calibrated: bool = False
    switched_off: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels."""
        return self.options.labels

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods."""
        return (self.options.method,) if isinstance(self.options.method, str) else self.options.method

    @property
    def path(self) -> str:
        """The file's name in a form that no command takes for an option."""
        name = PurePosixPath(self.file.replace("\\", "/")).name or "image.png"
        return f"./{name}" if name.startswith("-") else name

    def changed(self) -> dict[str, object]:
        """Return the options of `Classifier` beside the labels that differ from the defaults."""
        chosen = replace(self.options, method=self.methods[0] if len(self.methods) == 1 else self.methods)
        chosen = replace(chosen, calibration=CALIBRATION if self.calibrated else None)
        left_out = {"labels"} if self.calibrated else {"labels", *(row.name for row in promise_rows())}
        given = {row.name: getattr(chosen, row.name) for row in rows(Options) if row.name not in left_out}
        return {row.name: given[row.name] for row in rows(Options) if given.get(row.name, row.default) != row.default}


def in_python(call: Call) -> str:
    """Return the call as a Python program."""
    changed = {name: list(value) if isinstance(value, tuple) else value for name, value in call.changed().items()}
    given = [repr(list(call.labels)), *(f"{name}={value!r}" for name, value in changed.items())]
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
    taken = {row.name for row in rows(Options) if "classify" in row.about.commands}
    options = {name: value for name, value in call.changed().items() if name in taken}
    if "method" in options:
        options["method"] = ",".join(call.methods)
    chosen = call.options
    written = write_labels(call.labels, chosen.groups, chosen.parents).replace(", ", ",")
    words = ["poise", "classify", call.path, "--labels", written]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def in_curl(call: Call) -> str:
    """Return the call as an HTTP request of the command curl."""
    name = call.path
    if set(name) & set(',;"'):  # which have a meaning in -F
        name = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    words = ["curl", f"{call.url}/v1/classify", "-F", f"image=@{name}"]
    fields: list[tuple[str, object]] = []
    for row in rows(AnswerOptions, ComputeOptions):  # also the defaults: the server may have been started with others
        value = call.methods if row.name == "method" else getattr(call.options, row.name)
        if row.about.request and value is not None and value is not False:
            fields += [(row.about.request, part) for part in (value if isinstance(value, tuple) else (value,))]
    fields += [] if call.calibrated or not call.switched_off else [("uncalibrated", "true")]
    for field, value in fields:
        value = str(value).lower() if isinstance(value, bool) else value  # as JSON writes it
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
