"""Pages of records: against a plain list, in both orders, with every filter; cursors; one record."""

from __future__ import annotations

import base64
import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import (
    CorruptRecordError,
    TooManyKeysError,
    UnknownRecordError,
    UnknownTopicError,
    UsageError,
)
from siltstone.base.records.hashing import partition_for_key
from siltstone.commands import browsing, latest_keys
from siltstone.commands.browsing import (
    BrowsedRecord,
    BrowsedTopic,
    Budget,
    RecordQuery,
    browse,
    one_record,
    raw_value,
)
from siltstone.commands.latest_keys import LatestKeys, LatestViews, find_last_records
from siltstone.commands.masking import MaskedParts, Masking
from siltstone.log.fetch import READ_COMMITTED, READ_UNCOMMITTED
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.log.read_only import ReadableLog, ReadOnlyLogs
from siltstone.log.reading import LogReader
from tests.support.cleaning.logs import Rec
from tests.support.cleaning.transactional import a_log
from tests.support.golden.sets import of_each_kind
from tests.support.golden_sets import case_names, legacy_names
from tests.support.ledger.driving import compact
from tests.support.ledger.oracle import Model
from tests.support.log.batches import of_records
from tests.support.log.offset_values import clean_two, fill
from tests.support.log.offset_values import opened as opened_values
from tests.support.log.views import view_of
from tests.support.thoroughness import few, share, turn

NOW = 1_800_000_000_000
PARTITIONS = 3
Place = tuple[int, int]
Filled = tuple[list[PartitionLog], dict[tuple[int, int], Rec]]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small logs have many blocks."""
    monkeypatch.setattr(browsing, "_BLOCK_BYTES", 600)
    monkeypatch.setattr(browsing, "_SMALLEST_BLOCK_BYTES", 600)


def open_logs(directory: Path, count: int = PARTITIONS) -> list[PartitionLog]:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=200)
    return [
        open_partition(directory / f"users-{number}", config, ManualClock(NOW)) for number in range(count)
    ]


def fill_randomly(logs: list[PartitionLog], seed: int = 0, batches: int = 80) -> dict[Place, Rec]:
    """Append random batches; the records by partition and offset."""
    chosen, records = random.Random(seed), dict[Place, Rec]()
    for time in range(batches):
        number = chosen.randrange(len(logs))
        first = logs[number].log_end_offset
        batch = [
            Rec(
                offset=at,
                key=chosen.choice([b"k%d" % chosen.randrange(9), b"k%d" % chosen.randrange(9), None, b""]),
                value=chosen.choice([None, b"", b"value %d" % chosen.randrange(50), b"x" * 40]),
                timestamp=NOW + 10 * time + chosen.randrange(30),
                headers=((b"trace", b"%d" % at),) if at % 2 else (),
            )
            for at in range(chosen.randrange(1, 8))
        ]
        logs[number].append(of_records(batch))
        records |= {(number, first + record.offset): record for record in batch}
    return records


@pytest.fixture
def logs(tmp_path: Path) -> list[PartitionLog]:
    return open_logs(tmp_path)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Logs with random records, which are only read."""
    logs = open_logs(tmp_path_factory.mktemp("filled"))
    return logs, fill_randomly(logs)


@pytest.fixture
def records(logs: list[PartitionLog]) -> dict[Place, Rec]:
    return fill_randomly(logs)


def topic_of(logs: list[Any], **fields: Any) -> BrowsedTopic:
    return BrowsedTopic(name="users", logs=lambda: logs, partition_count=len(logs), **fields)


def pages(topic: BrowsedTopic, query: RecordQuery, **options: Any) -> Iterator[browsing.RecordPage]:
    cursor = None
    for _ in range(1000):
        page = browse(topic, query, cursor=cursor, **options)
        yield page
        cursor = page.cursor
        if cursor is None:
            return
    raise AssertionError("going on does not come to an end")


def read(topic: BrowsedTopic, query: RecordQuery, **options: Any) -> list[BrowsedRecord]:
    return [record for page in pages(topic, query, **options) for record in page.records]


def places(records: list[BrowsedRecord]) -> list[Place]:
    return [(record.partition, record.offset) for record in records]


def merged(records: dict[Place, Rec], *, newest_first: bool = False) -> list[Place]:
    """The plain merge: again and again the partition whose next record is the first."""
    queues: dict[int, list[Place]] = {}
    for place in sorted(records, reverse=newest_first):
        queues.setdefault(place[0], []).append(place)
    sign, order = (-1 if newest_first else 1), []
    while queues:
        number = min(
            queues, key=lambda partition: (sign * records[queues[partition][0]].timestamp, partition)
        )
        order.append(queues[number].pop(0))
        if not queues[number]:
            del queues[number]
    return order


def some(records: dict[Place, Rec], choose: Any) -> dict[Place, Rec]:
    return {place: record for place, record in records.items() if choose(place, record)}


@pytest.mark.parametrize(
    ("newest_first", "limit"), few(itertools.product([False, True], [1, 7, 500]), 0, 2, 4)
)
def test_all_partitions_are_merged_by_time_page_by_page(
    filled: Filled, limit: int, newest_first: bool
) -> None:
    logs, records = filled
    assert all(len(log.view.segments) > 2 for log in logs)
    query = RecordQuery(limit=limit, newest_first=newest_first)
    assert places(read(topic_of(logs), query)) == merged(records, newest_first=newest_first)


