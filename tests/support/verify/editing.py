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
        contents, header = self.records if records is None else records, self.header
        bits = header.attributes
        header_fields = {
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
        recs = [
            Rec(offset=r.offset, key=r.key, value=r.value, timestamp=r.timestamp, headers=r.headers)
            for r in contents
        ]
        return batch(recs, **header_fields)  # type: ignore[arg-type]


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
    batches = []
    for header, raw in headers_of((partition / f"{base:020}.log").read_bytes()):
        (entry,) = twin.decode_log(raw)
        batches.append(Edited(header=header, records=entry.records, raw=raw))
    return batches


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
        self, fits: Callable[[Edited], bool], *, active: bool = False
    ) -> tuple[int, int, list[Edited]]:
        """(segment, number of the batch, all its batches) of one that will do."""
        places = bases(self.partition)[-1:] if active else self.closed
        candidates = [
            (base, number, batches)
            for base in places
            for batches in [read_batches(self.partition, base)]
            for number, batch in enumerate(batches)
            if fits(batch)
        ]
        assert candidates, "nothing there to be spoiled"
        return self.random.choice(candidates)

    def change(
        self, fits: Callable[[Edited], bool], edit: Callable[[Edited], bytes], **topic_partition: bool
    ) -> None:
        """Put what ``edit`` makes of one batch in its place."""
        base, number, batches = self.choose(fits, **topic_partition)
        raw = [batch.raw for batch in batches]
        raw[number] = edit(batches[number])
        self.write(base, raw)

    def change_record(self, fits: Callable[[twin.Record], bool] = lambda _: True, **changes: Any) -> None:
        """Change one data record in place."""

        def will_do(batch: Edited) -> bool:
            return batch.is_data and any(map(fits, batch.records))

        def edit(batch: Edited) -> bytes:
            number = self.random.choice([i for i, record in enumerate(batch.records) if fits(record)])
            records = list(batch.records)
            records[number] = replace(records[number], **changes)
            return batch.rebuilt(records)

        self.change(will_do, edit)

    def drop_record(self, fits: Callable[[Edited, twin.Record], bool]) -> None:
        """Take one record away; a batch that loses all goes with it."""

        def will_do(batch: Edited) -> bool:
            return batch.is_data and any(fits(batch, record) for record in batch.records)

        def edit(batch: Edited) -> bytes:
            dropped = self.random.choice([record for record in batch.records if fits(batch, record)])
            remaining = [record for record in batch.records if record is not dropped]
            return batch.rebuilt(remaining) if remaining else b""

        self.change(will_do, edit)

    def restore(self, fits: Callable[[twin.Record, Edited], bool]) -> None:
        """Put a record of BEFORE back that AFTER has not, into its batch or as its whole batch again."""
        candidates = []
        new = {
            batch.header.base_offset: (base, batch)
            for base in self.closed
            for batch in read_batches(self.partition, base)
        }
        edges = self.closed
        for base in bases(self.pair.original)[:-1]:
            for old in read_batches(self.pair.original, base):
                counterpart = new.get(old.header.base_offset)
                retained = {record.offset for record in counterpart[1].records} if counterpart else set()
                missing = [r for r in old.records if r.offset not in retained and fits(r, old)]
                homes = [edge for edge in edges if edge <= old.header.base_offset]
                if missing and homes and old.header.base_offset < self.end_of(homes[-1]):
                    candidates.append((homes[-1], old, counterpart[1] if counterpart else None, missing))
        assert candidates, "nothing there to be put back"
        home, old, counterpart, missing = self.random.choice(candidates)
        back = self.random.choice(missing)
        base_shape: dict[str, Any] = {"codec": 0} if counterpart is None else {}
        records = sorted(
            [*(counterpart.records if counterpart else ()), back], key=lambda record: record.offset
        )
        raw = (counterpart or old).rebuilt(records, **base_shape)
        batches = {batch.header.base_offset: batch.raw for batch in read_batches(self.partition, home)}
        batches[old.header.base_offset] = raw
        self.write(home, [batches[base] for base in sorted(batches)])

    def end_of(self, base: int) -> int:
        """The base of the next segment."""
        return next(following for following in bases(self.partition) if following > base)
