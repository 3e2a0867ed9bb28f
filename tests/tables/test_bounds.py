"""Where a table begins and ends: offsets, times, Spark's rules, and states of the past."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.base.errors import OffsetOutOfRangeError, SiltstoneError, UnknownTopicError, UsageError
from tests.support.cleaning.logs import Rec, batch, one
from tests.support.cleaning.transactional import marker
from tests.support.errors import raises_error
from tests.support.log.views import write_aborted
from tests.support.tables.tables import log_directory, offsets, table_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """t-0: offsets 10 to 19 at 1000, 1010, … ms; t-1: 0 and 1; other-0: 0."""
    records = [Rec(offset=at, key=b"k%d" % (at % 4), timestamp=1000 + 10 * (at - 10)) for at in range(10, 20)]
    first, second = [batch([record]) for record in records[:6]], [batch(records[6:])]
    small = [one(at, "k") for at in (0, 1)]
    return log_directory(
        tmp_path, {"t-0": {10: first, 16: second}, "t-1": {0: small}, "other-0": {0: [one(0, "k")]}}
    )


ZERO = {"assign": '{"t":[0]}'}
LOSS = "failOnDataLoss=false"


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, range(10, 20)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(10, 20)),
        ({"startingOffsets": '{"t":{"0":13}}'}, range(13, 20)),
        ({"startingOffsets": '{"t":{"0":-2}}', "endingOffsets": '{"t":{"0":-1}}'}, range(10, 20)),
        ({"endingOffsets": '{"t":{"0":13}}'}, range(10, 13)),
        ({"startingOffsets": '{"t":{"0":15}}', "endingOffsets": '{"t":{"0":12}}'}, []),
        ({"startingTimestamp": "1025"}, range(13, 20)),
        ({"startingTimestamp": "1970-01-01T00:00:01.030Z"}, range(13, 20)),
        ({"startingOffsetsByTimestamp": '{"t":{"0":1030}}'}, range(13, 20)),
        ({"endingTimestamp": "1030"}, range(10, 13)),
        ({"endingTimestamp": "9999"}, range(10, 20)),
        ({"endingOffsetsByTimestamp": '{"t":{"0":1030}}'}, range(10, 13)),
        ({"startingTimestamp": "1030", "startingOffsets": '{"t":{"0":18}}'}, range(13, 20)),
        ({"startingTimestamp": "9999", "startingOffsetsByTimestampStrategy": "latest"}, []),
        ({"asOfOffset": "13"}, range(10, 14)),
        ({"asOfOffset": '{"t":{"0":13}}'}, range(10, 14)),
        ({"asOfOffset": "99"}, range(10, 20)),
        ({"asOfTimestamp": "1030"}, range(10, 14)),
        ({"asOfTimestamp": "999"}, []),
        ({"asOfOffset": "13", "view": "latest"}, [10, 11, 12, 13]),
        ({"view": "latest"}, [16, 17, 18, 19]),
        ({"startingOffsets": '{"t":{"0":5}}', "failOnDataLoss": "false"}, range(10, 20)),
        ({"endingOffsets": '{"t":{"0":99}}', "failOnDataLoss": "false"}, range(10, 20)),
    ],
)
def test_a_table_begins_and_ends_at_its_bounds(
    root: Path, bounds: dict[str, str], expected: list[int]
) -> None:
    assert offsets(root, **ZERO, **bounds) == list(expected)


@pytest.mark.parametrize(
    ("options", "error", "about", "advice"),
    [
        ({"startingTimestamp": "9999"}, UsageError, "9999", "startingOffsetsByTimestampStrategy"),
        ({"startingOffsets": '{"t":{"0":5}}'}, OffsetOutOfRangeError, "5 is outside 10 to 20", LOSS),
        ({"endingOffsets": '{"t":{"0":21}}'}, OffsetOutOfRangeError, "21 is outside 10 to 20", LOSS),
        ({"asOfOffset": "5"}, OffsetOutOfRangeError, "below offset 10", LOSS),
    ],
)
def test_a_bound_outside_the_log_is_refused_with_the_log_and_the_option_that_allows_it(
    root: Path, options: dict[str, str], error: type[SiltstoneError], about: str, advice: str
) -> None:
    with raises_error(error, path="t-0", about=about, advice=advice):
        offsets(root, **ZERO, **options)


def test_offsets_by_partition_must_name_the_partitions_that_are_read(root: Path) -> None:
    with raises_error(UsageError, about="missing: t-0; not read: t-1", advice="-2"):
        offsets(root, **ZERO, startingOffsets='{"t":{"1":0}}')


@pytest.mark.parametrize("option", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "asOfOffset"])
def test_minus_two_is_advised_only_where_it_is_allowed(root: Path, option: str) -> None:
    with raises_error(UsageError, about="missing: t-0", advice="every partition") as raised:
        offsets(root, **ZERO, **{option: '{"t":{"1":0}}'})
    assert "-2" not in str(raised.value)


def test_partitions_are_selected_by_name_list_or_pattern(root: Path) -> None:
    def chosen(**options: str) -> list[str]:
        table = table_of(root, **options)
        names = zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True)
        return sorted({f"{topic}-{partition}" for topic, partition in names})

    assert chosen() == ["other-0", "t-0", "t-1"]
    assert chosen(subscribe="t, other") == ["other-0", "t-0", "t-1"]
    assert chosen(subscribePattern="[a-t]") == ["t-0", "t-1"]
    assert chosen(subscribePattern="oth") == []
    assert chosen(assign='{"t":[1],"other":[0]}') == ["other-0", "t-1"]
    for options, missing in (({"subscribe": "t,u"}, "u"), ({"assign": '{"t":[7]}'}, "t-7")):
        with raises_error(UnknownTopicError, path=missing, advice="siltstone topics"):
            chosen(**options)


def test_a_table_ends_at_the_high_watermark(root: Path) -> None:
    (root / "replication-offset-checkpoint").write_text("0\n1\nt 0 14\n")
    assert offsets(root, **ZERO) == [10, 11, 12, 13]
    assert offsets(root, **ZERO, isolation="read_uncommitted") == [10, 11, 12, 13]


def test_the_state_at_an_offset_that_was_cleaned_since_is_not_known(root: Path) -> None:
    (root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 16\n")
    with raises_error(OffsetOutOfRangeError, path="t-0", about="cleaned up to 16", advice=LOSS):
        offsets(root, **ZERO, view="latest", asOfOffset="13")
    assert offsets(root, **ZERO, view="latest", asOfOffset="13", failOnDataLoss="false") == [10, 11, 12, 13]
    assert offsets(root, **ZERO, view="latest", asOfOffset="15") == [12, 13, 14, 15]
    assert offsets(root, **ZERO, asOfOffset="13") == [10, 11, 12, 13]


def test_a_transaction_that_is_aborted_in_a_later_segment_is_not_read(tmp_path: Path) -> None:
    inside = [one(at, "k", producer_id=7, transactional=True) for at in range(4)]
    root = log_directory(tmp_path, {"t-0": {0: inside, 4: [marker(4, 7, commit=False), one(5, "k")]}})
    write_aborted(root / "t-0", 4, [(7, 0, 4, 5)])
    assert offsets(root) == [5]
    assert offsets(root, isolation="read_uncommitted") == [0, 1, 2, 3, 5]
    assert offsets(root, startingOffsets='{"t":{"0":1}}', endingOffsets='{"t":{"0":3}}') == []
