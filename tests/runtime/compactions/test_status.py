"""The status of compactions on the disk: over restarts, interruptions and damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.compaction.ledger.compactor import CompactionResult
from siltstone.compaction.report import Discarded
from siltstone.runtime.compactions import (
    ERROR,
    NOT_RUN,
    RUNNING,
    SUCCESS,
    CompactionStatus,
    is_running,
    lock_compaction,
    read_status,
    topic_status,
    write_status,
)

RESULT = CompactionResult(
    ledger_id=3,
    horizon=100,
    entries=7,
    size=900,
    changed=True,
    read_records=90,
    read_bytes=4000,
    written=5,
    written_bytes=300,
    removed=Discarded(superseded=80, tombstones=5),
    replaced_entries=2,
    seconds=0.5,
)


def test_the_status_of_a_log_that_was_never_compacted(tmp_path: Path) -> None:
    assert read_status(tmp_path) == CompactionStatus() and read_status(tmp_path).status == NOT_RUN
    assert not is_running(tmp_path)
    assert not list(tmp_path.iterdir()), "asking makes nothing"


def test_a_status_is_read_as_it_was_written(tmp_path: Path) -> None:
    status = CompactionStatus().begun(5).ended(9, RESULT)
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status
    assert (status.status, status.succeeded, status.removed, status.written_bytes) == (SUCCESS, 1, 87, 300)
    stored = json.loads((tmp_path / ".compacted" / "status.json").read_text())
    assert stored["status"] == "SUCCESS" and stored["lastError"] == ""


def test_a_compaction_without_new_records_keeps_the_figures() -> None:
    first = CompactionStatus().begun(5).ended(9, RESULT)
    again = first.begun(10).ended(11, CompactionResult(ledger_id=3, horizon=100, entries=7, size=900))
    assert (again.status, again.succeeded, again.ended_ms) == (SUCCESS, 2, 11)
    assert (again.removed, again.entries, again.read_bytes, again.seconds) == (87, 7, 4000, 0.5)


def test_the_reason_of_a_failure_stays_until_the_next_compaction() -> None:
    failed = CompactionStatus().begun(5).ended(6, "no room")
    assert (failed.status, failed.last_error, failed.failed) == (ERROR, "no room", 1)
    assert failed.begun(7).last_error == ""


def test_running_lasts_as_long_as_the_claim(tmp_path: Path) -> None:
    claim = lock_compaction(tmp_path)
    assert claim is not None and lock_compaction(tmp_path) is None and is_running(tmp_path)
    write_status(tmp_path, CompactionStatus().begun(5))
    assert read_status(tmp_path).status == RUNNING
    claim.release()
    interrupted = read_status(tmp_path)
    assert (interrupted.status, interrupted.failed) == (ERROR, 1) and "interrupted" in interrupted.last_error
    again = lock_compaction(tmp_path)
    assert again is not None
    again.release()


@given(
    data=st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(["version", "status", "lastError", "beganMs", "endedMs", "seconds"]),
                    inner,
                )
            ),
        ).map(lambda document: json.dumps(document).encode()),
    )
)
def test_any_bytes_are_shown_as_an_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("status")
    (path / ".compacted").mkdir()
    (path / ".compacted" / "status.json").write_bytes(data)
    assert read_status(path).status == ERROR
    assert "status.json" in read_status(path).last_error


@pytest.mark.parametrize("damage", [b'"lastError":"\xff"}', b'"x":' + b"[" * 100_000], ids=["latin", "deep"])
def test_a_text_that_is_not_utf8_and_deep_nesting_are_an_error(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / ".compacted").mkdir()
    (tmp_path / ".compacted" / "status.json").write_bytes(b'{"version":1,"status":"ERROR",' + damage)
    status = read_status(tmp_path)
    assert (status.status, status.failed) == (ERROR, 0) and "status.json" in status.last_error


def test_a_topic_runs_or_failed_where_one_of_its_partitions_does() -> None:
    idle, succeeded = CompactionStatus(), CompactionStatus().begun(5).ended(9, RESULT)
    failed, running = idle.begun(1).ended(2, "no"), idle.begun(3)
    assert topic_status([idle, succeeded, failed, running]).status == RUNNING
    assert topic_status([idle, succeeded, failed]).last_error == "no"
    assert topic_status([idle, succeeded, succeeded]).status == SUCCESS
    assert topic_status([idle, succeeded, succeeded]).entries == 14
    assert topic_status([idle, idle]).status == NOT_RUN and topic_status([]).status == NOT_RUN
