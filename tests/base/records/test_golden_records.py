"""Every golden segment decoded three times: by the product, by the twin, and by Kafka's own reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from siltstone.base.records.checksum import first_bad_checksum
from siltstone.base.records.codecs import Scratch
from siltstone.base.records.decode import decode_records
from siltstone.base.records.layout import BatchHeaders, Bytes
from siltstone.base.records.scan import ScanEnd, scan_batches
from tests.support.golden.listings import Segment, listed_segments
from tests.support.records import twin
from tests.support.records.arrays import complete_headers, inner_checksums_hold, records_of
from tests.support.thoroughness import share


def golden_segments(golden: Path) -> Iterator[tuple[Path, Segment]]:
    """The first and the last listed segment file of each directory of every set and a fifth of the others,
    all when thorough; with its listing.

    ``records_after.jsonl`` lists ``after``; of a whole broker ``records_after/data0/topic-0.jsonl`` lists
    ``after/data0/topic-0``.
    """
    for listing in sorted(golden.rglob("*.jsonl")):
        parts = [part.removeprefix("records_") for part in listing.relative_to(golden).with_suffix("").parts]
        directory = golden.joinpath(*parts)
        if directory.is_dir():  # the whole broker's `before` is packed elsewhere
            listed = [(directory / name, segment) for name, segment in listed_segments(listing).items()]
            yield from share(listed, 5)


def check_batches(path: Path, segment: Segment, data: Bytes) -> BatchHeaders:
    """Compare the headers; returns the whole batches that the scanner found."""
    scan = scan_batches(data)
    count = len(scan.batches)
    # Kafka's tool reads on over an unknown magic byte; the scanner stops there.
    assert count == len(segment.rows) or scan.outcome == ScanEnd.BAD_MAGIC, (path, scan.outcome)
    fields = ("position", "size")
    got = list(zip(*(scan.batches[name].tolist() for name in fields), strict=True))
    assert got == [(row[0], row[4]) for row in segment.rows[:count]], path
    bad = [row for row in range(count) if first_bad_checksum(data, scan.batches[row : row + 1]) is not None]
    assert bad == [row for row in range(count) if not segment.valid[row]], path
    return np.delete(scan.batches, bad)


def check_records(path: Path, segment: Segment, data: Bytes, batches: BatchHeaders, scratch: Scratch) -> int:
    """Compare the records of the batches that are right; returns how many."""
    columns = decode_records(data, batches, scratch)
    complete = complete_headers(batches, columns)
    positions = set(batches["position"].tolist())
    rows = [at for at, row in enumerate(segment.rows) if row[0] in positions]
    fields = ("position", "base_offset", "last_offset", "count", "size")
    got = list(zip(*(complete[name].tolist() for name in fields), strict=True))
    assert got == [segment.rows[at] for at in rows], path
    records = records_of(columns)
    assert records == [record for at in rows for record in segment.records[at]], path
    entries = [entry for entry in twin.decode_log(data.tobytes()) if entry.position in positions]
    assert [record for entry in entries for record in entry.records] == records, path
    assert [(entry.first, entry.last, entry.valid) for entry in entries] == [
        (segment.rows[at][1], segment.rows[at][2], True) for at in rows
    ], path
    old = batches[batches["magic"] < 2]
    messages = decode_records(data, old, scratch)
    assert inner_checksums_hold(messages)
    assert len(messages) == complete["count"][batches["magic"] < 2].sum()
    return len(records)


@pytest.mark.random
def test_kafkas_reader_the_twin_and_the_product_see_the_same_records(golden: Path) -> None:
    scratch = Scratch(64)
    by_magic = np.zeros(3, np.int64)
    total = 0
    for path, segment in golden_segments(golden):
        data = np.fromfile(path, np.uint8)
        batches = check_batches(path, segment, data)
        total += check_records(path, segment, data, batches, scratch)
        by_magic += np.bincount(batches["magic"], minlength=3)
    assert total > 10_000
    assert (by_magic > 200).all(), by_magic
