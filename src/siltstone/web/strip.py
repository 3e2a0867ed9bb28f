"""A partition's segments as one strip of inline SVG, to the scale of bytes.

::

    ┌───────┬─────┬─────────┬────┬──────┐      each box a segment, with a pattern for its section
    │▓▓▓▓▓▓▓│▓▓▓▓▓│▒▒▒▒▒▒▒▒▒│░░░░│      │      neighbours of one section are one box beyond ``BOXES_MAX``
    └───────┴─────┴─────────┴────┴──────┘
        ▲ first dirty            ▲ high watermark

Looks come from the style sheet by classes alone: the page's policy allows no inline style.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup

from siltstone.commands.segments import SECTIONS, PartitionSegments, SegmentRow

BOXES_MAX = 200
WIDTH, HEIGHT, _TOP, _BAR = 1000, 56, 18, 24
_LEAST = 2.0
"""The width of the smallest box: an empty segment is seen, too."""
_BOX = Markup('<rect class="section {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>')
_MARK = Markup(
    '<line class="mark" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/><text class="mark" x="{0}" y="{3}">{4}</text>'
)
_STRIP = Markup('<svg class="strip" viewBox="0 0 {} {}" role="img" preserveAspectRatio="none">{}</svg>')


def strip(partition: PartitionSegments) -> Markup:
    """The strip. A screen reader gets its ``title``; the table below it has the same figures."""
    boxes = _boxes(partition.segments)
    sizes = [sum(segment.size for segment in box) for box in boxes]
    widths = _widths(sizes)
    parts = [Markup("<title>{}</title>").format(_title(partition))]
    left = 0.0
    for box, size, width in zip(boxes, sizes, widths, strict=True):
        text = f"{box[0].section}: offsets {box[0].base_offset} to {box[-1].end_offset - 1}, {size} bytes"
        parts.append(_BOX.format(box[0].section, f"{left:.1f}", _TOP, f"{width:.1f}", _BAR, text))
        left += width
    parts += _marks(partition, boxes, widths)
    return _STRIP.format(WIDTH, HEIGHT, Markup("").join(parts))


def _boxes(segments: Sequence[SegmentRow]) -> list[list[SegmentRow]]:
    """A box for each segment, or for neighbours of one section if there are too many."""
    if len(segments) <= BOXES_MAX:
        return [[segment] for segment in segments]
    return [list(box) for _, box in groupby(segments, key=lambda segment: segment.section)]


def _widths(sizes: Sequence[int]) -> list[float]:
    free, total = WIDTH - _LEAST * len(sizes), max(sum(sizes), 1)
    return [_LEAST + free * size / total for size in sizes]


def _marks(
    partition: PartitionSegments, boxes: Sequence[Sequence[SegmentRow]], widths: Sequence[float]
) -> list[Markup]:
    marks = partition.marks
    named = {
        "first dirty": marks.cleaner_checkpoint,
        "high watermark": marks.high_watermark if marks.high_watermark < marks.log_end else None,
        "ledger": marks.compacted_horizon,
    }
    drawn = []
    for name, offset in named.items():
        if offset is None or not boxes:
            continue
        x = f"{_place(offset, boxes, widths):.1f}"
        drawn.append(_MARK.format(x, _TOP - 4, _TOP + _BAR + 4, _TOP - 6, name))
    return drawn


def _place(offset: int, boxes: Sequence[Sequence[SegmentRow]], widths: Sequence[float]) -> float:
    """Where an offset is: inside of a box by its share of the box's offsets."""
    left = 0.0
    for box, width in zip(boxes, widths, strict=True):
        first, end = box[0].base_offset, box[-1].end_offset
        if offset < end:
            return left + width * max(offset - first, 0) / max(end - first, 1)
        left += width
    return left


def _title(partition: PartitionSegments) -> str:
    counts = [
        f"{count} {section}"
        for section in SECTIONS
        if (count := sum(segment.section == section for segment in partition.segments))
    ]
    return f"{partition.topic}-{partition.partition}: segments {', '.join(counts) or 'none'}"
