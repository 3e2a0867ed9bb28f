"""Makes the page of ``siltstone explain --html``: one self-contained HTML file with plots, which loads
nothing from elsewhere.

The page is ``explain.html`` beside this file, a template of Jinja (needs ``siltstone[web]``), which
escapes every text. If one were not escaped, a key that looks like markup would still do nothing: the page's
content security policy forbids scripts. Each plot is the text of an ``svg`` element, made and escaped by
``ElementTree``, or "" if there is nothing to draw. It has no size of its own: the page scales it. Each plot,
and each of its shapes, has a ``title`` that says in words what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, tostring

from siltstone.base.clock import time_text
from siltstone.compaction.report import CLEANING_REASONS

if TYPE_CHECKING:
    from siltstone.compaction.explain import Explanation, LogExplanation, Moment

WIDTH, HEIGHT = 720, 220
"""Of a drawing, in its own units; ``HEIGHT``: of the plot over time."""
_PALETTE = ("#2f6fdf", "#e07b39", "#8a5cc9", "#c4455d", "#8f9bad", "#3f9d77", "#b58a1b", "#5b7f95")
COLOURS = {
    **dict(zip(("kept", *CLEANING_REASONS), _PALETTE, strict=False)),
    "written": "#a9c2ea",
    "reclaimable": "#e07b39",
}
"""By name, the same in every plot: of what is kept, of each reason of a discard, of the bytes written, and of
those that a cleaning could reclaim."""
OTHER = "#8a8f98"
"""The colour of a part that ``COLOURS`` does not name."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 12, 30
"""Margins of the plot over time, in units of the drawing."""
_LABELS, _CAPTIONS, _ROW = 240, 150, 20
"""Of a bar chart: the width left of the bars for labels and right of them for figures, the height of a
row."""
_GRID = 4
"""Horizontal lines of the plot over time, besides the lowest."""


