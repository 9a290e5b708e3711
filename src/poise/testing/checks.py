"""What all conformance checks share: stating a rule, running all checks, and one pytest case for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")


def require(condition: bool, rule: str) -> None:
    """Raise AssertionError with ``rule`` where the condition doesn't hold; unlike ``assert``, also under ``-O``."""
    if not condition:
        raise AssertionError(rule)


def run_checks(subject: T, checks: Sequence[Callable[[T], None]]) -> None:
    """Run every check, whether or not others fail, and raise one AssertionError that lists all failures."""
    failures, first = [], None
    for check in checks:
        try:
            check(subject)
        except Exception as error:  # what raises anything conforms no more than what breaks a rule
            first = first or error
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            failures.append(f"{check.__name__}: {text}")
    if failures:
        lines = "\n- ".join(failures)
        raise AssertionError(f"{len(failures)} of {len(checks)} checks failed:\n- {lines}") from first


def parametrize_checks(
    checks: Sequence[Callable[[T], None]], subjects: Mapping[str, Callable[[], T]]
) -> pytest.MarkDecorator:
    """A pytest decorator that runs each check on each subject as a test of its own.

    Args:
        checks: `OBJECTIVE_CHECKS`, `BACKBONE_CHECKS` or `MEMORY_CHECKS`.
        subjects: for each name, a function that makes the thing to judge; it is called inside the test.

    Example:
        @parametrize_checks(OBJECTIVE_CHECKS, {"entropy": Entropy})
        def test_objectives_conform(make, check):
            check(make())
    """
    import pytest

    cases = [
        pytest.param(make, check, id=f"{name}-{check.__name__}") for name, make in subjects.items() for check in checks
    ]
    return pytest.mark.parametrize(("make", "check"), cases)
