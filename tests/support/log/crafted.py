"""Batches that a producer should not send, and some that it may: one row each.

A row's batches go, one request each, to a partition of its own. ``TOPICS`` are the settings that rows need.
``tests/kafka/cleaning/test_twin_appends.py`` sends them to a real broker and to us, and compares what comes
of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from crc32c import crc32c

from tests.support.records import twin

HOUR_MS = 3_600_000
TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": {"cleanup.policy": "delete"},
    "compact": {"cleanup.policy": "compact"},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "bounded": {
        "cleanup.policy": "compact",
        "message.timestamp.before.max.ms": str(HOUR_MS),
        "message.timestamp.after.max.ms": str(HOUR_MS),
    },
    "zstd": {"compression.type": "zstd"},
    "uncompressed": {"compression.type": "uncompressed"},
    "small": {"max.message.bytes": "200"},
    "small-segments": {"segment.bytes": "1048576", "max.message.bytes": "2000000"},
}
"""By topic: its settings."""
CONTROL, TRANSACTIONAL, LOG_APPEND, HORIZON = 0x20, 0x10, 0x08, 0x40
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is sent to one partition of ``topic``, one request each, in Produce ``version``."""

    name: str
    sent: tuple[bytes, ...]
    topic: str = "plain"
    version: int = 8
    transactional_id: str | None = None


@dataclass(slots=True)
class Table:
    """Rows in the making; ``now_ms`` is the time of their records."""

    now_ms: int
    rows: list[Row] = field(default_factory=list)

    def add(
        self,
        name: str,
        *sent: bytes,
        topic: str = "plain",
        version: int = 8,
        transactional_id: str | None = None,
    ) -> None:
        """One row."""
        row = Row(name=name, sent=sent, topic=topic, version=version, transactional_id=transactional_id)
        self.rows.append(row)

    def batch(self, body: bytes | None = None, count: int = 1, **header: int) -> bytes:
        """``craft``, its records at ``now_ms`` unless ``header`` says otherwise."""
        times = {"base_timestamp": self.now_ms, "max_timestamp": self.now_ms}
        return craft(record() * count if body is None else body, count, **{**times, **header})


def craft(
    body: bytes,
    count: int = 1,
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    magic: int = 2,
    codec: int = 0,
    attributes: int = 0,
    last_delta: int | None = None,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    length: int | None = None,
    checksum: int | None = None,
) -> bytes:
    """A batch around ``body``, which is compressed with ``codec``; every field may lie."""
    delta = count - 1 if last_delta is None else last_delta
    stored = twin.compress(codec, body) if 0 < codec <= ZSTD else body
    fields = (attributes | codec, delta, base_timestamp, max_timestamp, producer_id, producer_epoch)
    checked = struct.pack(">hiqqqhii", *fields, base_sequence, count) + stored
    size = 9 + len(checked) if length is None else length
    sum_of_it = crc32c(checked) if checksum is None else checksum
    return struct.pack(">qiibI", base_offset, size, leader_epoch, magic, sum_of_it) + checked


def record(
    delta: int = 0,
    *,
    key: bytes = twin.varint(1) + b"k",
    value: bytes = twin.varint(1) + b"v",
    time: bytes = b"\0",
    headers: bytes = b"\0",
    offset: bytes | None = None,
    attributes: int = 0,
    size: int | bytes | None = None,
    tail: bytes = b"",
) -> bytes:
    """One record; fields with their sizes in front, as bytes, so that each may lie."""
    number = twin.varint(delta) if offset is None else offset
    body = bytes([attributes]) + time + number + key + value + headers + tail
    stated_size = len(body) if size is None else size
    return (stated_size if isinstance(stated_size, bytes) else twin.varint(stated_size)) + body


def records(count: int, **fields: bytes) -> bytes:
    """Records numbered one by one."""
    return b"".join(record(i, **fields) for i in range(count))  # type: ignore[arg-type]


NULL = twin.varint(-1)
OVER_LONG = b"\x80\x80\x80\x80\x80\x01"


