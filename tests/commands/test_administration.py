"""Changes of open directories: checked, recorded, made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.base.errors import (
    ChangedMeanwhileError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRecordError,
    PolicyViolationError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from siltstone.commands import administration as admin
from siltstone.commands.catalogue import TopicQuery, list_topics
from siltstone.commands.changes import Actor
from siltstone.commands.erasing import ErasureRequest
from siltstone.commands.explaining import outcome_words
from siltstone.commands.sending import AppendedRecord, ProducerRecord, send_records
from siltstone.commands.served import Served, ServeOptions
from siltstone.log.names import TopicPartition

ADA = Actor(user="ada", address="127.0.0.1")
USERS_0 = TopicPartition("users", 0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    path = tmp_path / "server.properties"
    path.write_text("log.cleaner.enable=false\n", "utf-8")
    with Served(ServeOptions(paths=(tmp_path / "logs",), properties=path)) as served:
        admin.create_topic(served, ADA, "users", 2, {"cleanup.policy": "compact"})
        yield served


def _actions(served: Served) -> list[tuple[str, str, str | None]]:
    return [(change.action, change.target, change.outcome) for change in served.opened_changes().newest()]


def test_a_topic_from_its_creation_to_its_deletion(served: Served) -> None:
    tag = admin.topic_etag(served, "users")
    admin.alter_settings(served, ADA, "users", {"segment.ms": "9"}, if_match=tag)
    admin.add_partitions(served, ADA, "users", 3)
    assert served.settings_of("users").integer("segment.ms") == 9
    assert served.describe("users").partitions == (0, 1, 2)
    admin.delete_topic(served, ADA, "users", if_match=f'"x", {admin.topic_etag(served, "users")}')
    assert served.opened().topics.names() == []
    assert _actions(served) == [
        ("delete", "users", "done"),
        ("add-partitions", "users", "done"),
        ("alter", "users", "done"),
        ("create", "users", "done"),
    ]
    altered = served.opened_changes().newest()[2]
    assert altered.before == {"cleanup.policy": "compact"}
    assert altered.after == {"cleanup.policy": "compact", "segment.ms": "9"}


def test_what_is_refused_is_not_recorded(served: Served) -> None:
    with pytest.raises(TopicExistsError):
        admin.create_topic(served, ADA, "users", 1, {})
    with pytest.raises(InvalidConfigError):
        admin.alter_settings(served, ADA, "users", {"segment.ms": "x"})
    with pytest.raises(InvalidConfigError):
        admin.alter_settings(served, ADA, "users", {}, ["segment.ms"])
    with pytest.raises(InvalidPartitionsError):
        admin.add_partitions(served, ADA, "users", 2)
    with pytest.raises(UnknownTopicError):
        admin.delete_topic(served, ADA, "none")
    with pytest.raises(PolicyViolationError):
        admin.delete_records(served, ADA, "users", {0: 0})
    for change in (admin.delete_topic, lambda *all, **more: admin.alter_settings(*all, {}, **more)):
        with pytest.raises(ChangedMeanwhileError):
            change(served, ADA, "users", if_match='"0"')
    assert admin.create_topic(served, ADA, "dry", 1, {}, validate_only=True).partitions == 1
    admin.alter_settings(served, ADA, "users", {"segment.ms": "9"}, validate_only=True)
    assert _actions(served) == [("create", "users", "done")]
    assert served.opened().topics.names() == ["users"]


def test_an_entity_tag_changes_with_the_settings_and_the_topic(served: Served) -> None:
    first = admin.topic_etag(served, "users")
    admin.alter_settings(served, ADA, "users", {"segment.ms": "9"})
    second = admin.topic_etag(served, "users")
    admin.alter_settings(served, ADA, "users", {}, ["segment.ms"])
    assert admin.topic_etag(served, "users") == first != second
    admin.delete_topic(served, ADA, "users")
    admin.create_topic(served, ADA, "users", 2, {"cleanup.policy": "compact"})
    assert admin.topic_etag(served, "users") != first


def test_a_forced_cleaning_takes_the_active_segment_and_only_the_chosen_partition(served: Served) -> None:
    logs = served.opened()
    for partition in (0, 1):
        for value in (b"1", b"2", b"3"):
            logs.send("users", value, key=b"k", partition=partition)
    assert _result(served, force=False) == []
    (cleaned,) = _result(served, force=True)
    assert (cleaned["partition"], cleaned["status"]) == (0, "cleaned")
    assert [record.value for record in logs["users", 0]] == [b"3"]
    assert len(list(logs["users", 1])) == 3


def _result(served: Served, *, force: bool) -> list[dict[str, object]]:
    job = admin.clean_now(served, ADA, "users", [0], force=force)
    ended = served.jobs.wait(job.id)
    assert ended.state == "done", ended.error
    return ended.result["logs"]  # type: ignore[index]


def test_the_audit_log_says_that_a_record_was_refused(served: Served) -> None:
    records = [
        ProducerRecord(key=b"k", value=b"v"),
        ProducerRecord(value=b"keyless"),
        ProducerRecord(key=b"k", partition=7),
    ]
    stored, keyless, elsewhere = send_records(served, ADA, "users", records)
    assert isinstance(stored, AppendedRecord)
    assert isinstance(keyless, InvalidRecordError) and isinstance(elsewhere, UnknownTopicError)
    send_records(served, ADA, "users", records[:1])
    (_, _, done), (_, _, refused) = _actions(served)[:2]
    assert done == "done" and refused is not None
    assert refused.startswith("failed: 2 of 3 records refused: ") and "key" in refused
    assert "keyless" not in served.opened_changes().path.read_text("utf-8")


def test_the_audit_log_says_that_a_log_could_not_be_cleaned(served: Served) -> None:
    log = served.opened()["users", 0]
    for value in (b"1", b"2"):
        served.opened().send("users", value, key=b"k", partition=0)
    log.roll()
    with Path(log.view.segments[0].reader.path).open("r+b") as file:
        file.seek(80)
        file.write(b"xxxx")
    (result,) = _result(served, force=True)
    assert result["status"] == "uncleanable"
    cleaned, submitted = _actions(served)[:2]
    assert submitted == ("submit-job", "users-0", "done")
    assert cleaned[2] is not None and cleaned[2].startswith("failed: 1 of 1 logs: users-0: ")
    assert "1 of 1 logs failed" in outcome_words(served.jobs.all()[0])


def test_a_job_that_has_ended_is_not_cancelled(served: Served) -> None:
    _result(served, force=True)
    (job,) = served.jobs.all()
    assert admin.cancel_job(served, ADA, job.id).state == "done"
    assert _actions(served)[0] == ("cancel-job", job.id, "failed: the job had ended: done")


def test_a_job_that_cannot_be_recorded_is_refused_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(line: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(served.opened_changes(), "_append", full)
    request = ErasureRequest(topic="users", keys=(b"k",))
    for submit in (
        lambda: admin.clean_now(served, ADA, "users"),
        lambda: admin.empty_topic(served, ADA, "users", "truncate"),
        lambda: admin.erase_keys(served, ADA, request),
    ):
        with pytest.raises(StorageError, match="not recorded"):
            submit()
    assert served.jobs.all() == []
    questions = (
        admin.empty_topic(served, ADA, "users", "truncate", dry_run=True),
        admin.erase_keys(served, ADA, request, dry_run=True),
    )
    assert {served.jobs.wait(job.id).state for job in questions} == {"done"}


def test_a_paused_log_is_not_cleaned(served: Served) -> None:
    served.opened().send("users", b"1", key=b"k", partition=0)
    admin.pause_cleaning(served, ADA, USERS_0)
    admin.pause_cleaning(served, ADA, USERS_0)
    assert served.opened_cleaner().paused == {USERS_0}
    assert _result(served, force=True) == []
    admin.resume_cleaning(served, ADA, USERS_0)
    admin.resume_cleaning(served, ADA, USERS_0)
    assert served.opened_cleaner().paused == frozenset()
    assert len(_result(served, force=True)) == 1
    admin.pause_cleaning(served, ADA, USERS_0)
    admin.delete_topic(served, ADA, "users")  # the pause ends with the topic
    assert served.opened_cleaner().paused == frozenset()


def test_the_pause_of_a_topic_that_is_deleted_ends_when_the_topic_is_gone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a cleaning might begin between the two."""
    manager = served.opened()
    delete, claims = manager.topics.delete, list[object]()

    def deleting(name: str) -> None:
        claims.append(manager.cleaning_states.begin(USERS_0))
        delete(name)

    monkeypatch.setattr(manager.topics, "delete", deleting)
    admin.pause_cleaning(served, ADA, USERS_0)
    admin.delete_topic(served, ADA, "users")
    assert claims == [None] and served.opened_cleaner().paused == frozenset()


