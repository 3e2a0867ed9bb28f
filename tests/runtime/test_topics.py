"""Topics: names, ids and settings; made, changed, deleted; what a restart and a lost copy make of it."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.base.clock import ManualClock
from siltstone.base.config import Config, parse_assignments
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryRefusedError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    LogError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from siltstone.commands.directories import Snapshot
from siltstone.log import names
from siltstone.log.checkpoints import read_checkpoint, read_topic_id, write_checkpoint
from siltstone.log.names import TopicPartition, parse_partition
from siltstone.log.partition import PartitionLog
from siltstone.runtime.topic_names import (
    deleted_directory,
    is_deleted_directory,
    new_id,
    partition_metadata,
    refuse_bad_name,
    refuse_collision,
)
from siltstone.runtime.topics import (
    NO_TOPICS,
    TOPICS_FILE,
    TopicEntry,
    Topics,
    load_registry,
    write_registry,
)
from tests.support.errors import raises_error
from tests.support.log.managed import MINUTE, NOW, append, failing, names_in, opened, values

EVENTS = TopicPartition("events", 0)


# Names and ids


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 250, "a b", "a/b", "a\n", "ä", "a:b", "__cluster_metadata", "a\u0000"]
)
def test_invalid_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError) as error:
        refuse_bad_name(name)
    assert error.value.error_code == 17 and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a", "a" * 249, "...", "A.b_c-9", "__consumer_offsets", "-"])
def test_valid_topic_names_are_accepted(name: str) -> None:
    refuse_bad_name(name)


def test_names_that_differ_in_dot_and_underscore_collide() -> None:
    for one, other in (("a.b", "a_b"), ("a_b.c", "a.b_c")):
        with raises_error(InvalidTopicError, about=repr(other)):
            refuse_collision(one, ["x", other])
    refuse_collision("a.b", ["a.b", "a-b", "ab"])


@given(st.binary(min_size=16, max_size=16))
def test_an_id_is_22_letters_without_a_dash_in_front(seed: bytes) -> None:
    given_bytes = iter([seed])
    made = new_id(lambda count: next(given_bytes, bytes(count)))
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", made)


def test_an_id_never_begins_with_a_dash() -> None:
    tries = iter([b"\xf8" + bytes(15), b"\x01" + bytes(15)])
    assert new_id(lambda count: next(tries)).startswith("AQ")


def test_partition_metadata_is_the_brokers(golden: Path, tmp_path: Path) -> None:
    folder = golden / "basic" / "before"
    topic_id = read_topic_id(folder)
    assert topic_id is not None
    assert partition_metadata(topic_id) == (folder / names.PARTITION_METADATA).read_bytes()


@pytest.mark.parametrize("topic", ["gone", "a" * 249, "with-dash"])
def test_the_name_of_a_deleted_partition(topic: str) -> None:
    name = deleted_directory(TopicPartition(topic, 12), lambda count: bytes(range(count)))
    assert name.endswith("-12.000102030405060708090a0b0c0d0e0f-delete") and len(name) <= 255
    assert is_deleted_directory(name) and parse_partition(name) is None


def test_a_brokers_deleted_directories_are_known(stopped_broker: tuple[Path, Path]) -> None:
    leftover = [name for data in stopped_broker for name in names_in(data) if name.endswith("-delete")]
    assert leftover and all(is_deleted_directory(name) for name in leftover)
    assert not is_deleted_directory("my-delete") and not is_deleted_directory("a-0.xyz-delete")


# Making


def test_a_topics_settings_and_id_are_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        made = manager.topics.create("users", partitions=2, config={"cleanup.policy": "compact"})
        assert (made.partitions, made.offline, made.config) == ((0, 1), (), {"cleanup.policy": "compact"})
        assert manager["users", 1].config.compacts
        assert {read_topic_id(tmp_path / f"users-{number}") for number in (0, 1)} == {made.topic_id}
        assert manager.topics.create("one").partitions == (0,)
    with opened(tmp_path) as manager:
        assert manager.topics.names() == ["one", "users"]
        assert manager.topics.describe("users") == made
        assert manager["users", 0].config.compacts and not manager["one", 0].config.compacts


@pytest.mark.parametrize(
    ("name", "partitions", "config", "code"),
    [
        ("a b", 1, {}, 17),
        ("ev_ents", 1, {}, 17),
        ("ev.ents", 1, {}, 36),
        ("new", 0, {}, 37),
        ("new", -1, {}, 37),
        ("new", 1, {"retention.ms": "soon"}, 40),
        ("new", 1, {"retention.mss": "1"}, 40),
        ("new", 1, {"log.retention.ms": "1"}, 40),
        ("new", 1, {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, 40),
        ("new", 1, {"siltstone.retention.policy": "unheard-of"}, 40),
    ],
)
def test_a_refused_topic_leaves_nothing_on_disk(
    tmp_path: Path, name: str, partitions: int, config: dict[str, str], code: int
) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("ev.ents")
        before, on_disk = (tmp_path / TOPICS_FILE).read_bytes(), names_in(tmp_path)
        with pytest.raises(LogError) as error:
            manager.topics.create(name, partitions=partitions, config=config)
        assert error.value.error_code == code
        assert (tmp_path / TOPICS_FILE).read_bytes() == before and names_in(tmp_path) == on_disk


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_file_or_link_with_a_partitions_name_refuses_the_topic(tmp_path: Path, kind: str) -> None:
    """A link would lead what is written out of the log directory; a file is no reason to go offline."""
    (tmp_path / "elsewhere").mkdir()
    with opened(tmp_path / "logs") as manager:
        path = tmp_path / "logs" / "events-1"
        path.symlink_to(tmp_path / "elsewhere") if kind == "link" else path.touch()
        for refused in (
            lambda: manager.topics.create("events", 2),
            lambda: manager.get_or_create(TopicPartition("events", 1)),
        ):
            with raises_error(DirectoryRefusedError, path=path, about="events-1"):
                refused()
        assert manager.topics.names() == [] and manager.directories[0].offline is None
        manager.topics.create("other", 1)
    entry = TopicEntry(topic_id="x" * 22, partitions=(1,), uncreated=(1,), config={})
    registry = load_registry([tmp_path / "logs"])[0].with_topic("events", entry)
    write_registry(tmp_path / "logs", registry)
    with opened(tmp_path / "logs") as manager:
        assert TopicPartition("other", 0) in manager and TopicPartition("events", 1) not in manager
        path.unlink()
    with opened(tmp_path / "logs") as manager:
        assert TopicPartition("events", 1) in manager
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_directory_that_comes_while_the_logs_are_open_is_not_the_new_topics(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with opened(tmp_path / "old") as manager:
        append(manager.get_or_create(EVENTS), 3)
    with opened(logs) as manager:
        shutil.copytree(tmp_path / "old" / "events-0", logs / "events-0")
        before = {path: path.read_bytes() for path in (logs / "events-0").iterdir()}
        for create in (lambda: manager.topics.create("events", 2), lambda: manager.get_or_create(EVENTS)):
            with raises_error(DirectoryRefusedError, path=logs / "events-0", advice="move it out"):
                create()
        assert manager.topics.names() == [] and names_in(logs).isdisjoint({"events-1"})
        assert before == {path: path.read_bytes() for path in (logs / "events-0").iterdir()}
    with opened(logs) as manager:
        assert list(manager) == [EVENTS] and values(manager[EVENTS]) == 3


def with_uncreated(directories: list[Path], **settings: dict[str, str]) -> None:
    """List topics with these settings, the one partition of each still to be created."""
    registry = load_registry(directories)[0]
    for name, config in settings.items():
        entry = TopicEntry(topic_id=name[0] * 22, partitions=(0,), uncreated=(0,), config=config)
        registry = registry.with_topic(name, entry)
    for directory in directories:
        write_registry(directory, registry)


def test_a_full_disk_when_a_start_completes_a_topic_leaves_the_others_in_service(tmp_path: Path) -> None:
    both = [tmp_path / "a", tmp_path / "b"]
    with opened(*both) as manager:
        append(manager.get_or_create(TopicPartition("other", 0)))
    with_uncreated(both, events={}, later={})
    with failing(tmp_path, "mkdir", error=errno.ENOSPC) as failed:
        manager = opened(*both)
    with manager:
        assert len(failed) == 1 and list(manager.offline) == [both[1]]
        assert list(manager) == [TopicPartition("other", 0)], "what is listed may be in the other directory"
        append(manager["other", 0])
    with opened(*both) as manager:
        assert {place.topic for place in manager} == {"events", "later", "other"}
        assert values(manager["other", 0]) == 2
    with_uncreated(both, events={}, third={})
    with failing(tmp_path, "mkdir"), raises_error(StorageError):
        opened(both[0])


def test_a_bad_setting_of_an_uncreated_topic_stops_no_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path).close()
    with_uncreated([tmp_path], bad={"retention.ms": "soon"}, good={})
    with opened(tmp_path) as manager:
        assert list(manager) == [TopicPartition("good", 0)]
        assert "retention.ms" in caplog.text and "topic bad is created at the next start" in caplog.text
    assert load_registry([tmp_path])[0].topics["bad"].uncreated == (0,)


def test_partitions_are_added(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events", partitions=2)
        assert manager.topics.add_partitions("events", 4).partitions == (0, 1, 2, 3)
        for count in (4, 3, 0):
            with pytest.raises(InvalidPartitionsError):
                manager.topics.add_partitions("events", count)
        with pytest.raises(UnknownTopicError):
            manager.topics.add_partitions("other", 1)
        assert len(manager) == 4
        assert len({read_topic_id(tmp_path / f"events-{number}") for number in range(4)}) == 1


def test_all_partitions_are_those_of_each_topic(tmp_path: Path, stopped_broker: tuple[Path, Path]) -> None:
    with opened(tmp_path / "logs") as manager:
        assert manager.topics.all_partitions() == {}
        manager.topics.create("users", partitions=3)
        append(manager.get_or_create(TopicPartition("events", 5)))
        assert manager.topics.all_partitions() == {"events": (5,), "users": (0, 1, 2)}
        assert manager.topics.all_partitions() is manager.topics.all_partitions()
    with opened(*stopped_broker) as manager:
        found = manager.topics.all_partitions()
        assert list(found) == manager.topics.names()
        assert found == {name: manager.topics.partitions_of(name) for name in found}


def test_a_new_partition_is_made_without_a_walk_over_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("users", partitions=3)
        walks = list[str]()
        walk = Topics._paths_on_disk
        monkeypatch.setattr(
            Topics, "_paths_on_disk", lambda topics, name: walks.append(name) or walk(topics, name)
        )
        manager.topics.add_partitions("users", 20)
        assert len(walks) < 5
        topic_id = manager.topics.describe("users").topic_id
        assert {read_topic_id(tmp_path / f"users-{number}") for number in range(20)} == {topic_id}


def test_a_topic_is_described_without_a_walk_over_all_partitions(tmp_path: Path) -> None:
    walks = 0

    class Walked(Topics):
        def _on_disk(self) -> Iterator[TopicPartition]:
            nonlocal walks
            walks += 1
            return super()._on_disk()

    with opened(tmp_path / "one", tmp_path / "two") as manager:
        manager.topics.__class__ = Walked
        for name in "abc":
            manager.topics.create(name, 4)
        manager.topics.describe("a")
        walks = 0
        for name in "abc" * 3:
            assert manager.topics.describe(name).partitions == (0, 1, 2, 3)
        assert walks == 0
        manager.topics.add_partitions("b", 5)
        assert manager.topics.describe("b").partitions == (0, 1, 2, 3, 4)
        manager.topics.delete("c")
        with pytest.raises(UnknownTopicError):
            manager.topics.describe("c")
        # A directory goes offline, with a partition of a topic that no registry lists.
        served = manager.serving()[0]
        gone = [here.partition for here in served.logs if here.topic == "a"]
        served.go_offline("the disk is gone")
        assert manager.topics.describe("a").offline == tuple(sorted(gone)) != ()


def test_a_partition_is_created_by_its_number(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.get_or_create(TopicPartition("events", 5)))
        assert manager.topics.describe("events").partitions == (5,)
        manager.get_or_create(TopicPartition("events", 2))
        assert manager.topics.describe("events").partitions == (2, 5)
        with pytest.raises(InvalidTopicError):
            manager.get_or_create(TopicPartition("no good", 0))
        for number in (-1, 2**31):
            for topic in ("events", "new"):
                with raises_error(InvalidPartitionsError, about=str(number), advice="2147483647"):
                    manager.get_or_create(TopicPartition(topic, number))
        assert manager.topics.names() == ["events"]
        append(manager.get_or_create(TopicPartition("events", 2**31 - 1)))
    with opened(tmp_path) as manager:
        assert [place.partition for place in manager] == [2, 5, 2**31 - 1]


# Settings at run time


def test_a_segment_size_applies_at_the_next_roll_and_a_policy_at_once(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with opened(tmp_path, clock=clock) as manager:
        manager.topics.create("events", config={"retention.ms": "-1"})
        log = manager[EVENTS]
        for _ in range(4):
            append(log, 1, size=200)
        assert len(log.view.segments) == 1
        altered = manager.topics.alter("events", {"segment.bytes": "300"})
        assert altered.config == {"retention.ms": "-1", "segment.bytes": "300"}
        for _ in range(2):
            append(log, 1, size=200)
        assert [segment.base_offset for segment in log.view.segments] == [0, 4, 5]
        clock.advance(10 * MINUTE)
        manager.tick()
        assert log.log_start_offset == 0
        manager.topics.alter("events", {"retention.ms": "60000"})
        clock.advance(10 * MINUTE)
        manager.tick()
        assert log.log_start_offset == 6
        append(log, 1, clock.now_ms())
        manager.topics.alter("events", {"cleanup.policy": "compact"})
        clock.advance(10 * MINUTE)
        manager.tick()
        assert log.log_start_offset == 6 and values(log) == 1
    with opened(tmp_path) as manager:
        assert manager[EVENTS].config.segment_bytes == 300 and manager[EVENTS].config.compacts


def test_settings_are_removed_under_any_of_their_names(tmp_path: Path) -> None:
    with opened(tmp_path, config={"log.retention.hours": "2"}) as manager:
        manager.topics.create("events", config={"internal.segment.bytes": "500", "retention.ms": "7"})
        assert manager.topics.alter("events", {"segment.bytes": "600"}).config == {
            "segment.bytes": "600",
            "retention.ms": "7",
        }
        manager.topics.alter("events", remove=["retention.ms", "flush.ms"])
        assert manager[EVENTS].config.retention_ms == 2 * 60 * MINUTE
        for bad in ({"segment.bytes": "0"}, {"nonsense": "1"}):
            with pytest.raises(InvalidConfigError):
                manager.topics.alter("events", bad)
        with pytest.raises(InvalidConfigError):
            manager.topics.alter("events", remove=["nonsense"])
        assert manager.topics.describe("events").config == {"segment.bytes": "600"}


def test_changed_broker_settings_apply_to_topics_without_their_own(tmp_path: Path) -> None:
    with opened(tmp_path, config={"log.retention.ms": "1000"}) as manager:
        manager.topics.create("events")
        manager.topics.create("own", config={"retention.ms": "7"})
        manager.update_config(Config(parse_assignments(["log.retention.ms=2000"], "test")))
        assert (manager[EVENTS].config.retention_ms, manager["own", 0].config.retention_ms) == (2000, 7)


def test_readers_go_by_the_topics_bound_of_a_batch(tmp_path: Path) -> None:
    """What was appended under a larger one is named with the setting until that is raised again."""
    name = "max.decompressed.message.bytes"
    with opened(tmp_path, config={name: "100"}) as manager:
        manager.topics.create("events", config={name: "1000000", "compression.type": "zstd"})
        append(manager[EVENTS], 1, size=50_000)
        assert len(list(manager[EVENTS].reader())) == 1
        assert manager[EVENTS].offset_for_time(NOW) is not None
        manager.topics.alter("events", remove=[name])
        for read in (lambda: list(manager[EVENTS].reader()), lambda: manager[EVENTS].offset_for_time(NOW)):
            with pytest.raises(CorruptFileError, match=f"100 .*{name}"):
                read()


# Deleting


def test_a_deleted_topic_is_renamed_at_once_and_removed_later(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with opened(tmp_path, clock=clock) as manager:
        first = manager.topics.create("events", partitions=2, config={"file.delete.delay.ms": "1000"})
        append(manager[EVENTS], 3)
        manager.delete_records(EVENTS, 2)
        write_checkpoint(tmp_path / names.CLEANER_CHECKPOINT, {EVENTS: 1})
        manager.flush()
        manager.upkeep.write_recovery_points()
        log = manager[EVENTS]
        manager.topics.delete("events")
        gone = [name for name in names_in(tmp_path) if is_deleted_directory(name)]
        assert len(gone) == 2 and len(manager) == 0 and manager.topics.names() == []
        for checkpoint in (
            names.RECOVERY_CHECKPOINT,
            names.LOG_START_CHECKPOINT,
            names.REPLICATION_CHECKPOINT,
            names.CLEANER_CHECKPOINT,
        ):
            assert read_checkpoint(tmp_path / checkpoint) == {}
        with pytest.raises(StorageError):
            append(log)
        for call in (manager.topics.delete, manager.topics.describe):
            with pytest.raises(UnknownTopicError):
                call("events")
        second = manager.topics.create("events")
        assert second.topic_id != first.topic_id and manager[EVENTS].log_end_offset == 0
        clock.advance(1000)
        manager.tick()
        assert not [name for name in names_in(tmp_path) if is_deleted_directory(name)]
        append(manager[EVENTS])
    with opened(tmp_path) as manager:
        assert values(manager[EVENTS]) == 1


def test_a_deleted_directory_that_was_left_is_removed_after_the_next_start(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with opened(tmp_path, clock=clock) as manager:
        manager.topics.create("events")
        manager.topics.delete("events")
    (tmp_path / "mine-delete").mkdir()
    with opened(tmp_path, clock=clock) as manager:
        clock.advance(MINUTE)
        manager.tick()
        assert not [name for name in names_in(tmp_path) if is_deleted_directory(name)]
    assert "mine-delete" in names_in(tmp_path), "no broker's name"


def test_a_deleted_partition_in_an_offline_directory_is_deleted_at_the_next_start(
    tmp_path: Path,
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events", partitions=2)
        for topic_partition in manager:
            append(manager[topic_partition])
    with failing(b):
        manager = opened(a, b)
    assert list(manager.offline) == [b]
    assert manager.topics.describe("events").offline != ()
    manager.topics.delete("events")
    manager.topics.create("events", partitions=1)
    manager.close()
    with opened(a, b) as manager:
        assert list(manager) == [EVENTS] and values(manager[EVENTS]) == 0
        assert len([name for name in names_in(b) if is_deleted_directory(name)]) == 1


def test_a_deletion_looks_at_no_partition_of_other_topics(tmp_path: Path) -> None:
    class Walked(dict[TopicPartition, PartitionLog]):
        walks = 0

        def __iter__(self) -> Iterator[TopicPartition]:
            Walked.walks += 1
            return super().__iter__()

    with opened(tmp_path) as manager:
        manager.topics.create("events", partitions=2)
        manager.topics.create("other", partitions=2)
        served = manager.directories[0]
        served.logs = Walked(served.logs)
        manager.topics.describe("events")
        before = Walked.walks
        manager.topics.delete("events")
        assert Walked.walks == before and len(served.logs) == 2


@pytest.mark.parametrize("kind", ["link", "deep"])
def test_a_deleted_directory_that_cannot_be_removed_takes_nothing_offline(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, logs, kept = ManualClock(NOW), tmp_path / "logs", tmp_path / "kept"
    with opened(logs, clock=clock) as manager:
        manager.topics.create("events")
    kept.mkdir()
    left = logs / deleted_directory(EVENTS, bytes)
    if kind == "link":
        left.symlink_to(kept)
    else:
        left.joinpath(*"x" * 40).mkdir(parents=True)
    with opened(logs, clock=clock) as manager:
        clock.advance(MINUTE)
        manager.tick()
        assert not manager.offline and left.exists() and kept.exists()
        assert f"{left} was not removed" in caplog.text
        append(manager[EVENTS])


def test_a_topic_that_only_an_offline_directory_has_is_known(tmp_path: Path) -> None:
    """No registry lists it, as no registry lists a Kafka's topics."""
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        for number, name in enumerate(("events", "users")):
            manager.topics.create(name)
            assert manager.directory_of(TopicPartition(name, 0)).path == (a, b)[number]
        topic_id = manager.topics.describe("users").topic_id
    for directory in (a, b):
        (directory / TOPICS_FILE).unlink()
    users = TopicPartition("users", 0)
    with opened(a, b) as manager:
        assert "users" in manager.topics.ids
        manager.directories[1].go_offline("the disk is gone")
        topics = manager.topics
        assert topics.names() == ["events", "users"] and topics.all_partitions()["users"] == (0,)
        assert topics.describe("users").offline == (0,) and topics.describe("users").topic_id == topic_id
        assert list(topics.names_by_id.values()) == ["events", "users"]
        with pytest.raises(TopicExistsError):
            topics.create("users")
        for get in (manager.get, manager.get_or_create):
            with raises_error(StorageError, path="users-0", about="the disk is gone"):
                get(users)
        assert manager.get_or_create(TopicPartition("users", 1)).directory.parent == a
        topics.delete("users")
        assert topics.names() == ["events"]
        with pytest.raises(UnknownTopicError):
            manager.get(users)
    with opened(a, b) as manager:
        assert manager.topics.names() == ["events"] and not manager.offline
        assert len([name for name in names_in(b) if is_deleted_directory(name)]) == 1


