"""Small logs with one thing in them each, and the plain encoders that forge what lies beside a log."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from crc32c import crc32c

from siltstone.base.records.control import end_transaction_marker
from tests.support.cleaning.logs import DAY, NOW, Rec, batch, one, write_segment
from tests.support.golden_sets import write_checkpoint
from tests.support.records import twin

Segments = Mapping[int, Sequence[bytes]]
Settings = tuple[dict[str, str], tuple[str, ...]]
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "segment.bytes": "600",
    "delete.retention.ms": "1000",
}
MARKER = '{"version":0,"brokerEpoch":-1}'
SNAPSHOT = struct.Struct(">qhiqiqiq")
ABORTED = struct.Struct(">hqqqq")


def finish(data: Path) -> None:
    """What a clean stop leaves beside the partitions, where it is not there yet."""
    (data / ".kafka_cleanshutdown").write_text(MARKER)
    (data / ".lock").touch()
    ends = data / "replication-offset-checkpoint"
    if ends.exists() and not (data / "recovery-point-offset-checkpoint").exists():
        (data / "recovery-point-offset-checkpoint").write_bytes(ends.read_bytes())


def write_partition(
    data: Path, name: str, segments: Segments, aborted: Iterable[tuple[int, ...]] = ()
) -> int:
    """A partition's files with indexes; ``aborted``: (base, producer, first, last, last stable) each. Its
    end."""
    partition = data / name
    partition.mkdir(parents=True)
    for base, batches in segments.items():
        write_segment(partition, base, b"".join(batches), 50)
        stamp = (NOW - 10 * DAY + base) * 1_000_000
        os.utime(partition / f"{base:020}.log", ns=(stamp, stamp))
    for base, *entry in aborted:
        with (partition / f"{base:020}.txnindex").open("ab") as file:
            file.write(ABORTED.pack(0, *entry))
    last = [raw for batches in segments.values() for raw in batches][-1]
    first, _, _, _, _, _, delta, *_ = struct.unpack_from(">qiibIhi", last)
    end: int = first + delta + 1
    (partition / f"{end:020}.snapshot").write_bytes(snapshot([]))
    epochs = f"0\n1\n0 {min(segments)}\n"
    (partition / "leader-epoch-checkpoint").write_text(epochs)
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n")
    return end


def write_meta(data: Path, ends: Mapping[tuple[str, int], int]) -> None:
    """The files of a log directory."""
    (data / "meta.properties").write_text("version=1\ncluster.id=tests\nnode.id=0\n")
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        write_checkpoint(data / name, dict(ends))


def snapshot(entries: Iterable[tuple[int, ...]]) -> bytes:
    """A producer snapshot with the right checksum; entries as in the drawing of ``log/producers.py``."""
    rows = [SNAPSHOT.pack(*entry) for entry in entries]
    body = struct.pack(">I", len(rows)) + b"".join(rows)
    return struct.pack(">hI", 1, crc32c(body)) + body


def resealed(raw: bytes) -> bytes:
    """A batch with the checksum that goes with its bytes."""
    return raw[:17] + struct.pack(">I", crc32c(raw[21:])) + raw[21:]


def transactional(offset: int, key: str, value: str | None, producer: int, sequence: int) -> bytes:
    """A batch of one record within a transaction."""
    return one(
        offset,
        key,
        value,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    """The end of a transaction."""
    encoded = end_transaction_marker(
        is_commit=commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW - DAY
    )
    return struct.pack(">q", offset) + encoded.tobytes()[8:]


# The logs


def _plain(data: Path) -> Settings:
    """Keys a to d again and again, keyless records, an empty key, an empty value; a high watermark in
    between."""
    segments: dict[int, list[bytes]] = {}
    for offset in range(24):
        key = (None, "", "a", "b", "c", "d")[offset % 6]
        segments.setdefault(offset - offset % 5, []).append(one(offset, key, f"value {offset}"))
    write_meta(data, {("plain", 0): write_partition(data, "plain-0", segments) - 2})
    return CONFIG, ("plain",)


def _tombstones(data: Path) -> Settings:
    """Tombstones without a stamp, with one that is over, with one that is not."""
    segments = {
        0: [one(0, "a"), one(1, "b"), one(2, "c")],
        3: [one(3, "a", None, delete_horizon_ms=NOW - 1), one(4, "b", None, delete_horizon_ms=NOW + 1)],
        5: [one(5, "c", None), one(6, "d", None), one(7, "d", "again")],
        8: [one(8, "e")],
    }
    end = write_partition(data, "tombstones-0", segments)
    write_meta(data, {("tombstones", 0): end})
    write_checkpoint(data / "cleaner-offset-checkpoint", {("tombstones", 0): 5})
    return CONFIG, ("tombstones",)


def _transactions(data: Path) -> Settings:
    """Committed, aborted and open ones over three segments, two producers side by side."""
    t = transactional
    segments = {
        0: [one(0, "a", "committed"), t(1, "a", "aborted", 7, 0), t(2, "b", "committed", 8, 0)],
        3: [t(3, "c", "aborted", 7, 1), marker(4, 8, commit=True), marker(5, 7, commit=False)],
        6: [
            t(6, "b", "aborted", 8, 1),
            one(7, "d"),
            marker(8, 8, commit=False),
            t(9, "d", "committed", 7, 2),
        ],
        10: [marker(10, 7, commit=True), one(11, "c"), t(12, "a", "open", 8, 2)],
        13: [t(13, "d", "open", 8, 3), one(14, "c", "newest")],
        15: [one(15, "e")],
    }
    aborted = [(3, 7, 1, 5, 6), (6, 8, 6, 8, 9)]
    end = write_partition(data, "transactions-0", segments, aborted)
    rows = [(8, 0, 3, 13, 0, NOW - DAY, 0, 12), (7, 0, 2, 9, 0, NOW - DAY, 0, -1)]
    (data / "transactions-0" / f"{end:020}.snapshot").write_bytes(snapshot(rows))
    write_meta(data, {("transactions", 0): end})
    return CONFIG, ("transactions",)


def _settled(data: Path) -> Settings:
    """As ``_transactions``, all of them ended, so that everything may be cleaned; older snapshots are
    there."""
    t = transactional
    segments = {
        0: [one(0, "a", "committed"), t(1, "a", "aborted", 7, 0), t(2, "b", "committed", 7, 1)],
        3: [marker(3, 7, commit=False), t(4, "c", "committed", 7, 2), t(5, "a", "committed", 8, 0)],
        6: [marker(6, 7, commit=True), t(7, "c", "aborted", 7, 3), marker(8, 8, commit=True)],
        9: [t(9, "b", "committed", 8, 1), marker(10, 7, commit=False), marker(11, 8, commit=True)],
        12: [one(12, "e")],
    }
    aborted = [(3, 7, 1, 3, 4), (9, 7, 7, 10, 9)]
    end = write_partition(data, "settled-0", segments, aborted)
    rows = [(8, 0, 1, 9, 0, NOW - 1000, 0, -1), (7, 0, 3, 7, 0, NOW - 1000, 0, -1)]
    for offset in (12, end):
        (data / "settled-0" / f"{offset:020}.snapshot").write_bytes(snapshot(rows))
    write_meta(data, {("settled", 0): end})
    return CONFIG, ("settled",)


def _expiring(data: Path) -> Settings:
    """``compact,delete`` with old and young segments."""
    old, young = NOW - 2 * DAY, NOW - DAY // 2

    def record(offset: int, key: str, time: int) -> bytes:
        return batch([Rec(offset=offset, key=key.encode(), timestamp=time)])

    segments = {
        0: [record(0, "a", old)],
        1: [record(1, "b", old), record(2, "c", old)],
        3: [record(3, "a", young)],
        4: [record(4, "d", old)],
    }
    write_meta(data, {("expiring", 0): write_partition(data, "expiring-0", segments)})
    settings = {"cleanup.policy": "compact,delete", "retention.ms": str(DAY), "segment.bytes": "100"}
    return {**CONFIG, **settings}, ("expiring",)


def _neighbours(data: Path) -> Settings:
    """Several partitions of several topics; one topic is cleaned."""
    ends = {}
    for number, (topic, partition) in enumerate([("ours", 0), ("ours", 1), ("theirs", 0), ("a.b_c-d", 3)]):
        segments: dict[int, list[bytes]] = {}
        for offset in range(10 + number):
            key = f"k{offset % 3}"
            segments.setdefault(offset - offset % 3, []).append(one(offset, key, f"{topic} {offset}"))
        ends[topic, partition] = write_partition(data, f"{topic}-{partition}", segments)
    write_meta(data, ends)
    return CONFIG, ("ours",)


def _codecs(data: Path) -> Settings:
    """A batch in each codec, of which one record stays."""
    segments = {}
    for codec in range(5):
        records = [
            Rec(offset=10 * codec + i, key=b"k%d" % (i % 3 + codec), value=b"v%d" % i * 40) for i in range(10)
        ]
        segments[10 * codec] = [batch(records, codec=codec)]
    segments[50] = [one(50, "last")]
    write_meta(data, {("codecs", 0): write_partition(data, "codecs-0", segments)})
    return CONFIG, ("codecs",)


def _producers(data: Path) -> Settings:
    """Idempotent producers, one of them silent since long, whose records are all superseded."""
    segments: dict[int, list[bytes]] = {}
    for offset in range(12):
        producer = 10 + offset % 2
        time = NOW - (5 * DAY if producer == 11 else 1000)
        record = Rec(offset=offset, key=b"a", value=b"%d" % offset, timestamp=time)
        encoded = batch([record], producer_id=producer, producer_epoch=0, base_sequence=offset // 2)
        segments.setdefault(offset - offset % 4, []).append(encoded)
    segments[12] = [one(12, "a")]
    end = write_partition(data, "producers-0", segments)
    rows = [(10, 0, 5, 10, 0, NOW - 1000, 0, -1), (11, 0, 5, 11, 0, NOW - 5 * DAY, 0, -1)]
    (data / "producers-0" / f"{end:020}.snapshot").write_bytes(snapshot(rows))
    write_meta(data, {("producers", 0): end})
    return CONFIG, ("producers",)


def _wide(data: Path) -> Settings:
    """Offsets further above the base than an index can say, as brokers before 1.1 left them."""
    far = (1 << 31) + 100
    inner = b"".join(twin.message(i, b"k%d" % i, b"v", magic=1, timestamp=NOW - DAY) for i in range(3))
    wrapped = twin.wrapper(far + 12, inner, twin.GZIP, magic=1, timestamp=NOW - DAY)
    log = [one(0, "a"), one(1, "b"), one(far, "a"), one(far + 1, "c")]
    partition = data / "wide-0"
    partition.mkdir(parents=True)
    (partition / f"{0:020}.log").write_bytes(b"".join(log) + wrapped)
    write_segment(partition, far + 20, one(far + 20, "e"), 50)
    (partition / f"{far + 21:020}.snapshot").write_bytes(snapshot([]))
    write_meta(data, {("wide", 0): far + 21})
    return CONFIG, ("wide",)


MADE: dict[str, Callable[[Path], Settings]] = {
    "plain": _plain,
    "tombstones": _tombstones,
    "transactions": _transactions,
    "settled": _settled,
    "expiring": _expiring,
    "neighbours": _neighbours,
    "codecs": _codecs,
    "producers": _producers,
    "wide": _wide,
}
