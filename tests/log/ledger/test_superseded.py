"""Superseded records are left out of columns as a list comprehension would, and only those that are there."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.base.errors import LedgerError
from siltstone.base.records.decode import decode_records
from siltstone.base.records.scan import scan_batches
from siltstone.log.ledger.reading import without_superseded
from siltstone.log.reading import PolledRecords
from tests.support.cleaning.logs import Rec, batch
from tests.support.errors import raises_error
from tests.support.log import plainly


def polled(offsets: list[int]) -> PolledRecords:
    rows = [
        Rec(
            offset=at,
            key=b"k%d" % at,
            value=b"v" * (at % 7),
            timestamp=1000 - at,
            headers=((b"h", b"%d" % at),),
        )
        for at in offsets
    ]
    data = b"".join(batch(rows[at : at + 3]) for at in range(0, len(rows), 3))
    window = np.frombuffer(bytearray(data), np.uint8)
    batches = scan_batches(window).batches
    return PolledRecords(columns=decode_records(window, batches), batches=batches)


def everything(records: PolledRecords) -> list[object]:
    columns = records.columns
    return [
        (rec, columns.headers(row), int(columns.start[row]), int(columns.size[row]), int(columns.batch[row]))
        for row, rec in enumerate(plainly.recs_of([records]) if len(records) else [])
    ]


@settings(deadline=None)
@given(st.sets(st.integers(0, 60), min_size=1, max_size=30), st.integers(0, 2**32), st.integers(0, 30))
def test_superseded_records_are_left_out_as_by_a_list(offsets: set[int], seed: int, outside: int) -> None:
    """Superseded offsets before and behind the records that were read belong to other reads."""
    rows = sorted(offsets)
    hidden = set(random.Random(seed).sample(rows, random.Random(seed).randrange(len(rows) + 1)))
    superseded = sorted({*hidden, *(rows[0] - 1 - at for at in range(outside)), *range(100, 100 + outside)})
    expected = [entry for entry in everything(polled(rows)) if entry[0].offset not in hidden]  # type: ignore[index]
    remaining = without_superseded(polled(rows), np.array(superseded, np.int64), "x")
    assert everything(remaining) == expected
    assert len(remaining.batches) == len(polled(rows).batches)


def test_what_is_hidden_has_to_be_there() -> None:
    with raises_error(LedgerError, path="0.log", about="superseded offset"):
        without_superseded(polled([1, 2, 4, 5]), np.array([2, 3]), "0.log")


def test_nothing_is_copied_where_nothing_is_hidden() -> None:
    records = polled([5, 6, 7])
    assert without_superseded(records, np.array([1, 9]), "x") is records