def test_a_topic_whose_id_is_in_an_offline_directory_is_not_deleted(tmp_path: Path) -> None:
    """The next start would not know which partitions to delete."""
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        for name in ("events", "users"):
            manager.topics.create(name)
    for directory in (a, b):
        (directory / TOPICS_FILE).unlink()
    with opened(a, b) as manager:
        manager.directories[1].go_offline("the disk is gone")
        with raises_error(StorageError, path=b, about="users", advice="open the directory again"):
            manager.topics.delete("users")
        assert manager.topics.names() == ["events", "users"]
    entry = TopicEntry(topic_id="", partitions=(0,), uncreated=(), config={})
    write_registry(a, load_registry([a])[0].with_topic("lost", entry))
    with opened(a, b) as manager:  # no directory is offline that could have a partition of it
        manager.topics.delete("lost")
        assert manager.topics.names() == ["events", "users"]


@pytest.mark.parametrize("is_id_listed", [True, False])
def test_a_topic_that_was_created_again_while_a_directory_was_offline_stops_no_start(
    tmp_path: Path, is_id_listed: bool
) -> None:
    """Both directories then have a partition of that name. The older one goes the way of any partition of a
    deleted topic: it is deleted if the deletion is still listed, else it stays as it is, unopened."""
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events", partitions=2)
        for topic_partition in manager:
            append(manager[topic_partition], 5)
    with failing(b):
        manager = opened(a, b)
    with manager:
        manager.topics.delete("events")
        manager.topics.create("events", partitions=2)
        append(manager["events", 1], 3)
    if not is_id_listed:  # as after a start without b
        write_registry(a, load_registry([a])[0].without_deleted())
    before = (b / "events-1" / "00000000000000000000.log").read_bytes()
    for _ in range(2):
        with opened(a, b) as manager:
            assert not manager.offline and list(manager) == [EVENTS, TopicPartition("events", 1)]
            assert values(manager["events", 1]) == 3 and manager.directory_of(EVENTS).path == a
            assert manager.topics.describe("events").offline == ()
    kept = [name for name in names_in(b) if name == "events-1"]
    assert bool(kept) != is_id_listed
    for name in kept:
        assert (b / name / "00000000000000000000.log").read_bytes() == before