FILTERS: list[tuple[dict[str, Any], Any]] = [
    ({"partitions": (1,)}, lambda place, _: place[0] == 1),
    ({"start_offset": 11, "end_offset": 40}, lambda place, _: 11 <= place[1] < 40),
    ({"key": b"k3", "any_partition": True}, lambda _, record: record.key == b"k3"),
    ({"key": b"", "any_partition": True}, lambda _, record: record.key == b""),
    ({"key": b"k3"}, lambda place, record: record.key == b"k3" and place[0] == partition_for_key(b"k3", 3)),
    ({"key_contains": b"3"}, lambda _, record: b"3" in (record.key or b"")),
    ({"value_contains": b"e 1"}, lambda _, record: b"e 1" in (record.value or b"")),
    (
        {"header_contains": b"1"},
        lambda _, record: any(b"1" in name + b"|" + value for name, value in record.headers),
    ),
    ({"header_contains": b"\x0atrace"}, lambda *_: False),
    ({"only_tombstones": True}, lambda _, record: record.key is not None and record.value is None),
]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(("fields", "choose"), FILTERS, ids=[str(fields) for fields, _ in FILTERS])
def test_a_filter_finds_the_records_that_a_python_condition_chooses(
    filled: Filled,
    fields: dict[str, Any],
    choose: Any,
    newest_first: bool,
) -> None:
    logs, records = filled
    query = RecordQuery(limit=4, newest_first=newest_first, **fields)
    expected = merged(some(records, choose), newest_first=newest_first)
    assert places(read(topic_of(logs), query)) == expected


def test_a_time_begins_and_ends_where_the_time_index_says(filled: Filled) -> None:
    logs, records = filled
    start, end = NOW + 150, NOW + 400
    lows = {log.topic_partition.partition: log.offset_for_time(start) for log in logs}
    highs = {log.topic_partition.partition: log.offset_for_time(end) for log in logs}
    chosen = {
        place: record
        for place, record in records.items()
        if lows[place[0]].offset <= place[1] < highs[place[0]].offset  # type: ignore[union-attr]
    }
    assert 0 < len(chosen) < len(records)
    assert places(read(topic_of(logs), RecordQuery(start_ms=start, end_ms=end))) == merged(chosen)


def test_the_last_records_come_newest_first_and_end_over_several_pages(filled: Filled) -> None:
    logs, records = filled
    browsed = read(topic_of(logs), RecordQuery(last=10, limit=4))
    assert places(browsed) == merged(records, newest_first=True)[:10]


def test_a_key_is_found_newest_first(filled: Filled) -> None:
    logs, _ = filled
    browsed = read(topic_of(logs), RecordQuery(key=b"k1", any_partition=True, partitions=(2,)))
    assert browsed
    assert [record.offset for record in browsed] == sorted(
        (record.offset for record in browsed), reverse=True
    )


def test_a_page_shows_what_the_record_has(filled: Filled) -> None:
    logs, records = filled
    for record in read(topic_of(logs), RecordQuery(limit=500)):
        expected = records[record.partition, record.offset]
        assert record.timestamp_ms == expected.timestamp
        assert record.key.size == (None if expected.key is None else len(expected.key))
        assert record.value.size == (None if expected.value is None else len(expected.value))
        kinds = {None: "null" if expected.key is None else "tombstone", b"": "empty"}
        assert record.value.kind == kinds.get(expected.value, "utf8")
        assert [(name, value.text) for name, value in record.headers] == [
            (name.decode(), (value or b"").decode()) for name, value in expected.headers
        ]
        assert record.to_json()["offset"] == record.offset


def test_only_the_first_headers_of_a_record_are_made_into_objects(tmp_path: Path) -> None:
    """A small batch may have a hundred million, of which a page would fill the memory."""
    log = open_partition(tmp_path / "users-0", LogConfig(), ManualClock(NOW))
    most_shown, most_searched = browsing.HEADERS_SHOWN, browsing.HEADERS_SEARCHED
    count = 3 * most_searched
    headers = tuple((b"h%d" % number, None) for number in range(count))
    log.append(of_records([Rec(offset=0, key=b"k", value=b"v", timestamp=NOW, headers=headers)]))
    (shown,) = browse(topic_of([log]), RecordQuery()).records
    assert [name for name, _ in shown.headers] == [f"h{number}" for number in range(most_shown)]
    assert shown.headers_left == count - most_shown
    assert browse(topic_of([log]), RecordQuery(header_contains=b"h%d" % (most_searched - 1))).records
    assert not browse(topic_of([log]), RecordQuery(header_contains=b"h%d" % most_searched)).records


def test_a_request_is_bounded_and_going_on_finds_everything(filled: Filled) -> None:
    logs, records = filled
    query = RecordQuery(value_contains=b"value 7")
    places_read, sizes, cursor = [], [], None
    while True:
        page = browse(topic_of(logs), query, cursor=cursor, budget=Budget(read_bytes=1))
        places_read += places(list(page.records))
        sizes.append(page.bytes_read)
        cursor = page.cursor
        if cursor is None:
            break
        assert page.is_bounded
        assert page.left
    expected = some(records, lambda _, record: b"value 7" in (record.value or b""))
    assert sorted(places_read) == sorted(expected)
    assert len(sizes) > 5
    assert max(sizes) < 3000


def test_a_page_ends_where_the_first_page_saw_the_end(
    logs: list[PartitionLog], records: dict[Place, Rec]
) -> None:
    query = RecordQuery(limit=50)
    first = browse(topic_of(logs), query)
    logs[0].append(of_records([Rec(offset=0, key=b"new")]))
    browsed, cursor = list(first.records), first.cursor
    while cursor is not None:
        page = browse(topic_of(logs), query, cursor=cursor)
        browsed, cursor = browsed + list(page.records), page.cursor
    assert places(browsed) == merged(records)


# Cursors


