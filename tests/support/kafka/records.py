"""Records as the clients see them, the workload that the tests write, and a naive model of compaction.

The model is a dict and a loop over records; it shares nothing with the product's cleaner.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Partition = tuple[str, int]
Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """What is produced."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 0


class Record(NamedTuple):
    """What is consumed."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def workload(*, seed: int, prefix: str, count: int, keys: int, start_ms: int) -> list[Sent]:
    """Records with repeated keys, tombstones, empty values and headers; `prefix` begins every key."""
    rng = random.Random(seed)
    return [
        Sent(
            key=f"{prefix}-key-{rng.randrange(keys):05d}".encode(),
            value=_value(rng),
            headers=_headers(rng),
            timestamp_ms=start_ms + 10 * index + rng.randrange(-40, 40),
        )
        for index in range(count)
    ]


def compacted(records: Sequence[Record], end: int) -> list[Record]:
    """What a first cleaning of [0, end) leaves: the last record of each key in it, and all from `end` on."""
    latest = {record.key: record.offset for record in records if record.offset < end}
    return [record for record in records if record.offset >= end or latest[record.key] == record.offset]


def latest_values(records: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    """The table that the log stands for: last value of each key, tombstoned keys left out."""
    table = {record.key: record.value for record in records}
    return {key: value for key, value in table.items() if value is not None}


def _value(rng: random.Random) -> bytes | None:
    kind = rng.random()
    if kind < 0.08:
        return None
    if kind < 0.12:
        return b""
    word = rng.choice([b"order", b"user", b"street", b"\xff\x00\n"])
    return word * rng.randrange(1, 40) + rng.randbytes(4)


def _headers(rng: random.Random) -> Headers:
    if rng.random() < 0.8:
        return ()
    values = [b"", None, b"trace", "größe".encode()]
    return tuple(
        (rng.choice(["trace-id", "h", "x-ü"]), rng.choice(values)) for _ in range(rng.randrange(1, 4))
    )