def table(now_ms: int) -> list[Row]:
    """All rows; their names are the same for every ``now_ms``."""
    collected = Table(now_ms)
    for add in (
        _sound,
        _framing,
        _headers,
        _flags,
        _producers,
        _counts,
        _bodies,
        _compressed,
        _times,
        _topics,
    ):
        add(collected)
    return collected.rows


def _sound(t: Table) -> None:
    for codec in range(5):
        t.add(f"sound {codec}", t.batch(records(3), 3, codec=codec))
        t.add(f"sound {codec} append time", t.batch(records(3), 3, codec=codec), topic="append-time")
        t.add(f"sound {codec} to zstd", t.batch(records(3), 3, codec=codec), topic="zstd")
        t.add(f"sound {codec} to uncompressed", t.batch(records(3), 3, codec=codec), topic="uncompressed")
    t.add("sound 200 records", t.batch(records(200), 200))
    t.add("sound headers", t.batch(record(headers=twin.varint(1) + twin.varint(1) + b"h" + NULL)))
    t.add("null value and empty key", t.batch(record(key=b"\0", value=NULL)), topic="compact")
    t.add("produce 3", t.batch(), version=3)
    t.add("zstd to produce 6", t.batch(codec=ZSTD), version=6)
    t.add("zstd to produce 7", t.batch(codec=ZSTD), version=7)
    t.add("leader epoch of the client", t.batch(leader_epoch=77))
    t.add("two requests", t.batch(), t.batch(records(2), 2))


def _framing(t: Table) -> None:
    """How many batches there are, and what lies behind them."""
    single = t.batch()
    t.add("no bytes", b"")
    t.add("two batches", single + single)
    t.add("a whole batch of v1 behind", single + _old(1, t.now_ms))
    t.add("a whole batch of v0 behind", single + _old(0, t.now_ms))
    t.add("a short v2 behind", single + struct.pack(">qiib", 0, 14, 0, 2) + bytes(9))
    for size in (1, 8, 11, 12, 13, 16, 17, 30, 61, 100):
        t.add(f"{size} zeros behind", single + bytes(size))
        t.add(f"{size} ones behind", single + b"\x01" * size)
        t.add(f"{size} ff behind", single + b"\xff" * size)
    for cut in (1, 8, 12, 16, 17, 40, 60, 61, len(single) - 1):
        t.add(f"a batch cut at {cut} behind", single + single[:cut])
    t.add("a cut batch of magic 3 behind", single + t.batch(magic=3)[:40])
    t.add("a cut batch of magic 1 behind", single + _old(1, t.now_ms)[:-1])
    for size in (1, 11, 12, 16, 17, 40, 61, len(single) - 1):
        t.add(f"cut at {size}", single[:size])
    t.add("a batch of 5,000 bytes cut behind", single + t.batch(records(300), 300)[:-1])
    t.add("a bad batch and bytes behind", t.batch(checksum=1) + b"\1\2\3")
    t.add("a large batch and bytes behind", t.batch(records(400), 400) + b"\1\2\3")
    t.add("bytes behind, compressed", t.batch(codec=ZSTD) + b"\1\2\3")
    t.add("bytes behind, to zstd", single + b"\1\2\3", topic="zstd")
    t.add("bytes behind, append time", single + b"\1\2\3", topic="append-time")
    t.add("small with bytes behind that are too much", t.batch() + bytes(8) + b"\1" * 300, topic="small")


def _headers(t: Table) -> None:
    for magic in (0, 1):
        t.add(f"magic {magic}", _old(magic, t.now_ms))
        t.add(f"v2 that says magic {magic}", t.batch(magic=magic))
        t.add(f"message set of magic {magic}", _old(magic, t.now_ms) * 2)
        t.add(f"compressed magic {magic}", twin.wrapper(0, _old(magic, t.now_ms), GZIP, magic=magic))
    for magic in (3, 4, 127, -1, -128):
        t.add(f"magic {magic}", t.batch(magic=magic))
    for length in (-1, 0, 1, 13, 14, 15, 21, 22, 48, 49):
        t.add(f"length {length}", t.batch(length=length))
        t.add(f"length {length}, no more", t.batch(length=length)[: max(length + 12, 12)])
    t.add("length too much", t.batch(length=1 << 30))
    t.add("length of minus 2 to the 31", t.batch(length=-(1 << 31)))
    t.add("checksum", t.batch(checksum=12345))
    t.add("checksum of many", t.batch(records(400), 400)[:-1] + b"\x02")
    for base in (1, -1, 5, 1 << 62):
        t.add(f"base offset {base}", t.batch(base_offset=base))
    t.add("base offset and checksum", t.batch(base_offset=1, checksum=1))