def test_a_cursor_of_another_query_or_topic_is_refused(filled: Filled) -> None:
    logs, _ = filled
    cursor = browse(topic_of(logs), RecordQuery(limit=2)).cursor
    for topic, query in [
        (topic_of(logs), RecordQuery(limit=2, key=b"a")),
        (replace(topic_of(logs), name="other"), RecordQuery(limit=2)),
    ]:
        with pytest.raises(UsageError, match="another topic or query"):
            browse(topic, query, cursor=cursor)
    assert browse(topic_of(logs), RecordQuery(limit=9, key_decoding="hex"), cursor=cursor).records


def hostile_cursors(good: str) -> list[str]:
    data = base64.urlsafe_b64decode(good)

    def text(changed: bytes) -> str:
        return base64.urlsafe_b64encode(changed).decode()

    head, ranges = data[:13], data[13:]
    number, offsets = ranges[:4], ranges[4:20]
    return [
        "",
        "%00",
        "é",
        "A" * (5 << 20),
        text(data[:5]),
        text(b"\x07" + data[1:]),
        text(data[:1] + b"\0" * 8 + data[9:]),
        text(data[:9] + b"\xff\xff\xff\x00" + data[13:]),
        text(data + b"\0"),
        text(head + ranges + ranges),
        text(head + b"\x7f\xff\xff\xff" + offsets),
        text(head + number + b"\xff" * 8 + offsets[8:]),
        text(head + number + b"\x7f" + b"\xff" * 7 + b"\0" * 8),
    ]


def test_a_hostile_cursor_is_an_error_of_usage(filled: Filled) -> None:
    logs, _ = filled
    query = RecordQuery(limit=2)
    good = browse(topic_of(logs), query).cursor
    assert good is not None
    for cursor in hostile_cursors(good):
        with pytest.raises(UsageError, match="the cursor is not valid") as raised:
            browse(topic_of(logs), query, cursor=cursor)
        assert raised.value.advice


def test_a_cursor_beyond_the_log_reads_nothing(filled: Filled) -> None:
    logs, _ = filled
    query = RecordQuery(limit=2, newest_first=True)
    good = base64.urlsafe_b64decode(browse(topic_of(logs), query).cursor or "")
    beyond = (
        good[:13] + (0).to_bytes(4, "big") + (1 << 62).to_bytes(8, "big") + ((1 << 62) + 9).to_bytes(8, "big")
    )
    page = browse(topic_of(logs), query, cursor=base64.urlsafe_b64encode(beyond).decode())
    assert not page.records
    assert page.cursor is None


