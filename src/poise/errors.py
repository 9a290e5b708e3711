"""The errors that poise raises: what was given, what is accepted, what to do.

Every refusal has a stable ``code`` for programs and a message for people. Each class is also the
built-in error that a caller would expect, so ``except ValueError`` and ``except LookupError`` work.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class PoiseError(Exception):
    """The root of all errors that poise raises on purpose."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (data-loading workers, Ray); keyword arguments must survive.
        return _rebuild, (type(self), self.message, self.hint, self.code)


def _rebuild(kind: type[PoiseError], message: str, hint: str, code: str) -> PoiseError:
    return kind(message, hint=hint, code=code)


class InvalidOptionError(PoiseError, ValueError):
    """An option has a value that is not accepted."""

    code = "invalid_option"


class UnknownNameError(PoiseError, LookupError):
    """A name that is in no registry; the message suggests the nearest ones."""

    code = "unknown_name"

    @classmethod
    def of(cls, kind: str, given: str, known: Iterable[str]) -> UnknownNameError:
        """The error for ``given``, with near misses and the list of known names."""
        names = sorted(known)
        near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        return cls(f"Unknown {kind} '{given}'.{guess}", hint=f"Known: {', '.join(names)}.")


class InvalidLabelsError(PoiseError, ValueError):
    """A label set that can't be classified against."""

    code = "bad_labels"


class InvalidTemplateError(PoiseError, ValueError):
    """A prompt template that has no single place for the class name, or no words to tune."""

    code = "bad_template"


class UnreadableImageError(PoiseError, ValueError):
    """Bytes or a file that is not an image poise accepts."""

    code = "unreadable_image"


class ModelNotFoundError(PoiseError, FileNotFoundError):
    """Weights or a configuration that are not on this machine and could not be fetched."""

    code = "model_not_found"


class InvalidCheckpointError(PoiseError, ValueError):
    """A checkpoint that is damaged, unsafe to read, or does not fit the model it is loaded into."""

    code = "bad_checkpoint"


class InvalidDatasetError(PoiseError, ValueError):
    """A dataset folder that is missing, damaged, or not in the layout it claims."""

    code = "bad_dataset"


class RunConflictError(PoiseError, RuntimeError):
    """A run folder that holds another configuration, or that another process is writing."""

    code = "run_conflict"


class MissingDependencyError(PoiseError, ImportError):
    """A feature whose optional package is not installed."""

    code = "missing_dependency"

    @classmethod
    def of(cls, feature: str, package: str, extra: str) -> MissingDependencyError:
        """The error that says which extra brings ``package``."""
        return cls(
            f"{feature} needs the package '{package}', which is not installed.",
            hint=f"Install it with: pip install {package} (the extra '{extra}' of poise).",
        )


class StorageError(PoiseError, OSError):
    """Results can't be written: the disk is full, read-only, or over its quota. What was written before is kept."""

    code = "storage_failed"


class ReaderProcessError(PoiseError, RuntimeError):
    """A process died over a job, and another one over the same job."""

    code = "reader_lost"


class WorkersLostError(PoiseError, RuntimeError):
    """A task whose processes died again and again."""

    code = "workers_lost"


class ClusterUnavailableError(PoiseError, ConnectionError):
    """A Ray cluster that doesn't answer, or that can't be joined."""

    code = "no_cluster"


class RunInterruptedError(Exception):
    """The run was asked to stop. All finished chunks are on the disk."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells have it."""
        return 128 + self.signum
