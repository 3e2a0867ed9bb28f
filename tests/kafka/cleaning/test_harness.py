"""The harness itself, and facts about a real broker that Siltstone rests on; nothing runs `siltstone`."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka import tools
from tests.support.kafka.broker import Broker, HostedBroker
from tests.support.kafka.logdir import CLEAN_MARKER, active_base, checkpoint, cleaner_checkpoint, copy_of
from tests.support.kafka.records import compacted
from tests.support.kafka.scenario import COMPACTED_TOPICS, MD5_PAIR_TOPIC, PARTITIONS, Written, md5_pair

pytestmark = pytest.mark.kafka

STAGING = ".siltstone"
MD5 = (MD5_PAIR_TOPIC, 0)


def test_broker_leaves_the_topics_to_us(written: Written) -> None:
    for partition in PARTITIONS:
        assert cleaner_checkpoint(written.log_dir, *partition) is None
        assert checkpoint(written.log_dir, "replication-offset-checkpoint")[partition] > 0


def test_own_cleaner_agrees_with_the_naive_model(written: Written, tmp_path: Path) -> None:
    """Also: staging folders inside a partition directory do not stop the loader, and stay."""
    log_dir = copy_of(written.log_dir, tmp_path / "logs")
    staging = _leave_staging(log_dir)
    with HostedBroker(log_dir) as broker:
        for topic in COMPACTED_TOPICS:
            broker.alter_config(topic, min_cleanable_dirty_ratio="0.0")
        for topic, number in PARTITIONS:
            end = active_base(log_dir, topic, number)
            broker.wait_for_cleaner(topic, number, offset=end)
            assert broker.cleaner_ranges(topic, number) == [(0, end)]
        cleaned = broker.consume_many(PARTITIONS)
        _assert_locked(log_dir)
    assert all(path.exists() for path in staging)
    assert not (log_dir / ".lock").exists(), "Kafka unlinks its lock file at a clean stop"
    tools.assert_dump_clean(*(log_dir / f"{topic}-{number}" for topic, number in PARTITIONS))
    lost = [record.key for record in written.expected(MD5) if record not in cleaned[MD5]]
    assert lost == md5_pair()[:1], "Kafka takes two keys of one MD5 for one"
    assert all(
        cleaned[partition] == written.expected(partition) for partition in PARTITIONS if partition != MD5
    )


def test_broker_refuses_a_directory_that_we_hold(written: Written, tmp_path: Path) -> None:
    """Kafka's Java FileLock and `fcntl.lockf` see each other: no broker starts while we clean."""
    log_dir = copy_of(written.log_dir, tmp_path / "logs")
    with (log_dir / ".lock").open("w+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(AssertionError, match=r"Failed to acquire lock on file \.lock"):
            Broker(log_dir).start()
    assert (log_dir / CLEAN_MARKER).exists()


def test_dump_tool_accepts_a_broker_directory(written: Written) -> None:
    dump = tools.assert_dump_clean(written.log_dir / "codecs-0", written.log_dir / "idempotent-0")
    records = sum(len(batch.record_offsets) for batches in dump.batches.values() for batch in batches)
    assert records == len(written.records["codecs", 0]) + len(written.records["idempotent", 0])


def _leave_staging(log_dir: Path) -> list[Path]:
    """A staging folder with a segment in one partition, an empty one in another."""
    staged = log_dir / "codecs-0" / STAGING / "run" / "00000000000000000000.log"
    staged.parent.mkdir(parents=True)
    shutil.copyfile(log_dir / "codecs-0" / staged.name, staged)
    empty = log_dir / "codecs-1" / STAGING
    empty.mkdir()
    return [staged, empty]


def _flip_payload(folder: Path) -> None:
    _overwrite(folder / "00000000000000000000.log", 200, b"\xff\x00\xff")


def _cut_tail(folder: Path) -> None:
    last = sorted(folder.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-5])


def _wrong_offset_entry(folder: Path) -> None:
    _overwrite(folder / "00000000000000000000.index", 8, b"\x00\x00\x00\x09")


def _odd_index(folder: Path) -> None:
    with (folder / "00000000000000000000.index").open("ab") as file:
        file.write(b"\x01")


def _wrong_time_entry(folder: Path) -> None:
    _overwrite(folder / "00000000000000000000.timeindex", 0, (99).to_bytes(8, "big"))


@pytest.mark.parametrize(
    "damage", [_flip_payload, _cut_tail, _wrong_offset_entry, _odd_index, _wrong_time_entry]
)
def test_dump_tool_finds_damage(damage: Callable[[Path], None], written: Written, tmp_path: Path) -> None:
    folder = copy_of(written.log_dir / "codecs-0", tmp_path / "codecs-0")
    damage(folder)
    with pytest.raises(AssertionError, match="kafka-dump-log finds"):
        tools.assert_dump_clean(folder)


def test_the_model_expects_fewer_records_than_were_written(written: Written) -> None:
    partition = ("codecs", 0)
    records = written.records[partition]
    assert compacted(records, 0) == records
    assert len(written.expected(partition)) < len(records)


def _overwrite(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    assert len(content) >= position + len(data)
    content[position : position + len(data)] = data
    path.write_bytes(content)


def _assert_locked(log_dir: Path) -> None:
    """Kafka's Java FileLock is a POSIX record lock: `fcntl.lockf` sees it."""
    with (log_dir / ".lock").open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
