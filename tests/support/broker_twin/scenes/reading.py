"""Fetch without sessions, ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeLogDirs."""

from __future__ import annotations

import time
from typing import Any

from tests.support.broker_twin.batches import TIME_MS, batch, numbered
from tests.support.broker_twin.scenes.produce import data_of
from tests.support.broker_twin.scenes.scene import NO_SUCH_ID, ZERO_ID
from tests.support.broker_twin.side import (
    DELETE_RECORDS,
    DESCRIBE_LOG_DIRS,
    FETCH,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    Side,
)
from tests.support.broker_twin.wire import Connection

PLENTY = 1 << 20
SHORT_WAIT_MS, LONG_WAIT_MS = 40, 20_000
WHERE_THE_FORM_CHANGES = (4, 7, 12, 13, 18)
"""Versions of Fetch with sessions, tags, ids; what is asked of a log is the same in those between."""


def fetch(side: Side, versions: range) -> None:
    """Whole logs and parts, limits, epochs, what is out of range, long polls."""
    side.create("fetch", 3)
    side.produce("fetch", batch(3), batch(2, codec=4), batch(4, value=b"x" * 100), partition=0)
    side.produce("fetch", numbered(0, 2, producer_id=7_000_500), batch(1), partition=1)
    side.create("fetch-cut")
    side.produce("fetch-cut", batch(3), batch(3))
    cut = {"name": "fetch-cut", "partitions": [{"partition_index": 0, "offset": 4}]}
    side.quietly(DELETE_RECORDS, 2, topics=[cut], timeout=5000)
    for version in versions:
        _offsets(side, version)
        _refused(side, version)
        _grouped(side, version)
        if version in WHERE_THE_FORM_CHANGES:
            _limits(side, version)
            _long_poll(side, version)


def _ask(side: Side, what: str, version: int, *topics: dict[str, Any], **fields: Any) -> None:
    side.ask(what, FETCH, version, topics=list(topics), **{**_PLAIN, **fields})


_PLAIN = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": PLENTY}


def _topic(side: Side, version: int, name: str, *partitions: dict[str, Any]) -> dict[str, Any]:
    place = {"topic_id": side.topic_ids.get(name, NO_SUCH_ID)} if version >= 13 else {"topic": name}
    return {**place, "partitions": list(partitions)}


def _from(offset: int, partition: int = 0, size: int = PLENTY, **fields: int) -> dict[str, Any]:
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": size, **fields}


def _offsets(side: Side, version: int) -> None:
    for offset in (0, 1, 3, 4, 5, 8, 9, 10, -1, 1 << 40):
        _ask(side, f"from {offset}", version, _topic(side, version, "fetch", _from(offset)))
    for offset in (0, 3, 4, 6, 7):
        _ask(side, f"cut, from {offset}", version, _topic(side, version, "fetch-cut", _from(offset)))
    several = [_from(0, number) for number in range(3)]
    _ask(side, "several partitions", version, _topic(side, version, "fetch", *several))
    _ask(side, "committed", version, _topic(side, version, "fetch", *several), isolation_level=1)
    topics = [_topic(side, version, name, _from(4)) for name in ("fetch-cut", "fetch")]
    _ask(side, "two topics", version, *topics)
    _ask(side, "no topics", version)
    _ask(side, "no partitions", version, _topic(side, version, "fetch"))
    _ask(side, "partition twice", version, _topic(side, version, "fetch", _from(0, 1), _from(2, 1)))
    _ask(side, "unknown isolation", version, _topic(side, version, "fetch", _from(0, 1)), isolation_level=2)


def _limits(side: Side, version: int) -> None:
    for size in (0, 1, 70, 100, 200):
        _ask(side, f"{size} bytes", version, _topic(side, version, "fetch", _from(0, 0, size)))
        every = _topic(side, version, "fetch", _from(0, 0), _from(0, 1))
        _ask(side, f"{size} bytes in all", version, every, max_bytes=size)
        both = _topic(side, version, "fetch", _from(0, 0, size), _from(0, 1, size))
        _ask(side, f"{size} bytes each", version, both)
    for offset in (-1, 0, 4, 9, 10):
        what = "negative bytes" if not offset else f"negative bytes, from {offset}"
        _ask(side, what, version, _topic(side, version, "fetch", _from(offset, 0, -1)))
        _ask(side, f"{what}, in all", version, _topic(side, version, "fetch", _from(offset, 0)), max_bytes=-1)
    for offset in (-1, 0, 4, 7, 8):
        what = f"negative bytes, cut, from {offset}"
        _ask(side, what, version, _topic(side, version, "fetch-cut", _from(offset, 0, -1)))
    empty_first = _topic(side, version, "fetch", _from(0, 2, 10), _from(0, 1, 10))
    _ask(side, "first is empty", version, empty_first)