def size_text(size: float) -> str:
    """A readable size: ``1.5 MB``, thousands by thousands."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def counted(number: int, noun: str, nouns: str = "") -> str:
    """``1 log``, ``2,000 logs``; ``nouns``: the plural, where it is not the noun and an s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def printable(text: object) -> str:
    """Text for a page or a plot: no control characters, nothing that changes the direction of writing."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def shares(sizes: Sequence[tuple[str, int]], title: str) -> str:
    """One bar cut into parts (name, bytes)."""
    total, left, parts = sum(size for _, size in sizes), 0.0, []
    for name, size in sizes if total > 0 else ():
        if size > 0:
            width = size / total * WIDTH
            caption = f"{name}: {size_text(size)}, {size / total:.1%}"
            parts.append(_rect(COLOURS.get(name, OTHER), caption, x=left, y=0, width=width, height=28))
            left += width
    return _svg(title, 28, parts)


def over_time(moments: Sequence[Moment], title: str) -> str:
    """Over time, the bytes that were written so far (``written``), and in front of them the bytes that a
    cleaning at that time would have removed (``reclaimable``)."""
    series = {
        "written": [moment.written_bytes for moment in moments],
        "reclaimable": [moment.reclaimable_bytes for moment in moments],
    }
    maximum = max(map(max, series.values())) if len(moments) > 1 else 0
    if maximum <= 0:
        return ""
    first, last, floor = moments[0].at_ms, moments[-1].at_ms, HEIGHT - _BOTTOM
    width, height = WIDTH - _LEFT - _RIGHT, floor - _TOP
    shapes = []
    for step in range(_GRID + 1):
        y = floor - step / _GRID * height
        shapes.append(Element("line", _numbers(x1=_LEFT, y1=y, x2=WIDTH - _RIGHT, y2=y)))
        shapes.append(_text(size_text(maximum * step / _GRID), "end", x=_LEFT - 6, y=y + 4))
    for name, values in series.items():
        points = [
            ((moment.at_ms - first) / max(last - first, 1) * width + _LEFT, floor - value / maximum * height)
            for moment, value in zip(moments, values, strict=True)
        ]
        corners = [(_LEFT, floor), *points, (_LEFT + width, floor)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        area = Element("polygon", {"fill": COLOURS[name], "points": path})
        shapes.append(_titled(area, f"{name}: {size_text(values[-1])} in the end"))
    shapes.append(_text(time_text(first), "start", x=_LEFT, y=HEIGHT - 8))
    shapes.append(_text(time_text(last), "end", x=WIDTH - _RIGHT, y=HEIGHT - 8))
    return _svg(title, HEIGHT, shapes)


def bars(rows: Sequence[tuple[str, int, int, str]], title: str) -> str:
    """A row for each (label, whole, kept, caption): a bar as long as ``whole``, and over it one as long as
    ``kept``; at most some dozens of rows."""
    maximum = max((whole for _, whole, _, _ in rows), default=0)
    shapes = []
    for number, (label, whole, kept, caption) in enumerate(rows if maximum > 0 else ()):
        y, scale = number * _ROW, (WIDTH - _LABELS - _CAPTIONS) / maximum
        shapes.append(_text(label if len(label) <= 34 else f"{label[:33]}…", "end", x=_LABELS - 8, y=y + 14))
        for colour, value in ((COLOURS["written"], whole), (COLOURS["kept"], kept)):
            width = max(value * scale, 0.5 if value else 0)  # the smallest value is still seen
            shapes.append(_rect(colour, f"{label}: {caption}", x=_LABELS, y=y + 3, width=width, height=14))
        shapes.append(_text(caption, "start", x=_LABELS + whole * scale + 6, y=y + 14))
    return _svg(title, _ROW * len(rows), shapes)


def _svg(title: str, height: int, shapes: Sequence[Element]) -> str:
    root = Element("svg", {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "aria-label": title})
    _titled(root, title).extend(shapes)
    return tostring(root, encoding="unicode") if shapes else ""


def _titled(element: Element, title: str) -> Element:
    name = Element("title")
    name.text = printable(title)
    element.append(name)
    return element


def _rect(colour: str, title: str, **place: float) -> Element:
    return _titled(Element("rect", {"fill": colour, **_numbers(**place)}), title)


def _text(content: str, anchor: str, **place: float) -> Element:
    text = Element("text", {"text-anchor": anchor, **_numbers(**place)})
    text.text = printable(content)
    return text


def _numbers(**place: float) -> dict[str, str]:
    return {name: f"{number:.2f}" for name, number in place.items()}


GROUPS_DRAWN_MAX = 40
"""The most segment groups that are drawn; the page's table has them all."""


def page(explanation: Explanation) -> str:
    """The whole page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("siltstone.commands", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {
        "size": size_text,
        "time": time_text,
        "thousands": "{:,}".format,
        "counted": counted,
    }
    template = environment.get_template("explain.html")
    return template.render(explanation=explanation, plots_of=_plots_of, colours=COLOURS)


def _plots_of(log: LogExplanation) -> dict[str, str]:
    """The plots of one log by name, "" where there is nothing to draw."""
    outcome = log.outcome
    sizes = [("kept", outcome.kept_bytes), *outcome.removed_bytes.items()]
    groups = [
        (
            f"{group.base_offset:,} to {group.end_offset - 1:,}",
            group.bytes_before,
            group.bytes_after,
            f"{size_text(group.bytes_before)} → {size_text(group.bytes_after)}",
        )
        for group in outcome.groups[:GROUPS_DRAWN_MAX]
    ]
    hottest = [
        (
            f"{key.key} ({key.key_size} B)",
            key.records,
            key.records - key.superseded,
            counted(key.records, "record"),
        )
        for key in log.keys.hottest_keys
    ]
    return {
        "reasons": shares(sizes, "bytes by reason"),
        "times": over_time(outcome.reclaimable, "written and reclaimable bytes over time"),
        "groups": bars(groups, "bytes of each group"),
        "hottest": bars(hottest, "records of the hottest keys"),
    }
