"""Options: names, meanings, and what is refused with advice."""

from __future__ import annotations

import re

import pytest

from siltstone.base.errors import UsageError
from siltstone.log.names import TopicPartition
from siltstone.tables.options import (
    EARLIEST,
    OPTIONS,
    OffsetLimit,
    ReadOptions,
    duration_ms,
    size,
    time_ms,
)
from siltstone.tables.writing import WRITE_OPTIONS
from tests.support.golden_sets import REPOSITORY

PATH = {"path": "/logs"}


def test_the_defaults_are_those_of_sparks_kafka_source() -> None:
    options = ReadOptions.of(PATH)
    assert options == ReadOptions(paths=("/logs",))
    assert options.offsets.fail_on_data_loss and not options.include_headers
    assert (options.view, options.isolation, options.quarantine) == ("log", "read_committed", False)


def test_names_are_read_whatever_their_case_and_what_spark_adds_is_passed_over() -> None:
    given = {
        "PATH": "/logs",
        "STARTINGOFFSETS": "earliest",
        "serialization.format": "1",
        "provider": "siltstone",
    }
    assert ReadOptions.of(given).offsets.starting == OffsetLimit(every=EARLIEST)
    assert ReadOptions.of({"paths": '["/a","/b"]'}).paths == ("/a", "/b")
    assert ReadOptions.of({"location": "file:/a%20b"}).paths == ("/a b",)
    assert ReadOptions.of({"path": "file:///a", "location": "file:/b"}).paths == ("/a",)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "x:9092"}, "talks to no broker"),
        ({"kafka.isolation.level": "read_committed"}, "'isolation'"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "not several"),
        ({"subscribe": " , "}, "at least one"),
        ({"subscribePattern": "("}, "regular expression"),
        ({"assign": '{"a":0}'}, "JSON such as"),
        ({"assign": "a"}, "no JSON"),
        ({"startingOffsets": "latest"}, "cannot start at the latest"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "cannot start at the latest"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "a-0: -3"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "got `bool`"),
        ({"endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({"asOfOffset": "1", "asOfTimestamp": "1"}, "not several"),
        ({"asOfOffset": "1", "endingOffsets": "latest"}, "not both"),
        ({"asOfOffset": "1", "view": "compacted"}, "use view=latest"),
        ({"asOfTimestamp": "yesterday"}, "2026-01-01T12"),
        ({"view": "newest"}, "log or latest or compacted"),
        ({"tombstones": "keep"}, "view=latest"),
        ({"badBatches": "quarantine", "view": "latest"}, "may hold a key's last value"),
        ({"minPartitions": "0"}, ">= 1"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"maxPartitionBytes": "0"}, "128m"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        ReadOptions.of({**PATH, **given})


def test_a_path_is_needed() -> None:
    with pytest.raises(UsageError, match="'path' is missing"):
        ReadOptions.of({})


def test_streams_have_no_end_and_may_start_at_the_latest() -> None:
    assert ReadOptions.of(
        {**PATH, "startingOffsets": "latest"}, streaming=True
    ).offsets.starting == OffsetLimit(every=-1)
    for given in ({"view": "latest"}, {"asOfOffset": "1"}, {"endingOffsets": "latest"}):
        with pytest.raises(UsageError, match="a stream reads view=log"):
            ReadOptions.of({**PATH, **given}, streaming=True)


def test_one_time_for_all_goes_before_times_and_these_before_offsets() -> None:
    times, offsets = {"startingOffsetsByTimestamp": '{"a":{"0":5}}'}, {"startingOffsets": "earliest"}
    one = {"startingTimestamp": "7"}
    assert ReadOptions.of(PATH | one | times | offsets).offsets.starting == OffsetLimit(every=7, is_time=True)
    limit = OffsetLimit(by_partition={TopicPartition("a", 0): 5}, is_time=True)
    assert ReadOptions.of(PATH | times | offsets).offsets.starting == limit


def test_sizes_times_and_durations() -> None:
    assert [size(text) for text in ("1", "64k", "128m", "1g")] == [1, 1 << 16, 128 << 20, 1 << 30]
    assert [duration_ms(text) for text in ("500", "500ms", "10s", "15m", "1h")] == [
        500,
        500,
        10_000,
        900_000,
        3_600_000,
    ]
    assert time_ms("2026-01-01") == time_ms("2026-01-01T01:00:00+01:00") == 1_767_225_600_000
    assert time_ms("1969-12-31T23:59:59.999Z") == -1


def test_every_option_is_listed_once() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)


def test_the_page_tells_of_every_option() -> None:
    page = (REPOSITORY / "docs" / "tables.md").read_text()
    cells = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    told = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    sparks_own = {"location", "paths"}
    assert told == {option.name for option in (*OPTIONS, *WRITE_OPTIONS)} - sparks_own