def test_a_partition_in_two_directories_is_refused_where_its_topic_id_is_the_same(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        append(manager.get_or_create(EVENTS))
    shutil.copytree(a / "events-0", b / "events-0")
    with raises_error(DirectoryRefusedError, path=b / "events-0", about=str(a)):
        opened(a, b)
    assert (a / names.CLEAN_SHUTDOWN).exists() and (b / names.CLEAN_SHUTDOWN).exists()


def test_partitions_that_a_crash_left_listed_as_uncreated_are_not_created_beside_an_offline_directory(
    tmp_path: Path,
) -> None:
    """They may be in that directory: a second one with the same topic id would stop the next start."""
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events", partitions=4)
        for topic_partition in manager:
            append(manager[topic_partition], 2)
    for directory in (a, b):  # as after a crash between the two writes of a registry
        registry = load_registry([directory])[0]
        entry = msgspec.structs.replace(registry.topics["events"], uncreated=(0, 1, 2, 3))
        write_registry(directory, registry.with_topic("events", entry))
    with failing(b):
        manager = opened(a, b)
    with manager:
        assert manager.topics.add_partitions("events", 5).offline == (1, 3)
        append(manager.get_or_create(TopicPartition("events", 5)))
        with pytest.raises(StorageError):
            manager.get_or_create(TopicPartition("events", 1))
    with opened(a, b) as manager:
        assert [values(log) for log in manager["events"].logs()] == [2, 2, 2, 2, 0, 1]
    assert load_registry([a])[0].topics["events"].uncreated == ()


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("is_deletion_listed", [True, False], ids=["old-file", "new-file"])
def test_a_deleted_topic_that_is_restored_from_a_backup_stays(
    tmp_path: Path, has_id: bool, is_deletion_listed: bool
) -> None:
    """Also where an earlier version has left the id listed: the first start without the topic forgets it."""
    logs, backup, clock = tmp_path / "logs", tmp_path / "backup", ManualClock(NOW)
    with opened(logs, clock=clock) as manager:
        topic_id = manager.topics.create("events").topic_id
        append(manager[EVENTS], 3)
    if not has_id:
        (logs / "events-0" / names.PARTITION_METADATA).unlink()
        (logs / TOPICS_FILE).unlink()
    shutil.copytree(logs / "events-0", backup)
    with opened(logs, clock=clock) as manager:
        manager.topics.delete("events")
        clock.advance(MINUTE)
        manager.tick()
    assert load_registry([logs])[0].deleted == {}
    if is_deletion_listed:
        listed = load_registry([logs])[0].without_topic("events", topic_id if has_id and topic_id else "")
        write_registry(logs, listed)
        opened(logs, clock=clock).close()
        assert load_registry([logs])[0].deleted == {}
    shutil.copytree(backup, logs / "events-0")
    for _ in range(2):
        with opened(logs, clock=clock) as manager:
            assert list(manager) == [EVENTS] and values(manager[EVENTS]) == 3


def test_no_directory_without_an_id_counts_as_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.get_or_create(EVENTS), 3)
    (tmp_path / "events-0" / names.PARTITION_METADATA).unlink()
    write_registry(tmp_path, load_registry([tmp_path])[0].without_topic("events", ""))
    with opened(tmp_path) as manager:
        assert list(manager) == [EVENTS] and values(manager[EVENTS]) == 3


