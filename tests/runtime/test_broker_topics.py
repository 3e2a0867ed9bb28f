"""A manager on a KRaft broker's own directories goes by the settings that the broker gave its topics."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import siltstone as st
from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, ConfigSource, Setting
from siltstone.base.errors import (
    DirectoryRefusedError,
    InvalidRecordError,
    InvalidTopicError,
    PolicyViolationError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from siltstone.log.names import PARTITION_METADATA, TopicPartition
from siltstone.log.partition import run_now
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topic_names import partition_metadata
from siltstone.runtime.topics import TOPICS_FILE
from tests.support.errors import raises_error
from tests.support.log.managed import append, failing
from tests.support.operator.staged import Listing, listing

YEAR = 365 * 86_400_000
LATER = 1_800_000_000_000 + YEAR
"""Long after the broker was stopped: by any retention time that there is, all of its records are old."""
COMPACTED = {"ledger", "altered", "__consumer_offsets", "reborn", "users", "lagged", "held_back", "orders"}
COMPACTED |= {"maxlag", "turned", "__transaction_state"}
METADATA = "__cluster_metadata-0"


@pytest.fixture
def broker(stopped_broker: tuple[Path, Path]) -> tuple[Path, Path]:
    return stopped_broker


def opened(*directories: Path, config: Config | None = None) -> LogManager:
    return LogManager.open(directories, config=config, clock=ManualClock(LATER), background=run_now)


def metadata_of(directory: Path) -> Listing:
    return listing(directory / METADATA)


def logs_of(directories: tuple[Path, ...], topics: set[str]) -> dict[str, bytes]:
    """Every log of these topics, by path."""
    return {
        str(path): path.read_bytes()
        for directory in directories
        for path in sorted(directory.glob("*/*.log"))
        if path.parent.name.rpartition("-")[0] in topics
    }


def damaged(directory: Path) -> None:
    path = min((directory / METADATA).glob("*.log"))
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(data)
    for snapshot in (directory / METADATA).glob("*.checkpoint"):
        snapshot.unlink()


def test_topics_have_the_settings_that_their_broker_gave_them(broker: tuple[Path, Path]) -> None:
    with opened(*broker) as logs:
        assert {
            topic_partition.topic for topic_partition in logs if logs[topic_partition].config.compacts
        } >= COMPACTED
        assert all(
            not logs[topic_partition].config.deletes
            for topic_partition in logs
            if topic_partition.topic in COMPACTED
        )
        assert logs["users", 0].config.delete_retention_ms == 1000
        assert logs["by_bytes", 0].config.retention_bytes == 30_000
        assert logs["audit", 0].config.retention_ms == 86_400_000
        assert logs["by_bytes", 0].config.retention_ms == 345_600_000  # set for this broker at run time
        assert logs["orders", 0].config.delete_retention_ms == 43_200_000  # set for all brokers
        assert logs.topics.describe("users").config["delete.retention.ms"] == "1000"
        assert logs.topics.describe("users").topic_id == "E81dl4PySeO2i3uojNje3Q"


def test_no_retention_touches_a_compacted_topic(broker: tuple[Path, Path]) -> None:
    before, metadata = logs_of(broker, COMPACTED), metadata_of(broker[0])
    assert len(before) > 40
    with opened(*broker) as logs:
        deleted = logs.upkeep.delete_old_segments()
        logs.tick(LATER + YEAR)
        assert {log.rpartition("-")[0] for log in deleted} == {"audit", "by_bytes", "events.cd"}
    assert logs_of(broker, COMPACTED) == before
    assert metadata_of(broker[0]) == metadata


def test_the_brokers_metadata_log_is_neither_served_nor_opened(broker: tuple[Path, Path]) -> None:
    topic_partition, before = TopicPartition("__cluster_metadata", 0), metadata_of(broker[0])
    with opened(*broker) as logs:
        assert topic_partition not in logs and topic_partition.topic not in logs.topics.names()
        with pytest.raises(UnknownTopicError):
            logs[topic_partition]
        with pytest.raises(InvalidTopicError):
            logs.get_or_create(topic_partition)
    with raises_error(DirectoryRefusedError, path=METADATA, advice="read-only"):
        st.Log(broker[0] / METADATA)
    assert metadata_of(broker[0]) == before


def test_appends_and_deletions_go_by_the_policy(broker: tuple[Path, Path]) -> None:
    with opened(*broker) as logs:
        end = logs["users", 0].log_end_offset
        with pytest.raises(InvalidRecordError):
            st.append(logs["users", 0], [st.NewRecord(value=b"no key")])
        append(logs["users", 0])
        assert logs["users", 0].log_end_offset == end + 1
        with pytest.raises(PolicyViolationError):
            logs.delete_records(TopicPartition("users", 0), -1)
        assert logs.delete_records(TopicPartition("audit", 0), -1) == logs["audit", 0].log_end_offset


def test_one_partition_opened_by_itself_has_its_settings_too(broker: tuple[Path, Path]) -> None:
    before = logs_of(broker, COMPACTED)
    with st.Log(broker[0] / "users-0", clock=ManualClock(LATER), upkeep=False) as log:
        assert log.log.config.policies == ("compact",)
        log._manager.upkeep.delete_old_segments()
    assert logs_of(broker, COMPACTED) == before


def test_an_altered_topic_keeps_what_its_broker_gave_it(broker: tuple[Path, Path]) -> None:
    with opened(*broker) as logs:
        logs.topics.alter("users", {"min.cleanable.dirty.ratio": "0.25"})
        assert logs["users", 0].config.policies == ("compact",)
        assert logs["users", 0].config.delete_retention_ms == 1000
    with opened(*broker) as logs:
        described = logs.topics.describe("users").config
        assert described["cleanup.policy"] == "compact" and described["min.cleanable.dirty.ratio"] == "0.25"
        assert logs["users", 0].config.delete_retention_ms == 1000
        logs.topics.alter("users", remove=["delete.retention.ms"])
        assert logs["users", 0].config.delete_retention_ms == 43_200_000


def test_directories_of_deleted_topics_are_excluded(broker: tuple[Path, Path]) -> None:
    (broker[0] / "reborn-1").mkdir()
    (broker[0] / "reborn-1" / "partition.metadata").write_text(
        "version: 0\ntopic_id: DNBQGazITYep2N_VW9ngBQ\n"
    )
    (broker[0] / "never-0").mkdir()
    before = listing(broker[0] / "reborn-1")
    with opened(*broker) as logs:
        assert TopicPartition("reborn", 1) not in logs and TopicPartition("never", 0) not in logs
        reasons = {
            Path(excluded.path).name: excluded.reason
            for excluded in logs.directories[0].directory.passed_over
        }
        assert "belongs to a deleted topic" in reasons["reborn-1"]
        assert "the topic was deleted" in reasons["never-0"]
    assert listing(broker[0] / "reborn-1") == before


@pytest.mark.parametrize("has_id", [True, False])
def test_a_new_topic_does_not_get_the_records_of_a_deleted_one(
    broker: tuple[Path, Path], tmp_path: Path, has_id: bool
) -> None:
    with opened(tmp_path / "old") as logs:
        append(logs.get_or_create(TopicPartition("gone", 0)), 3)
    stray = broker[0] / "gone-0"
    shutil.copytree(tmp_path / "old" / "gone-0", stray)
    if not has_id:
        (stray / "partition.metadata").unlink()
    before = listing(stray)
    with opened(*broker) as logs:
        for create in (
            lambda: logs.topics.create("gone", 1),
            lambda: logs.get_or_create(TopicPartition("gone", 0)),
        ):
            with raises_error(DirectoryRefusedError, path=stray, about="deleted", advice="move it out"):
                create()
        assert "gone" not in logs.topics.names() and listing(stray) == before
    stray.rename(tmp_path / "kept")
    with opened(*broker) as logs:
        logs.topics.create("gone", 1)
        assert logs["gone", 0].log_end_offset == 0
    with opened(*broker) as logs:
        assert logs["gone", 0].log_end_offset == 0


def test_of_a_partition_in_two_directories_the_one_with_the_topics_id_counts(
    broker: tuple[Path, Path],
) -> None:
    """As in Kafka, which renames the other one: by its id it is of a deleted topic of the same name."""
    where = TopicPartition("users", 0)
    own, other = broker if (broker[0] / str(where)).exists() else broker[::-1]
    shutil.copytree(own / str(where), other / str(where))
    with raises_error(DirectoryRefusedError, about="also in"):
        opened(*broker)
    (other / str(where) / PARTITION_METADATA).write_bytes(partition_metadata("A" * 22))
    before = listing(other / str(where))
    with opened(*broker) as logs:
        assert logs.directory_of(where).path == own and logs[where].log_end_offset > 0
        assert [row.path for row in logs.directories[broker.index(other)].directory.passed_over].count(
            str(other / str(where))
        ) == 1
    assert listing(other / str(where)) == before
    (other / str(where) / PARTITION_METADATA).unlink()
    with raises_error(DirectoryRefusedError, about="also in"):  # nothing shows which topic it is of
        opened(*broker)


def test_a_topic_created_here_is_served_beside_the_brokers(broker: tuple[Path, Path]) -> None:
    with opened(*broker) as logs:
        logs.topics.create("mine", partitions=1)
        assert logs["mine", 0].config.retention_ms == 345_600_000
    with opened(*broker) as logs:
        assert TopicPartition("mine", 0) in logs and TopicPartition("users", 0) in logs


def test_damaged_metadata_opens_nothing_for_a_change(broker: tuple[Path, Path]) -> None:
    damaged(broker[0])
    before = [listing(directory) for directory in broker]
    with raises_error(DirectoryRefusedError, about=str(broker[0] / METADATA), advice="read-only"):
        opened(*broker)
    for directory, known in zip(broker, before, strict=True):
        after = listing(directory)
        assert {name: after[name] for name in after if name != ".lock"} == known
    with st.open(broker) as logs:
        assert logs["users", 0].log_end_offset > 0
    assert not (broker[0] / TOPICS_FILE).exists()


def test_a_bad_setting_refuses_only_its_topic(
    broker: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from siltstone.log.metadata_log import ClusterSettings

    known = ClusterSettings.overrides

    def spoiled(self: ClusterSettings, topic: str) -> dict[str, str]:
        return {**known(self, topic), **({"retention.ms": "soon"} if topic == "audit" else {})}

    monkeypatch.setattr(ClusterSettings, "overrides", spoiled)
    with opened(*broker) as logs:
        assert "retention.ms" in logs.refused[TopicPartition("audit", 0)]
        assert TopicPartition("users", 0) in logs
    monkeypatch.undo()
    with opened(*broker) as logs:
        assert TopicPartition("audit", 0) in logs


def test_without_the_brokers_metadata_retention_by_time_is_off(broker: tuple[Path, Path]) -> None:
    before = logs_of(broker[1:], {path.name.rpartition("-")[0] for path in broker[1].glob("*-*")})
    with opened(broker[1]) as logs:
        assert logs["orders", 0].config.retention_ms == -1
        assert logs.upkeep.delete_old_segments() == {}
    assert logs_of(broker[1:], {path.name.rpartition("-")[0] for path in broker[1].glob("*-*")}) == before


def test_a_static_broker_setting_applies_without_the_metadata(broker: tuple[Path, Path]) -> None:
    setting = Setting(value=5, source="server.properties", config_source=ConfigSource.STATIC_BROKER_CONFIG)
    with opened(broker[1], config=Config(static={"log.retention.ms": setting})) as logs:
        assert logs["audit", 0].config.retention_ms == 5


def test_a_topic_created_here_has_kafkas_default_retention(tmp_path: Path) -> None:
    with opened(tmp_path / "own") as logs:
        logs.topics.create("mine", partitions=1)
        assert logs["mine", 0].config.retention_ms == 7 * 86_400_000


def test_the_log_says_where_the_settings_are_from(
    broker: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "siltstone")
    opened(*broker).close()
    assert any(
        METADATA in record.getMessage() and "up to offset" in record.getMessage() for record in caplog.records
    )


def test_no_topic_is_altered_without_the_metadata_that_has_its_other_settings(
    broker: tuple[Path, Path],
) -> None:
    without = next(directory for directory in broker if not (directory / METADATA).exists())
    before = logs_of((without,), COMPACTED)
    with opened(without) as logs:
        name = next(name for name in logs.topics.names() if name in COMPACTED)
        with raises_error(DirectoryRefusedError, path=without, about=name, advice="log.dirs"):
            logs.topics.alter(name, {"segment.bytes": "1000000"})
        logs.tick(LATER + YEAR)
    assert logs_of((without,), COMPACTED) == before and not (without / TOPICS_FILE).exists()


def test_a_partition_that_the_broker_kept_elsewhere_has_the_topics_id_and_settings(
    broker: tuple[Path, Path],
) -> None:
    with opened(*broker) as logs:
        known = logs.topics.describe("users")
    for path in [log for directory in broker for log in directory.glob("users-*")]:
        shutil.rmtree(path)
    with opened(*broker) as logs:
        assert "users" not in logs.topics.names()
        logs.get_or_create(TopicPartition("users", 0))
        assert logs.topics.describe("users").topic_id == known.topic_id
        assert logs.topics.describe("users").config == known.config
        with pytest.raises(TopicExistsError):
            logs.topics.create("users", 1)


def test_topics_in_a_directory_that_is_offline_since_the_start_are_known_by_the_brokers_metadata(
    broker: tuple[Path, Path],
) -> None:
    """Without this a client's auto-creation would make a second topic of that name."""
    first, second = sorted(broker, key=lambda directory: not (directory / METADATA).exists())
    with opened(first, second) as logs:
        before = logs.topics.names()
        ids = {name: logs.topics.describe(name).topic_id for name in before}
        served = {path.name for path in first.iterdir()}
        elsewhere = sorted(where for where in logs if str(where) not in served)
    whole = next(where for where in elsewhere if not (first / f"{where.topic}-0").exists())
    with failing(second):
        logs = opened(first, second)
    with logs:
        assert list(logs.offline) == [second] and logs.topics.names() == before
        for where in elsewhere:
            assert where.partition in logs.topics.describe(where.topic).offline
            for get in (logs.get, logs.get_or_create):
                with raises_error(StorageError, path=str(where), about=str(second)):
                    get(where)
        assert logs.topics.describe(whole.topic).topic_id == ids[whole.topic]
        with pytest.raises(TopicExistsError):
            logs.topics.create(whole.topic, 1)
        with pytest.raises(UnknownTopicError):
            logs.get(TopicPartition("unknown", 0))
        logs.topics.delete(whole.topic)
        assert whole.topic not in logs.topics.names()
    with opened(first, second) as logs:
        assert logs.topics.names() == [name for name in before if name != whole.topic]
    with opened(first) as logs:  # whether there is another directory is not known
        assert set(logs.topics.names()) < set(before)
