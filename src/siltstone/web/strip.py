"""A partition's segments as one strip of inline SVG, to the scale of bytes or of offsets.

::

      first dirty          high watermark
    ┌───────┬─────┬─────────┬────┬──────┐      each box a segment, with a pattern for its section
    │▓▓▓▓▓▓▓│▓▓▓▓▓│▒▒▒▒▒▒▒▒▒│░░░░│      │      neighbours of one section are one box beyond ``BOXES_MAX``
    └───────┴─────┴─────────┴────┴──────┘
    ╌╌╌╌╌╌╌╌╌                                  ghosts: ``.swap``, ``.cleaned``, ``.deleted`` files
     tombstones go 2026-11-21 14:00:00Z

Looks come from the style sheet by classes alone: the page's policy allows no inline style.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Literal

from markupsafe import Markup

from siltstone.base.clock import time_text
from siltstone.commands.segments import CLEAN, SECTIONS, PartitionSegments, SegmentRow

BOXES_MAX = 200
GHOSTS_MAX = 50
WIDTH, HEIGHT, _TOP, _BAR = 1000, 64, 18, 24
_LEAST = 2.0
"""The width of the smallest box: an empty segment is seen, too."""
_GHOST_TOP, _GHOST_HEIGHT = _TOP + _BAR + 1, 5
_FAR_RIGHT = 0.85 * WIDTH
"""A label from here on ends at its mark, so that it stays inside of the strip."""
Scale = Literal["bytes", "offsets"]
_BOX = Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>')
_LINE = Markup('<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>')
_LABEL = Markup('<text class="mark" x="{:.1f}" y="{}" text-anchor="{}">{}</text>')
_STRIP = Markup('<svg class="strip" viewBox="0 0 {} {}" role="img" preserveAspectRatio="none">{}</svg>')


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """Neighbouring segments, where their box begins, and its width."""

    segments: Sequence[SegmentRow]
    left: float
    width: float

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(segment.size for segment in self.segments)


def strip(partition: PartitionSegments, scale: Scale = "bytes") -> Markup:
    """The strip. A screen reader gets its ``title``; the table below it has the same figures."""
    boxes = _boxes(partition.segments, scale)
    parts = [Markup("<title>{}</title>").format(_title(partition))]
    parts += [_drawn_box(box) for box in boxes]
    parts += _ghosts(partition, boxes)
    parts += _marks(partition, boxes)
    return _STRIP.format(WIDTH, HEIGHT, Markup("").join(parts))


def _boxes(segments: Sequence[SegmentRow], scale: Scale) -> list[_Box]:
    """A box for each segment, or for neighbours of one section if there are too many."""
    groups = [[segment] for segment in segments]
    if len(segments) > BOXES_MAX:
        groups = [list(group) for _, group in groupby(segments, key=lambda segment: segment.section)]
    weigh: Callable[[SegmentRow], int] = (
        (lambda segment: segment.size) if scale == "bytes" else (lambda segment: segment.spanned)
    )
    weights = [sum(map(weigh, group)) for group in groups]
    free, total = WIDTH - _LEAST * len(groups), max(sum(weights), 1)
    widths = [_LEAST + free * weight / total for weight in weights]
    lefts = accumulate(widths, initial=0.0)
    return [
        _Box(segments=group, left=left, width=width)
        for group, left, width in zip(groups, lefts, widths, strict=False)
    ]


def _drawn_box(box: _Box) -> Markup:
    first, last = box.segments[0], box.segments[-1]
    many = "" if len(box.segments) == 1 else f"{len(box.segments)} segments, "
    offsets = f"offsets {first.base_offset} to {last.end_offset - 1}"
    if last.end_offset <= first.base_offset:
        offsets = f"from offset {first.base_offset}, empty"
    text = f"{first.section}: {many}{offsets}, {box.size} bytes"
    return _BOX.format(f"section {first.section}", box.left, _TOP, box.width, _BAR, text)


def _ghosts(partition: PartitionSegments, boxes: Sequence[_Box]) -> list[Markup]:
    """The files of a swap or a deletion that has not ended, below the offsets where they are or were."""
    if not boxes:
        return []
    per_byte = (WIDTH - _LEAST * len(boxes)) / max(partition.size, 1)
    drawn = []
    for base_offset, suffix, size in partition.ghosts[:GHOSTS_MAX]:
        left = _place(base_offset, boxes)
        width = max(min(size * per_byte, WIDTH - left), _LEAST)
        text = f"{suffix.removeprefix('.')}: from offset {base_offset}, {size} bytes"
        kind = f"ghost {suffix.removeprefix('.')}"
        drawn.append(_BOX.format(kind, left, _GHOST_TOP, width, _GHOST_HEIGHT, text))
    return drawn


def _marks(partition: PartitionSegments, boxes: Sequence[_Box]) -> list[Markup]:
    marks, drawn = partition.marks, list[Markup]()
    first = boxes[0].segments[0].base_offset if boxes else 0
    has_dirty = marks.cleaner_checkpoint is not None and marks.cleaner_checkpoint > first
    named = {
        "log start": marks.log_start if marks.log_start > first else None,
        "first dirty": marks.cleaner_checkpoint if has_dirty else None,
        "first uncleanable": marks.first_uncleanable,
        "high watermark": marks.high_watermark if marks.high_watermark < marks.log_end else None,
        "ledger": marks.compacted_horizon,
    }
    taken: dict[str, list[str]] = {}
    for name, offset in named.items():
        if offset is not None and boxes:
            taken.setdefault(f"{_place(offset, boxes):.1f}", []).append(name)
    for place, names in taken.items():
        drawn += _mark(float(place), " · ".join(names), above=True)
    horizon_ms, clean = partition.newest_horizon_ms, [box for box in boxes if _is_clean(box)]
    if horizon_ms is not None and clean:
        middle = (clean[0].left + clean[-1].left + clean[-1].width) / 2
        drawn += _mark(middle, f"tombstones go {time_text(horizon_ms)}", above=False)
    return drawn


def _mark(x: float, name: str, *, above: bool) -> list[Markup]:
    anchor = "end" if x > _FAR_RIGHT else "start"
    if above:
        return [_LINE.format(x, _TOP - 4, _TOP + _BAR + 4), _LABEL.format(x, _TOP - 6, anchor, name)]
    bottom = _GHOST_TOP + _GHOST_HEIGHT
    return [_LINE.format(x, _TOP + _BAR, bottom), _LABEL.format(x, HEIGHT - 4, anchor, name)]


def _is_clean(box: _Box) -> bool:
    return box.segments[0].section == CLEAN


def _place(offset: int, boxes: Sequence[_Box]) -> float:
    """Where an offset is: inside of a box by its share of the box's offsets."""
    for box in boxes:
        first, end = box.segments[0].base_offset, box.segments[-1].end_offset
        if offset < end:
            return box.left + box.width * max(offset - first, 0) / max(end - first, 1)
    return boxes[-1].left + boxes[-1].width


def _title(partition: PartitionSegments) -> str:
    counts = [
        f"{count} {section}"
        for section in SECTIONS
        if (count := sum(segment.section == section for segment in partition.segments))
    ]
    return f"{partition.topic}-{partition.partition}: segments {', '.join(counts) or 'none'}"