def _flags(t: Table) -> None:
    for codec in (5, 6, 7):
        t.add(f"codec {codec}", t.batch(codec=codec))
        t.add(f"codec {codec} to zstd", t.batch(codec=codec), topic="zstd")
    t.add("codec 5 and checksum", t.batch(codec=5, checksum=1))
    t.add("codec 5 and base offset", t.batch(codec=5, base_offset=1))
    t.add("codec 5 twice", t.batch(codec=5) * 2)
    t.add("codec 5 and bytes behind", t.batch(codec=5) + bytes(20))
    t.add("codec 5 too large", t.batch(records(100), 100, codec=5), topic="small")
    t.add("codec 5 and count", t.batch(codec=5, last_delta=3))
    t.add("codec 5 and count -1", t.batch(b"", -1, codec=5))
    t.add("codec 5 control", t.batch(codec=5, attributes=CONTROL))
    t.add("codec 5 of v1", _old(1, t.now_ms, attributes=5))
    t.add("control", t.batch(attributes=CONTROL))
    marker = record(key=twin.varint(4) + b"\0\0\0\1", value=twin.varint(6) + bytes(6))
    whose = {"producer_id": 7, "producer_epoch": 0}
    t.add("a commit marker", t.batch(marker, attributes=CONTROL | TRANSACTIONAL, **whose))
    t.add("transactional without id", t.batch(attributes=TRANSACTIONAL))
    t.add(
        "transactional without producer id",
        t.batch(attributes=TRANSACTIONAL),
        transactional_id="nobody",
    )
    t.add(
        "transactional of a producer without id", t.batch(attributes=TRANSACTIONAL, base_sequence=0, **whose)
    )
    t.add("control of a producer", t.batch(attributes=CONTROL, base_sequence=0, **whose))
    for bit in (7, 8, 9, 14):
        t.add(f"attribute bit {bit}", t.batch(attributes=1 << bit))
        t.add(f"attribute bit {bit}, wrong time", t.batch(attributes=1 << bit, max_timestamp=5))
        t.add(f"attribute bit {bit}, append time", t.batch(attributes=1 << bit), topic="append-time")
    t.add("attribute bit 15", t.batch(attributes=-(1 << 15)))
    for codec in (0, ZSTD):
        two = records(2, time=twin.varint(-5)), 2
        for topic in TOPICS:
            if topic.startswith("small"):
                continue
            t.add(
                f"delete horizon {codec} {topic}", t.batch(*two, codec=codec, attributes=HORIZON), topic=topic
            )
            t.add(
                f"log append {codec} {topic}", t.batch(*two, codec=codec, attributes=LOG_APPEND), topic=topic
            )
        for moved in (-HOUR_MS - 600_000, HOUR_MS + 600_000):
            base, maximum = t.now_ms + moved, t.now_ms + moved
            options = {"codec": codec, "attributes": LOG_APPEND}
            t.add(
                f"log append {codec}, record at {moved}",
                t.batch(records(2), 2, base_timestamp=base, **options),
                topic="bounded",
            )
            t.add(
                f"log append {codec}, header at {moved}",
                t.batch(records(2), 2, max_timestamp=maximum, **options),
                topic="bounded",
            )
        none = t.batch(records(2), 2, max_timestamp=-1, codec=codec, attributes=LOG_APPEND)
        t.add(f"log append {codec}, no time", none)
        t.add(f"log append {codec}, no time, keyless", _keyless_none(t, codec), topic="compact")
        both = LOG_APPEND | HORIZON
        t.add(f"log append and horizon {codec}", t.batch(*two, codec=codec, attributes=both))
    many = t.batch(records(400), 400, attributes=LOG_APPEND)
    t.add("log append of many", many)
    t.add("delete horizon of many", t.batch(records(400), 400, attributes=HORIZON))