def test_a_full_disk_leaves_a_deleted_topics_id_listed_and_takes_nothing_offline(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("other")
    write_registry(tmp_path, load_registry([tmp_path])[0].without_topic("events", "x" * 22))
    with failing(tmp_path / TOPICS_FILE, error=errno.ENOSPC) as failed:
        manager = opened(tmp_path)
    with manager:
        assert failed and manager.offline == {} and list(manager) == [TopicPartition("other", 0)]
    assert load_registry([tmp_path])[0].deleted == {"events": frozenset({"x" * 22})}
    opened(tmp_path).close()
    assert load_registry([tmp_path])[0].deleted == {}


# The registry's file


def test_the_newest_copy_counts_and_the_others_follow(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events")
        old = (b / TOPICS_FILE).read_bytes()
        manager.topics.alter("events", {"retention.ms": "5"})
    (b / TOPICS_FILE).write_bytes(old)
    with opened(a, b) as manager:
        assert manager.topics.describe("events").config == {"retention.ms": "5"}
    (a / TOPICS_FILE).write_bytes(b"{nonsense")
    with opened(a, b) as manager:
        assert manager.topics.describe("events").config == {"retention.ms": "5"}
    assert (a / TOPICS_FILE).read_bytes() == (b / TOPICS_FILE).read_bytes()


def test_the_last_change_counts_when_directories_fail_in_turn(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events")
    with opened(b, clock=ManualClock(NOW + 1)) as manager:  # a is not mounted
        for text in ("1", "2", "3"):
            manager.topics.alter("events", {"retention.ms": text})
    with opened(a, clock=ManualClock(NOW + 9)) as manager:
        manager.topics.alter("events", {"retention.ms": "4"})
    with opened(b, a, clock=ManualClock(NOW)) as manager:
        assert manager.topics.describe("events").config == {"retention.ms": "4"}
        manager.topics.alter("events", {"retention.ms": "5"})  # a clock that goes back loses no change
    assert load_registry([b])[0].topics["events"].config == {"retention.ms": "5"}


def test_copies_of_one_generation_become_one(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with opened(a, b) as manager:
        manager.topics.create("events")
    registry = load_registry([a])[0]
    entry = msgspec.structs.replace(registry.topics["events"], config={"retention.ms": "1"})
    write_registry(b, msgspec.structs.replace(registry, topics={"events": entry}))
    opened(a, b).close()
    assert (a / TOPICS_FILE).read_bytes() == (b / TOPICS_FILE).read_bytes()


def test_a_start_without_a_readable_registry_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events")
    (tmp_path / TOPICS_FILE).write_bytes(b"{}")
    with raises_error(CorruptFileError, path=tmp_path / TOPICS_FILE, position=0, advice="backup"):
        opened(tmp_path)
    assert (tmp_path / names.CLEAN_SHUTDOWN).exists()


@given(
    st.one_of(
        st.binary(max_size=40),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["version", "generation", "topics", "deleted", "x"]), inner)
            ),
        ).map(lambda found: json.dumps(found).encode()),
    )
)
def test_any_bytes_are_a_registry_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("registry")
    (path / TOPICS_FILE).write_bytes(data)
    try:
        load_registry([path])
    except CorruptFileError as error:
        assert error.path == str(path / TOPICS_FILE)


