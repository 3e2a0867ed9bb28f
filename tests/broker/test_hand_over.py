"""What ``siltstone hand-over`` writes, and what it refuses. ``tests/kafka`` starts a Kafka on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from siltstone.base import files
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryLockedError,
    DirectoryRefusedError,
    UsageError,
)
from siltstone.broker.hand_over import HandOver, HandOverRequest, hand_over
from siltstone.broker.producer_ids import BROKER_FILE
from siltstone.commands.directories import BrokerDirectories, Snapshot
from siltstone.log.bootstrap import BOOTSTRAP_CHECKPOINT, RECORDS_OF_A_BATCH
from siltstone.log.metadata_log import TOPIC_RESOURCE, MetadataImage, _apply_snapshot
from siltstone.log.names import CLEAN_SHUTDOWN, META_PROPERTIES, PARTITION_METADATA
from siltstone.runtime.topics import TOPICS_FILE, load_registry

SETTINGS = {"cleanup.policy": "compact", "siltstone.compaction.order": "time"}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory with two topics, stopped cleanly."""
    directory = tmp_path / "logs"
    with BrokerDirectories(paths=(directory,)).open() as manager:
        manager.topics.create("users", 3, SETTINGS)
        manager.topics.create("events", 1, {})
    return directory


def handed(directory: Path, **options: object) -> HandOver:
    paths = BrokerDirectories(paths=(directory,))
    return hand_over(HandOverRequest(directories=paths, **options))  # type: ignore[arg-type]


def image_of(directory: Path) -> MetadataImage:
    image = MetadataImage()
    _apply_snapshot(image, str(directory / BOOTSTRAP_CHECKPOINT))
    return image


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_the_checkpoint_has_topics_partitions_settings_and_producer_ids(logs: Path) -> None:
    (logs / BROKER_FILE).write_text('{"version": 1, "next_producer_id": 4001}')
    before = Snapshot([logs], BrokerDirectories(paths=(logs,)).broker_config())
    result = handed(logs)
    image = image_of(logs)
    assert image.topics == {name: before.topic(name).topic_id for name in ("events", "users")}
    assert image.partition_counts == {image.topics["users"]: 3, image.topics["events"]: 1}
    assert image.settings_of(TOPIC_RESOURCE, "users") == {"cleanup.policy": "compact"}
    assert image.next_producer_id == result.next_producer_id == 5000
    assert [replicas.leader for replicas in image.replicas[image.topics["users"]].values()] == [0, 0, 0]
    assert (result.topics, result.partitions, result.settings) == (2, 4, 1)
    assert result.left_out == ["users: siltstone.compaction.order=time"]
    assert load_registry([logs])[0].handed_over == set(image.topics.values())


def test_the_checkpoint_has_the_quotas(logs: Path, tmp_path: Path) -> None:
    quotas = {
        (("client-id", None), ("user", "ada")): {"producer_byte_rate": 1000.0, "request_percentage": 12.5},
        (("ip", "192.0.2.1"),): {"connection_creation_rate": 3.0},
    }
    with BrokerDirectories(paths=(logs,)).open() as manager:
        manager.topics.replace_quotas(quotas)
    assert handed(logs).quotas == 3
    assert image_of(logs).quotas == quotas
    with BrokerDirectories(paths=(logs,)).open() as manager:  # no Kafka has started
        assert manager.topics.quotas == quotas


def test_siltstone_goes_on_with_its_settings_until_there_is_a_metadata_log(logs: Path) -> None:
    handed(logs)
    with BrokerDirectories(paths=(logs,)).open() as manager:
        assert manager.topics.describe("users").config == SETTINGS
        manager.topics.alter("users", {"retention.ms": "5"})
    registry = load_registry([logs])[0]
    assert registry.handed_over == {registry.topics["events"].topic_id}


def test_a_dry_run_changes_nothing(logs: Path) -> None:
    before = contents(logs)
    result = handed(logs, dry_run=True)
    assert result.partitions == 4
    assert contents(logs) == before


