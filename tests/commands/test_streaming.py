"""Streams of records: new ones, and the compacted view; going on after any event, whatever happens."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import shutil
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.clock import ManualClock
from siltstone.base.config import LogConfig
from siltstone.base.errors import UnknownTopicError, UsageError
from siltstone.base.records.layout import Int64
from siltstone.commands.browsing import BrowsedTopic, Budget, MatchingRows, RecordQuery
from siltstone.commands.masking import Masking
from siltstone.commands.streaming import (
    POSITIONS_MAX,
    Position,
    StreamEvent,
    check_stream,
    follow,
    follow_rendered,
    parse_position,
    position_text,
)
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog, open_partition
from siltstone.log.read_only import ReadableLog, ReadOnlyLogs
from siltstone.log.reading import PolledRecords
from tests.support.cleaning.logs import Rec
from tests.support.golden_sets import case_names, legacy_names
from tests.support.ledger.driving import compact
from tests.support.ledger.oracle import Model
from tests.support.log.batches import of_records
from tests.support.log.views import view_of
from tests.support.thoroughness import few, share

NOW = 1_800_000_000_000
COMPACTED = RecordQuery(view="compacted")
Keys = dict[tuple[int, str], str]


def open_logs(directory: Path, count: int = 2) -> list[PartitionLog]:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=200)
    return [
        open_partition(directory / f"users-{number}", config, ManualClock(NOW)) for number in range(count)
    ]


@pytest.fixture
def logs(tmp_path: Path) -> list[PartitionLog]:
    return open_logs(tmp_path)


def topic_of(logs: list[Any], **fields: Any) -> BrowsedTopic:
    return BrowsedTopic(name="users", logs=lambda: logs, partition_count=len(logs), **fields)


def put(log: PartitionLog, text: str) -> None:
    """Records such as "a1 b2 a-": key a with value 1, …, key a deleted; in one batch."""
    records = [
        Rec(
            offset=at,
            key=word[:1].encode(),
            value=None if word[1:] == "-" else word[1:].encode(),
            timestamp=NOW,
        )
        for at, word in enumerate(text.split())
    ]
    log.append(of_records(records))


def events_of(
    topic: BrowsedTopic,
    query: RecordQuery,
    position: str | None = None,
    *,
    most: int | None = None,
    **options: Any,
) -> list[StreamEvent]:
    """The events to the end as it is now, or the first ones."""

    async def read() -> list[StreamEvent]:
        received = list[StreamEvent]()
        async with contextlib.aclosing(
            follow(topic, query, position, **{"waits": False, **options})
        ) as events:  # type: ignore[type-var]
            async for event in events:
                received.append(event)
                if len(received) == most:
                    break
        return received

    return asyncio.run(read())


def offsets(events: list[StreamEvent]) -> list[int]:
    return [record.offset for event in events for record in event.records]


class Table:
    """What a reader that goes on after its last event knows: the value of each key."""

    def __init__(self, topic: BrowsedTopic) -> None:
        self.topic, self.values = topic, Keys()
        self.position: str | None = None
        self.gaps = list[str]()
        self.next_offsets = dict[int, int]()

    def read(self, limit: int = 50, most: int | None = None) -> None:
        """Take the next events."""
        query = RecordQuery(view="compacted", limit=limit)
        for event in events_of(self.topic, query, self.position, most=most):
            self.position = event.position or self.position
            if event.kind == "gap":
                self.gaps.append(str(event.reason))
            for record in event.records:
                assert record.offset >= self.next_offsets.get(record.partition, 0)
                self.next_offsets[record.partition] = record.offset + 1
                key = record.partition, str(record.key.text)
                if record.value.size:
                    self.values[key] = str(record.value.text)
                else:
                    self.values.pop(key, None)


def values_in(logs: list[PartitionLog]) -> Keys:
    """The plain way: all of the log, one record after the other."""
    values = Keys()
    for number, log in enumerate(logs):
        for record in log.records():
            key = number, (record.key or b"").decode()
            if record.value:
                values[key] = record.value.decode()
            else:
                values.pop(key, None)
    return values


# The compacted view


def test_the_ledger_comes_and_then_the_log(logs: list[PartitionLog]) -> None:
    put(logs[0], "a1 b1 a2 c1 b-")
    put(logs[1], "z1 z2")
    compact(logs[0], Model())
    put(logs[0], "a3")
    events = events_of(topic_of(logs), COMPACTED)
    assert [(record.partition, record.offset) for event in events for record in event.records] == [
        *((0, offset) for offset in (2, 3, 5)),
        *((1, offset) for offset in (0, 1)),
    ]
    assert (events[-1].kind, events[-1].reason, events[-1].left) == ("end", "there is no more", ())


@pytest.mark.parametrize("seed", few([(seed,) for seed in range(12)], 0, 1, 2))
def test_a_reader_that_comes_back_again_and_again_has_every_key_and_no_deleted_one(
    logs: list[PartitionLog], seed: int
) -> None:
    chosen, table = random.Random(seed), Table(topic_of(logs))
    for number in range(14):
        log = chosen.choice(logs)
        words = (
            f"{chosen.choice('abcdefgh')}{chosen.choice(['-', number])}"
            for _ in range(chosen.randrange(1, 9))
        )
        put(log, " ".join(words))
        if chosen.random() < 0.5:
            compact(chosen.choice(logs), Model())
        table.read(limit=chosen.choice([1, 2, 50]), most=chosen.randrange(1, 4))
    table.read()
    assert table.values == values_in(logs)
    assert not table.gaps


@pytest.mark.parametrize("most", range(1, 7))
def test_a_tombstone_that_a_newer_ledger_has_applied_is_seen_all_the_same(
    logs: list[PartitionLog], most: int
) -> None:
    put(logs[0], "a1 b1 c1 d1 e1")
    compact(logs[0], Model())
    table = Table(topic_of(logs))
    table.read(limit=1, most=most)
    put(logs[0], "b- f1 c-")
    compact(logs[0], Model())
    table.read(limit=1)
    assert table.values == values_in(logs)


def test_a_stream_continues_in_its_ledger_when_a_newer_one_comes(logs: list[PartitionLog]) -> None:
    put(logs[0], "a1 b1 c1 d1")
    compact(logs[0], Model())

    async def read() -> list[int]:
        offsets_read = list[int]()
        async for event in follow(topic_of(logs), RecordQuery(view="compacted", limit=1), waits=False):
            offsets_read += [record.offset for record in event.records]
            if offsets_read == [0]:
                put(logs[0], "a2 b-")
                compact(logs[0], Model())
        return offsets_read

    assert asyncio.run(read()) == [0, 1, 2, 3, 4, 5]


def test_a_reader_that_goes_lets_its_ledger_go(logs: list[PartitionLog]) -> None:
    put(logs[0], "a1 b1 c1 d1")
    compact(logs[0], Model())
    events_of(topic_of(logs), RecordQuery(view="compacted", limit=1), most=1)
    put(logs[0], "a2")
    compact(logs[0], Model())
    store = LedgerStore(logs[0].directory)
    store.delete_unused()
    assert len(list(store.folder.glob("ledger-*.json"))) == 1


def test_what_was_deleted_before_it_was_read_is_a_gap_and_the_newest_ledger_continues(
    logs: list[PartitionLog],
) -> None:
    put(logs[0], "a1 b1 c1 d1")
    compact(logs[0], Model())
    table = Table(topic_of(logs))
    table.read(limit=2, most=1)
    put(logs[0], "a- e1 d2 f1")
    compact(logs[0], Model())
    logs[0].delete_records(7)
    table.read(limit=2)
    assert len(table.gaps) == 1 and "deleted" in table.gaps[0]
    # The deletion of a is what may be missed: the gap says so.
    assert table.values == {
        (0, "a"): "1",
        (0, "b"): "1",
        (0, "c"): "1",
        (0, "d"): "2",
        (0, "e"): "1",
        (0, "f"): "1",
    }


def test_retention_amid_a_stream_is_a_gap(logs: list[PartitionLog]) -> None:
    put(logs[0], "a1 b1 c1 d1")
    compact(logs[0], Model())
    (first, *_) = events_of(topic_of(logs), RecordQuery(view="compacted", limit=1), most=1)
    put(logs[0], "e1 f1 g1 h1")
    compact(logs[0], Model())

    async def read() -> list[StreamEvent]:
        query, received = RecordQuery(view="compacted", limit=1), list[StreamEvent]()
        async for event in follow(topic_of(logs), query, first.position, waits=False):
            received.append(event)
            if len(received) == 1:
                logs[0].delete_records(6)
        return received

    events = asyncio.run(read())
    assert offsets(events) == [1, 2, 3, 4, 5, 6, 7]
    assert [event.kind for event in events].count("gap") == 1


def test_a_compacted_stream_begins_at_the_given_place(logs: list[PartitionLog]) -> None:
    put(logs[0], "a1 b1 c1 a2")
    logs[0].append(of_records([Rec(offset=0, key=b"e", timestamp=NOW + 50)]))
    compact(logs[0], Model())
    put(logs[0], "f1")
    topic = topic_of(logs[:1])
    read = lambda **fields: offsets(events_of(topic, RecordQuery(view="compacted", **fields)))  # noqa: E731
    assert read(start_offset=2) == [2, 3, 4, 5]
    assert read(start_offset=99) == []
    assert read(start_ms=NOW + 1) == [4, 5]
    assert read(key=b"a") == [3]
    logs[0].delete_records(5)
    LedgerStore(logs[0].directory).delete_cursor()
    assert read() == [5]


class Growing(ReadableLog):
    """A log of a real Kafka, of which the first records are there."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.whole = directory, view_of(directory)
        self.topic_partition = TopicPartition("users", 0)
        self.view = self.whole

    def ends_at(self, offset: int) -> None:
        """From now on the log has the records below ``offset``."""
        self.view = self.whole._replace(
            high_watermark=offset, last_stable_offset=min(offset, self.whole.last_stable_offset)
        )


