"""A partition's segments as one strip of inline SVG, to the scale of bytes or of offsets.

::

      first dirty          high watermark
    ┌───────┬─────┬─────────┬────┬──────┐      each box a segment, with a pattern for its section
    │▓▓▓▓▓▓▓│▓▓▓▓▓│▒▒▒▒▒▒▒▒▒│░░░░│      │      neighbours of one section are one box beyond ``BOXES_MAX``
    └───────┴─────┴─────────┴────┴──────┘
    ╌╌╌╌╌╌╌╌╌                                  ghosts: ``.swap``, ``.cleaned``, ``.deleted`` files
     tombstones go 2026-11-21 14:00:00Z

Places from left to right are percentages of the strip's width, so that it fills any window, and its text
keeps its shape. Looks come from the style sheet by classes alone: the page's policy allows no inline style.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Literal

from markupsafe import Markup

from siltstone.base.clock import time_text
from siltstone.commands.segments import CLEAN, SECTIONS, PartitionSegments, SegmentRow

BOXES_MAX = 200
GHOSTS_MAX = 50
"""The most boxes with one segment each, and the most files below them that are drawn."""
WIDTH, HEIGHT, _TOP, _BAR = 100, 64, 18, 24
"""The width is in percent, all else in pixels."""
_LEAST = 0.2
"""The width of the smallest box: an empty segment is seen, too."""
_GHOST_TOP, _GHOST_HEIGHT = _TOP + _BAR + 1, 5
_LETTER = 0.8
"""The width of a letter of a label, in percent of a strip in a window of 800 pixels. (The style sheet hides
labels in windows below 700 pixels.)"""
Scale = Literal["bytes", "offsets"]
_BOX = Markup('<rect class="{}" x="{:.2f}%" y="{}" width="{:.2f}%" height="{}"><title>{}</title></rect>')
_LINE = Markup('<line class="mark" x1="{0:.2f}%" x2="{0:.2f}%" y1="{1}" y2="{2}"/>')
_LABEL = Markup('<text class="mark" x="{:.2f}%" y="{}" text-anchor="{}">{}</text>')
_STRIP = Markup('<svg class="strip" width="100%" height="{}" role="img">{}</svg>')


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """Neighbouring segments, where their box begins, and its width, both in percent of the strip."""

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
    return _STRIP.format(HEIGHT, Markup("").join(parts))


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
        for group, left, width in zip(groups, lefts, widths, strict=False)  # the last left is the strip's end
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
    """Lines with labels at the offsets that divide the log, and below the clean section when its tombstones
    may be removed. A log start or a first dirty offset at the first segment, and a high watermark at the end,
    say nothing and are left out."""
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
    places = [(_place(offset, boxes), name) for name, offset in named.items() if offset is not None and boxes]
    for label in _labels(sorted(places, key=itemgetter(0))):
        drawn += [_LINE.format(x, _TOP - 4, _TOP + _BAR + 4) for x in sorted(set(label.places))]
        drawn.append(label.drawn(_TOP - 6))
    horizon_ms, clean = partition.newest_horizon_ms, [box for box in boxes if _is_clean(box)]
    if horizon_ms is not None and clean:
        middle = (clean[0].left + clean[-1].left + clean[-1].width) / 2
        label = _Label(places=[middle], names=[f"tombstones go {time_text(horizon_ms)}"])
        drawn += [_LINE.format(middle, _TOP + _BAR, _GHOST_TOP + _GHOST_HEIGHT), label.drawn(HEIGHT - 4)]
    return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class _Label:
    """The names of one mark, or of neighbouring ones whose labels would overlap, from left to right."""

    places: list[float]
    names: list[str]

    @property
    def text(self) -> str:
        """The names in one line."""
        return " · ".join(self.names)

    @property
    def reaches(self) -> tuple[float, float]:
        """Where the text begins and ends: it begins at the first mark, or ends at the last one if it would
        not fit into the strip."""
        width = _LETTER * len(self.text)
        if self.places[0] + width <= WIDTH:
            return self.places[0], self.places[0] + width
        return self.places[-1] - width, self.places[-1]

    def drawn(self, y: int) -> Markup:
        """The text."""
        left, right = self.reaches
        is_first = left == self.places[0]
        return _LABEL.format(left if is_first else right, y, "start" if is_first else "end", self.text)


def _labels(places: Iterable[tuple[float, str]]) -> list[_Label]:
    """Labels that do not overlap, of marks in order."""
    labels = list[_Label]()
    for place, name in places:
        label = _Label(places=[place], names=[name])
        while labels and labels[-1].reaches[1] + _LETTER > label.reaches[0]:
            before = labels.pop()
            label = _Label(places=[*before.places, *label.places], names=[*before.names, *label.names])
        labels.append(label)
    return labels


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
