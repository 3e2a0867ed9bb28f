"""A broker lives on a directory whose cleaning was undone: it has its records back, `clean --watch` sees its
logs and changes nothing, `clean` refuses them; once it has stopped, we clean them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import siltstone_command
from tests.support.kafka.broker import Broker, HostedBroker
from tests.support.kafka.logdir import (
    CLEAN_MARKER,
    FileState,
    cleaner_checkpoint,
    closed_segments,
    copy_of,
    listing,
    stray_files,
)
from tests.support.kafka.records import Partition, Record
from tests.support.kafka.scenario import BYSTANDER, COMPACTED_TOPICS, PARTITIONS, Written

pytestmark = pytest.mark.kafka
ALL = [*PARTITIONS, (BYSTANDER, 0)]
LOOKS = 3
PATIENCE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """A broker that serves what it has, and what it served first."""

    broker: Broker
    log_dir: Path
    records: dict[Partition, list[Record]]


@pytest.fixture(scope="module")
def undone(written: Written, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory, cleaned with `--keep-originals`, and undone."""
    root = tmp_path_factory.mktemp("undone")
    log_dir = copy_of(written.log_dir, root / "logs")
    originals = ("--in-place", "--keep-originals", root / "keep")
    completed = siltstone_command.clean(log_dir, COMPACTED_TOPICS, *originals, engine="process")
    report = siltstone_command.report_of(completed)
    assert any(log["removed"]["superseded"] for log in report.values())
    (run,) = (root / "keep").iterdir()
    undone = siltstone_command.run_siltstone("undo", run)
    assert undone.returncode == 0, undone.stderr
    return log_dir


@pytest.fixture(scope="module")
def living(undone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Living]:
    log_dir = copy_of(undone, tmp_path_factory.mktemp("living") / "logs")
    with HostedBroker(log_dir) as broker:
        yield Living(broker=broker, log_dir=log_dir, records=broker.consume_many(ALL))


def test_undo_gives_the_originals_back(undone: Path, living: Living, written: Written) -> None:
    for topic, number in PARTITIONS:
        folder = f"{topic}-{number}"
        assert listing(undone / folder) == listing(written.log_dir / folder)
        assert cleaner_checkpoint(undone, topic, number) == cleaner_checkpoint(written.log_dir, topic, number)
    assert stray_files(undone) == []
    assert living.records == {partition: written.records[partition] for partition in ALL}


@pytest.mark.timeout(PATIENCE_S * 3)
def test_watch_looks_at_a_living_broker(living: Living, written: Written) -> None:
    before = _closed(living.log_dir)
    documents = looks(living.log_dir)
    assert _closed(living.log_dir) == before
    assert living.broker.consume_many(PARTITIONS) == {
        partition: written.records[partition] for partition in PARTITIONS
    }
    for document in documents:
        states = {(log["topic"], log["partition"]): log["state"] for log in document["logs"]}
        assert set(PARTITIONS) <= set(states)
        assert "unreadable" not in states.values() and document.get("error") is None
        assert [directory["in_use"] for directory in document["directories"]] == [True]


def looks(log_dir: Path) -> list[dict[str, Any]]:
    """The first documents of ``--watch``, one a second; then Ctrl-C, which must end the command well."""
    command = [
        str(Path(sys.executable).parent / "siltstone"),
        *("clean", str(log_dir), "--watch", "--interval", "1", "--policy-from-metadata", "--json"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None and watch.stderr is not None
        documents = [json.loads(watch.stdout.readline()) for _ in range(LOOKS)]
        watch.send_signal(signal.SIGINT)
        errors = watch.stderr.read()
        assert watch.wait(PATIENCE_S) == 130, errors
    assert "Traceback" not in errors
    return documents


def test_a_cleaning_is_refused_while_the_broker_lives(living: Living, written: Written) -> None:
    """The last test of this file: it stops the broker."""
    log_dir = living.log_dir
    before = _closed(log_dir)
    refused = siltstone_command.clean(log_dir, COMPACTED_TOPICS, "--in-place")
    assert _closed(log_dir) == before
    assert living.broker.consume_many(PARTITIONS) == {
        partition: written.records[partition] for partition in PARTITIONS
    }
    living.broker.stop()
    assert refused.returncode not in (0, 2)
    lines = refused.stderr.strip().splitlines()
    assert len(lines) == 1, refused.stderr
    assert str(log_dir) in lines[0]
    assert "lock" in lines[0]
    assert (log_dir / CLEAN_MARKER).exists()
    cleaned = siltstone_command.clean(log_dir, COMPACTED_TOPICS, "--in-place", engine="process")
    assert sorted(siltstone_command.report_of(cleaned)) == sorted(PARTITIONS)


def _closed(log_dir: Path) -> dict[Partition, dict[str, FileState]]:
    return {(topic, number): closed_segments(log_dir, topic, number) for topic, number in PARTITIONS}