@pytest.mark.parametrize(
    ("name", "number"),
    [("../x", 0), ("a/b", 0), ("", 0), ("..", 0), ("a" * 250, 0), ("events", -1), ("events", 2**31)],
)
def test_a_registry_with_a_partition_that_no_directory_can_have_is_refused(
    tmp_path: Path, name: str, number: int
) -> None:
    """A start would create it outside of the log directory, or not find it again."""
    logs = tmp_path / "logs"
    opened(logs).close()
    entry = TopicEntry(topic_id="x" * 22, partitions=(number,), uncreated=(number,), config={})
    write_registry(logs, NO_TOPICS.with_topic(name, entry))
    with raises_error(CorruptFileError, path=logs / TOPICS_FILE, about=name, advice="backup"):
        opened(logs)
    assert names_in(tmp_path) == {"logs"} and not [path for path in logs.iterdir() if path.is_dir()]


def test_a_registry_comes_back_as_it_was_written(tmp_path: Path) -> None:
    entry = TopicEntry(topic_id="x" * 22, partitions=(0, 3), uncreated=(3,), config={"a": "b"})
    registry = NO_TOPICS.with_topic("t", entry).with_topic("u", entry).without_topic("u", "id")
    write_registry(tmp_path, registry)
    assert load_registry([tmp_path]) == (registry, [])
    assert registry.generation == 3 and registry.deleted == {"u": frozenset({"id"})}


