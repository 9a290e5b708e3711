"""Functions that all conformance checks use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")
LABELS = ("cat", "great white shark", "dog")  # of different lengths


def require(condition: bool, rule: str) -> None:
    """Raise AssertionError with ``rule`` if the condition is False; unlike ``assert``, also under ``-O``."""
    if not condition:
        raise AssertionError(rule)


def run_checks(subject: T, checks: Sequence[Callable[[T], None]]) -> None:
    """Run all checks and raise one AssertionError that lists all failures."""
    failures, first = [], None
    for check in checks:
        try:
            check(subject)
        except Exception as error:  # any error is a failure
            first = first or error
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            failures.append(f"{check.__name__}: {text}")
    if failures:
        lines = "\n- ".join(failures)
        raise AssertionError(f"{len(failures)} of {len(checks)} checks failed:\n- {lines}") from first


def parametrize_checks(
    checks: Sequence[Callable[[T], None]], subjects: Mapping[str, Callable[[], T]]
) -> pytest.MarkDecorator:
    """Return a pytest decorator that runs each check on each subject as a separate test.

    Args:
        checks: `OBJECTIVE_CHECKS`, `BACKBONE_CHECKS` or `MEMORY_CHECKS`.
        subjects: For each name, a function that creates the object to test; it is called in the test.

    Example::

        @parametrize_checks(OBJECTIVE_CHECKS, {"entropy": Entropy})
        def test_objectives_conform(make, check):
            check(make())
    """
    import pytest

    cases = [
        pytest.param(make, check, id=f"{name}-{check.__name__}") for name, make in subjects.items() for check in checks
    ]
    return pytest.mark.parametrize(("make", "check"), cases)
