"""Options: names, values, defaults, and refusals with advice."""

from __future__ import annotations

import re

import pytest

from siltstone.base.errors import UsageError
from siltstone.log.fetch import EARLIEST_TIMESTAMP
from siltstone.log.names import TopicPartition
from siltstone.tables.options import (
    OPTIONS,
    OffsetLimit,
    ReadOptions,
    duration_ms,
    plan_title,
    size,
    time_ms,
)
from siltstone.tables.writing import WRITE_OPTIONS
from tests.support.errors import raises_error
from tests.support.golden_sets import REPOSITORY

PATH = {"path": "/logs"}


def test_the_defaults_are_those_of_sparks_kafka_source() -> None:
    options = ReadOptions.of(PATH)
    assert options == ReadOptions(paths=("/logs",))
    assert options.fail_on_data_loss and not options.include_headers
    assert (options.view, options.isolation, options.quarantine_bad_batches) == (
        "log",
        "read_committed",
        False,
    )


def test_names_are_not_case_sensitive_and_sparks_own_options_are_ignored() -> None:
    texts = {
        "PATH": "/logs",
        "STARTINGOFFSETS": "earliest",
        "serialization.format": "1",
        "provider": "siltstone",
    }
    assert ReadOptions.of(texts).starting == OffsetLimit(every_partition=EARLIEST_TIMESTAMP)
    assert ReadOptions.of({"paths": '["/a","/b"]'}).paths == ("/a", "/b")
    assert ReadOptions.of({"location": "file:/a%20b"}).paths == ("/a b",)
    assert ReadOptions.of({"path": "file:///a", "location": "file:/b"}).paths == ("/a",)


@pytest.mark.parametrize(
    ("texts", "about", "advice"),
    [
        ({"startingOfsets": "earliest"}, "startingOfsets", "'startingOffsets'"),
        ({"nothing.like.it": "1"}, "nothing.like.it", "docs/tables.md"),
        ({"kafka.bootstrap.servers": "x:9092"}, "kafka.bootstrap.servers", "'path'"),
        ({"kafka.isolation.level": "read_committed"}, "kafka.isolation.level", "'isolation'"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe", "one of"),
        ({"subscribe": " , "}, "subscribe=' , '", "at least one"),
        ({"subscribePattern": "("}, "subscribePattern='('", "regular expression"),
        ({"assign": '{"a":0}'}, "assign=", '{"topicA":[0,1],"topicB":[2]}'),
        ({"assign": "a"}, "assign='a'", '{"topicA":[0,1],"topicB":[2]}'),
        ({"startingOffsets": "latest"}, "latest", "startingOffsets"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "latest", "startingOffsets"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "-3 of a-0", ">= -2"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "got `bool`", '{"topicA":{"0":23,"1":345}}'),
        ({"endingOffsets": "earliest"}, "earliest", "endingOffsets"),
        ({"asOfOffset": "1", "asOfTimestamp": "1"}, "asOfTimestamp", "one of"),
        ({"asOfOffset": "1", "endingOffsets": "latest"}, "asOf", "one of"),
        ({"asOfOffset": "1", "view": "compacted"}, "view=compacted", "view=latest"),
        ({"asOfTimestamp": "yesterday"}, "asOfTimestamp='yesterday'", "2026-01-01T12"),
        ({"view": "newest"}, "view='newest'", "log or latest or compacted"),
        ({"tombstones": "keep"}, "tombstones=keep", "view=latest"),
        ({"badBatches": "quarantine", "view": "latest"}, "badBatches=quarantine", "view=log"),
        ({"badBatches": "quarantine", "table": "consumerOffsets"}, "badBatches=quarantine", "table=records"),
        ({"minPartitions": "0"}, "minPartitions='0'", ">= 1"),
        ({"minPartitions": "few"}, "minPartitions='few'", ">= 1"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss='yes'", "true or false"),
        ({"maxPartitionBytes": "0"}, "maxPartitionBytes='0'", "128m"),
        ({"location": "file://elsewhere/kafka"}, "location=", "this machine"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_the_allowed_values(
    texts: dict[str, str], about: str, advice: str
) -> None:
    with raises_error(UsageError, about=about, advice=advice):
        ReadOptions.of({**PATH, **texts})


def test_a_path_is_required() -> None:
    with raises_error(UsageError, about="'path'", advice="log directory"):
        ReadOptions.of({})


def test_streams_have_no_ending_and_may_start_at_the_latest() -> None:
    assert ReadOptions.of({**PATH, "startingOffsets": "latest"}, is_streaming=True).starting == OffsetLimit(
        every_partition=-1
    )
    for texts in ({"view": "latest"}, {"asOfOffset": "1"}, {"endingOffsets": "latest"}):
        with raises_error(UsageError, about="view=log", advice="batch query"):
            ReadOptions.of({**PATH, **texts}, is_streaming=True)


def test_one_time_for_all_precedes_times_by_partition_and_these_precede_offsets() -> None:
    times, offsets = {"startingOffsetsByTimestamp": '{"a":{"0":5}}'}, {"startingOffsets": "earliest"}
    one = {"startingTimestamp": "7"}
    assert ReadOptions.of(PATH | one | times | offsets).starting == OffsetLimit(
        every_partition=7, is_time=True
    )
    limit = OffsetLimit(by_partition={TopicPartition("a", 0): 5}, is_time=True)
    assert ReadOptions.of(PATH | times | offsets).starting == limit


def test_sizes_times_and_durations_have_units() -> None:
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


def test_the_documentation_lists_every_option() -> None:
    page = (REPOSITORY / "docs" / "tables.md").read_text()
    cells = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    sparks_own = {"location", "paths"}
    assert documented == {option.name for option in (*OPTIONS, *WRITE_OPTIONS)} - sparks_own


@pytest.mark.parametrize(
    ("texts", "title"),
    [
        ({}, "siltstone /kafka"),
        ({"subscribe": "users, ledger", "view": "latest"}, "siltstone /kafka users,ledger view=latest"),
        ({"assign": '{"users":[1,0]}', "asOfOffset": "7"}, "siltstone /kafka users-0,users-1 asOf=7"),
        ({"subscribePattern": "u.*", "table": "batches"}, "siltstone /kafka u.* table=batches"),
        ({"startingOffsets": '{"users":{"0":5}}'}, "siltstone /kafka starting=users-0:5"),
        (
            {"endingTimestamp": "99", "isolation": "read_uncommitted"},
            "siltstone /kafka isolation=read_uncommitted ending=99 ms",
        ),
    ],
)
def test_a_plan_says_what_is_read(texts: dict[str, str], title: str) -> None:
    assert plan_title(ReadOptions.of({"path": "/kafka", **texts})) == title