def test_a_cleaning_of_what_is_not_compacted_or_not_there_is_refused(served: Served) -> None:
    admin.create_topic(served, ADA, "plain", 1, {})
    with pytest.raises(UsageError, match="not compacted"):
        admin.clean_now(served, ADA, "plain")
    with pytest.raises(UnknownTopicError):
        admin.clean_now(served, ADA, "users", [7])


def test_a_topic_without_partitions_is_not_cleaned_instead_of_all_topics(
    served: Served, tmp_path: Path
) -> None:
    """A registry that was restored or edited may list such a topic."""
    served.close()
    registry = tmp_path / "logs" / "siltstone-topics.json"
    document = json.loads(registry.read_text())
    document["topics"]["empty"] = {**document["topics"]["users"], "id": "", "partitions": []}
    registry.write_text(json.dumps(document))
    with Served(served.options) as again, pytest.raises(UnknownTopicError, match="no partitions"):
        admin.clean_now(again, ADA, "empty", force=True)


def test_an_uncleanable_log_is_tried_again(served: Served) -> None:
    assert not admin.retry_cleaning(served, ADA, USERS_0)
    served.opened().mark_uncleanable(USERS_0, "damage", 5)
    assert admin.retry_cleaning(served, ADA, USERS_0)
    assert served.opened().uncleanable == {}
    assert served.opened_changes().newest()[0].before == {"reason": "damage", "since_ms": 5}


