"""Charts as SVG, legible on light and on dark pages. They load nothing and need no package."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 220, 60, 52
SUM_WIDTH = 48  # of the text at the end of a bar
# Of light and of dark pages; told apart by people who see few colours, and by their order.
LIGHT = ("#0b62c4", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#be123c", "#0f766e", "#475569")
DARK = ("#6cb4ff", "#ff9a5c", "#5fd38a", "#cf9bff", "#e8c04a", "#ff7d97", "#4fd1c5", "#a8b3c4")

Series = dict[str, list[tuple[float, float]]]
"""Points by the name of their line."""


def log_chart(title: str, x_name: str, y_name: str, series: Series) -> str:
    """Return lines on two logarithmic axes; all numbers have to be above 0."""
    points = [point for line in series.values() for point in line]
    xs, ys = _decades([x for x, _ in points]), _decades([y for _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        across = (math.log10(x) - xs[0]) / (xs[-1] - xs[0])
        up = (math.log10(y) - ys[0]) / (ys[-1] - ys[0])
        return LEFT + across * width, HEIGHT - BOTTOM - up * height

    parts = list(_grid(xs, ys, place))
    for number, (name, line) in enumerate(series.items()):
        at = [place(*point) for point in sorted(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f'<polyline class="s{number} line" points="{path}"/>')
        parts += [f'<circle class="s{number} dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in at]
        parts += _legend(number, name)
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_name, "middle"))
    parts.append(_text(LEFT - 56, TOP - 12, y_name, "start"))
    return _drawing(title, parts, HEIGHT)


def stacked_bars(title: str, unit: str, bars: Mapping[str, Mapping[str, float]]) -> str:
    """Return a bar for each name, of parts one after the other, with their sum at its end."""
    names = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    most = max(sum(bar.values()) for bar in bars.values()) or 1.0
    left, row = 150, 30
    width, parts = WIDTH - left - RIGHT - SUM_WIDTH, []
    for at, (name, bar) in enumerate(bars.items()):
        x, y = float(left), TOP + row * at
        parts.append(_text(left - 8, y + 15, name, "end"))
        for part, value in bar.items():
            across = width * value / most
            css = f"s{names.index(part)} bar"
            parts.append(
                f'<rect class="{css}" x="{x:.1f}" y="{y}" width="{across:.2f}" height="20"/>'
            )
            x += across
        parts.append(_text(x + 6, y + 15, f"{sum(bar.values()):.3g} {unit}", "start"))
    for number, name in enumerate(names):
        parts += _legend(number, name)
    return _drawing(title, parts, TOP + max(row * len(bars), 20 * len(names)) + 16)


def _decades(values: Sequence[float]) -> list[int]:
    """Return the powers of ten around all values, at least two."""
    first = math.floor(math.log10(min(values)) + 1e-9)
    last = math.ceil(math.log10(max(values)) - 1e-9)
    return list(range(first, max(last, first + 1) + 1))


def _grid(
    xs: Sequence[int], ys: Sequence[int], place: Callable[[float, float], tuple[float, float]]
) -> Iterator[str]:
    for power in xs:
        x, bottom = place(10.0**power, 10.0 ** ys[0])
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom:.1f}"/>'
        yield _text(x, bottom + 18, _number(power), "middle")
    for power in ys:
        left, y = place(10.0 ** xs[0], 10.0**power)
        yield f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield _text(left - 8, y + 4, _number(power), "end")


def _number(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:.{-power}f}"


def _legend(number: int, name: str) -> list[str]:
    x, y = WIDTH - RIGHT + 16, TOP + 8 + 20 * number
    square = f'<rect class="s{number} bar" x="{x}" y="{y - 9}" width="10" height="10"/>'
    return [square, _text(x + 16, y, name, "start")]


def _text(x: float, y: float, text: str, anchor: str, css: str = "") -> str:
    kind = f' class="{css}"' if css else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _drawing(title: str, parts: Sequence[str], height: int) -> str:
    """Return all parts with colours for both kinds of pages."""

    def colours(palette: Sequence[str]) -> str:
        return "".join(
            f".s{n}.line{{stroke:{c}}}.s{n}.dot,.s{n}.bar{{fill:{c}}}"
            for n, c in enumerate(palette)
        )

    style = (
        "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-size:14px;font-weight:600}"
        ".back{fill:#ffffff}.grid{stroke:#d0d7de}.line{fill:none;stroke-width:2}"
        + colours(LIGHT)
        + "@media (prefers-color-scheme: dark){text{fill:#e6edf3}.back{fill:#161b22}"
        + ".grid{stroke:#3d444d}"
        + colours(DARK)
        + "}"
    )
    space = 'xmlns="http://www.w3.org/2000/svg"'
    return "\n".join(
        (
            f'<svg {space} viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            f'<rect class="back" width="{WIDTH}" height="{height}" rx="6"/>',
            _text(16, 22, title, "start", "title"),
            *parts,
            "</svg>\n",
        )
    )