def committed(log: ReadableLog) -> Keys:
    """The plain way: the last value of each key of what readers of committed records see."""
    values = Keys()
    for record in log.records(isolation="read_committed"):
        if record.key is not None and record.value:
            values[0, record.key.hex()] = record.value.hex()
        elif record.key is not None:
            values.pop((0, record.key.hex()), None)
    return values


@pytest.mark.random
def test_logs_of_kafka_are_read_over_compactions_that_come_meanwhile(golden: Path, tmp_path: Path) -> None:
    names = [*share(legacy_names(golden), 13), *share(case_names(golden), 19)]
    for number, name in enumerate(names):
        shutil.copytree(golden / name / "before", tmp_path / f"{number}" / "users-0")
        log = Growing(tmp_path / f"{number}" / "users-0")
        start, end = log.whole.log_start_offset, log.whole.last_stable_offset
        topic = BrowsedTopic(name="users", logs=lambda log=log: [log], partition_count=1)  # type: ignore[misc]
        query = RecordQuery(
            view="compacted", isolation="read_committed", limit=3, key_decoding="hex", value_decoding="hex"
        )
        values, position, last = Keys(), None, -1
        for part in range(1, 5):
            log.ends_at(start + (end - start) * part // 4)
            compact(log, Model())  # type: ignore[arg-type]
            for event in events_of(topic, query, position, most=None if part == 4 else 2):
                position = event.position
                assert event.kind != "gap", name
                for record in event.records:
                    assert record.offset > last, name
                    last = record.offset
                    if record.key.kind == "null":
                        continue
                    if record.value.size:
                        values[0, str(record.key.text or "")] = str(record.value.text)
                    else:
                        values.pop((0, str(record.key.text or "")), None)
        assert shortened(values) == shortened(committed(log)), name


def shortened(values: Keys) -> Keys:
    """Long values are shown in part."""
    return {key: value[:100] for key, value in values.items()}


# New records


def test_a_stream_gives_new_records_heartbeats_and_an_end(logs: list[PartitionLog]) -> None:
    put(logs[1], "a1")

    async def read() -> list[StreamEvent]:
        stopped, events = asyncio.Event(), list[StreamEvent]()
        async for event in follow(
            topic_of(logs), RecordQuery(limit=2), heartbeat_seconds=0.0, stopped=stopped
        ):
            events.append(event)
            if len(events) == 1:
                assert event.kind == "heartbeat"
                put(logs[1], "b0 b1 b2 b3 b4")
            if event.records and event.records[-1].value.text == "4":
                stopped.set()
        return events

    events = asyncio.run(read())
    assert [record.value.text for event in events for record in event.records] == list("01234")
    assert events[1].left[0].high - events[1].left[0].low == 3
    assert events[-1].kind == "end"


def test_streams_that_take_turns_see_every_record_once_and_none_waits_for_a_slow_reader(
    logs: list[PartitionLog],
) -> None:
    numbers = [str(number) for number in range(9)]

    async def read(turns: ThreadPoolExecutor) -> tuple[list[list[str | None]], set[str]]:
        stopped, threads = asyncio.Event(), set[str]()

        def shown(event: StreamEvent) -> list[str | None]:
            threads.add(threading.current_thread().name)
            return [record.value.text for record in event.records]

        def stream(limit: int) -> AsyncIterator[list[str | None]]:
            query = RecordQuery(start_offset=0, limit=limit)
            return follow_rendered(topic_of(logs[:1]), query, shown, stopped=stopped, executor=turns)

        async def all_of(limit: int) -> list[str | None]:
            received = list[str | None]()
            async for texts in stream(limit):
                received += texts
                if len(received) == len(numbers):
                    return received
            return received

        slow = stream(1)
        taken = await anext(slow)  # and nothing more for now
        others = await asyncio.gather(*(all_of(limit) for limit in (3, 5, 50)))
        taken += await anext(slow)
        stopped.set()
        await anext(slow)  # the end, which is shown here
        threads.discard(threading.current_thread().name)
        return [taken, *others], threads

    put(logs[0], " ".join(f"a{number}" for number in numbers))
    with ThreadPoolExecutor(1, "turns") as turns:
        (taken, *others), threads = asyncio.run(read(turns))
    assert others == [numbers] * 3
    assert taken == numbers[:2]
    assert threads == {"turns_0"}


def test_a_searching_stream_gives_its_turn_away(
    logs: list[PartitionLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that takes long reads a part of the log in each of its turns."""
    for number in range(200):
        put(logs[0], f"a{number}")
    turns_of = list[str]()

    async def read(turns: ThreadPoolExecutor) -> None:
        async def first_event(name: str, query: RecordQuery) -> None:
            async for _ in follow_rendered(
                topic_of(logs[:1]), query, lambda _: turns_of.append(name), executor=turns
            ):
                return

        search = RecordQuery(start_offset=0, value_contains=b"199")
        await asyncio.gather(
            first_event("search", search), first_event("follow", RecordQuery(start_offset=0))
        )

    # Each step reads one block.
    step, reads = MatchingRows.rows, list[int]()

    def rows(self: MatchingRows, polled: PolledRecords) -> Int64:
        reads.append(len(polled))
        return step(self, polled)

    monkeypatch.setattr(MatchingRows, "rows", rows)
    monkeypatch.setattr(Budget, "is_over", property(lambda budget: budget.spent > 0))
    with ThreadPoolExecutor(1) as turns:
        asyncio.run(read(turns))
    assert turns_of == ["follow", "search"]
    assert len(reads) > 2


def test_new_records_go_on_after_any_event(logs: list[PartitionLog]) -> None:
    put(logs[0], "a1 b1 c1")
    put(logs[1], "d1 e1")
    query, position, places = RecordQuery(start_offset=1, limit=1), None, list[tuple[int, int]]()
    for _ in range(4):
        (event,) = events_of(topic_of(logs), query, position, most=1)
        places += [(record.partition, record.offset) for record in event.records]
        position = event.position
    assert event.kind == "end"
    assert sorted(places) == [(0, 1), (0, 2), (1, 1)]
    put(logs[1], "f1")
    assert offsets(events_of(topic_of(logs), query, position)) == [2]


def test_a_stream_ends_with_the_topic(logs: list[PartitionLog]) -> None:
    put(logs[0], "a1")
    answers = [logs, logs]

    def next_logs() -> list[PartitionLog]:
        if not answers:
            raise UnknownTopicError("there is no such topic")
        return answers.pop()

    topic = BrowsedTopic(name="users", logs=next_logs, partition_count=2)
    events = events_of(topic, RecordQuery(start_offset=0), waits=True, heartbeat_seconds=0.0)
    assert offsets(events) == [0]
    assert (events[-1].kind, events[-1].reason) == ("end", "there is no such topic")


def test_a_new_partition_is_read_from_its_start(logs: list[PartitionLog], tmp_path: Path) -> None:
    listed = logs[:1]
    put(logs[1], "a1")

    async def read(query: RecordQuery) -> list[int]:
        topic, numbers = BrowsedTopic(name="users", logs=lambda: listed, partition_count=2), list[int]()
        async for event in follow(topic, query, heartbeat_seconds=0.0):
            if event.records:
                return [record.partition for record in event.records]
            listed[:] = logs
        return numbers

    assert asyncio.run(read(RecordQuery())) == [1]
    listed[:] = logs[:1]
    assert asyncio.run(read(COMPACTED)) == [1]


def test_records_that_were_deleted_before_they_were_read_are_a_gap(logs: list[PartitionLog]) -> None:
    put(logs[0], "a1 b1 c1 d1")
    (first, *_) = events_of(topic_of(logs[:1]), RecordQuery(start_offset=0, limit=1))
    logs[0].delete_records(3)
    gap, next_event, end = events_of(topic_of(logs[:1]), RecordQuery(), first.position)
    assert (gap.kind, next_event.records[0].offset, end.kind) == ("gap", 3, "end")
    assert "log start offset" in str(gap.reason)


@pytest.mark.parametrize("view", ["log", "compacted"])
def test_a_log_that_was_cut_off_continues_at_its_end(logs: list[PartitionLog], view: Any) -> None:
    put(logs[0], "a1 b1 c1 d1")
    query = RecordQuery(view=view, start_offset=0)
    (*_, end) = events_of(topic_of(logs[:1]), query)
    logs[0].truncate_to(2)
    (gap, _) = events_of(topic_of(logs[:1]), query, end.position)
    assert gap.kind == "gap"
    put(logs[0], "e1")
    assert offsets(events_of(topic_of(logs[:1]), query, gap.position)) == [2]


def test_logs_that_another_process_writes_are_followed(logs: list[PartitionLog], tmp_path: Path) -> None:
    for number in range(40):
        put(logs[0], f"a{number} b{number}")
    for log in logs:
        log.flush()
    looked = ReadOnlyLogs([tmp_path])
    topic = topic_of([looked["users", 0], looked["users", 1]])

    async def read() -> list[int]:
        offsets_read = list[int]()
        async for event in follow(topic, RecordQuery(view="compacted", limit=7), heartbeat_seconds=0.0):
            offsets_read += [record.offset for record in event.records]
            if offsets_read and offsets_read[-1] == 13 and logs[0].log_end_offset == 80:
                logs[0].roll()
                put(logs[0], "c1")
                compact(logs[0], Model())
            if offsets_read and offsets_read[-1] == 80:
                return offsets_read
        return offsets_read

    offsets_read = asyncio.run(read())
    assert offsets_read == list(range(81))


def test_what_is_masked_is_masked_in_a_stream(logs: list[PartitionLog]) -> None:
    put(logs[0], "a4000")
    topic = topic_of(logs, masked=Masking.parse("users:value").of_topic("users"))
    assert "4000" not in str([event.to_json() for event in events_of(topic, COMPACTED)])
    with pytest.raises(UsageError, match="masked"):
        check_stream(topic, RecordQuery(value_contains=b"4"))


# Positions


@pytest.mark.parametrize(
    "query",
    [
        RecordQuery(view="latest"),
        RecordQuery(last=3),
        RecordQuery(newest_first=True),
        RecordQuery(end_offset=3),
        RecordQuery(end_ms=3),
    ],
    ids=repr,
)
def test_a_stream_has_no_end_and_no_other_order(logs: list[PartitionLog], query: RecordQuery) -> None:
    with pytest.raises(UsageError, match="order of the log"):
        events_of(topic_of(logs), query)


def test_a_position_comes_back_as_it_was(logs: list[PartitionLog]) -> None:
    topic, positions = topic_of(logs), {1: Position(5, 1 << 62), 0: Position(0, 0)}
    text = position_text(topic, COMPACTED, positions)
    assert text is not None and parse_position(topic, COMPACTED, text) == positions
    many = dict.fromkeys(range(POSITIONS_MAX), Position((1 << 63) - 1, (1 << 63) - 1))
    text = position_text(topic, COMPACTED, many)
    assert text is not None and len(text) < 8000
    assert parse_position(topic, COMPACTED, text) == many
    assert position_text(topic, COMPACTED, {**many, POSITIONS_MAX: Position(0, 0)}) is None
    assert position_text(topic, COMPACTED, {}) is None


def test_a_position_of_something_else_is_refused(logs: list[PartitionLog]) -> None:
    topic = topic_of(logs, identity="one")
    text = position_text(topic, COMPACTED, {0: Position(1, 1)})
    assert text is not None
    data = base64.urlsafe_b64decode(text)
    others = [
        (topic, RecordQuery(), text),
        (topic_of(logs, identity="another"), COMPACTED, text),
        *(
            (topic, COMPACTED, base64.urlsafe_b64encode(damaged).decode())
            for damaged in (
                b"",
                data[:9],
                data[:-1],
                data + data[9:],
                b"\x02" + data[1:],
                data[:9] + b"\xff" + data[10:],
                data[:13] + b"\xff" + data[14:],
                data[:-8] + b"\xff" + data[-7:],
            )
        ),
        *((topic, COMPACTED, wrong) for wrong in ("", "é", "AA=A", "A" * 100_000, "\n", text + "!")),
    ]
    for other_topic, query, wrong in others:
        with pytest.raises(UsageError, match="position is not valid"):
            check_stream(other_topic, query, wrong)


def test_a_position_of_a_partition_that_is_not_read_is_left_alone(logs: list[PartitionLog]) -> None:
    put(logs[0], "a1 b1")
    topic = topic_of(logs)
    text = position_text(topic, COMPACTED, {0: Position(1, 0), 1: Position(0, 0), 7: Position(0, 0)})
    assert offsets(events_of(topic, RecordQuery(view="compacted", partitions=(0,)), text)) == [1]
