"""Small charts of a training run and of a corpus, as SVG text with no library behind them.

They stay sharp at any size and follow the reader's light or dark scheme, also in an `<img>`.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Lines = Sequence[Mapping[str, Any]]
Point = tuple[float, float]

WIDTH, HEIGHT = 380, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 44, 38
_MOST_POINTS = 600
_FEW_POINTS = 40
_STYLE = """
svg { --paper: #ffffff; --ink: #1f2933; --soft: #5b6774; --grid: #e3e8ee; --line: #2563a8 }
@media (prefers-color-scheme: dark) {
  svg { --paper: #1b2129; --ink: #e6ebf0; --soft: #a3afbb; --grid: #323b46; --line: #7db8f5 }
}
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--soft) }
.title { font-weight: 600; font-size: 14px; fill: var(--ink) }
.grid { stroke: var(--grid); stroke-width: 1 }
.line { fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round }
.dot, .bar { fill: var(--line) }
.paper { fill: var(--paper) }
"""


@dataclass(frozen=True)
class Chart:
    """One value of the training log over steps."""

    key: str
    title: str
    unit: str
    from_zero: bool


CHARTS = (
    Chart("loss", "Loss", "nats per token", from_zero=False),
    Chart("learning_rate", "Learning rate", "", from_zero=True),
    Chart("grad_norm", "Gradient norm", "L2, before clipping", from_zero=True),
    Chart("tokens_per_second", "Throughput", "tokens per second", from_zero=True),
)


def picture(chart: Chart, lines: Lines) -> str:
    """One chart of a training log as an SVG document.

    Args:
        chart: what to draw.
        lines: the log's lines, each with `step` and the chart's key.
    """
    return _document(WIDTH, HEIGHT, f"{chart.title} over steps", _panel(chart, lines))


def sheet(lines: Lines) -> str:
    """All charts of a training log, two in a row, as one SVG document."""
    panels = [
        f'<g transform="translate({number % 2 * WIDTH} {number // 2 * HEIGHT})">'
        f"{_panel(chart, lines)}</g>"
        for number, chart in enumerate(CHARTS)
    ]
    names = ", ".join(chart.title.lower() for chart in CHARTS)
    rows = math.ceil(len(CHARTS) / 2)
    return _document(2 * WIDTH, rows * HEIGHT, f"Training: {names} over steps", "".join(panels))


def bars(title: str, unit: str, values: Sequence[tuple[str, int]]) -> str:
    """A bar a value as an SVG document.

    Args:
        title: what is shown.
        unit: what is counted.
        values: labels and counts, in order.
    """
    up = ticks(0, max([1, *(count for _, count in values)]), 5)
    height = HEIGHT - _TOP - _BOTTOM
    width = (WIDTH - _LEFT - _RIGHT) / max(len(values), 1)
    parts = [
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="{_LEFT}" y="24"><tspan class="title">{title}</tspan> {unit}</text>',
        *(_level(value, HEIGHT - _BOTTOM - height * value / up[-1]) for value in up),
    ]
    for number, (label, count) in enumerate(values):
        left, tall = _LEFT + number * width, height * count / up[-1]
        parts.append(
            f'<rect class="bar" x="{left + width * 0.1:.1f}" y="{HEIGHT - _BOTTOM - tall:.1f}" '
            f'width="{width * 0.8:.1f}" height="{tall:.1f}"/>'
        )
        # Neighbouring labels stand on two lines.
        parts.append(
            f'<text x="{left + width / 2:.1f}" y="{HEIGHT - 22 + 14 * (number % 2)}" '
            f'text-anchor="middle">{html.escape(label)}</text>'
        )
    return _document(WIDTH, HEIGHT, f"{title}: {unit}", "".join(parts))


def data_url(svg: str) -> str:
    """An SVG document as a URL that holds it, for `<img>`."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` + 1 round values that span `low` to `high`, the ends included."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, last + 1)]


def _document(width: int, height: int, title: str, content: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img"><title>{title}</title>'
        f"<style>{_STYLE}</style>{content}</svg>"
    )


def _panel(chart: Chart, lines: Lines) -> str:
    told = [(float(line["step"]), float(line[chart.key])) for line in lines]
    points = [point for point in told if math.isfinite(point[1])]
    lost = len(told) - len(points)
    heading = f" {lost} of {len(told)} values are not finite" if lost else f" {chart.unit}"
    parts = [
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="{_LEFT}" y="24"><tspan class="title">{chart.title}</tspan>{heading}</text>',
    ]
    return "".join([*parts, *(_plot(chart, points) if points else [])])


def _plot(chart: Chart, points: list[Point]) -> list[str]:
    across = _steps([step for step, _ in points])
    values = [value for _, value in points]
    low, high = min(values), max(values)
    low = min(low, 0.0) if chart.from_zero else low
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    up = ticks(low, high, 5)

    def x(step: float) -> float:
        span = across[-1] - across[0]
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * ((step - across[0]) / span if span else 0.5)

    def y(value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - up[0]) / (up[-1] - up[0])

    parts = [_level(value, y(value)) for value in up]
    parts += [
        f'<text x="{x(step):.1f}" y="{HEIGHT - 20}" text-anchor="middle">{_number(step)}</text>'
        for step in across[:-1]
    ]
    parts.append(
        f'<text x="{x(across[-1]) + 8:.1f}" y="{HEIGHT - 20}" text-anchor="end">'
        f"{_number(across[-1])}</text>"
    )
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">step</text>')
    drawn = [(x(step), y(value)) for step, value in _thinned(points)]
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up in drawn)
    parts.append(f'<polyline class="line" points="{path}"/>')
    if len(drawn) <= _FEW_POINTS:
        parts += [f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in drawn]
    return parts


def _level(value: float, y: float) -> str:
    """A line across with its value."""
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'
    )


def _steps(steps: list[float]) -> list[float]:
    """The steps to name under a chart: the first, the last, and round ones well between them."""
    first, last = steps[0], steps[-1]
    if last - first < 2:
        return sorted({first, last})
    apart = (last - first) / 10
    between = [
        step for step in ticks(first, last, 5)
        if step == int(step) and first + apart < step < last - apart
    ]  # fmt: skip
    return [first, *between, last]


def _thinned(points: list[Point]) -> list[Point]:
    """Long runs by the lowest and the highest value of each stretch, so that spikes stay."""
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / _MOST_POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def _number(value: float) -> str:
    size = abs(value)
    if size < 1e-12:
        return "0"
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1e4:
        return f"{value / 1e3:g}k"
    if size >= 1e-3:
        return f"{value:.6g}"
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"
