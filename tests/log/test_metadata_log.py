"""The metadata log: snapshots, the log behind them, transactions, and every kind of damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from siltstone.base.errors import CorruptFileError, CorruptRecordError
from siltstone.base.records.metadata import Replicas
from siltstone.log.metadata_log import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage, read_cluster_metadata
from tests.support.cleaning.logs import write_segment
from tests.support.errors import raises_error
from tests.support.log.metadata_logs import (
    LEADER_CHANGE,
    control,
    records,
    write_metadata_log,
    write_snapshot,
)
from tests.support.records import frames
from tests.support.records.frames import (
    ABORT,
    BEGIN,
    END,
    frame,
    producer_ids,
    remove_topic,
    topic,
    topic_config,
)
from tests.support.thoroughness import THOROUGH

COMPACT = topic_config("users", "cleanup.policy", "compact")
WITHOUT_POLICY = topic_config("users", "cleanup.policy", None)


def read(partition: Path, *values: bytes, **options: int | bool) -> MetadataImage:
    write_metadata_log(partition, values)
    return read_cluster_metadata(partition, **options)  # type: ignore[arg-type]


def settings_of(image: MetadataImage, name: str = "users") -> dict[str, str]:
    return dict(image.settings_of(TOPIC_RESOURCE, name))


def test_the_last_value_of_a_setting_counts_and_null_removes_it(tmp_path: Path) -> None:
    image = read(
        tmp_path,
        topic("users", 1),
        COMPACT,
        topic_config("users", "retention.ms", "1"),
        topic_config("users", "retention.ms", "2"),
        topic_config("users", "segment.ms", "3"),
        topic_config("users", "segment.ms", None),
        topic_config("users", "never.set", None),
    )
    assert image.topics == {"users": frames.topic_id(1)}
    assert settings_of(image) == {"cleanup.policy": "compact", "retention.ms": "2"}
    assert image.end_offset == 7


def test_deleting_a_topic_removes_its_settings(tmp_path: Path) -> None:
    image = read(tmp_path, topic("users", 1), COMPACT, remove_topic(1), topic("users", 2))
    assert image.topics == {"users": frames.topic_id(2)}
    assert settings_of(image) == {}


def test_the_end_of_the_blocks_of_producer_ids(tmp_path: Path) -> None:
    assert read(tmp_path / "none", topic("users", 1)).next_producer_id == 0
    blocks = producer_ids(1000), producer_ids(3000), producer_ids(2000)
    assert read(tmp_path / "some", *blocks).next_producer_id == 3000


def test_a_block_of_producer_ids_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    cut, later = frame(15, b"\0\0\0\1", tags=b""), producer_ids(5000, version=1)
    assert read(tmp_path, producer_ids(1000), cut, later).next_producer_id == 5000


def test_a_partitions_replicas_are_those_of_its_last_change(tmp_path: Path) -> None:
    leader = (2).to_bytes(4, "big")
    image = read(
        tmp_path,
        topic("users", 1),
        frames.partition_change(0, 1, {1: leader}),  # of a partition that is not there yet
        frames.partition(0, 1, [1, 2, 3], [1, 2, 3], 1),
        frames.partition(1, 1, [3], [3], 3),
        frames.partition_change(0, 1, {0: frames.int32s([2, 3]), 1: leader}),
        frames.partition_change(0, 1, {0: frames.int32s([2])}),
        frames.partition_change(1, 2, {1: leader}),  # of another topic
    )
    assert image.replicas[frames.topic_id(1)] == {
        0: Replicas((1, 2, 3), (2,), 2),
        1: Replicas((3,), (3,), 3),
    }
    image = read(
        tmp_path / "removed", topic("users", 1), frames.partition(0, 1, [1], [1], 1), remove_topic(1)
    )
    assert image.replicas == image.partition_counts == {}


def test_settings_of_topics_and_brokers_are_retained_and_others_ignored(tmp_path: Path) -> None:
    image = read(tmp_path, *(frames.config(kind, "1", "a", "b") for kind in (4, 8, 16, 32)))
    assert dict(image.settings) == {(BROKER_RESOURCE, "1"): {"a": "b"}}


def test_the_records_of_a_transaction_are_applied_when_it_ends(tmp_path: Path) -> None:
    inside = [topic("users", 1), COMPACT]
    assert settings_of(read(tmp_path / "ended", BEGIN, *inside, END)) == {"cleanup.policy": "compact"}
    for name, rest in (("open", []), ("aborted", [ABORT])):
        image = read(tmp_path / name, topic("other", 9), BEGIN, *inside, *rest)
        assert list(image.topics) == ["other"] and not image.settings


@pytest.mark.parametrize("values", [[BEGIN, BEGIN], [END], [ABORT], [BEGIN, END, END], [remove_topic(3)]])
def test_a_record_that_cannot_follow_is_refused_with_its_position(
    tmp_path: Path, values: list[bytes]
) -> None:
    with pytest.raises(CorruptFileError) as caught:
        read(tmp_path, *values)
    size = len(values[-1])
    data = (tmp_path / f"{0:020d}.log").read_bytes()
    assert data[caught.value.position :][:size] == values[-1]


def test_the_log_after_the_newest_snapshot_is_applied(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 2, [topic("older", 1)])
    write_snapshot(tmp_path, 4, [topic("users", 1), COMPACT])
    write_metadata_log(tmp_path, [topic("not seen", 8), topic("nor this", 9)])
    write_metadata_log(tmp_path, [WITHOUT_POLICY, topic("new", 2)], base=2)
    write_metadata_log(tmp_path, [topic_config("users", "retention.ms", "5")], base=4)
    image = read_cluster_metadata(tmp_path)
    assert image.topics == {"users": frames.topic_id(1)}
    assert settings_of(image) == {"cleanup.policy": "compact", "retention.ms": "5"}
    assert image.end_offset == 5


def test_unfinished_and_deleted_snapshots_are_ignored(tmp_path: Path) -> None:
    write_snapshot(tmp_path, 9, [topic("old", 1)])
    write_snapshot(tmp_path, 100, [topic("new", 1)])
    (tmp_path / f"{200:020d}-0000000001.checkpoint.part").write_bytes(b"unfinished")
    (tmp_path / f"{300:020d}-0000000001.checkpoint.deleted").write_bytes(b"gone")
    assert list(read_cluster_metadata(tmp_path).topics) == ["new"]


@pytest.mark.parametrize("damage", ["no footer", "cut", "flipped", "empty"])
def test_an_older_snapshot_and_the_log_replace_an_incomplete_snapshot(tmp_path: Path, damage: str) -> None:
    write_snapshot(tmp_path, 1, [topic("users", 1)])
    newest = write_snapshot(tmp_path, 3, [topic("wrong", 9)], footer=damage != "no footer")
    data = newest.read_bytes()
    if damage == "cut":
        newest.write_bytes(data[:-1])
    elif damage == "flipped":
        newest.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif damage == "empty":
        newest.write_bytes(b"")
    write_metadata_log(tmp_path, [topic("users", 1), COMPACT, topic_config("users", "segment.ms", "7")])
    image = read_cluster_metadata(tmp_path)
    assert list(image.topics) == ["users"]
    assert settings_of(image) == {"cleanup.policy": "compact", "segment.ms": "7"}


def test_without_a_complete_snapshot_the_log_must_start_at_0(tmp_path: Path) -> None:
    damaged = write_snapshot(tmp_path, 3, [topic("users", 1)], footer=False)
    write_metadata_log(tmp_path, [COMPACT], base=3)
    with raises_error(CorruptFileError, path=damaged, position=0, about="footer"):
        read_cluster_metadata(tmp_path)
    damaged.unlink()
    with raises_error(CorruptFileError, path=tmp_path / f"{3:020d}.log", about="offset 3"):
        read_cluster_metadata(tmp_path)


def test_a_directory_without_any_metadata_is_refused(tmp_path: Path) -> None:
    with raises_error(CorruptFileError, path=tmp_path, position=0):
        read_cluster_metadata(tmp_path)


def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    write_metadata_log(tmp_path, [topic("users", 1), COMPACT])
    write_metadata_log(tmp_path, [frames.NO_OP], base=3)
    with raises_error(CorruptFileError, path=tmp_path / f"{3:020d}.log", about="base offset 3, but 2"):
        read_cluster_metadata(tmp_path)


def test_records_at_or_above_the_high_watermark_are_not_applied(tmp_path: Path) -> None:
    values = [topic("users", 1), COMPACT, WITHOUT_POLICY]
    assert settings_of(read(tmp_path, *values, high_watermark=2)) == {"cleanup.policy": "compact"}
    assert settings_of(read_cluster_metadata(tmp_path, high_watermark=3)) == {}
    assert not read_cluster_metadata(tmp_path, high_watermark=0).topics


def test_control_batches_are_skipped(tmp_path: Path) -> None:
    data = control(0, LEADER_CHANGE) + records(1, [topic("users", 1)]) + control(2, LEADER_CHANGE)
    write_segment(tmp_path, 0, data)
    image = read_cluster_metadata(tmp_path)
    assert (list(image.topics), image.end_offset) == (["users"], 3)


def test_compressed_batches_are_read(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, records(0, [topic("users", 1), COMPACT], codec=3))
    assert settings_of(read_cluster_metadata(tmp_path)) == {"cleanup.policy": "compact"}


def test_a_record_without_a_value_is_damage(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, records(0, [None]))
    with pytest.raises(CorruptFileError, match="beyond"):
        read_cluster_metadata(tmp_path)


def test_a_damaged_record_is_named_by_path_and_position(tmp_path: Path) -> None:
    bad = frames.frame(4, COMPACT[3:-1], version=6)
    with pytest.raises(CorruptFileError, match="ConfigRecord version 6") as caught:
        read(tmp_path, topic("users", 1), bad)
    path = tmp_path / f"{0:020d}.log"
    assert caught.value.path == str(path)
    assert path.read_bytes()[caught.value.position - 2 :][: len(bad)] == bad


def test_a_torn_tail_is_damage_only_after_a_clean_shutdown(tmp_path: Path) -> None:
    path = write_metadata_log(tmp_path, [topic("users", 1), COMPACT])
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptRecordError) as caught:
        read_cluster_metadata(tmp_path)
    assert 0 < caught.value.position < whole
    image = read_cluster_metadata(tmp_path, may_have_torn_tail=True)
    assert (list(image.topics), settings_of(image), image.end_offset) == (["users"], {}, 1)


def test_a_real_log_has_the_same_image_with_and_without_its_snapshots(
    stopped_broker: tuple[Path, Path],
) -> None:
    partition = stopped_broker[0] / "__cluster_metadata-0"
    whole = read_cluster_metadata(partition)
    newest, *older = sorted(partition.glob("*.checkpoint"), reverse=True)
    for path in [newest, *older]:
        path.unlink()
        assert read_cluster_metadata(partition) == whole
    assert len(whole.topics) == 14 and whole.end_offset == 177


def test_every_damage_of_a_real_log_is_refused_by_name(stopped_broker: tuple[Path, Path]) -> None:
    partition = stopped_broker[0] / "__cluster_metadata-0"
    whole = read_cluster_metadata(partition)
    chance = random.Random(5)
    for path in sorted([*partition.glob("*.checkpoint"), partition / f"{0:020d}.log"]):
        data = path.read_bytes()
        path.chmod(0o644)
        for _ in range(60 if THOROUGH else 15):
            at = chance.randrange(len(data))
            kind = chance.choice(["flip", "cut", "zero"])
            flipped = bytes([data[at] ^ 1 << chance.randrange(8)])
            path.write_bytes(
                data[:at]
                if kind == "cut"
                else data[:at] + (flipped if kind == "flip" else bytes(40)) + data[at + len(flipped) :]
            )
            try:
                image = read_cluster_metadata(partition)
            except CorruptFileError as error:
                assert error.path == str(path) and 0 <= error.position <= len(data) + 40, (kind, at)
            else:
                assert image == whole or (kind == "cut" and path.suffix == ".log"), (path, kind, at)
        path.write_bytes(data)
