"""What Kafka's own reader listed of golden segments: batches and records."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.golden_sets import read_records
from tests.support.records import twin

Row = tuple[int, int, int, int, int]
"""Of a batch: position, base offset, last offset, record count, size."""


@dataclass(slots=True)
class Segment:
    """What Kafka's reader listed of one file."""

    rows: list[Row] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)
    records: list[list[twin.Record]] = field(default_factory=list)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _record(line: dict[str, Any]) -> twin.Record:
    return twin.Record(
        offset=line["offset"],
        timestamp=line["ts"],
        key=_bytes(line["k"]),
        value=_bytes(line["v"]),
        headers=tuple((name.encode(), _bytes(content)) for name, content in line.get("h", [])),
        size=line["size"],
    )


def listed_segments(path: Path) -> dict[str, Segment]:
    """The segments of one records file, by file name."""
    segments: dict[str, Segment] = {}
    for line in read_records(path):
        if line["t"] == "segment":
            segment = segments[line["file"]] = Segment()
        elif line["t"] == "batch":
            row = ("position", "baseOffset", "lastOffset", "count", "size")
            segment.rows.append(tuple(line[name] for name in row))  # type: ignore[arg-type]
            segment.valid.append(line["valid"])
            segment.records.append([])
        elif line["t"] == "rec":
            segment.records[-1].append(_record(line))
    return segments
