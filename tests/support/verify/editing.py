"""Segments taken apart and put together again, so that a result can be spoiled in exactly one way."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from siltstone.base.records.layout import HEADER
from tests.support.cleaning.logs import Header, Rec, batch, headers_of, write_segment
from tests.support.records import twin
from tests.support.verify.staging import Pair

CONTROL, HORIZON, LOG_APPEND, TRANSACTIONAL, CODEC = 0x20, 0x40, 0x08, 0x10, 0x07
ROOM = 10 << 20


@dataclass(frozen=True, kw_only=True)
class Edited:
    """A batch: its header, its records, its bytes."""

    header: Header
    records: tuple[twin.Record, ...]
    raw: bytes

    @property
    def is_data(self) -> bool:
        return not self.header.attributes & CONTROL

    @property
    def tombstones(self) -> list[twin.Record]:
        return [record for record in self.records if record.value is None and self.is_data]

    def rebuilt(self, records: Sequence[twin.Record] | None = None, **shape: Any) -> bytes:
        """The batch with other records, or another header."""
        mine, header = self.records if records is None else records, self.header
        bits = header.attributes
        given = {
            "base_offset": header.base_offset,
            "leader_epoch": header.leader_epoch,
            "codec": bits & CODEC,
            "log_append": bool(bits & LOG_APPEND),
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "transactional": bool(bits & TRANSACTIONAL),
            "control": bool(bits & CONTROL),
            "delete_horizon_ms": header.base_timestamp if bits & HORIZON else None,
            "last_offset": header.last_offset,
            **shape,
        }
        plain = [
            Rec(offset=r.offset, key=r.key, value=r.value, timestamp=r.timestamp, headers=r.headers)
            for r in mine
        ]
        return batch(plain, **given)  # type: ignore[arg-type]


_FIELDS = (
    "base_offset size leader_epoch magic crc attributes last_delta base_timestamp max_timestamp producer_id "
    "producer_epoch base_sequence count"
).split()


def patched(raw: bytes, **changes: int) -> bytes:
    """A batch with other header fields and the checksum that belongs to them."""
    fields = dict(zip(_FIELDS, HEADER.unpack_from(raw), strict=True)) | changes
    body = HEADER.pack(*fields.values()) + raw[HEADER.size :]
    crc = twin.crc32c(body[21:])
    return body[:17] + crc.to_bytes(4, "big") + body[21:]


def read_batches(partition: Path, base: int) -> list[Edited]:
    """The batches of a segment."""
    found = []
    for header, raw in headers_of((partition / f"{base:020}.log").read_bytes()):
        (entry,) = twin.decode_log(raw)
        found.append(Edited(header=header, records=entry.records, raw=raw))
    return found


def bases(partition: Path) -> list[int]:
    """The segments' base offsets, ascending."""
    return sorted(int(path.stem) for path in partition.glob("*.log"))


@dataclass(kw_only=True)
class Spoiler:
    """Spoils a pair's AFTER; the seed chooses where."""

    pair: Pair
    random: random.Random

    @property
    def partition(self) -> Path:
        return self.pair.partition

    @property
    def closed(self) -> list[int]:
        """The bases of AFTER's segments but for the active one, those with batches."""
        partition = self.partition
        return [base for base in bases(partition)[:-1] if (partition / f"{base:020}.log").stat().st_size]

    def write(self, base: int, raw: Sequence[bytes]) -> None:
        """Replace a segment; its indexes are those of the new bytes."""
        path = self.partition / f"{base:020}.log"
        times = path.stat()
        write_segment(self.partition, base, b"".join(raw), self.pair.interval, ROOM)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def choose(
        self, wanted: Callable[[Edited], bool], *, active: bool = False
    ) -> tuple[int, int, list[Edited]]:
        """(segment, number of the batch, all its batches) of one that will do."""
        places = bases(self.partition)[-1:] if active else self.closed
        found = [
            (base, number, batches)
            for base in places
            for batches in [read_batches(self.partition, base)]
            for number, each in enumerate(batches)
            if wanted(each)
        ]
        assert found, "nothing there to be spoiled"
        return self.random.choice(found)

    def change(
        self, wanted: Callable[[Edited], bool], edit: Callable[[Edited], bytes], **topic_partition: bool
    ) -> None:
        """Put what ``edit`` makes of one batch in its place."""
        base, number, batches = self.choose(wanted, **topic_partition)
        raw = [each.raw for each in batches]
        raw[number] = edit(batches[number])
        self.write(base, raw)

    def change_record(self, wanted: Callable[[twin.Record], bool] = lambda _: True, **changes: Any) -> None:
        """Change one data record in place."""

        def will_do(each: Edited) -> bool:
            return each.is_data and any(map(wanted, each.records))

        def edit(each: Edited) -> bytes:
            number = self.random.choice([i for i, record in enumerate(each.records) if wanted(record)])
            records = list(each.records)
            records[number] = replace(records[number], **changes)
            return each.rebuilt(records)

        self.change(will_do, edit)

    def drop_record(self, wanted: Callable[[Edited, twin.Record], bool]) -> None:
        """Take one record away; a batch that loses all goes with it."""

        def will_do(each: Edited) -> bool:
            return each.is_data and any(wanted(each, record) for record in each.records)

        def edit(each: Edited) -> bytes:
            gone = self.random.choice([record for record in each.records if wanted(each, record)])
            left = [record for record in each.records if record is not gone]
            return each.rebuilt(left) if left else b""

        self.change(will_do, edit)

    def restore(self, wanted: Callable[[twin.Record, Edited], bool]) -> None:
        """Put a record of BEFORE back that AFTER has not, into its batch or as its whole batch again."""
        candidates = []
        new = {
            each.header.base_offset: (base, each)
            for base in self.closed
            for each in read_batches(self.partition, base)
        }
        edges = self.closed
        for base in bases(self.pair.original)[:-1]:
            for old in read_batches(self.pair.original, base):
                there = new.get(old.header.base_offset)
                kept = {record.offset for record in there[1].records} if there else set()
                missing = [r for r in old.records if r.offset not in kept and wanted(r, old)]
                homes = [edge for edge in edges if edge <= old.header.base_offset]
                if missing and homes and old.header.base_offset < self.end_of(homes[-1]):
                    candidates.append((homes[-1], old, there[1] if there else None, missing))
        assert candidates, "nothing there to be put back"
        home, old, there, missing = self.random.choice(candidates)
        back = self.random.choice(missing)
        base_shape: dict[str, Any] = {"codec": 0} if there is None else {}
        records = sorted([*(there.records if there else ()), back], key=lambda each: each.offset)
        raw = (there or old).rebuilt(records, **base_shape)
        batches = {each.header.base_offset: each.raw for each in read_batches(self.partition, home)}
        batches[old.header.base_offset] = raw
        self.write(home, [batches[each] for each in sorted(batches)])

    def end_of(self, base: int) -> int:
        """The base of the next segment."""
        return next(each for each in bases(self.partition) if each > base)