def _keyless_none(t: Table, codec: int) -> bytes:
    body = record() + record(1, key=NULL)
    return t.batch(body, 2, max_timestamp=-1, codec=codec, attributes=LOG_APPEND)


def _producers(t: Table) -> None:
    def of(sequence: int, count: int = 1, epoch: int = 0, producer: int = 7, **more: int) -> bytes:
        whose = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
        return t.batch(records(count), count, **whose, **more)

    t.add("producer without sequence", of(-1))
    t.add("producer with sequence -2", of(-2))
    t.add("producer without epoch", of(0, epoch=-1))
    t.add("producer without epoch, any sequence", of(0, epoch=-1), of(5, epoch=-1), of(2, epoch=-1))
    t.add("producer without epoch, again", of(0, epoch=-1), of(1, epoch=-1), of(0, epoch=-1))
    t.add("producer without epoch, then with", of(3, epoch=-1), of(9, epoch=0), of(10, epoch=-1))
    t.add("producer without epoch, then with at 0", of(3, epoch=-1), of(0, epoch=0), of(1, epoch=0))
    t.add("producer with epoch -2", of(0, epoch=-2))
    t.add("producer with epoch -2 after another", of(0, epoch=-1), of(0, epoch=-2))
    t.add("epoch and sequence without producer", of(5, producer=-1))
    t.add("producer -2", of(5, producer=-2))
    t.add("producer of 63 bits", of(0, producer=(1 << 63) - 1, epoch=(1 << 15) - 1))
    t.add("any first sequence", of(17), of(18))
    t.add("the same again", of(0, 3), of(3, 2), of(0, 3), of(3, 2))
    t.add("the same again in another codec", of(0, 3), of(0, 3, codec=ZSTD))
    old = {"base_timestamp": t.now_ms - 1000, "max_timestamp": t.now_ms - 1000}
    t.add("the same again at another time", of(0), of(0, **old))
    t.add("the same again, append time", of(0, 3), of(0, 3), topic="append-time")
    t.add("the same again, no time", of(0, **dict.fromkeys(old, -1)), of(0, **dict.fromkeys(old, -1)))
    t.add("the same again, the sixth", *(of(i) for i in range(6)), of(0))
    t.add("the same again, the fifth", *(of(i) for i in range(6)), of(1))
    t.add("the same again with bytes behind", of(0), of(0) + b"\1\2\3")
    t.add("the same again, damaged", of(0), of(0, checksum=1))
    t.add("the same again, keyless", of(0), of(0), topic="compact")
    t.add("a gap", of(0), of(2))
    t.add("an overlap", of(0, 3), of(2, 3))
    t.add("a part of it", of(0, 3), of(0, 2))
    t.add("the last sequence, then 0", of((1 << 31) - 1), of(0), of(1))
    t.add("over the last sequence", of((1 << 31) - 2, 4), of(2), of((1 << 31) - 2, 4))
    t.add("an older epoch", of(0, epoch=5), of(1, epoch=4))
    t.add("a new epoch at 0", of(0, epoch=5), of(0, epoch=6), of(1, epoch=6))
    t.add("a new epoch not at 0", of(0, epoch=5), of(1, epoch=6))


def _counts(t: Table) -> None:
    for count in (0, -1, 1, 2, 4, 1 << 30, -(1 << 31), (1 << 31) - 1):
        t.add(f"count {count} of 3", t.batch(records(3), count, last_delta=2))
        t.add(f"count {count} and its delta, of 3", t.batch(records(3), count, last_delta=max(count - 1, -1)))
    for delta in (-1, 0, 1, 3, 1 << 30, (1 << 31) - 1, -(1 << 31)):
        t.add(f"last delta {delta} of 3", t.batch(records(3), 3, last_delta=delta))
    t.add("no records, count 0, delta 0", t.batch(b"", 0, last_delta=0))
    t.add("no records, count 0, delta -1", t.batch(b"", 0, last_delta=-1))
    t.add("no records, count 1", t.batch(b"", 1))
    t.add("no records, count 1, compressed", t.batch(b"", 1, codec=ZSTD))
    t.add("count of 2 to the 30, compressed", t.batch(records(3), 1 << 30, codec=ZSTD))
    t.add("more records than bytes, zstd", t.batch(records(9000), 9000, codec=ZSTD))
    t.add("more records than bytes, to zstd", t.batch(records(9000), 9000), topic="zstd")
    t.add("fewer records, compressed", t.batch(records(2), 3, codec=ZSTD))
    t.add("more records, compressed", t.batch(records(4), 3, codec=ZSTD))