def _refused(side: Side, version: int) -> None:
    _ask(side, "unknown topic", version, _topic(side, version, "fetch-none", _from(0)))
    _ask(side, "unknown partition", version, _topic(side, version, "fetch", _from(0, 9), _from(0, 1)))
    _ask(side, "negative partition", version, _topic(side, version, "fetch", _from(0, -1)))
    _ask(side, "session unknown", version, session_id=12345, session_epoch=1)
    _ask(side, "session closed", version, _topic(side, version, "fetch", _from(0, 1)), session_epoch=-1)
    if version >= 7:
        for number in (-1, -2, -(1 << 28), -(1 << 31)):
            for epoch in (-2, -1, 0, 1, 5):
                what = f"session {number}, epoch {epoch}"
                topic = _topic(side, version, "fetch", _from(0, 1))
                _ask(side, what, version, topic, session_id=number, session_epoch=epoch)
        _ask(side, "session 0, epoch 5", version, session_id=0, session_epoch=5)
        _ask(side, "a new session", version, _topic(side, version, "fetch", _from(0, 1)), session_epoch=0)
    if version >= 9:
        for epoch in (-7, 0, 1, 7):
            newer = _topic(side, version, "fetch", _from(0, 1, current_leader_epoch=epoch))
            _ask(side, f"epoch {epoch}", version, newer)
    if version >= 12:
        for epoch in (0, 1):
            last = _topic(side, version, "fetch", _from(2, 1, last_fetched_epoch=epoch))
            _ask(side, f"last epoch {epoch}", version, last)
    if version >= 13:
        zero = {"topic_id": ZERO_ID, "partitions": [_from(0)]}
        _ask(side, "zero id", version, zero)
        _ask(side, "zero id and a good one", version, zero, _topic(side, version, "fetch", _from(0, 1)))
    follower = (
        {"replica_state": {"replica_id": 1, "replica_epoch": 1}} if version >= 15 else {"replica_id": 1}
    )
    _ask(side, "as itself", version, _topic(side, version, "fetch", _from(0, 1)), **follower)
    stranger = (
        {"replica_state": {"replica_id": 9, "replica_epoch": 1}} if version >= 15 else {"replica_id": 9}
    )
    _ask(side, "as another broker", version, _topic(side, version, "fetch", _from(0, 1)), **stranger)


def _grouped(side: Side, version: int) -> None:
    """Unknown topics and partitions come last, and partitions of one topic stand together where they meet."""
    both = _topic(side, version, "fetch", _from(0, 9), _from(0, 1), _from(1, -1), _from(0, 2))
    none = _topic(side, version, "fetch-none", _from(0), _from(0, 1))
    cut = _topic(side, version, "fetch-cut", _from(4), _from(0, 3))
    _ask(side, "unknown ones between", version, both, none, cut)
    _ask(side, "unknown ones first", version, none, both)
    _ask(side, "topic twice", version, both, cut, _topic(side, version, "fetch", _from(0, 0)), none)
    _ask(side, "unknown first, negative bytes in all", version, none, cut, max_bytes=-1)
    one, two = _from(0, 0), _from(0, 1, 5)
    _ask(side, "a cut one, committed", version, _topic(side, version, "fetch", one, two), isolation_level=1)
    if version >= 12:
        last = _from(9, 0, last_fetched_epoch=0), _from(9, 1, last_fetched_epoch=0)
        _ask(side, "diverging, committed", version, _topic(side, version, "fetch", *last), isolation_level=1)
    if version >= 13:
        zero = {"topic_id": ZERO_ID, "partitions": [_from(0), _from(0, 1)]}
        _ask(side, "zero id twice", version, zero)


def _long_poll(side: Side, version: int) -> None:
    """An answer comes when the time is over, or with the records that another connection sends.

    An error of the log ends the wait, but not a topic or partition that is unknown.
    """
    at_end, out_of_range, unknown = _from(9), _from(5, 2), _from(0, 9)
    for what, wait_ms, partitions in (
        ("in vain", SHORT_WAIT_MS, (at_end,)),
        ("beside an unknown partition", SHORT_WAIT_MS, (at_end, unknown)),
        ("beside one out of range", LONG_WAIT_MS, (at_end, out_of_range)),
        ("an unknown partition alone", LONG_WAIT_MS, (unknown,)),
    ):
        begun = time.monotonic()
        topic = _topic(side, version, "fetch", *partitions)
        _ask(side, what, version, topic, max_wait=wait_ms, min_bytes=1)
        waited = time.monotonic() - begun > wait_ms / 2000
        side.keep(f"waited {what} v{version}", {"waited": waited})
    begun = time.monotonic()
    topic = f"fetch-poll-{version}"
    side.create(topic)
    with Connection(side.bootstrap) as waiting:
        entry = _topic(side, version, topic, _from(0))
        patient = {**_PLAIN, "max_wait": LONG_WAIT_MS, "min_bytes": 100, "topics": [entry]}
        waiting.send(FETCH, version, patient)
        for number in range(2):
            data = [data_of(side, 9, topic, {0: batch(1 + number)})]
            side.ask(f"sent {number}, for {version}", PRODUCE, 9, acks=-1, timeout=5000, topic_data=data)
        received = waiting.receive()
        side.keep(f"woken v{version}", {"closed": True} if received is None else received[1])
    side.keep(f"woken in time v{version}", {"yes": time.monotonic() - begun < LONG_WAIT_MS / 2000})


