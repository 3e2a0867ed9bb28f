"""A real broker that serves a generated log: ``Broker`` of the tests over a directory with a copy of it.

The topic is made by the broker itself; while it is stopped the log's files take the place of its empty
partition, as a backup is restored. Kept for the next time.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.generate import WHERE, Generated
from bench.measure import WrongResultError
from siltstone.log.names import PARTITION_METADATA
from tests.support.kafka.broker import Broker

TOPIC = {"retention.ms": "-1", "retention.bytes": "-1", "segment.bytes": str(128 << 20)}
"""The records' times are of the past: a broker would delete them at once."""
THREADS = {"num_network_threads": "3", "num_io_threads": "8"}
"""Kafka's own defaults, which the tests' brokers make smaller."""


@contextlib.contextmanager
def serving(folder: Path, log: Path, generated: Generated) -> Iterator[Broker]:
    """A broker that has the records of the generated directory ``log``, with its files below ``folder``.

    Raises WrongResultError where it has not as many.
    """
    directory = folder / f"broker-{log.parent.name}"
    whole = directory.with_suffix(".whole")
    broker = Broker(directory, **THREADS)
    if not whole.exists():
        shutil.rmtree(directory, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        with broker:
            broker.create_topic(WHERE.topic, configs=TOPIC)
        _replace(directory / str(WHERE), log / str(WHERE))
    with broker:
        end = broker.end_offset(WHERE.topic)
        if end != generated.records:
            raise WrongResultError(
                f"the broker has {end} of {generated.records} records\n{broker.diagnosis()}"
            )
        whole.touch()
        yield broker


def _replace(empty: Path, full: Path) -> None:
    """The partition's files by another's; its own metadata file stays."""
    for path in empty.iterdir():
        if path.name != PARTITION_METADATA:
            path.unlink()
    for path in full.iterdir():
        if path.name != PARTITION_METADATA:
            shutil.copyfile(path, empty / path.name)
