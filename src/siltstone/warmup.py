"""Compile the kernels, so that the first use does not have to: ``python -m siltstone.warmup``.

A small log is cleaned, compacted, appended to and read in a temporary directory; where Spark is installed, it
cleans the log as well, and leaves its class archive (``siltstone.spark.class_archive``). Kernels are needed,
the archive is not: a line on standard error says why there is none.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from siltstone import files
from siltstone.cleaner.engine import Engine, InProcessEngine
from siltstone.cleaner.work import Group, LogWork
from siltstone.clock import SystemClock
from siltstone.compacted.compactor import TwoPhaseCompactor
from siltstone.compacted.engine import InProcessCompactionEngine
from siltstone.config import LONG_MAX, LogConfig
from siltstone.errors import SiltstoneError
from siltstone.log.ledger.manifest import ORDERS
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.names import segment_file
from siltstone.log.opening import open_partition
from siltstone.log.reading import LogReader
from siltstone.log.segments import list_segments
from siltstone.log.validation import Origin
from siltstone.records.build import BatchShape, Spans, build_batch, encode_headers
from siltstone.records.control import end_transaction_marker
from siltstone.records.layout import CODECS

END = 20 * len(CODECS)
"""Offset of the last batch."""


def _batches() -> list[bytes]:
    """A few batches of every codec, with superseded keys, tombstones and headers, and a transaction's end."""
    batches = []
    for number in range(2 * len(CODECS)):
        offsets = np.arange(number * 10, number * 10 + 10, dtype=np.int64)
        batch = build_batch(
            BatchShape(base_offset=number * 10, codec=number % len(CODECS)),
            offset=offsets,
            timestamp=offsets * 7,
            keys=Spans.of([b"key %d" % (offset % 17) for offset in offsets.tolist()]),
            values=Spans.of([None if offset % 5 == 0 else b"value" for offset in offsets.tolist()]),
            headers=Spans.of([encode_headers([(b"header", None)])] * 10),
        )
        batches.append(batch.tobytes())
    marker = end_transaction_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )
    return [*batches, END.to_bytes(8, "big") + marker.tobytes()[8:]]


def _clean(directory: Path) -> None:
    """A cleaning, both ways."""
    _clean_with(directory, InProcessEngine(), InProcessEngine(2))


def _clean_with(directory: Path, whole: Engine, spread: Engine) -> None:
    files.write_new(directory / segment_file(0, "log"), b"".join(_batches()))
    (done,) = whole.clean_whole([small_work(directory, "whole")])
    for each in (done, spread.clean_spread(small_work(directory, "spread"))):
        assert each.found.trouble is None and each.groups[0].trouble is None, each


def small_work(directory: Path, name: str) -> LogWork:
    """The cleaning of the small log in ``directory``, staged in its folder ``name``, which is made."""
    files.make_directory(directory / name)
    end = END + 1
    return LogWork(
        name=name,
        segments=tuple(list_segments(directory)),
        groups=(Group(index=0, first=0, last=1, base_offset=0, end_offset=end),),
        first_dirty=end // 4,
        end=end,
        now_ms=0,
        delete_retention_ms=1,
        producers=(),
        index_interval=4096,
        index_bytes=1 << 20,
        drop_keyless=True,
        staging=str(directory / name),
        hash_key=(1, 2),
        window_size=1 << 16,
        memory_bytes=1 << 20,
    )


def _append_and_read(directory: Path) -> None:
    """Appends as a client's and as a leader's, a start after a crash, and a reader."""
    config = LogConfig(message_timestamp_before_max_ms=LONG_MAX, index_interval_bytes=1)
    log = open_partition(directory, config)
    for batch in _batches():
        log.append(batch, origin=Origin.REPLICATION)
    for batch in _batches()[:-1]:
        log.append(bytes(8) + batch[8:])
    log.flush()
    again = open_partition(directory, config)
    assert sum(len(polled) for polled in LogReader(again, "earliest")) == 40 * len(CODECS)
    assert again.offset_for_time(1) is not None


def _compact(directory: Path) -> None:
    """Compactions beside the originals, by offset and by time, of a log that grows; and a reader."""
    config = LogConfig(message_timestamp_before_max_ms=LONG_MAX)
    compactor = TwoPhaseCompactor(InProcessCompactionEngine(), clock=SystemClock())
    for order in ORDERS:
        log = open_partition(directory / f"{order}-0", config)
        for batch in _batches()[:-1]:
            log.append(bytes(8) + batch[8:])
            compactor.compact(log, order=order)
        assert list(CompactedReader(log))
        log.close()


def _start_spark(directory: Path) -> None:
    """A cleaning on Spark, which leaves its class archive."""
    if find_spec("pyspark") is None:
        return
    from siltstone.spark.warming import make_class_archive

    try:
        make_class_archive(lambda engine: _clean_with(directory, engine, engine))
    except (SiltstoneError, OSError) as error:
        sys.stderr.write(f"siltstone: Spark will start without a class archive: {error}\n")


def main() -> None:
    """Compile everything that a cleaning, a compaction, an append and a read call; see to the archive."""
    uses = (
        ("cleaned-0", _clean),
        ("appended-0", _append_and_read),
        ("compacted-0", _compact),
        ("spark-0", _start_spark),
    )
    with files.temporary_directory("siltstone-warmup-") as folder:
        for name, use in uses:
            files.make_directory(Path(folder) / name)
            use(Path(folder) / name)


if __name__ == "__main__":
    main()