def _bodies(t: Table) -> None:
    """What is wrong inside of records, plain and compressed, in place and recompressed."""
    span = twin.varint
    bodies: dict[str, tuple[bytes, int]] = {
        "offsets all 0": (record() * 3, 3),
        "offsets from 1": (record(1) + record(2) + record(3), 3),
        "offsets go down": (record(2) + record(1) + record(0), 3),
        "offsets with a gap": (record(0) + record(1) + record(5), 3),
        "offsets negative": (record(-1) + record(0) + record(1), 3),
        "record size -1": (record(size=-1), 1),
        "record size 0": (record(size=0), 1),
        "record size too small": (record(size=3), 1),
        "record size one short": (record(size=len(record()) - 2), 1),
        "record size one more": (record(size=len(record())), 1),
        "record size too large": (record(size=1 << 20), 1),
        "record size of 2 GiB": (record(size=(1 << 31) - 1), 1),
        "record size over-long": (record(size=OVER_LONG), 1),
        "record size with a zero": (record(size=bytes([twin.varint(8)[0] | 0x80, 0])), 1),
        "record size cut": (b"\x80", 1),
        "offset over-long": (record(offset=OVER_LONG), 1),
        "offset with a zero": (record(offset=b"\x80\x00"), 1),
        "offset with high bits": (record(offset=b"\x80\x80\x80\x80\x70"), 1),
        "time over-long": (record(time=b"\x80" * 10 + b"\x01"), 1),
        "time with high bits": (record(time=b"\x80" * 9 + b"\x7e"), 1),
        "key size -2": (record(key=span(-2)), 1),
        "key size least": (record(key=span(-(1 << 31))), 1),
        "key size too large": (record(key=span(1 << 20) + b"k"), 1),
        "key size over-long": (record(key=OVER_LONG + b"k"), 1),
        "value size -2": (record(value=span(-2)), 1),
        "value size too large": (record(value=span(1 << 20) + b"v"), 1),
        "value up to the end": (record(value=span(2) + b"v"), 1),
        "header count -1": (record(headers=span(-1)), 1),
        "header count too large": (record(headers=span(1 << 20)), 1),
        "header count 1 of 0": (record(headers=span(1)), 1),
        "header key null": (record(headers=span(1) + span(-1) + span(-1)), 1),
        "header key size -2": (record(headers=span(1) + span(-2) + span(-1)), 1),
        "header value size -2": (record(headers=span(1) + span(1) + b"h" + span(-2)), 1),
        "header value too large": (record(headers=span(1) + span(1) + b"h" + span(99)), 1),
        "a byte inside": (record(tail=b"\0"), 1),
        "bytes inside that look like a record": (record(tail=record()), 1),
        "a byte between": (record() + b"\0" + record(1), 2),
        "a byte behind": (record() + b"\0", 1),
        "a record behind": (records(2), 1),
        "attributes of a record": (record(attributes=1), 1),
        "noise": (b"this is no record at all", 1),
        "the third is bad": (records(2) + record(2, tail=b"\0"), 3),
        "not a number in the third": (records(2) + record(7), 3),
    }
    for name, (body, count) in bodies.items():
        t.add(name, t.batch(body, count))
        t.add(f"{name}, gzip", t.batch(body, count, codec=GZIP))
        t.add(f"{name}, zstd", t.batch(body, count, codec=ZSTD))
        t.add(f"{name}, to zstd", t.batch(body, count), topic="zstd")
        t.add(f"{name}, gzip to zstd", t.batch(body, count, codec=GZIP), topic="zstd")


