"""The strip of a partition's segments, as golden SVG (``tests/web/strips``)."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from siltstone.commands.segments import (
    ACTIVE,
    CLEAN,
    CLOSED,
    DIRTY,
    NOT_CLEANABLE_YET,
    SECTIONS,
    Marks,
    PartitionSegments,
    SegmentRow,
)
from siltstone.web.strip import BOXES_MAX, GHOSTS_MAX, WIDTH, Scale, strip

GOLDEN = Path(__file__).parent / "strips"
SVG = re.compile(r"<(rect|line|text|title|svg)\b")


def row(base: int, end: int, size: int, section: str, horizon_ms: int | None = None) -> SegmentRow:
    return SegmentRow(
        base_offset=base,
        end_offset=end,
        size=size,
        section=section,
        first_timestamp_ms=None,
        largest_timestamp_ms=None,
        modified_ms=0,
        offset_index_bytes=0,
        time_index_bytes=0,
        newest_horizon_ms=horizon_ms,
    )


def partition(
    segments: list[SegmentRow],
    leftovers: tuple[tuple[str, int], ...] = (),
    topic: str = "users",
    **marks: int,
) -> PartitionSegments:
    end = segments[-1].end_offset if segments else 0
    return PartitionSegments(
        topic=topic,
        partition=0,
        directory="",
        state="dirty",
        sentence="",
        segments=segments,
        marks=Marks(
            log_start=marks.get("log_start", 0),
            cleaner_checkpoint=marks.get("cleaner_checkpoint"),
            first_uncleanable=marks.get("first_uncleanable"),
            high_watermark=marks.get("high_watermark", end),
            last_stable=end,
            log_end=end,
            compacted_horizon=marks.get("compacted_horizon"),
        ),
        leftovers=leftovers,
    )


ALL_SECTIONS = [
    row(0, 4000, 100, CLEAN, 1_800_000_000_000),
    row(4000, 5000, 300, CLEAN),
    row(5000, 6000, 600, DIRTY),
    row(6000, 7000, 500, NOT_CLEANABLE_YET),
    row(7000, 7500, 500, ACTIVE),
]
LEFT = (
    ("00000000000000000000.index.swap", 7),
    ("00000000000000000000.log.swap", 90),
    ("00000000000000004000.log.deleted", 300),
    ("00000000000000004000.timeindex.deleted", 3),
)
STRIPS = {
    "all_sections": partition(
        ALL_SECTIONS,
        cleaner_checkpoint=5000,
        first_uncleanable=6000,
        high_watermark=7400,
        compacted_horizon=2000,
    ),
    "ghosts": partition(ALL_SECTIONS, LEFT, cleaner_checkpoint=5000, first_uncleanable=6000),
    "one_place": partition(ALL_SECTIONS, log_start=5000, cleaner_checkpoint=5000, first_uncleanable=5000),
    "not_compacted": partition([row(10, 20, 900, CLOSED), row(20, 20, 0, ACTIVE)], log_start=12),
    "empty": partition([]),
    "hostile": partition([row(0, 1, 1, ACTIVE)], topic='<script>alert("x")</script>&'),
}


@pytest.mark.parametrize("scale", ["bytes", "offsets"])
@pytest.mark.parametrize("name", STRIPS)
def test_strips_are_the_golden_ones(name: str, scale: Scale) -> None:
    drawn = str(strip(STRIPS[name], scale))
    lines = SVG.sub(lambda match: f"\n{match.group()}", drawn).strip() + "\n"
    assert lines == (GOLDEN / f"{name}.{scale}.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(drawn)
    assert "style" not in drawn and "<script" not in drawn


@pytest.mark.parametrize("count", [BOXES_MAX, BOXES_MAX + 1, 5000])
def test_beyond_a_bound_neighbours_of_one_section_are_one_box(count: int) -> None:
    sections = [SECTIONS[min(number * 4 // count, 3)] for number in range(count)]
    segments = [row(number, number + 1, number, section) for number, section in enumerate(sections)]
    for scale in ("bytes", "offsets"):
        tree = ElementTree.fromstring(str(strip(partition(segments), scale)))
        boxes = tree.findall("rect")
        assert len(boxes) == (count if count <= BOXES_MAX else 4)
        widths = [float(box.attrib["width"].removesuffix("%")) for box in boxes]
        assert sum(widths) == pytest.approx(WIDTH, abs=0.01 * len(boxes))
    if count > BOXES_MAX:
        sizes = [sum(s.size for s in segments if s.section == section) for section in SECTIONS[:4]]
        titles = [box.findtext("title") or "" for box in boxes]
        assert [title.endswith(f", {size} bytes") for title, size in zip(titles, sizes, strict=True)] == [
            True
        ] * 4


def test_ghosts_are_bounded_and_stay_inside() -> None:
    leftovers = tuple((f"{number:020d}.log.deleted", 1 << 50) for number in range(1000))
    tree = ElementTree.fromstring(str(strip(replace(STRIPS["all_sections"], leftovers=leftovers))))
    ghosts = [box for box in tree.findall("rect") if box.attrib["class"] == "ghost deleted"]
    assert len(ghosts) == GHOSTS_MAX
    ends = [sum(float(box.attrib[name].removesuffix("%")) for name in ("x", "width")) for box in ghosts]
    assert max(ends) <= WIDTH + 0.2


@pytest.mark.parametrize("seed", range(20))
def test_labels_of_marks_stay_inside_and_do_not_overlap(seed: int) -> None:
    chance = random.Random(seed)
    names = ("cleaner_checkpoint", "first_uncleanable", "high_watermark", "compacted_horizon", "log_start")
    marks = {name: chance.randrange(1, 7500) for name in names}
    tree = ElementTree.fromstring(str(strip(partition(ALL_SECTIONS, **marks))))
    labels = [label for label in tree.findall("text") if label.attrib["y"] == "12"]
    letter, ends = 0.8, 0.0
    for label in labels:
        left, width = float(label.attrib["x"].removesuffix("%")), letter * len(label.text or "")
        left -= width if label.attrib["text-anchor"] == "end" else 0
        assert ends <= left + 0.01 and left + width <= WIDTH + 0.01, marks
        ends = left + width
    words = " · ".join(label.text or "" for label in labels).split(" · ")
    assert sorted(words) == sorted(set(words)) and len(words) == 5


def test_text_is_not_scaled_with_the_strip() -> None:
    drawn = str(strip(STRIPS["all_sections"]))
    assert "viewBox" not in drawn and "preserveAspectRatio" not in drawn
