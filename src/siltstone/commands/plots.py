"""Plots of what ``explain`` says, as Vega-Lite specifications, and sizes as text.

Each function takes data and returns a specification: plain JSON that a page in a browser can draw with
Vega-Embed, and that ``svg`` draws here (``siltstone[plots]``). Texts are data, never expressions, so a key or
a name that looks like one stays text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from siltstone.base.clock import time_text
from siltstone.compaction.explain.model import Moment

Spec = dict[str, Any]
WIDTH, HEIGHT = 640, 180
COLOURS = {
    "kept": "#2f6fdf",
    "superseded": "#e07b39",
    "tombstones": "#8a5cc9",
    "aborted": "#c4455d",
    "keyless": "#8f9bad",
    "markers": "#3f9d77",
    "written": "#a9c2ea",
    "reclaimable": "#e07b39",
}
"""The same thing has the same colour in every plot."""
_LABEL_WIDTH = 220
_BYTES = {"title": None, "labelExpr": "format(datum.value, '.3~s') + 'B'"}


def size_text(size: float) -> str:
    """Bytes for people: ``1.5 MB``, thousands by thousands."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def printable(text: object) -> str:
    """Text for a page or a plot: no control characters, nothing that changes the direction of writing."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in str(text))


def shares(sizes: Sequence[tuple[str, int]], title: str) -> Spec | None:
    """One bar cut into parts (name, bytes); None where there is nothing to draw."""
    rows = [{"name": name, "bytes": size, "order": n} for n, (name, size) in enumerate(sizes) if size > 0]
    encoding = {
        "x": {"field": "bytes", "type": "quantitative", "stack": "normalize", "axis": None},
        "order": {"field": "order", "type": "ordinal"},
        "color": _colour([name for name, size in sizes if size > 0]),
    }
    return _spec(title, rows, height=28, mark="bar", encoding=encoding) if rows else None


def over_time(moments: Sequence[Moment], title: str) -> Spec | None:
    """Bytes written up to a time, and those of them that could be done without; None for less than two times.

    Times count from the first one: those of a damaged clock are beyond what a browser takes for a time.
    """
    if len(moments) < 2 or not any(each.written_bytes or each.reclaimable_bytes for each in moments):
        return None
    first = moments[0].at_ms
    rows = [
        {"after_ms": each.at_ms - first, "name": name, "bytes": size}
        for each in moments
        for name, size in (("written", each.written_bytes), ("reclaimable", each.reclaimable_bytes))
    ]
    span = moments[-1].at_ms - first
    labels = f"datum.value ? '{time_text(first + span)}' : '{time_text(first)}'"
    axis = {"title": None, "values": [0, span], "labelExpr": labels, "labelBound": True}
    encoding = {
        "x": {"field": "after_ms", "type": "quantitative", "axis": axis, "scale": {"domain": [0, span]}},
        "y": {"field": "bytes", "type": "quantitative", "stack": None, "axis": _BYTES},
        "color": _colour(["written", "reclaimable"]),
    }
    return _spec(title, rows, height=HEIGHT, mark="area", encoding=encoding)


def bars(rows: Sequence[tuple[str, int, int, str]], title: str) -> Spec | None:
    """A row for each (label, all, part, what it says), ``part`` drawn over ``all``; at most some dozens."""
    values = [
        {"row": number, "label": printable(label), "all": whole, "part": part, "says": printable(says)}
        for number, (label, whole, part, says) in enumerate(rows)
    ]
    if not any(value["all"] for value in values):
        return None

    def bar(field: str, colour: str) -> Spec:
        x = {"field": field, "type": "quantitative", "axis": None}
        return {"mark": {"type": "bar", "color": colour}, "encoding": {"x": x}}

    def text(field: str, x: Spec, **how: object) -> Spec:
        mark = {"type": "text", "limit": _LABEL_WIDTH, **how}
        return {"mark": mark, "encoding": {"x": x, "text": {"field": field}}}

    layer = [
        bar("all", COLOURS["written"]),
        bar("part", COLOURS["kept"]),
        text("label", {"value": -8}, align="right"),
        text("says", {"field": "all", "type": "quantitative"}, align="left", dx=6),
    ]
    encoding = {"y": {"field": "row", "type": "ordinal", "axis": None}}
    return _spec(title, values, height={"step": 20}, layer=layer, encoding=encoding)


def _colour(names: Sequence[str]) -> Spec:
    scale = {"domain": names, "range": [COLOURS[name] for name in names]}
    return {"field": "name", "type": "nominal", "scale": scale, "legend": None}


def _spec(title: str, rows: Sequence[Spec], **rest: object) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "description": title,
        "width": WIDTH,
        "background": None,
        "data": {"values": rows},
        "config": {"view": {"stroke": None}},
        **rest,
    }


def svg(spec: Spec | None) -> str:
    """A specification as an element of a page, which says in words what it shows; "" for None.

    It refers to nothing outside of it and has no size of its own. Needs ``siltstone[plots]``.
    """
    if spec is None:
        return ""
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(spec)
    title = spec["description"]
    start = rf'<svg viewBox="\1" role="img" aria-label="{title}"><title>{title}</title>'
    return re.sub(r'<svg [^>]*viewBox="([^"]*)">', start, drawn, count=1)
