"""Partitions that the cleaner leaves alone: kept beside the checkpoints, until somebody says otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siltstone.base.errors import CorruptFileError, UnknownTopicError
from siltstone.log.directory import LogDirectory
from siltstone.log.names import LOG_START_CHECKPOINT, RECOVERY_CHECKPOINT, TopicPartition
from siltstone.runtime.cleaning_states import IN_PROGRESS, NONE, paused
from siltstone.runtime.served_directory import (
    UNCLEANABLE_FILE,
    Uncleanable,
    clear_uncleanable,
    mark_uncleanable,
    read_uncleanable,
)
from tests.support.log.managed import NOW, append, opened

USERS, OTHER = TopicPartition("users", 0), TopicPartition("users", 1)
COMPACT = {"cleanup.policy": "compact"}


def create_users(path: Path) -> Path:
    with opened(path) as manager:
        manager.topics.create("users", partitions=2, config=COMPACT)
    return path


def test_the_reason_survives_a_restart_and_is_gone_after_a_retry(tmp_path: Path) -> None:
    create_users(tmp_path)
    row = Uncleanable(topic="users", partition=0, since_ms=NOW, reason="byte 99: nonsense")
    with opened(tmp_path) as manager:
        manager.mark_uncleanable(USERS, "byte 61: nonsense", NOW)
        manager.mark_uncleanable(USERS, "byte 99: nonsense", NOW + 5)
        assert manager.uncleanable == {USERS: row}
    with opened(tmp_path) as manager:
        assert manager.uncleanable == {USERS: row}
        assert not manager.retry_cleaning(OTHER)
        assert manager.retry_cleaning(USERS)
        assert manager.uncleanable == {}
        with pytest.raises(UnknownTopicError):
            manager.retry_cleaning(TopicPartition("nobody", 0))
    assert not (tmp_path / UNCLEANABLE_FILE).exists()


def test_the_list_is_a_plain_file_that_a_broker_ignores(tmp_path: Path) -> None:
    create_users(tmp_path)
    mark_uncleanable(tmp_path, USERS, "why", NOW)
    assert (tmp_path / UNCLEANABLE_FILE).is_file()
    with LogDirectory.open(tmp_path) as directory:
        assert directory.passed_over == [] and set(directory.partitions) == {USERS, OTHER}
    assert clear_uncleanable(tmp_path, USERS) and not clear_uncleanable(tmp_path, USERS)


def test_a_partition_that_is_deleted_or_emptied_is_not_listed_any_more(tmp_path: Path) -> None:
    create_users(tmp_path)
    with opened(tmp_path) as manager:
        for topic_partition in (USERS, OTHER):
            manager.mark_uncleanable(topic_partition, "why", NOW)
        manager.truncate_fully_and_start_at(OTHER, 7)
        assert list(manager.uncleanable) == [USERS]
        manager.topics.delete("users")
        manager.topics.create("users", config=COMPACT)
        assert manager.uncleanable == {}
    assert read_uncleanable(tmp_path) == {}


def test_a_start_removes_entries_of_partitions_that_do_not_exist(tmp_path: Path) -> None:
    create_users(tmp_path)
    mark_uncleanable(tmp_path, TopicPartition("gone", 3), "why", NOW)
    mark_uncleanable(tmp_path, USERS, "why", NOW)
    opened(tmp_path).close()
    assert list(read_uncleanable(tmp_path)) == [USERS]


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"version": 2, "partitions": []}', b'{"version": 1}', b"\xff"])
def test_a_damaged_list_is_refused_and_written_again(tmp_path: Path, raw: bytes) -> None:
    create_users(tmp_path)
    (tmp_path / UNCLEANABLE_FILE).write_bytes(raw)
    with pytest.raises(CorruptFileError):
        read_uncleanable(tmp_path)
    with opened(tmp_path) as manager:
        assert manager.uncleanable == {}
        manager.mark_uncleanable(USERS, "why", NOW)
    assert len(json.loads((tmp_path / UNCLEANABLE_FILE).read_bytes())["partitions"]) == 1


@pytest.mark.parametrize("name", [LOG_START_CHECKPOINT, RECOVERY_CHECKPOINT])
def test_a_damaged_checkpoint_is_written_again(tmp_path: Path, name: str) -> None:
    """Also one without entries: else each start would recover all logs."""
    create_users(tmp_path)
    (tmp_path / name).write_bytes(b"nonsense")
    opened(tmp_path).close()
    assert (tmp_path / name).read_bytes() != b"nonsense"
    with opened(tmp_path) as manager:
        assert all(served.had_clean_shutdown for served in manager.directories)


def test_retention_applies_to_an_uncleanable_log(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("users", config={"cleanup.policy": "compact,delete", "retention.ms": "1"})
        append(manager[USERS], timestamp=NOW - 10_000)
        manager.mark_uncleanable(USERS, "why", NOW)
        assert manager.upkeep.delete_old_segments()
        assert manager[USERS].log_start_offset == 1


def test_retention_skips_a_log_that_is_being_cleaned(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("users", config={"cleanup.policy": "compact,delete", "retention.ms": "1"})
        append(manager[USERS], timestamp=NOW - 10_000)
        claim = manager.cleaning_states.begin(USERS)
        assert claim is not None
        assert not manager.upkeep.delete_old_segments()
        claim.done()
        assert manager.upkeep.delete_old_segments()
        assert manager.cleaning_states.state(USERS) == NONE


def test_the_policy_pauses_and_resumes(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("users", config=COMPACT)
        claim = manager.cleaning_states.begin(USERS)
        assert claim is not None
        manager.topics.alter("users", {"cleanup.policy": "delete"})
        assert claim.has_ended and manager.cleaning_states.state(USERS) == paused(1)
        claim.done()
        manager.upkeep.delete_old_segments()
        assert manager.cleaning_states.state(USERS) == paused(1)
        manager.topics.alter("users", COMPACT)
        assert manager.cleaning_states.state(USERS) == NONE


def test_truncation_and_deletion_take_the_log_from_the_cleaner(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.topics.create("users", config=COMPACT)
        append(manager[USERS], 3)
        for take in (
            lambda: manager.truncate_to(USERS, 2),
            lambda: manager.truncate_fully_and_start_at(USERS, 9),
            lambda: manager.topics.delete("users"),
        ):
            claim = manager.cleaning_states.begin(USERS)
            assert claim is not None and manager.cleaning_states.state(USERS) == IN_PROGRESS
            take()
            assert claim.has_ended and manager.cleaning_states.state(USERS) == NONE
            claim.done()


def test_a_directory_that_goes_offline_aborts_the_logs_on_it(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as manager:
        manager.topics.create("users", config=COMPACT)
        claim = manager.cleaning_states.begin(USERS)
        assert claim is not None
        manager.directories[0].go_offline("the disk failed")
        assert claim.has_ended