def test_more_records_than_a_batch_has(logs: Path) -> None:
    with BrokerDirectories(paths=(logs,)).open() as manager:
        manager.topics.create("many", 30, {})
        for number in range(40):
            manager.topics.create(f"topic{number}", 1, {"retention.ms": "1"} if number % 2 else {})
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr("siltstone.log.bootstrap.RECORDS_OF_A_BATCH", 7)
        handed(logs)
    assert RECORDS_OF_A_BATCH > 7
    assert len(image_of(logs).topics) == 43


def test_a_topic_without_an_id_gets_one(logs: Path) -> None:
    for number in range(3):
        (logs / f"users-{number}" / PARTITION_METADATA).unlink()
    (logs / TOPICS_FILE).unlink()
    result = handed(logs)
    assert result.new_ids == ["users"]
    ids = {(logs / f"users-{number}" / PARTITION_METADATA).read_text() for number in range(3)}
    assert ids == {f"version: 0\ntopic_id: {image_of(logs).topics['users']}"}
    assert handed(logs).new_ids == []


@pytest.mark.parametrize("broken_at", range(3))
def test_an_interrupted_run_leaves_directories_that_open_and_is_repeated(
    logs: Path, broken_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (logs / "events-0" / PARTITION_METADATA).unlink()
    registry = load_registry([logs])[0]
    entry = registry.topics["events"]
    with_lost_id = registry.with_topic("events", replace_fields(entry, topic_id=""))
    (logs / TOPICS_FILE).write_bytes(with_lost_id.encode())
    calls, replace = 0, files.replace

    def failing(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == broken_at + 1:
            raise OSError(28, "no space is left")
        replace(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", failing)
        with pytest.raises(OSError, match="no space"):
            handed(logs)
    snapshot = Snapshot([logs], BrokerDirectories(paths=(logs,)).broker_config())
    assert snapshot.topic("users").config == SETTINGS
    assert handed(logs).topics == 2
    assert set(image_of(logs).topics) == {"users", "events"}


def test_what_kafka_would_not_find_is_refused(logs: Path) -> None:
    (logs / "users-1").rename(logs.parent / "elsewhere")
    with pytest.raises(DirectoryRefusedError, match="partition 1 of 3"):
        handed(logs)
    assert not (logs / BOOTSTRAP_CHECKPOINT).exists()


def test_directories_that_are_open_or_were_not_stopped_are_refused(logs: Path) -> None:
    with BrokerDirectories(paths=(logs,)).open(), pytest.raises(DirectoryLockedError):
        handed(logs)
    (logs / CLEAN_SHUTDOWN).unlink()
    with pytest.raises(DirectoryRefusedError, match="not stopped cleanly"):
        handed(logs)


def test_a_damaged_file_of_producer_ids_is_refused(logs: Path) -> None:
    (logs / BROKER_FILE).write_text('{"version": 1, "next_producer_id": -1}')
    with pytest.raises(CorruptFileError):
        handed(logs)


def test_directories_without_an_identity_are_refused(logs: Path) -> None:
    (logs / META_PROPERTIES).unlink()
    with pytest.raises(DirectoryRefusedError, match=r"meta\.properties"):
        handed(logs)


def test_a_link_in_the_place_of_the_checkpoint_is_replaced(logs: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    (logs / BOOTSTRAP_CHECKPOINT).symlink_to(target)
    handed(logs)
    assert target.read_text() == "precious"
    assert not (logs / BOOTSTRAP_CHECKPOINT).is_symlink()


def test_wrong_flags(logs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"3\.9"):
        handed(logs, release="3.9")
    (logs / "__cluster_metadata-0").mkdir()
    with pytest.raises(DirectoryRefusedError, match="--move-metadata-to"):
        handed(logs)
    for target in (logs / "inside", logs / "users-0" / "inside", tmp_path, tmp_path / "missing" / "folder"):
        with pytest.raises(UsageError, match="--move-metadata-to"):
            handed(logs, move_metadata_to=target)