def test_records_are_deleted_by_offset(served: Served) -> None:
    admin.create_topic(served, ADA, "plain", 1, {})
    for _ in range(3):
        served.opened().send("plain", b"x")
    assert admin.delete_records(served, ADA, "plain", {0: 2}) == {0: 2}
    newest = served.opened_changes().newest()[0]
    assert (newest.before, newest.after) == ({"0": 0}, {"0": 2})


def test_the_catalogue_sorts_filters_and_pages(served: Served) -> None:
    admin.create_topic(served, ADA, "b", 1, {})
    admin.create_topic(served, ADA, "a", 3, {"retention.ms": "5"})
    served.opened().send("a", b"x" * 100)
    catalogue = served.cataloguer.refresh()
    assert catalogue.error is None

    def names(**query: object) -> list[str]:
        return [row.name for row in list_topics(catalogue, TopicQuery(**query)).rows]  # type: ignore[arg-type]

    assert names() == ["a", "b", "users"]
    assert names(descending=True) == ["users", "b", "a"]
    assert names(sort="bytes", descending=True) == ["a", "b", "users"]
    assert names(sort="partitions") == ["b", "users", "a"]
    assert names(policy="compact") == ["users"]
    assert names(contains="s") == ["users"]
    assert names(state="skipped") == ["a", "b"]
    page = list_topics(catalogue, TopicQuery(count=2))
    assert (page.total, page.next_start) == (3, 2)
    assert list_topics(catalogue, TopicQuery(start=2, count=2)).next_start is None
    row = catalogue.topic("a")
    assert (row.retention_ms, row.partitions, row.policy, row.records) == (5, 3, "delete", 1)
    assert row.bytes > 100
    assert catalogue.totals.partitions == 6
    assert [partition.topic_partition.partition for partition in catalogue.partitions_of("users")] == [0, 1]
    for bad in ({"sort": "x"}, {"state": "x"}, {"count": 0}, {"count": 501}, {"start": -1}):
        with pytest.raises(UsageError):
            list_topics(catalogue, TopicQuery(**bad))  # type: ignore[arg-type]
