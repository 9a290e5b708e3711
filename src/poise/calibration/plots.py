"""Reliability diagrams, risk and coverage, and evidence as SVG, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from poise.metrics import Bins
from poise.metrics.selective import RiskCoverage

_SIDE, _LEFT, _TOP, _BOTTOM = 180, 38, 18, 30  # pixels of the square, and around it
_COLOURS = ("#8a8a8a", "#0072b2")  # before and after calibration
_PARTS = ("#0072b2", "#d55e00", "#b8bec6")  # of a bar


def reliability_svg(given: Mapping[str, Bins], axes: tuple[str, str] = ("confidence", "accuracy")) -> str:
    """Return how often answers are right at each confidence, for one or two series such as before and after.

    Each dot is a bin of confidences; its area grows with the number of images. Calibrated answers are on the diagonal.

    Args:
        given: the bins of each series, by its title.
        axes: what is on the x-axis and on the y-axis.
    """
    largest = max(int(bins.count.max()) for bins in given.values())
    width, height = _LEFT + _SIDE + 96, _TOP + _SIDE + _BOTTOM
    parts = [
        f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke="#8a8a8a" stroke-dasharray="4 3"/>',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#8a8a8a"/>',
    ]
    for value in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{_x(value)}" y="{_y(0) + 14}" text-anchor="middle">{value:g}</text>')
        parts.append(f'<text x="{_LEFT - 5}" y="{_y(value) + 4}" text-anchor="end">{value:g}</text>')
    parts.append(f'<text x="{_x(0.5)}" y="{height - 3}" text-anchor="middle">{axes[0]}</text>')
    parts.append(f'<text x="{_LEFT - 24}" y="{_TOP - 6}">{axes[1]}</text>')
    for at, ((title, bins), colour) in enumerate(zip(given.items(), _COLOURS, strict=False)):
        for count, accuracy, confidence in zip(bins.count, bins.accuracy, bins.confidence, strict=True):
            if count:
                radius = 2 + 6 * math.sqrt(int(count) / largest)
                parts.append(
                    f'<circle cx="{_x(confidence)}" cy="{_y(accuracy)}" r="{radius:.1f}" fill="{colour}" '
                    f'fill-opacity="0.75"><title>{title}: {int(count)} images, {axes[0]} {confidence:.2f}, {axes[1]} '
                    f"{accuracy:.2f}</title></circle>"
                )
        row = _TOP + 14 + 18 * at
        parts.append(f'<circle cx="{_LEFT + _SIDE + 16}" cy="{row - 4}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + _SIDE + 26}" y="{row}">{title}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{axes[1].capitalize()} by {axes[0]}: '
        f'{", ".join(given)}" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" '
        f'font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )


def risk_svg(curve: RiskCoverage, promised: float | None = None, answered: float | None = None) -> str:
    """Return the share of wrong answers if only the surest images are answered, over how many are.

    Args:
        curve: from the surest image to all of them.
        promised: the share of wrong answers that is promised, as a line.
        answered: the share of images that is answered, as a line.
    """
    width, height = _LEFT + _SIDE + 96, _TOP + _SIDE + _BOTTOM
    top = _rounded_up(max(float(curve.risk.max()), promised or 0.0))
    points = " ".join(f"{_x(share)},{_y(risk / top)}" for share, risk in zip(curve.coverage, curve.risk, strict=True))
    parts = [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#8a8a8a"/>',
        f'<polyline fill="none" stroke="{_COLOURS[1]}" stroke-width="1.5" points="{points}"/>',
    ]
    if promised is not None:
        row = _y(promised / top)
        parts.append(
            f'<line x1="{_x(0)}" y1="{row}" x2="{_x(1)}" y2="{row}" stroke="#d55e00" stroke-dasharray="4 3"/>'
            f'<text x="{_LEFT + _SIDE + 5}" y="{row + 4}">promised</text>'
        )
    if answered is not None:
        at = _x(answered)
        parts.append(f'<line x1="{at}" y1="{_y(0)}" x2="{at}" y2="{_y(1)}" stroke="#d55e00" stroke-dasharray="4 3"/>')
    for value in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{_x(value)}" y="{_y(0) + 14}" text-anchor="middle">{100 * value:g} %</text>')
        parts.append(f'<text x="{_LEFT - 5}" y="{_y(value) + 4}" text-anchor="end">{100 * top * value:g} %</text>')
    parts.append(f'<text x="{_x(0.5)}" y="{height - 3}" text-anchor="middle">surest images answered</text>')
    parts.append(f'<text x="{_LEFT - 24}" y="{_TOP - 6}">wrong</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Share of wrong answers by share of images '
        f'answered" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )


def outcomes_svg(labels: Sequence[str], shares: Mapping[str, Sequence[float]]) -> str:
    """Return one bar per label, divided into the shares of its outcomes.

    Args:
        labels: the names of the bars.
        shares: of each outcome, by its name: one for each label.
    """
    name, side, row = 150, 2 * _SIDE, 18
    width, height = name + side + 20, _TOP + row * len(labels) + 8
    parts, place = [], float(name)
    for word, colour in zip(shares, _PARTS, strict=True):
        parts.append(f'<rect x="{place}" y="2" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{place + 14}" y="11">{escape(word)}</text>')
        place += 24 + 8 * len(word)
    for at, label in enumerate(labels):
        top, start = _TOP + row * at, float(name)
        short = label if len(label) <= 22 else f"{label[:21]}…"
        parts.append(f'<text x="{name - 6}" y="{top + 11}" text-anchor="end">{escape(short)}</text>')
        for (word, values), colour in zip(shares.items(), _PARTS, strict=True):
            wide = side * values[at]
            parts.append(
                f'<rect x="{start:.1f}" y="{top}" width="{wide:.1f}" height="{row - 5}" fill="{colour}"><title>'
                f"{escape(label)}: {escape(word)} {100 * values[at]:.1f} %</title></rect>"
            )
            start += wide
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Shares of {escape(", ".join(shares))} for '
        f'each bar" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )


def _rounded_up(share: float) -> float:
    """Return the top of an axis."""
    return next((top for top in (0.02, 0.05, 0.1, 0.2, 0.5) if share <= top), 1.0)


def evidence_svg(trail: Sequence[float], alpha: float) -> str:
    """Return the evidence of a `Monitor` after each image, on a logarithmic scale, and where the alarm is raised."""
    side = 2 * _SIDE
    logs = [math.log10(max(value, 1e-300)) for value in trail]
    limit = -math.log10(alpha)
    low, high = math.floor(min([-1.0, *logs])), math.ceil(max([limit + 0.5, *logs]))
    width, height = 2 * _LEFT + side, _TOP + _SIDE + _BOTTOM

    def row(value: float) -> str:
        return f"{_TOP + _SIDE * (high - value) / (high - low):.1f}"

    def column(image: int) -> str:
        return f"{_LEFT + side * image / max(len(logs), 1):.1f}"

    parts = [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{side}" height="{_SIDE}" fill="none" stroke="#8a8a8a"/>',
        f'<line x1="{_LEFT}" y1="{row(limit)}" x2="{_LEFT + side}" y2="{row(limit)}" stroke="#d55e00" '
        f'stroke-dasharray="4 3"/><text x="{_LEFT + side - 4}" y="{float(row(limit)) - 4:.1f}" '
        f'text-anchor="end">alarm</text>',
        f'<polyline fill="none" stroke="#0072b2" stroke-width="1.5" points="'
        f'{" ".join(f"{column(at)},{row(value)}" for at, value in enumerate(logs, 1))}"/>',
    ]
    for value in range(low, high + 1, max(1, (high - low) // 5)):
        parts.append(f'<text x="{_LEFT - 5}" y="{float(row(value)) + 4:.1f}" text-anchor="end">1e{value}</text>')
    for image in (0, len(logs)):
        parts.append(f'<text x="{column(image)}" y="{_TOP + _SIDE + 14}" text-anchor="middle">{image}</text>')
    parts.append(f'<text x="{_LEFT + side / 2}" y="{height - 3}" text-anchor="middle">image</text>')
    parts.append(f'<text x="2" y="{_TOP - 6}">evidence</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Evidence after each image" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" '
        f'fill="currentColor">{"".join(parts)}</svg>'
    )


def _x(value: float) -> str:
    return f"{_LEFT + _SIDE * value:.1f}"


def _y(value: float) -> float:
    return round(_TOP + _SIDE * (1 - value), 1)