def list_offsets(side: Side, versions: range) -> None:
    """Ends, times, and what is asked for wrongly."""
    side.create("offsets", 3)
    side.produce(
        "offsets", batch(5, step_ms=1000), batch(3, time_ms=TIME_MS + 60_000, step_ms=-1000), partition=0
    )
    side.produce("offsets", batch(2, codec=1), partition=1)
    cut = {"name": "offsets", "partitions": [{"partition_index": 0, "offset": 2}]}
    side.quietly(DELETE_RECORDS, 2, topics=[cut], timeout=5000)
    side.create("offsets-early")
    side.produce("offsets-early", batch(2, time_ms=TIME_MS + 9000), batch(3))
    early = {"name": "offsets-early", "partitions": [{"partition_index": 0, "offset": 3}]}
    side.quietly(DELETE_RECORDS, 2, topics=[early], timeout=5000)
    side.create("offsets-timeless")
    side.produce("offsets-timeless", batch(1, time_ms=-1), batch(2, time_ms=-1, step_ms=0))
    # The second batch is so much later that it has a segment of its own.
    side.create("offsets-rolled")
    side.produce("offsets-rolled", batch(2, time_ms=1), batch(2))
    rolled = {"name": "offsets-rolled", "partitions": [{"partition_index": 0, "offset": 2}]}
    side.quietly(DELETE_RECORDS, 2, topics=[rolled], timeout=5000)
    times = [TIME_MS + shift for shift in (-1, 0, 1, 3000, 4000, 4001, 58_000, 60_000, 60_001)]
    for version in versions:
        for time_ms in (*times, *range(-8, 1)):
            _list(side, str(time_ms), version, *((number, time_ms, -1) for number in range(3)))
            _list(side, f"{time_ms}, committed", version, (0, time_ms, -1), isolation_level=1)
        for name in ("offsets-early", "offsets-timeless"):
            for time_ms in (-3, 0, TIME_MS, TIME_MS + 9000):
                _list(side, f"{name} {time_ms}", version, (0, time_ms, -1), name=name)
        for time_ms in (-3, 0, 1, 2, 3, TIME_MS, TIME_MS + 2):
            what = "below the start, " if 0 <= time_ms <= 2 else ""
            _list(side, f"{what}rolled {time_ms}", version, (0, time_ms, -1), name="offsets-rolled")
        twice = [
            {"name": name, "partitions": [{"partition_index": number, "timestamp": -1}]}
            for name, number in (("offsets", 0), ("offsets-early", 0), ("offsets", 1), ("offsets-early", 0))
        ]
        side.ask("topics twice", LIST_OFFSETS, version, replica_id=-1, topics=twice, timeout=5000)
        _list(side, "twice", version, (0, -1, -1), (0, -2, -1))
        _list(side, "several", version, (0, -1, -1), (1, -1, -1), (9, -1, -1), (-1, -1, -1))
        _list(side, "unknown topic", version, (0, -1, -1), name="offsets-none")
        _list(side, "no partitions", version)
        side.ask("no topics", LIST_OFFSETS, version, replica_id=-1, topics=[])
        _list(side, "unknown isolation", version, (0, -1, -1), isolation_level=2)
        for replica in (-2, 1, 9):
            _list(side, f"replica {replica}", version, (0, -1, -1), replica_id=replica)
        if version >= 4:
            for epoch in (-7, 0, 1, 7):
                _list(side, f"epoch {epoch}", version, (0, -1, epoch), (1, TIME_MS, epoch))


def _list(
    side: Side, what: str, version: int, *queries: tuple[int, int, int], name: str = "offsets", **fields: Any
) -> None:
    partitions = [
        {"partition_index": number, "timestamp": time_ms, "current_leader_epoch": epoch}
        for number, time_ms, epoch in queries
    ]
    request = {"replica_id": -1, "timeout": 5000, **fields}
    side.ask(what, LIST_OFFSETS, version, topics=[{"name": name, "partitions": partitions}], **request)


