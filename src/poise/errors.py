"""The errors that poise raises. Messages say what was given, what is accepted and what to do.

Every error has a stable ``code`` for programs. Each class also inherits from the built-in error that a caller would
expect, so ``except ValueError`` and ``except LookupError`` work.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class PoiseError(Exception):
    """Base class of all errors that poise raises."""

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
        # Errors are sent between processes (data loading, Ray), so pickling must preserve keyword arguments.
        return _rebuild, (type(self), self.message, self.hint, self.code)


def _rebuild(kind: type[PoiseError], message: str, hint: str, code: str) -> PoiseError:
    return kind(message, hint=hint, code=code)


def reason_of(error: BaseException) -> str:
    """Return why something failed, for the end of a message: without error numbers, paths and the last full stop.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "x.png"))
    'No such file or directory'
    """
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start})"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).rstrip(".") or type(error).__name__


class InvalidOptionError(PoiseError, ValueError):
    """An option has a value that is not accepted."""

    code = "invalid_option"


class UnknownNameError(PoiseError, LookupError):
    """An unknown name; the message suggests the most similar one."""

    code = "unknown_name"

    @classmethod
    def of(cls, kind: str, given: str, known: Iterable[str], *, owner: str = "") -> UnknownNameError:
        """Return the error for the name ``given``, with the most similar name and a list of the known ones.

        >>> UnknownNameError.of("option", "step", ["lr", "steps"], owner="the method 'tpt'").message
        "Unknown option 'step' of the method 'tpt'. Did you mean 'steps'?"
        """
        names = sorted(known)
        near = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        whose = f" of {owner}" if owner else ""
        return cls(f"Unknown {kind} '{given}'{whose}.{guess}", hint=f"Known: {', '.join(names) or 'none'}.")


class InvalidLabelsError(PoiseError, ValueError):
    """A list of labels that can't be used."""

    code = "bad_labels"


class InvalidTemplateError(PoiseError, ValueError):
    """A template without exactly one placeholder, or without words to tune."""

    code = "bad_template"


class UnreadableImageError(PoiseError, ValueError):
    """An image that can't be read."""

    code = "unreadable_image"


class ModelNotFoundError(PoiseError, FileNotFoundError):
    """Weights or a configuration that are not on this machine and could not be downloaded."""

    code = "model_not_found"


class InvalidCheckpointError(PoiseError, ValueError):
    """A checkpoint that is damaged, unsafe to read, or does not fit the model it is loaded into."""

    code = "bad_checkpoint"


class InvalidCalibrationError(PoiseError, ValueError):
    """A calibration that is damaged, was made under other conditions, or does not allow what is asked for."""

    code = "bad_calibration"


class CalibrationImageError(PoiseError, ValueError):
    """An image that the classifier was calibrated on, so that nothing is guaranteed for it."""

    code = "calibration_image"


class InvalidDatasetError(PoiseError, ValueError):
    """A dataset that is missing, damaged, or in an unknown layout."""

    code = "bad_dataset"


class UnreachableError(PoiseError, ConnectionError):
    """A file of a remote filesystem that can't be read now; another attempt may succeed."""

    code = "unreachable"


class RunConflictError(PoiseError, RuntimeError):
    """A run folder with another configuration, or one to which another process is writing."""

    code = "run_conflict"


class MissingDependencyError(PoiseError, ImportError):
    """An optional package that is not installed."""

    code = "missing_dependency"

    @classmethod
    def of(cls, feature: str, package: str, extra: str = "") -> MissingDependencyError:
        """Return the error for ``feature``; ``extra`` has all that it needs, if poise's own dependencies have not."""
        what, path = (f"Install the extra '{extra}'", f"'.[{extra}]'") if extra else ("Install poise again", ".")
        return cls(
            f"{feature} needs the package '{package}', which is not installed.",
            hint=f"{what}: pip install -c constraints.txt {path} in a clone of poise.",
        )


class PluginError(PoiseError, ImportError):
    """A plug-in that can't be loaded."""

    code = "plugin_failed"


class StorageError(PoiseError, OSError):
    """Results can't be written because the disk is full or read-only; results written before are not affected."""

    code = "storage_failed"


class ReaderProcessError(PoiseError, RuntimeError):
    """Two processes that read images died while processing the same job."""

    code = "reader_lost"


class WrongProcessError(PoiseError, RuntimeError):
    """A model that is used in another process than the one that loaded it."""

    code = "wrong_process"


class WorkersLostError(PoiseError, RuntimeError):
    """Several worker processes died while processing the same task."""

    code = "workers_lost"


class ClusterUnavailableError(PoiseError, ConnectionError):
    """A Ray cluster that can't be reached."""

    code = "no_cluster"


OUT_OF_MEMORY = "out_of_memory"  # code of errors and failures
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory of this process or of the device ran out; for a CPU's memory torch has no own class."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return type(error) is RuntimeError and any(words in str(error) for words in _MEMORY_WORDS)


class LimitExceededError(PoiseError, ValueError):
    """A request that asks for more than a server's limit; the code names the limit."""

    code = "limit_exceeded"


class QueueFullError(PoiseError, RuntimeError):
    """A server's queue that is full; ``retry_after`` is the number of seconds to wait before the next try."""

    code = "queue_full"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message, hint=hint or f"Try again in {retry_after} s.", code=code)
        self.retry_after = retry_after


class DeadlineExceededError(PoiseError, TimeoutError):
    """An image that was not classified in time."""

    code = "deadline_exceeded"

    @classmethod
    def after(cls, seconds: float) -> DeadlineExceededError:
        """Return the error for an image that has waited for so long."""
        return cls(f"The deadline passed after {seconds:.2f} s.", hint="Allow more time, or use fewer views.")


class ServiceUnavailableError(PoiseError, ConnectionError):
    """A server that is starting or shutting down."""

    code = "unavailable"


class RemoteError(PoiseError, RuntimeError):
    """An error that a server reports; ``status`` is the HTTP status, ``request_id`` finds it in the server's log."""

    code = "remote_error"

    def __init__(
        self, message: str, *, hint: str = "", code: str | None = None, status: int = 0, request_id: str = ""
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.status, self.request_id = status, request_id


class RunInterruptedError(Exception):
    """A run was stopped by a signal. All finished chunks are on disk."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """128 + the number of the signal, as in shells."""
        return 128 + self.signum
