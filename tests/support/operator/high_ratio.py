"""Logs whose batches are thousands of times smaller than what is in them, gone through by every room.

Run as a program, a process of its own, so that what it takes of memory is nobody else's: the argument is a
folder with ``small`` and ``large``, log directories of the same shape; each room goes through the small one
first, which loads kernels and libraries. One JSON document: for each room the bytes of memory that it took at
most on its way through the large one, beyond what it began with.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from siltstone.base.clock import ManualClock
from siltstone.base.records.codecs import compress
from siltstone.commands import review
from siltstone.compaction.inplace.planning import find_horizons
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.log.dump import DumpOptions, dump_file, identify
from siltstone.log.read_only import ReadOnlyLogs
from siltstone.log.segments import list_segments
from siltstone.tables.arrow import to_batches
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import plan, read_split
from tests.support.cleaning.logs import DAY, NOW, WHERE, Rec, batch, one, run, write_log
from tests.support.records import twin

ZSTD, LZ4 = 4, 3
PER_BATCH = 3
"""Records: one with the same key everywhere, one with a key of its own, a tombstone."""


def packed_batch(offset: int, key: bytes, size: int) -> bytes:
    """A batch of ``PER_BATCH`` records, ``size`` bytes of zeros in all, compressed."""
    values = {b"everywhere": bytes(size // 2), key: bytes(size // 2), b"gone " + key: None}
    assert len(values) == PER_BATCH
    records = [Rec(offset=offset + at, key=name, value=values[name]) for at, name in enumerate(values)]
    return batch(records, codec=ZSTD)


def packed_log(path: Path, batches: int, size: int, *, grown: bool = False) -> Path:
    """A log of so many batches, each of ``size`` bytes once it is plain; returns the partition's folder.

    ``grown``: they were cleaned, and few small ones came behind them.
    """
    packed = [packed_batch(PER_BATCH * number, b"%d" % number, size) for number in range(batches)]
    end = PER_BATCH * batches
    few = [one(end, "everywhere"), one(end + 1, "0")] if grown else []
    segments = {0: packed, **({end: few} if grown else {}), end + len(few): [one(end + len(few), "active")]}
    partition = write_log(path, segments, high_watermark=end + 9, checkpoint=end if grown else None)
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    return partition


def packed_message_sets(path: Path, count: int, size: int) -> Path:
    """The same in message sets of magic 1."""
    message_sets = []
    for number in range(count):
        inner = twin.message(0, b"everywhere", bytes(size // 2), magic=1)
        inner += twin.message(1, b"%d" % number, bytes(size // 2), magic=1)
        value = bytes(compress(LZ4, np.frombuffer(inner, np.uint8)))
        message_sets.append(twin.message(2 * number + 1, None, value, magic=1, attributes=LZ4))
    return write_log(path, {0: message_sets, 2 * count: [one(2 * count, "active")]})


def _cleaned(path: Path) -> None:
    result = run(path, now_ms=NOW)
    assert result.status == "cleaned", result.reason


def _clean(folder: Path) -> None:
    shutil.copytree(folder / "log", folder / "cleaned")
    _cleaned(folder / "cleaned")


def _horizons(folder: Path) -> None:
    segments = list_segments(folder / "cleaned" / str(WHERE))[:1]
    assert find_horizons(segments, 1 << 40, NOW + 9 * DAY).is_due


def _explain(folder: Path) -> None:
    request = review.ExplainRequest(
        directories=[folder / "log"],
        topics=[WHERE.topic],
        config=["cleanup.policy=compact"],
        now_ms=NOW,
        no_spark=True,
        force=True,
    )
    (log,) = review.explain(request).logs
    assert log.status == "would_clean", log.reason


def _verify(folder: Path) -> None:
    request = review.VerifyRequest(
        before=folder / "log", after=folder / "cleaned", config=["cleanup.policy=compact"],
        topics=[WHERE.topic], now_ms=NOW, no_spark=True,
    )  # fmt: skip
    (log,) = review.verify(request).logs
    assert log.is_sound, log


def _compact(folder: Path) -> None:
    shutil.copytree(folder / "log", folder / "compacted")
    log = ReadOnlyLogs([folder / "compacted"], clock=ManualClock(NOW))[WHERE]
    assert TwoPhaseCompactor(InProcessCompactionEngine(1), clock=ManualClock(NOW)).compact(log).changed


def _table(folder: Path, **arguments: str) -> int:
    options = ReadOptions.of({"path": str(folder / "log"), **arguments})
    return sum(len(batch) for split in plan(options) for batch in read_split(split, options))


def _read(folder: Path) -> None:
    with ReadOnlyLogs([folder / "log"]) as logs:
        assert sum(len(polled) for polled in logs[WHERE].reader()) > PER_BATCH
        assert sum(len(batch) for batch in to_batches(logs[WHERE], view="latest")) > PER_BATCH


def _read_compacted(folder: Path) -> None:
    with ReadOnlyLogs([folder / "compacted"]) as logs, logs[WHERE].reader(read_compacted=True) as reader:
        assert sum(len(polled) for polled in reader) > PER_BATCH


def _dump(folder: Path) -> None:
    options = DumpOptions(deep_iteration=True)
    rows = list(dump_file(identify(list_segments(folder / "log" / str(WHERE))[0].path), options))
    assert sum(isinstance(row, dict) and row["type"] == "record" for row in rows) > PER_BATCH


ROOMS: dict[str, Callable[[Path], object]] = {
    "clean": _clean,
    "clean by a second pass": lambda folder: _cleaned(folder / "grown"),
    "clean message sets": lambda folder: _cleaned(folder / "old"),
    "horizons": _horizons,
    "explain": _explain,
    "verify": _verify,
    "compact": _compact,
    "read": _read,
    "read compacted": _read_compacted,
    "table": _table,
    "table of last records": lambda folder: _table(folder, view="latest"),
    "table with its batches": lambda folder: _table(folder, includeBatchMetadata="true"),
    "dump": _dump,
}


def _resident(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def main(folder: Path) -> None:
    """Go through all rooms, and say what each took."""
    peaks = {}
    for name, room in ROOMS.items():
        room(folder / "small")
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _resident("VmRSS")
        room(folder / "large")
        peaks[name] = _resident("VmHWM") - before
    json.dump(peaks, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