def offset_for_leader_epoch(side: Side, versions: range) -> None:
    """Where an epoch ends."""
    side.create("epochs", 2)
    side.produce("epochs", batch(4))
    for version in versions:
        for epoch in (-2, -1, 0, 1, 9):
            for current in (-1, 0, 1):
                _epoch(side, f"{epoch}, now {current}", version, (0, epoch, current))
        _epoch(side, "empty log", version, (1, 0, -1))
        _epoch(side, "unknown partition", version, (9, 0, -1))
        _epoch(side, "unknown topic", version, (0, 0, -1), topic="epochs-none")
        _epoch(side, "twice", version, (0, 0, -1), (0, 1, -1))
        _epoch(side, "no partitions", version)
        side.ask("no topics", OFFSET_FOR_LEADER_EPOCH, version, topics=[])


def _epoch(
    side: Side, what: str, version: int, *queries: tuple[int, int, int], topic: str = "epochs"
) -> None:
    partitions = [
        {"partition": number, "leader_epoch": epoch, "current_leader_epoch": current}
        for number, epoch, current in queries
    ]
    topics = [{"topic": topic, "partitions": partitions}]
    side.ask(what, OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=topics)


def delete_records(side: Side, versions: range) -> None:
    """Up to an offset, the high watermark, beyond it."""
    side.create("cut-compact", configs={"cleanup.policy": "compact"})
    side.create("cut-both", configs={"cleanup.policy": "compact,delete"})
    for topic in ("cut-compact", "cut-both"):
        side.produce(topic, batch(3))
    for version in versions:
        topic = f"cut-{version}"
        side.create(topic, 2)
        side.produce(topic, batch(5), batch(5))
        for turn, offset in enumerate((0, 3, 3, 1, 7, 11, -2, -5)):
            _cut(side, f"{turn}: to {offset}", version, topic, (0, offset))
        _cut(side, "to the end", version, topic, (0, -1))
        _cut(side, "to the end again", version, topic, (0, -1))
        _cut(side, "empty", version, topic, (1, -1))
        _cut(side, "unknown partition", version, topic, (9, 1), (0, 10))
        _cut(side, "twice", version, topic, (0, 10), (0, 10))
        _cut(side, "no partitions", version, topic)
        _cut(side, "unknown topic", version, "cut-none", (0, 1))
        _cut(side, "unknown topic, wrong offset", version, "cut-none", (0, -5))
        _cut(side, "compacted", version, "cut-compact", (0, 1))
        _cut(side, "compacted, wrong offset", version, "cut-compact", (0, -5))
        _cut(side, "compacted, beyond", version, "cut-compact", (0, 99))
        _cut(side, "compacted and deleted", version, "cut-both", (0, 1))
        side.ask("no topics", DELETE_RECORDS, version, topics=[], timeout=5000)
        queries = [{"partition_index": number, "timestamp": -2} for number in range(2)]
        side.ask(
            f"starts of {topic}",
            LIST_OFFSETS,
            9,
            replica_id=-1,
            topics=[{"name": topic, "partitions": queries}],
        )


def _cut(side: Side, what: str, version: int, topic: str, *cuts: tuple[int, int]) -> None:
    partitions = [{"partition_index": number, "offset": offset} for number, offset in cuts]
    topics = [{"name": topic, "partitions": partitions}]
    side.ask(what, DELETE_RECORDS, version, topics=topics, timeout=5000)


def describe_log_dirs(side: Side, versions: range) -> None:
    """The one directory; sizes are those of the same batches."""
    side.create("dirs", 3)
    side.produce("dirs", batch(5), partition=0)
    side.produce("dirs", batch(7), partition=2)
    for version in versions:
        _dirs(side, "all", version, None)
        _dirs(side, "two", version, [{"topic": "dirs", "partitions": [0, 2]}])
        _dirs(side, "one unknown", version, [{"topic": "dirs", "partitions": [1, 9]}])
        _dirs(side, "unknown topic", version, [{"topic": "dirs-none", "partitions": [0]}])
        _dirs(side, "no partitions", version, [{"topic": "dirs", "partitions": []}])
        _dirs(side, "no topics", version, [])


def _dirs(side: Side, what: str, version: int, topics: list[dict[str, Any]] | None) -> None:
    """Of all topics, only this scene's are compared."""
    answer = side.quietly(DESCRIBE_LOG_DIRS, version, topics=topics)
    for directory in answer.get("results", ()):
        directory["topics"] = [topic for topic in directory["topics"] if topic["name"].startswith("dirs")]
    side.keep(f"{what} v{version}", answer)
    side.asked.add((DESCRIBE_LOG_DIRS, version))