def _compressed(t: Table) -> None:
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        whole = twin.compress(codec, records(3))
        for name, body in {
            "noise": b"this is not compressed",
            "nothing": b"",
            "cut": whole[:-5],
            "bytes behind": whole + b"\0\0\0",
            "twice": whole + whole,
        }.items():
            for topic in ("plain", "uncompressed"):
                t.add(f"codec {codec}, {name}, {topic}", t.batch(body, 3, attributes=codec), topic=topic)
    t.add("gzip that says zstd", t.batch(twin.compress(GZIP, records(3)), 3, attributes=ZSTD))
    large = record(value=twin.varint(3_000_000) + bytes(3_000_000))
    t.add("3 MB in zstd", t.batch(large, codec=ZSTD))


def _times(t: Table) -> None:
    for codec in (0, ZSTD):
        for name, delta in {
            "an hour ago": -HOUR_MS - 600_000,
            "in an hour": HOUR_MS + 600_000,
        }.items():
            body = (
                record() + record(1, time=twin.varint(delta)) + record(2) + record(3, time=twin.varint(delta))
            )
            for topic in ("bounded", "plain", "append-time"):
                t.add(f"two records {name} {codec} {topic}", t.batch(body, 4, codec=codec), topic=topic)
            both = record(0, key=NULL) + record(1, time=twin.varint(delta)) + record(2) + record(3, key=NULL)
            t.add(f"keyless, and one {name} {codec}", t.batch(both, 4, codec=codec), topic="bounded")
            same = record(0, key=NULL, time=twin.varint(delta)) + record(1)
            t.add(f"keyless and {name} {codec}", t.batch(same, 2, codec=codec), topic="bounded")
        t.add(f"no time {codec}", t.batch(base_timestamp=-1, max_timestamp=-1, codec=codec), topic="bounded")
        for largest in (-1, 0, 5, t.now_ms + 99, 1 << 62):
            name = "later" if largest == t.now_ms + 99 else str(largest)
            t.add(f"largest time {name} {codec}", t.batch(max_timestamp=largest, codec=codec))
    for base in (-2, -5, -(1 << 63), (1 << 63) - 1, 1 << 62):
        for topic in ("plain", "bounded", "append-time"):
            t.add(f"time {base} {topic}", t.batch(base_timestamp=base, max_timestamp=base), topic=topic)
    t.add("time over 2 to the 63", t.batch(record(time=twin.varint(5)), base_timestamp=(1 << 63) - 1))


def _topics(t: Table) -> None:
    """What the topic does not take."""
    for codec in (0, ZSTD):
        body = record() + record(1, key=NULL) + record(2) + record(3, key=NULL)
        for topic in ("compact", "plain"):
            t.add(f"keyless {codec} {topic}", t.batch(body, 4, codec=codec), topic=topic)
        t.add(f"all keyless {codec}", t.batch(records(300, key=NULL), 300, codec=codec), topic="compact")
        t.add(f"keyless and bad {codec}", t.batch(body[:-1] + b"\x05", 4, codec=codec), topic="compact")
    t.add("keyless first and a bad checksum", t.batch(record(key=NULL), checksum=1), topic="compact")
    t.add("over max.message.bytes", t.batch(records(50), 50), topic="small")
    t.add("exactly max.message.bytes", t.batch(record(value=twin.varint(128) + bytes(128))), topic="small")
    t.add("one over max.message.bytes", t.batch(record(value=twin.varint(129) + bytes(129))), topic="small")
    t.add("over max.message.bytes and a bad checksum", t.batch(records(50), 50, checksum=1), topic="small")
    t.add("over max.message.bytes and a base offset", t.batch(records(50), 50, base_offset=1), topic="small")
    large = record(value=twin.varint(1_100_000) + bytes(1_100_000))
    t.add("over segment.bytes", t.batch(large), topic="small-segments")


def _old(magic: int, now_ms: int, attributes: int = 0) -> bytes:
    return twin.message(0, b"k", b"v" * 40, magic=magic, timestamp=now_ms, attributes=attributes)