# Directories that a broker wrote


def test_a_partition_with_another_topic_id_is_excluded(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events", partitions=2)
        append(manager[EVENTS], 2)
    (tmp_path / "events-0" / names.PARTITION_METADATA).write_bytes(partition_metadata("A" * 22))
    before = {path: path.read_bytes() for path in (tmp_path / "events-0").iterdir()}
    with opened(tmp_path) as manager:
        assert list(manager) == [TopicPartition("events", 1)]
        assert "topic id" in manager.directories[0].directory.passed_over[0].reason
        assert manager.topics.describe("events").offline == (0,)
        manager.topics.delete("events")
        for create in (lambda: manager.topics.create("events"), lambda: manager.get_or_create(EVENTS)):
            with raises_error(DirectoryRefusedError, path=tmp_path / "events-0", about="topic id"):
                create()
        assert manager.topics.names() == []
        assert manager.topics.create("other").partitions == (0,)
    assert before == {path: path.read_bytes() for path in (tmp_path / "events-0").iterdir()}
    assert read_checkpoint(tmp_path / names.RECOVERY_CHECKPOINT)[EVENTS] == 2


def test_a_brokers_topics_can_be_altered_and_deleted(stopped_broker: tuple[Path, Path]) -> None:
    with opened(*stopped_broker) as manager:
        topic_id = read_topic_id(stopped_broker[0] / "users-0")
        assert manager.topics.describe("users").topic_id == topic_id
        assert manager.topics.alter("users", {"retention.ms": "-1"}).topic_id == topic_id
        manager.topics.delete("orders")
    with opened(*stopped_broker) as manager:
        assert manager["users", 0].config.retention_ms == -1
        assert "orders" not in manager.topics.names() and "ledger" in manager.topics.names()


def test_a_topic_that_exists_only_on_disk_is_not_created_again(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("events")
    (tmp_path / TOPICS_FILE).unlink()
    with opened(tmp_path) as manager, pytest.raises(TopicExistsError):
        manager.topics.create("events")


# Namespaces


def test_a_namespaces_policies_survive_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path / "a", tmp_path / "b") as manager:
        assert manager.topics.namespaces == {}
        set_to = manager.topics.alter_namespace("acme/shop", {"compactionThreshold": "100"})
        assert set_to == {"compactionThreshold": "100"}
    (tmp_path / "b" / TOPICS_FILE).unlink()
    with opened(tmp_path / "a", tmp_path / "b") as manager:
        assert manager.topics.namespaces == {"acme/shop": {"compactionThreshold": "100"}}
        for name, policies in (("acme", {}), ("acme/shop", {"compactionThreshold": "x"})):
            with pytest.raises((UsageError, InvalidConfigError)):
                manager.topics.alter_namespace(name, policies)
        assert manager.topics.alter_namespace("acme/shop", remove=["compactionThreshold"]) == {}
    registry, behind = load_registry([tmp_path / "a", tmp_path / "b"])
    assert registry.namespaces == {} and b"namespaces" not in registry.encode() and behind == []


# Settings of brokers


def test_what_is_set_for_brokers_at_run_time_survives_a_restart(tmp_path: Path) -> None:
    both = tmp_path / "a", tmp_path / "b"
    with opened(*both) as manager:
        manager.topics.create("events")
        manager.topics.alter_brokers({"log.retention.ms": "5"}, of_all=False)
        config = manager.topics.alter_brokers(
            {"log.retention.ms": "6", "log.flush.interval.ms": "7"}, of_all=True
        )
        manager.update_config(config)
        for settings in (
            {"nope": "1"},
            {"log.retention.ms": "x"},
            {"num.partitions": "2"},
            {"retention.ms": "1"},
        ):
            with pytest.raises(InvalidConfigError):
                manager.topics.alter_brokers(settings, of_all=True)
    (tmp_path / "b" / TOPICS_FILE).unlink()
    with opened(*both) as manager:
        config = manager["events", 0].config
        assert (config.retention_ms, config.flush_ms) == (5, 7)
        manager.update_config(manager.topics.alter_brokers({}, of_all=False))
        assert manager["events", 0].config.retention_ms == 6
    assert Snapshot(both, Config()).settings.broker.integer("retention.ms") == 6
    with opened(*both) as manager:
        manager.topics.alter_brokers({}, of_all=True)
    registry, behind = load_registry(both)
    assert registry.brokers == {} and b"brokers" not in registry.encode() and behind == []


def test_a_bad_value_that_was_stored_for_brokers_is_named(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.alter_brokers({"log.retention.ms": "5"}, of_all=True)
    path = tmp_path / TOPICS_FILE
    path.write_text(path.read_text("utf-8").replace('"5"', '"x"'), "utf-8")
    with raises_error(UsageError, about="log.retention.ms", path=TOPICS_FILE):
        opened(tmp_path)
    path.write_text(path.read_text("utf-8").replace("log.retention.ms", "a.later.setting"), "utf-8")
    opened(tmp_path).close()
