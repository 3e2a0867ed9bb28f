"""Plots as inline SVG: plain text, no script, no file from elsewhere.

Every text goes through ``escape``; colours are classes of the page's style sheet. A plot says in words what
it shows (``title``), so that it is no riddle to a screen reader.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import UTC, datetime

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 12, 30
UNITS = ("B", "kB", "MB", "GB", "TB")


def escape(text: object) -> str:
    """Text for an element or an attribute: control characters too, which no page may hold."""
    shown = "".join(each if each.isprintable() or each == " " else "�" for each in str(text))
    return html.escape(shown, quote=True)


def bytes_text(size: float) -> str:
    """Bytes for people: ``1.5 MB``, thousands by thousands."""
    for unit in UNITS[:-1]:
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"


def time_text(at_ms: int) -> str:
    """A time for people, in UTC; the number where it is none."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def svg(body: str, title: str, height: int = HEIGHT) -> str:
    """A plot around its body."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def shares(parts: Sequence[tuple[str, int]], title: str) -> str:
    """One bar cut into parts (name, bytes); each has the class of its name."""
    total = sum(size for _, size in parts)
    if total <= 0:
        return ""
    body, at = [], 0.0
    for name, size in parts:
        wide = size / total * WIDTH
        tip = f"{name}: {bytes_text(size)}, {size / total:.1%}"
        if wide > 0:
            body.append(
                f'<rect class="{escape(name)}" x="{at:.2f}" y="0" width="{wide:.2f}" height="28">'
                f"<title>{escape(tip)}</title></rect>"
            )
        at += wide
    return svg("".join(body), title, 28)


def legend(parts: Sequence[tuple[str, int]]) -> str:
    """The parts of ``shares`` in words."""
    total = max(sum(size for _, size in parts), 1)
    rows = [
        f'<li><span class="box {escape(name)}"></span>{escape(name)}: {bytes_text(size)}, '
        f"{size / total:.1%}</li>"
        for name, size in parts
        if size
    ]
    return f'<ul class="legend">{"".join(rows)}</ul>'


def areas(times: Sequence[int], series: Sequence[tuple[str, Sequence[int]]], title: str) -> str:
    """Areas over time (ms), one behind the other, the largest first; each has the class of its name."""
    most = max((max(values, default=0) for _, values in series), default=0)
    if len(times) < 2 or most <= 0:
        return ""
    wide, high = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    span = max(times[-1] - times[0], 1)
    body = [_grid(most)]
    for name, values in series:
        points = [
            f"{_LEFT + (at - times[0]) / span * wide:.1f},{_TOP + high - value / most * high:.1f}"
            for at, value in zip(times, values, strict=True)
        ]
        floor = _TOP + high
        path = f"{_LEFT},{floor} {' '.join(points)} {_LEFT + wide},{floor}"
        tip = f"{name}: {bytes_text(values[-1])} in the end"
        body.append(f'<polygon class="{escape(name)}" points="{path}"><title>{escape(tip)}</title></polygon>')
    base = HEIGHT - 8
    body.append(f'<text x="{_LEFT}" y="{base}">{escape(time_text(times[0]))}</text>')
    body.append(f'<text x="{WIDTH - _RIGHT}" y="{base}" class="end">{escape(time_text(times[-1]))}</text>')
    return svg("".join(body), title)


def _grid(most: int) -> str:
    high, found = HEIGHT - _TOP - _BOTTOM, []
    for step in range(5):
        y = _TOP + high - step / 4 * high
        found.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        label = escape(bytes_text(most * step / 4))
        found.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{label}</text>')
    return "".join(found)


def bars(rows: Sequence[tuple[str, int, int, str]], title: str) -> str:
    """A row for each (label, all, part, what it says), ``part`` drawn over ``all``; at most some dozens."""
    most = max((whole for _, whole, _, _ in rows), default=0)
    if most <= 0:
        return ""
    left, wide, step = 240, WIDTH - 240 - 150, 20
    body = []
    for number, (label, whole, part, tip) in enumerate(rows):
        y = number * step
        shown = label if len(label) <= 34 else f"{label[:33]}…"
        body.append(f'<text x="{left - 8}" y="{y + 14}" class="end">{escape(shown)}</text>')
        for name, value in (("whole", whole), ("part", part)):
            size = max(value / most * wide, 0.5 if value else 0)
            body.append(
                f'<rect class="{name}" x="{left}" y="{y + 3}" width="{size:.1f}" height="14">'
                f"<title>{escape(f'{label}: {tip}')}</title></rect>"
            )
        at = left + whole / most * wide + 6
        body.append(f'<text x="{at:.1f}" y="{y + 14}">{escape(tip)}</text>')
    return svg("".join(body), title, max(step * len(rows), step))