@pytest.mark.parametrize(
    "fields",
    [
        {"view": "other"},
        {"isolation": "dirty"},
        {"limit": 0},
        {"limit": 501},
        {"last": 0},
        {"last": 1, "newest_first": False},
        {"start_offset": 1, "start_ms": 1},
        {"start_offset": -1},
        {"end_ms": 1 << 62},
        {"view": "compacted", "newest_first": True},
        {"key_contains": b""},
    ],
    ids=str,
)
def test_a_query_that_is_not_possible_is_refused(logs: list[PartitionLog], fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as raised:
        browse(topic_of(logs), RecordQuery(**fields))
    assert raised.value.advice


def test_a_partition_that_is_not_there_is_unknown(logs: list[PartitionLog]) -> None:
    with pytest.raises(UnknownTopicError, match="no partition 7"):
        browse(topic_of(logs), RecordQuery(partitions=(7,)))


# Views


def latest_of(records: dict[Place, Rec]) -> dict[Place, Rec]:
    last = {(number, record.key): (number, at) for (number, at), record in sorted(records.items())}
    return some(records, lambda place, record: record.key is not None and place in last.values())


def run(work: Any) -> None:
    work()


@pytest.mark.parametrize("newest_first", [False, True])
def test_latest_has_the_last_record_of_each_key_also_after_appends(
    logs: list[PartitionLog], records: dict[Place, Rec], newest_first: bool
) -> None:
    views, query = LatestViews(start=run), RecordQuery(view="latest", limit=5, newest_first=newest_first)
    for _ in range(2):
        expected = merged(latest_of(records), newest_first=newest_first)
        assert places(read(topic_of(logs), query, latest=views)) == expected
        before = {log.topic_partition.partition: log.log_end_offset for log in logs}
        more = fill_randomly(logs, seed=5, batches=20)
        assert all(place[1] >= before[place[0]] for place in more)
        records |= more


def test_latest_counts_a_key_once_below_the_checkpoint(logs: list[PartitionLog]) -> None:
    """What was cleaned is not read for the keys: a key below the checkpoint stands once."""
    old = [Rec(offset=at, key=b"k%d" % at, value=b"old" * 9, timestamp=NOW + at) for at in range(20)]
    logs[0].append(of_records(old))
    new = [Rec(offset=at, key=b"k%d" % (2 * at), value=b"new", timestamp=NOW + 50 + at) for at in range(5)]
    logs[0].append(of_records(new))
    topic = topic_of(logs, checkpoints={0: 20})
    keys = LatestKeys(logs[0], 20, "read_uncommitted")
    assert keys.advance()
    assert keys.size == 5 * 16
    browsed = read(topic, RecordQuery(view="latest", partitions=(0,)), latest=LatestViews())
    assert [record.offset for record in browsed] == [at for at in range(20) if at not in range(0, 10, 2)] + [
        20,
        21,
        22,
        23,
        24,
    ]


def test_a_checkpoint_beyond_the_end_is_ignored(filled: Filled) -> None:
    logs, records = filled
    topic = topic_of(logs, checkpoints=dict.fromkeys(range(3), 10_000))
    browsed = read(topic, RecordQuery(view="latest", limit=500), latest=LatestViews())
    assert places(browsed) == merged(latest_of(records))


def test_latest_begins_anew_after_a_truncation(logs: list[PartitionLog], records: dict[Place, Rec]) -> None:
    views, query = LatestViews(), RecordQuery(view="latest", limit=500)
    read(topic_of(logs), query, latest=views)
    logs[0].truncate_to(20)
    stored_places = {(0, record.offset) for record in logs[0].records()}  # a batch is truncated as a whole
    assert 0 < len(stored_places) <= 20
    remaining = some(records, lambda place, _: place[0] or place in stored_places)
    assert places(read(topic_of(logs), query, latest=views)) == merged(latest_of(remaining))


def keyed(log: PartitionLog, keys: range) -> None:
    """Append a batch for each key, so that a truncation can end between any two."""
    for number in keys:
        log.append(of_records([Rec(offset=0, key=b"k%d" % number, value=b"x", timestamp=NOW)]))


@pytest.mark.parametrize("looks_by", ["keys", "job", "checkpoint"])
def test_latest_begins_anew_if_a_truncated_log_is_longer_than_before(tmp_path: Path, looks_by: str) -> None:
    (log,) = open_logs(tmp_path, 1)
    keyed(log, range(20))
    views, query = LatestViews(), RecordQuery(view="latest", limit=500)
    topic = topic_of([log], checkpoints={0: 15 if looks_by == "checkpoint" else 0})
    if looks_by == "job":
        find_all(views, [log])
    assert [record.offset for record in read(topic, query, latest=views)] == [*range(20)]
    log.truncate_to(10)
    keyed(log, range(2, 14))
    browsed_offsets = [record.offset for record in read(topic, query, latest=views)]
    assert browsed_offsets == [0, 1, *range(10, 22)]
    # A checkpoint that was read before the truncation may be that of the log as it was.
    assert [record.offset for record in read(topic, query, latest=LatestViews())] == browsed_offsets


def test_a_job_begins_anew_if_the_log_is_truncated_meanwhile(tmp_path: Path) -> None:
    (log,) = open_logs(tmp_path, 1)
    keyed(log, range(20))

    class Truncating(Budget):
        checked = 0

        @property
        def is_over(self) -> bool:
            self.checked += 1
            if self.checked == 5:  # two of a reading: of all keys, of the first half, then of the second
                log.truncate_to(10)
                keyed(log, range(2, 14))
            return False

    views = LatestViews(kept_bytes=16 * 16)
    views.find(log, READ_UNCOMMITTED, Truncating())
    browsed = read(topic_of([log]), RecordQuery(view="latest", limit=500), latest=views)
    assert [record.offset for record in browsed] == [0, 1, *range(10, 22)]


@pytest.mark.parametrize("by_job", [False, True])
def test_latest_of_another_process_s_log_begins_anew_if_it_may_be_truncated(
    tmp_path: Path, by_job: bool
) -> None:
    """There is no counter of its truncations: the batch before the end tells, or nothing does."""
    (log,) = open_logs(tmp_path, 1)
    keyed(log, range(20))
    log.flush()
    snapshot = ReadOnlyLogs([log.directory])[log.topic_partition]
    views, query = LatestViews(), RecordQuery(view="latest", limit=500)
    if by_job:
        find_all(views, [snapshot])
    assert len(read(topic_of([snapshot]), query, latest=views)) == 20
    log.truncate_to(10)
    keyed(log, range(2, 14))
    again = ReadOnlyLogs([log.directory])[log.topic_partition]
    topic = topic_of([again], checkpoints={0: 15})  # what the catalogue has read before the truncation
    assert [record.offset for record in read(topic, query, latest=views)] == [0, 1, *range(10, 22)]
    keyed(log, range(1))
    snapshot.refresh()
    again.refresh()
    for newest in snapshot, again:
        browsed_offsets = [record.offset for record in read(topic_of([newest]), query, latest=views)]
        assert browsed_offsets == [1, *range(10, 23)]


@pytest.mark.parametrize("by_job", [False, True])
def test_latest_of_another_process_s_log_is_kept_while_that_appends_and_cleans(
    tmp_path: Path, by_job: bool
) -> None:
    log, query = opened_values(tmp_path, segment_bytes=400), RecordQuery(view="latest", limit=500)
    keyed(log, range(20))
    keyed(log, range(10))
    log.flush()
    waiting: list[Any] = []
    views = LatestViews(kept_bytes=(12 if by_job else 26) * 16, start=waiting.append)

    def topic_now() -> BrowsedTopic:
        return topic_of([ReadOnlyLogs([log.directory])[log.topic_partition]])

    if by_job:
        find_all(views, list(topic_now().logs()))
    else:  # it is built in the background while the log grows
        assert browse(topic_now(), query, latest=views, budget=Budget(read_bytes=1)).building is not None
        keyed(log, range(2, 3))
        assert browse(topic_now(), query, latest=views, budget=Budget(read_bytes=1)).building is not None
        waiting.pop()()
        assert waiting == []
    keyed(log, range(18, 22))
    last = {record.key: record.offset for record in log.records()}
    assert [record.offset for record in read(topic_now(), query, latest=views)] == sorted(last.values())
    stored = len(list(log.records()))
    clean_two(log, 0, lambda record: record.offset == last[record.key])
    assert len(list(log.records())) < stored
    keyed(log, range(22, 24))
    expected = [*sorted(last.values()), log.log_end_offset - 2, log.log_end_offset - 1]
    assert [record.offset for record in read(topic_now(), query, latest=views)] == expected


def test_the_latest_record_of_a_key_needs_no_keys(filled: Filled) -> None:
    logs, records = filled
    query = RecordQuery(view="latest", key=b"k3", any_partition=True)
    expected = some(latest_of(records), lambda _, record: record.key == b"k3")
    assert places(read(topic_of(logs), query)) == merged(expected, newest_first=True)


def test_the_latest_record_of_a_key_is_not_one_that_a_record_after_the_end_supersedes(filled: Filled) -> None:
    """As without a key: the view has a record only if no later one of the whole log has its key."""
    logs, records = filled
    key = next(record.key for place, record in sorted(records.items()) if place[0] == 0 and record.key)
    of_key = sorted(place for place, record in records.items() if place[0] == 0 and record.key == key)
    assert len(of_key) > 1
    for end in (of_key[-1][1], of_key[-1][1] + 1):
        query = RecordQuery(view="latest", key=key, partitions=(0,), end_offset=end)
        assert places(read(topic_of(logs), query)) == [place for place in of_key[-1:] if place[1] < end]


def test_latest_is_built_in_the_background(filled: Filled) -> None:
    logs, records = filled
    waiting: list[Any] = []
    views, query = LatestViews(start=waiting.append), RecordQuery(view="latest", limit=500)
    page = browse(topic_of(logs), query, latest=views, budget=Budget(read_bytes=1))
    assert page.building is not None and page.building < 1
    assert page.cursor is not None
    assert not page.records
    assert browse(topic_of(logs), query, latest=views, budget=Budget(read_bytes=1)).building is not None
    for work in waiting:
        work()
    page = browse(topic_of(logs), query, latest=views, cursor=page.cursor)
    assert page.building is None
    assert places(list(page.records)) == merged(latest_of(records))


def test_one_page_reads_no_more_logs_in_the_background_than_the_bound_allows(tmp_path: Path) -> None:
    """If no other page is requested, all logs of the topic would be read into memory."""
    logs = open_logs(tmp_path, 9)
    for log in logs:
        keyed(log, range(5))
    waiting: list[Any] = []
    views, query = LatestViews(kept_bytes=12 * 16, start=waiting.append), RecordQuery(view="latest", limit=50)
    assert browse(topic_of(logs), query, latest=views, budget=Budget(read_bytes=1)).building is not None
    assert len(waiting) == 2, "threads"
    for work in waiting:
        work()
    assert 12 < sum(keys.size // 16 for keys in views._kept.values()) <= 12 + 2 * 5
    assert not any(keys.is_building for keys in views._kept.values())
    with pytest.raises(TooManyKeysError, match="over 12 keys"):
        browse(topic_of(logs), query, latest=views)
    large = LatestViews(start=run)
    browse(topic_of(logs), query, latest=large, budget=Budget(read_bytes=1))
    page = browse(topic_of(logs), query, latest=large, budget=Budget(read_bytes=1))
    assert page.building is None and len(page.records) == 45, "one page is enough if there is room"


def test_a_thread_that_does_not_start_is_tried_again_by_the_next_page(filled: Filled) -> None:
    logs, records = filled
    starts: list[Any] = []

    def start(work: Any) -> None:
        starts.append(work)
        if len(starts) == 1:
            raise RuntimeError("can't start new thread")
        work()

    views, query = LatestViews(start=start), RecordQuery(view="latest", limit=500)
    with pytest.raises(RuntimeError):
        browse(topic_of(logs), query, latest=views, budget=Budget(read_bytes=1))
    assert browse(topic_of(logs), query, latest=views, budget=Budget(read_bytes=1)).building is None
    assert places(read(topic_of(logs), query, latest=views)) == merged(latest_of(records))


def test_too_many_keys_are_an_error_that_says_so(filled: Filled) -> None:
    logs, _ = filled
    views, query = LatestViews(kept_bytes=32), RecordQuery(view="latest")
    with pytest.raises(TooManyKeysError, match="over 2 keys") as raised:
        browse(topic_of(logs), query, latest=views)
    assert raised.value.advice


def find_all(views: LatestViews, logs: Sequence[ReadableLog], isolation: str = READ_UNCOMMITTED) -> list[int]:
    """What the job does for each log; into how many shares the keys of each were divided."""
    return [views.find(log, isolation, Budget(seconds=300.0)) for log in logs]


def test_a_job_finds_the_last_records_of_any_number_of_keys(
    logs: list[PartitionLog], records: dict[Place, Rec]
) -> None:
    views, query = LatestViews(kept_bytes=96), RecordQuery(view="latest", limit=7)
    with pytest.raises(TooManyKeysError, match=r"over 6 keys.*let a job find them"):
        browse(topic_of(logs), query, latest=views)
    assert min(find_all(views, logs)) > 1
    assert places(read(topic_of(logs), query, latest=views)) == merged(latest_of(records))
    newest = RecordQuery(view="latest", limit=7, newest_first=True)
    expected = merged(latest_of(records), newest_first=True)
    assert places(read(topic_of(logs), newest, latest=views)) == expected
    # What is appended later counts as well, a new key and one that was there.
    first = logs[1].append(of_records([Rec(offset=0, key=b"k3"), Rec(offset=1, key=b"new")])).first_offset
    records |= {(1, first): Rec(offset=first, key=b"k3"), (1, first + 1): Rec(offset=first + 1, key=b"new")}
    browsed_places = set(places(read(topic_of(logs), query, latest=views)))
    assert browsed_places == set(latest_of(records))
    # A raised log start takes records away, and changes no other answer.
    logs[0].delete_records(10)
    remaining = {place: record for place, record in latest_of(records).items() if place[0] or place[1] >= 10}
    assert set(places(read(topic_of(logs), query, latest=views))) == set(remaining)
    # After a truncation the bits are no longer those of this log.
    logs[0].truncate_to(20)
    stored_places = {(0, record.offset) for record in logs[0].records()}
    remaining = latest_of(some(records, lambda place, _: place[0] or place in stored_places))
    assert set(places(read(topic_of(logs), query, latest=views))) == set(remaining)


@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_a_job_finds_what_the_keys_in_memory_find_among_transactions(tmp_path: Path, isolation: str) -> None:
    logs = ReadOnlyLogs([a_log(tmp_path).parent])
    log = logs[next(iter(logs))]
    query, views = RecordQuery(view="latest", isolation=isolation), LatestViews(kept_bytes=48)
    in_memory = LatestViews(start=lambda work: work())
    expected = places(read(topic_of([log]), query, latest=in_memory))
    assert views.find(log, isolation, Budget(seconds=300.0)) > 1
    assert len(expected) > 3
    assert places(read(topic_of([log]), query, latest=views)) == expected


def test_what_a_job_found_is_true_after_a_cleaning(tmp_path: Path) -> None:
    log = opened_values(tmp_path, segment_bytes=600)
    for number in range(12):
        keyed(log, range(number % 5, number % 5 + 2))
    views, query = LatestViews(kept_bytes=3 * 16), RecordQuery(view="latest", limit=500)
    find_all(views, [log])
    expected = [record.offset for record in read(topic_of([log]), query, latest=views)]
    clean_two(log, 0, lambda record: record.offset in expected)
    assert len(list(log.records())) < 24
    keyed(log, range(1))
    # The key of one of them has a later record now, which the job did not meet.
    is_older = {record.offset for record in log.records() if record.key == b"k0"} - {24}
    browsed_offsets = [record.offset for record in read(topic_of([log]), query, latest=views)]
    assert browsed_offsets == [at for at in expected if at not in is_older] + [24]


def test_no_page_of_a_view_drops_what_a_job_has_found(tmp_path: Path) -> None:
    logs = open_logs(tmp_path, 2)
    other = open_partition(tmp_path / "other-0", LogConfig(), ManualClock(NOW))
    for log in (*logs, other):
        keyed(log, range(8))
    views, query = LatestViews(kept_bytes=8 * 16), RecordQuery(view="latest")
    for log in logs:
        find_all(views, [log])
        other_topic = BrowsedTopic(name="other", logs=lambda: [other], partition_count=1)
        assert len(read(other_topic, query, latest=views)) == 8
        if log is not logs[-1]:  # the job still works
            keyed(logs[1], range(8, 10))
            with pytest.raises(TooManyKeysError):
                read(topic_of(logs), query, latest=views)
    assert len(read(topic_of(logs), query, latest=views)) == 18
    committed = replace(query, isolation=READ_COMMITTED, partitions=(0,))
    assert len(read(topic_of(logs), committed, latest=views)) == 8
    assert len(read(topic_of(logs), query, latest=views)) == 18


@pytest.fixture
def fixed_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that keys fall into the same shares in each run."""
    monkeypatch.setattr(latest_keys, "_random_hash_key", lambda: (np.uint64(1), np.uint64(2)))


@pytest.mark.usefixtures("fixed_hash")
def test_what_jobs_have_found_is_bounded_and_the_oldest_goes_first(tmp_path: Path) -> None:
    logs = open_logs(tmp_path, 3)
    for log in logs:
        log.append(of_records([Rec(offset=at, key=b"k%d" % (at % 2), value=None) for at in range(64)]))
    views, query = LatestViews(kept_bytes=16), RecordQuery(view="latest", limit=500)
    views.require_room("users", logs[:2], READ_UNCOMMITTED)
    too_many = r"users: .*192 offsets takes over 16 bytes.*some partitions only"
    with pytest.raises(TooManyKeysError, match=too_many):
        views.require_room("users", logs, READ_UNCOMMITTED)
    find_all(views, logs)
    assert places(read(topic_of(logs[1:]), query, latest=views)) == [(1, 62), (1, 63), (2, 62), (2, 63)]
    with pytest.raises(TooManyKeysError, match="over 1 keys"):
        read(topic_of(logs[:1]), query, latest=views)


@pytest.mark.usefixtures("fixed_hash")
def test_more_keys_than_the_largest_number_of_shares_can_hold_are_refused(tmp_path: Path) -> None:
    (log,) = open_logs(tmp_path, 1)
    for _ in range(2):
        first = log.log_end_offset
        log.append(of_records([Rec(offset=at, key=b"k%d" % (first + at)) for at in range(64)]))
    with pytest.raises(TooManyKeysError, match="one of 1024 shares of the log's keys has over 1 keys") as e:
        find_last_records(log, READ_UNCOMMITTED, kept_bytes=16)
    assert "as a table" in (e.value.advice or "")


def test_what_a_job_cannot_find_is_refused(filled: Filled) -> None:
    logs, _ = filled
    with pytest.raises(TooManyKeysError, match=r"a bit for each of [0-9]+ offsets takes over 8 bytes"):
        find_last_records(logs[0], READ_UNCOMMITTED, kept_bytes=8)
    empty = open_partition(logs[0].directory.parent / "empty-0", LogConfig(), ManualClock(NOW))
    last_records, shares = find_last_records(empty, READ_UNCOMMITTED)
    assert (last_records.start, last_records.end, len(last_records.bits), shares) == (0, 0, 0, 1)
    assert not last_records.holds(np.array([0, 5], np.int64)).any()


def test_the_keys_of_all_partitions_are_bounded_together_and_those_of_other_topics_go_first(
    logs: list[PartitionLog], tmp_path: Path
) -> None:
    for log in logs:
        log.append(of_records([Rec(offset=at, key=b"%d" % at) for at in range(4)]))
    other = open_partition(tmp_path / "other-0", LogConfig(), ManualClock(NOW))
    other.append(of_records([Rec(offset=at, key=b"%d" % at) for at in range(4)]))
    query, views = RecordQuery(view="latest"), LatestViews(kept_bytes=12 * 16)
    other_topic = BrowsedTopic(name="other", logs=lambda: [other], partition_count=1)
    assert len(read(other_topic, query, latest=views)) == 4
    assert len(read(topic_of(logs), query, latest=views)) == 12
    assert len(read(topic_of(logs), query, latest=views)) == 12
    small = LatestViews(kept_bytes=10 * 16)
    with pytest.raises(TooManyKeysError, match="over 10 keys"):
        for _ in range(2):
            read(topic_of(logs), query, latest=small)


def test_what_makes_the_background_work_fail_is_an_error_of_the_next_request(
    logs: list[PartitionLog],
) -> None:
    waiting: list[Any] = []
    fill_randomly(logs)
    views = LatestViews(start=waiting.append)
    query = RecordQuery(view="latest", partitions=(0,))
    assert browse(topic_of(logs), query, latest=views, budget=Budget(read_bytes=1)).building is not None
    path = logs[0].view.segments[1].path()
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    waiting[0]()
    with pytest.raises(CorruptRecordError):
        browse(topic_of(logs), query, latest=views)


def test_compacted_reads_the_ledger_then_the_originals(tmp_path: Path) -> None:
    log = opened_values(tmp_path)
    for _ in range(4):
        log.append(of_records([Rec(offset=at, key=b"k%d" % at, timestamp=NOW) for at in range(3)]))
    compact(log, Model())
    log.append(of_records([Rec(offset=0, key=b"k1", timestamp=NOW)]))
    topic = BrowsedTopic(name="topic", logs=lambda: [log], partition_count=1)
    browsed = read(topic, RecordQuery(view="compacted", limit=2))
    assert [record.offset for record in browsed] == [9, 10, 11, 12]


@pytest.mark.parametrize("seed", few([(seed,) for seed in range(6)], 0, 1))
def test_pages_of_the_compacted_view_go_on_over_newer_ledgers(tmp_path: Path, seed: int) -> None:
    """Whoever applies the records of all pages has each key's last value as of some moment, no older one."""
    log, chosen = opened_values(tmp_path), random.Random(seed)
    topic = BrowsedTopic(name="topic", logs=lambda: [log], partition_count=1)

    def grow() -> None:
        records = [
            Rec(
                offset=at,
                key=b"k%d" % chosen.randrange(8),
                value=chosen.choice([None, b"%d" % at]),
                timestamp=NOW,
            )
            for at in range(chosen.randrange(1, 9))
        ]
        log.append(of_records(records))

    for _ in range(4):
        grow()
    compact(log, Model())
    ended, cursor, applied = log.log_end_offset, None, dict[str, int]()
    offsets_seen: list[int] = []
    for number in range(1000):
        page = browse(topic, RecordQuery(view="compacted", limit=2), cursor=cursor)
        for record in page.records:
            offsets_seen.append(record.offset)
            applied[str(record.key.text)] = -1 if record.value.kind == "tombstone" else record.offset
        cursor = page.cursor
        if cursor is None:
            break
        if number < 6:
            grow()
            compact(log, Model())
    assert offsets_seen == sorted(set(offsets_seen))
    before, deleted_later = dict[str, int](), set[str]()
    for record in log.records():
        key = (record.key or b"").decode()
        if record.offset < ended:
            before[key] = -1 if record.value is None else record.offset
        elif record.value is None:
            deleted_later.add(key)
    for key, offset in before.items():
        # What a key had when the first page was read, or something newer; nothing that had gone.
        assert applied.get(key, -1) >= offset or key in deleted_later, key


# Transactions, swaps, logs that are only read


def offsets(path: Path, **fields: Any) -> list[int]:
    logs = ReadOnlyLogs([path.parent])
    log = logs[next(iter(logs))]
    topic = BrowsedTopic(name="t", logs=lambda: [log], partition_count=1)
    return [record.offset for record in read(topic, RecordQuery(limit=2, **fields))]


@pytest.mark.parametrize("newest_first", [False, True])
def test_isolation_and_control_records_choose_the_offsets_that_are_shown(
    tmp_path: Path, newest_first: bool
) -> None:
    path = a_log(tmp_path)
    markers = [2, 5, 7, 9, 11, 14, 16, 17, 18, 19]
    data = [at for at in range(21) if at not in markers]
    committed = [0, 6, 10, 12, 20]
    turn = -1 if newest_first else 1
    assert offsets(path, newest_first=newest_first)[::turn] == data
    assert offsets(path, newest_first=newest_first, isolation="read_committed")[::turn] == committed
    assert offsets(path, newest_first=newest_first, control_records=True)[::turn] == list(range(21))
    logs = ReadOnlyLogs([path.parent])
    log = logs[next(iter(logs))]
    topic = BrowsedTopic(name="t", logs=lambda: [log], partition_count=1)
    page = browse(topic, RecordQuery(control_records=True))
    assert {record.offset: record.mark for record in page.records if record.mark} == {
        at: "commit" if at in (2, 9, 16, 17) else "abort" for at in markers
    }


def test_pages_go_on_over_swaps(tmp_path: Path) -> None:
    log = opened_values(tmp_path)
    fill(log, 300)
    topic = BrowsedTopic(name="topic", logs=lambda: [log], partition_count=1)
    for newest_first in (False, True):
        browsed: list[BrowsedRecord] = []
        for number, page in enumerate(pages(topic, RecordQuery(limit=20, newest_first=newest_first))):
            browsed += page.records
            if number == 2:
                clean_two(log, 1)
        browsed_offsets = [record.offset for record in browsed]
        assert browsed_offsets == sorted(set(browsed_offsets), reverse=newest_first)
        assert all(record.value.text == str(record.offset) for record in browsed)
        assert set(range(0, 300, 5)) <= set(browsed_offsets)


def test_pages_from_the_end_come_to_an_end_when_the_first_records_were_deleted(tmp_path: Path) -> None:
    log = opened_values(tmp_path)
    fill(log, 300)
    topic = BrowsedTopic(name="topic", logs=lambda: [log], partition_count=1)
    browsed_offsets: list[int] = []
    for number, page in enumerate(pages(topic, RecordQuery(limit=20, newest_first=True))):
        browsed_offsets += [record.offset for record in page.records]
        if number == 2:
            assert len(log.view.segments) > 3
            log.delete_oldest_segments(len(log.view.segments) // 2)
        assert number < 30
    assert (
        browsed_offsets == list(range(299, log.log_start_offset - 1, -1)) and 0 < log.log_start_offset < 240
    )


def test_the_last_records_of_the_compacted_view_are_refused(logs: list[PartitionLog]) -> None:
    with pytest.raises(UsageError, match="oldest first"):
        browse(topic_of(logs), RecordQuery(view="compacted", last=5))


def test_a_log_in_look_mode_is_opened_again_if_a_file_is_gone(
    tmp_path: Path, logs: list[PartitionLog], records: dict[Place, Rec]
) -> None:
    looked = ReadOnlyLogs([tmp_path])[TopicPartition("users", 0)]
    logs[0].delete_records(logs[0].view.segments[1].base_offset)
    first = logs[0].view.segments[0]
    for path in first.directory.glob(first.path().stem + ".*"):
        path.unlink()
    topic = BrowsedTopic(name="users", logs=lambda: [looked], partition_count=1)
    page = browse(topic, RecordQuery(limit=1))
    assert page.records[0].offset == logs[0].view.segments[1].base_offset


def test_pages_are_whole_while_another_thread_appends_and_rolls(logs: list[PartitionLog]) -> None:
    stopped = threading.Event()

    def append() -> None:
        for number in range(400):
            time = NOW + number
            logs[0].append(of_records([Rec(offset=at, key=b"k", timestamp=time) for at in range(3)]))
        stopped.set()

    appending = threading.Thread(target=append)
    appending.start()
    while not stopped.is_set():
        newest = [record.offset for record in read(topic_of(logs), RecordQuery(last=40, limit=15))]
        assert newest == list(range(newest[0], newest[0] - len(newest), -1)) if newest else True
        assert len(newest) in (40, *range(0, 40, 3))
    appending.join()
    assert len(read(topic_of(logs), RecordQuery(limit=500))) == 1200


class Stored(ReadableLog):
    """A log as it is stored, without the rest of its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.view = directory, view_of(directory)
        self.topic_partition = TopicPartition("users", 0)


@pytest.mark.random
@pytest.mark.parametrize("newest_first", [False, True])
def test_logs_of_kafka_in_every_format_are_read_in_both_orders(golden: Path, newest_first: bool) -> None:
    names = [*of_each_kind(legacy_names(golden)), *share(case_names(golden), 13)]
    for number, name in enumerate(names):
        if newest_first not in turn(number, (False, True)):
            continue
        log = Stored(golden / name / "before")
        expected = [int(offset) for polled in LogReader(log) for offset in polled.columns.offset]
        topic = BrowsedTopic(name="users", logs=lambda log=log: [log], partition_count=1)  # type: ignore[misc]
        browsed = read(topic, RecordQuery(limit=100, newest_first=newest_first))
        assert [record.offset for record in browsed] == expected[:: -1 if newest_first else 1], name
        assert len({record.offset for record in browsed}) == len(browsed) > 0


# Masking


def test_what_is_masked_neither_leaves_nor_is_found(logs: list[PartitionLog]) -> None:
    value = b'{"name": "alice", "card": {"number": "4000-1234"}}'
    logs[0].append(
        of_records([Rec(offset=0, key=b"alice", value=value), Rec(offset=1, key=b"b", value=b"4000")])
    )
    topic = topic_of(logs, masked=Masking.parse("us.*:/card/number,users:key").of_topic("users"))
    page = browse(topic, RecordQuery())
    text = str(page.to_json())
    assert "4000" not in text
    assert "alice" in text
    assert [record.key.kind for record in page.records] == ["masked", "masked"]
    assert page.records[1].value.kind == "masked"
    assert page.records[1].value.size is None
    assert not read(topic, RecordQuery(value_contains=b"4000"))
    assert len(read(topic, RecordQuery(value_contains=b"alice"))) == 1
    with pytest.raises(UsageError, match="masked"):
        browse(topic, RecordQuery(key_contains=b"a"))
    with pytest.raises(UsageError, match="masked"):
        browse(replace(topic, masked=MaskedParts(value=True)), RecordQuery(value_contains=b"a"))
    assert b"4000" not in (raw_value(topic, 0, 0) or b"")
    with pytest.raises(UsageError, match="the value is masked"):
        raw_value(topic, 0, 1)


def test_a_value_is_downloaded_as_it_is(logs: list[PartitionLog]) -> None:
    logs[0].append(
        of_records([Rec(offset=0, key=b"a", value=b"\0\xff"), Rec(offset=1, key=b"a", value=None)])
    )
    assert raw_value(topic_of(logs), 0, 0) == b"\0\xff"
    assert raw_value(topic_of(logs), 0, 1) is None
    with pytest.raises(UnknownRecordError, match="no record at offset 2"):
        raw_value(topic_of(logs), 0, 2)


def test_one_record_is_shown_as_a_page_shows_it(filled: Filled) -> None:
    logs, _ = filled
    topic = topic_of(logs)
    (shown,) = browse(topic, RecordQuery(partitions=(1,), start_offset=2, limit=1)).records
    assert one_record(topic, 1, 2) == shown
    assert one_record(topic, 1, 2, key_decoding="hex").key.kind in ("hex", "null", "empty")
    for offset in (-1, logs[1].log_end_offset, 1 << 70):
        with pytest.raises(UnknownRecordError):
            one_record(topic, 1, offset)
    with pytest.raises(UnknownTopicError):
        one_record(topic, 9, 0)
