"""Compiles the numba kernels, into their cache on disk (``base.records.compiling``), ahead of their first
use: ``python -m siltstone.warmup [kernels|spark]``. ``make setup`` runs it.

``kernels``: in a temporary directory a small log is cleaned in place (in one task, and in several),
explained, compacted into a ledger beside it, appended to and read (one batch is refused), and decoded from
the bytes of a fetch.
``spark``: if Spark is installed, it cleans the log as well and makes an archive of the classes that Spark
loads (Java's class-data sharing, ``siltstone.spark.class_archive``). The archive only saves time: if it
cannot be made, a line on standard error says why. Without an argument both are done, one after the other; two
processes may also do one each at the same time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from siltstone.base import files
from siltstone.base.clock import SystemClock
from siltstone.base.codec_table import CODECS
from siltstone.base.config import LONG_MAX, LogConfig
from siltstone.base.errors import InvalidTimestampError, SiltstoneError
from siltstone.base.records.decode import decode_records
from siltstone.base.records.hashing import partition_for_key
from siltstone.base.records.scan import scan_batches
from siltstone.compaction.engine import (
    InProcessEngine,
    clean_warm_up_log,
    warm_up_batches,
    warm_up_work,
)
from siltstone.compaction.ledger.compactor import InProcessCompactionEngine, TwoPhaseCompactor
from siltstone.compaction.statistics import Bins, StatisticsOptions
from siltstone.log.ledger.manifest import ORDERS
from siltstone.log.ledger.reading import CompactedReader
from siltstone.log.names import segment_file
from siltstone.log.partition import open_partition
from siltstone.log.reading import LogReader
from siltstone.log.validation import Origin


def _append_and_read(directory: Path) -> None:
    """Append batches of a client and of a leader, recover after a crash, and read."""
    # The batches' timestamps are near 0, and each batch is to have an index entry.
    config = LogConfig(message_timestamp_before_max_ms=LONG_MAX, index_interval_bytes=1)
    log = open_partition(directory, config)
    for batch in warm_up_batches():
        log.append(batch, origin=Origin.REPLICATION)
    for batch in warm_up_batches()[:-1]:  # the last one is a marker, which no client sends
        log.append(bytes(8) + batch[8:])  # a client's batch has the base offset 0
    partition_for_key(b"key", 1)  # as a producer does before it appends
    log.flush()
    # ``log`` is not closed: opening its directory again recovers it, as after a crash.
    recovered = open_partition(directory, config)
    # Two batches of 10 records of every codec were appended twice. A reader skips the marker.
    assert sum(len(polled) for polled in LogReader(recovered, "earliest")) == 2 * 2 * 10 * len(CODECS)
    assert recovered.offset_for_time(1) is not None


def _refuse(directory: Path) -> None:
    """Append a batch whose records are refused one by one: their timestamps are in the past, and the log
    accepts none that is."""
    log = open_partition(directory, LogConfig(message_timestamp_before_max_ms=0))
    with contextlib.suppress(InvalidTimestampError):
        log.append(bytes(8) + warm_up_batches()[0][8:])
    log.close()


def _compact(directory: Path) -> None:
    """Compact growing logs, each into a ledger beside it, one by offset and one by time, and read them."""
    config = LogConfig(message_timestamp_before_max_ms=LONG_MAX)
    compactor = TwoPhaseCompactor(InProcessCompactionEngine(), clock=SystemClock())
    for order in ORDERS:
        log = open_partition(directory / f"{order}-0", config)
        for batch in warm_up_batches()[:-1]:
            log.append(bytes(8) + batch[8:])  # a client's batch has the base offset 0
            compactor.compact(log, order=order)
        assert list(CompactedReader(log))
        log.close()


def _explain(directory: Path) -> None:
    """Clean a log in a dry run that counts on the way, as ``explain`` does."""
    files.write_new(directory / segment_file(0, "log"), b"".join(warm_up_batches()))
    statistics = StatisticsOptions(bins=Bins(start_ms=0, width_ms=100, bin_count=8), top=1)
    work = replace(warm_up_work(directory, "new"), staging=None, statistics=statistics)
    (log_report,) = InProcessEngine().clean_whole([work])
    assert log_report.failure is None, log_report


def _decode_fetched(_: Path) -> None:
    """Decode the batches of an answer to a fetch. numba compiles a kernel once for memory that may be
    written, such as a window of a log, and once for read-only memory, such as these bytes."""
    fetched = np.frombuffer(b"".join(warm_up_batches()), np.uint8)
    columns = decode_records(fetched, scan_batches(fetched).batches)
    assert len(columns.offset) == 2 * 10 * len(CODECS) + 1


def _start_spark(directory: Path) -> None:
    """Clean a log on Spark, and make the class archive."""
    if find_spec("pyspark") is None:
        return
    from siltstone.spark.clean import SparkEngine
    from siltstone.spark.jobs import EXCHANGE_STAGE_BYTES
    from siltstone.spark.session import make_class_archive

    def clean(session: Any) -> None:
        # First in an exchange stage, without shuffles. Then with shuffles, which load Spark's SQL: with a
        # limit of 0 bytes no log takes an exchange stage.
        for number, exchange_stage_bytes in enumerate((EXCHANGE_STAGE_BYTES, 0)):
            engine, log = (
                SparkEngine(session, exchange_stage_bytes=exchange_stage_bytes),
                directory / f"spark-{number}",
            )
            files.make_directory(log)
            clean_warm_up_log(log, engine, engine)

    try:
        make_class_archive(clean)
    except (SiltstoneError, OSError) as error:
        sys.stderr.write(f"siltstone: Spark will start without a class archive: {error}\n")


STEPS: dict[str, dict[str, Callable[[Path], None]]] = {
    "kernels": {
        "cleaned-0": lambda log: clean_warm_up_log(log, InProcessEngine(), InProcessEngine(buckets=2)),
        "explained-0": _explain,
        "appended-0": _append_and_read,
        "refused-0": _refuse,
        "compacted-0": _compact,
        "fetched-0": _decode_fetched,
    },
    "spark": {"spark-0": _start_spark},
}
"""For each part: its steps, by the name of the new partition directory (``topic-N``) that the step gets."""


def main(*parts: str) -> None:
    """Do the steps of ``parts`` of ``STEPS``, or of all parts. Raises SystemExit for an unknown part."""
    if unknown := set(parts) - set(STEPS):
        raise SystemExit(f"siltstone.warmup: there is no part {sorted(unknown)[0]!r}: {' or '.join(STEPS)}")
    with files.temporary_directory("siltstone-warmup-") as folder:
        for part in parts or STEPS:
            for name, step in STEPS[part].items():
                files.make_directory(Path(folder) / name)
                step(Path(folder) / name)


if __name__ == "__main__":
    main(*sys.argv[1:])
