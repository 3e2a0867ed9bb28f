"""Makes the changes of a server to its open directories, each recorded in the audit log before it is made.

::

    a change   If-Match, checks ─► intent on disk ─► change ─► outcome
    a job      checks ─► intent on disk ─► job is queued ─► outcome
                                              └ when it runs: intent on disk ─► change ─► outcome

If a check fails or the audit log cannot be written, nothing is changed. A change happens under the
manager's lock for topics, so what was checked is what is changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

from siltstone.base.errors import ChangedMeanwhileError, InvalidPartitionsError, UnknownTopicError
from siltstone.commands import emptying, erasing
from siltstone.commands.changes import Actor
from siltstone.commands.erasing import ErasureRequest
from siltstone.commands.forced_cleaning import OpenDirectories, WorkProgress, note_failures
from siltstone.commands.jobs import CANCELLED, BackgroundJob, Progress, Work, job_target
from siltstone.commands.served import Served
from siltstone.commands.topics import (
    SettingsChange,
    TopicChange,
    created_topic,
    refuse_missing_removals,
)
from siltstone.log.names import TopicPartition
from siltstone.runtime.manager import LogManager, refuse_compacted_only
from siltstone.runtime.topic_names import altered_policies, find_partitions, refuse_bad_namespace
from siltstone.runtime.topics import altered_settings, refuse_fewer_partitions, refuse_new_topic


def etag_of(identity: str | None, own: Mapping[str, str]) -> str:
    """The entity tag of settings: a hash of the topic's id and of its own settings."""
    text = json.dumps([identity or "", sorted(own.items())])
    return f'"{hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]}"'


def topic_etag(served: Served, topic: str) -> str:
    """The entity tag of a topic. Raises UnknownTopicError, SiltstoneError, OSError."""
    description = served.describe(topic)
    return etag_of(description.topic_id, description.config)


def refuse_other_tag(if_match: str | None, tag: str, target: str) -> None:
    """Raises ChangedMeanwhileError unless ``if_match``, the value of a request's If-Match header (None or
    ``*``: anything), has ``tag``."""
    if if_match is None or if_match.strip() == "*":
        return
    if tag not in [part.strip() for part in if_match.split(",")]:
        raise ChangedMeanwhileError("it has changed since it was read", path=target)


@contextlib.contextmanager
def _changing(served: Served) -> Iterator[LogManager]:
    """The open logs, while no other change of topics is made; afterwards the catalogue is refreshed."""
    manager = served.opened()
    with manager.creation_or_deletion_lock:
        yield manager
    served.cataloguer.refresh_soon()


NEW_PARTITIONS_MAX = 10_000
"""The most partitions that one request creates, as in Kafka (``MAX_RECORDS_PER_USER_OP``)."""


def _refuse_too_many(name: str, new: int) -> None:
    """Raises InvalidPartitionsError for more than ``NEW_PARTITIONS_MAX`` partitions at once."""
    if new > NEW_PARTITIONS_MAX:
        raise InvalidPartitionsError(
            f"topic {name!r}: {new:,} new partitions are too many for one request",
            advice=f"create at most {NEW_PARTITIONS_MAX:,}, then add others",
        )


def create_topic(
    served: Served,
    actor: Actor,
    name: str,
    partitions: int | None,
    config: Mapping[str, str],
    *,
    validate_only: bool = False,
) -> TopicChange:
    """Create a topic. Raises LogError with Kafka's code, SiltstoneError, OSError."""
    with _changing(served) as manager:
        count = manager.config.integer("num.partitions") if partitions is None else partitions
        refuse_new_topic(name, manager.topics.names(), count, config, manager.config)
        _refuse_too_many(name, count)
        if validate_only:
            return TopicChange(topic=name, status="created", partitions=count, config=config)
        after = {"partitions": count, "config": dict(config)}
        with served.opened_changes().recorded(actor, "create", name, after=after):
            return created_topic(manager, name, count, config)


def add_partitions(
    served: Served,
    actor: Actor,
    name: str,
    count: int,
    *,
    if_match: str | None = None,
    validate_only: bool = False,
) -> TopicChange:
    """Raise a topic's number of partitions to ``count``. Raises ChangedMeanwhileError, LogError,
    SiltstoneError."""
    with _changing(served) as manager:
        refuse_other_tag(if_match, topic_etag(served, name), name)
        before = len(manager.topics.partitions_of(name))
        refuse_fewer_partitions(name, before, count)
        _refuse_too_many(name, count - before)
        if not validate_only:
            old, new = {"partitions": before}, {"partitions": count}
            changes = served.opened_changes()
            with changes.recorded(actor, "add-partitions", name, before=old, after=new):
                manager.topics.add_partitions(name, count)
    return TopicChange(topic=name, status="altered", partitions=count)


def alter_settings(
    served: Served,
    actor: Actor,
    name: str,
    set_to: Mapping[str, str],
    remove: Sequence[str] = (),
    *,
    if_match: str | None = None,
    validate_only: bool = False,
) -> SettingsChange:
    """Set and remove a topic's own settings. Raises ChangedMeanwhileError, UnknownTopicError,
    InvalidConfigError, SiltstoneError, OSError."""
    with _changing(served) as manager:
        description = manager.topics.describe(name)
        before = description.config
        refuse_other_tag(if_match, etag_of(description.topic_id, before), name)
        refuse_missing_removals(name, before, remove)
        after: Mapping[str, str] = altered_settings(name, before, set_to, remove, manager.config)
        if not validate_only and after != before:
            changes = served.opened_changes()
            with changes.recorded(actor, "alter", name, before=before, after=after):
                after = dict(manager.topics.alter(name, set_to, remove=remove).config)
    return SettingsChange(name=name, before=before, after=after)


def alter_namespace(
    served: Served, actor: Actor, name: str, set_to: Mapping[str, str], remove: Sequence[str] = ()
) -> SettingsChange:
    """Set and remove policies of a Pulsar namespace. Raises UsageError, InvalidConfigError,
    SiltstoneError."""
    with _changing(served) as manager:
        refuse_bad_namespace(name)
        before = manager.topics.namespaces.get(name, {})
        after = altered_policies(before, dict(set_to), remove, name)
        changes = served.opened_changes()
        with changes.recorded(actor, "alter-namespace", name, before=before, after=after):
            after = manager.topics.alter_namespace(name, set_to, remove=remove)
    return SettingsChange(name=name, before=before, after=after)


def delete_topic(
    served: Served,
    actor: Actor,
    name: str,
    *,
    if_match: str | None = None,
    topic_id: bytes | None = None,
) -> TopicChange:
    """Delete a topic; its files are removed after ``file.delete.delay.ms``. ``topic_id``: the id (16 bytes)
    that the topic must have. Raises ChangedMeanwhileError, UnknownTopicError (also for another id),
    SiltstoneError, OSError."""
    with _changing(served) as manager:
        description = manager.topics.describe(name)
        if topic_id is not None and manager.topics.names_by_id.get(topic_id) != name:
            raise UnknownTopicError(f"topic {name!r} has another id: it was created again")
        refuse_other_tag(if_match, etag_of(description.topic_id, description.config), name)
        count = len(description.partitions)
        before = {"id": description.topic_id, "partitions": count, "config": dict(description.config)}
        with served.opened_changes().recorded(actor, "delete", name, before=before):
            manager.topics.delete(name)
            # A pause would stay, and apply to a topic of this name that is created later. It ends when the
            # topic is gone: a cleaning might begin between its end and the deletion.
            for number in description.partitions:
                served.opened_cleaner().resume(TopicPartition(name, number))
    return TopicChange(topic=name, status="deleted", partitions=count)


def delete_records(
    served: Served, actor: Actor, topic: str, before_offsets: Mapping[int, int]
) -> dict[int, int]:
    """Raise the log start offsets of partitions (number → offset, -1: the high watermark). Returns the new
    ones.

    Raises PolicyViolationError, OffsetOutOfRangeError, UnknownTopicError, StorageError.
    """
    with _changing(served) as manager:
        logs = {number: manager.get(TopicPartition(topic, number)) for number in before_offsets}
        for log in logs.values():
            refuse_compacted_only(log.topic_partition, log.config)
        starts = {str(number): log.log_start_offset for number, log in logs.items()}
        after = {str(number): offset for number, offset in before_offsets.items()}
        changes = served.opened_changes()
        with changes.recorded(actor, "delete-records", topic, before=starts, after=after):
            return {
                number: manager.delete_records(logs[number].topic_partition, offset)
                for number, offset in before_offsets.items()
            }


# Cleaning.


def clean_now(
    served: Served,
    actor: Actor,
    topic: str,
    partitions: Sequence[int] = (),
    *,
    force: bool = False,
) -> BackgroundJob:
    """Clean a topic, or some of its partitions, as a job. ``force``: whatever the dirty ratio, and with the
    active segments, which are rolled first. Raises UnknownTopicError, UsageError, BusyError,
    SiltstoneError."""
    manager, cleaner = served.opened(), served.opened_cleaner()
    numbers = manager.topics.partitions_of(topic)
    missing = sorted(set(partitions) - set(numbers))
    if missing:
        raise UnknownTopicError(f"topic {topic!r} has no partition {missing[0]}")
    topic_partitions = [TopicPartition(topic, number) for number in partitions or numbers]
    if not topic_partitions:  # to the cleaner it would mean all topics
        raise UnknownTopicError(f"topic {topic!r} has no partitions")
    cleaner.refuse_not_compacted([topic])

    def work(progress: Progress) -> object:
        progress.check()
        with served.opened_changes().recorded(actor, "clean", topic, after={"force": force}) as change:
            results = cleaner.clean_now(topic_partitions, force=force)
            note_failures(change, results)
        served.cataloguer.refresh_soon()
        return {"logs": [result.to_json() for result in results]}

    return _submit(served, actor, "clean", job_target(topic, partitions), work)


def _submit(served: Served, actor: Actor, kind: str, target: str, work: Work) -> BackgroundJob:
    """Submit a job that will change something.

    The audit log gets a record of the submission now, so that a full audit log refuses the job at once; the
    changes of the job are recorded when it makes them. Raises StorageError, BusyError.
    """
    with served.opened_changes().recorded(actor, "submit-job", target, after={"kind": kind}):
        return served.jobs.submit(kind, target, actor.user, work)


def cancel_job(served: Served, actor: Actor, job_id: str) -> BackgroundJob:
    """Cancel a job: at once if it waits, at its next check if it runs. In look mode, where all jobs are
    dry runs, there is no audit log. Raises UnknownJobError, StorageError."""
    served.jobs.get(job_id)
    if served.changes is None:
        return served.jobs.cancel(job_id)
    with served.opened_changes().recorded(actor, "cancel-job", job_id) as change:
        job = served.jobs.cancel(job_id)
        if job.has_ended and job.state != CANCELLED:
            change.fail(f"the job had ended: {job.state}")
        return job


def erase_keys(
    served: Served, actor: Actor, request: ErasureRequest, *, dry_run: bool = False
) -> BackgroundJob:
    """Erase keys from a compacted topic, or look for them, as a job. Neither the target nor the result of the
    job has the keys. Raises UnknownTopicError, PolicyViolationError, BusyError, SiltstoneError."""
    directories = _open_directories(served)
    directories.manager.partitions_of(request.topic)
    erasing.refuse_topic(request.topic, directories.manager.topics.settings(request.topic))

    def work(progress: Progress) -> object:
        erasures = erasing.erase_keys(
            directories, actor, request, dry_run=dry_run, progress=_reporting(progress)
        )
        served.cataloguer.refresh_soon()
        return erasures.to_json()

    if dry_run:
        return served.jobs.submit("erase-key", request.topic, actor.user, work)
    return _submit(served, actor, "erase-key", request.topic, work)


def empty_topic(
    served: Served, actor: Actor, topic: str, mode: str, *, dry_run: bool = False
) -> BackgroundJob:
    """Empty a topic, or count what would be removed, as a job. Raises UnknownTopicError,
    PolicyViolationError, UsageError, BusyError, SiltstoneError."""
    directories = _open_directories(served)
    directories.manager.partitions_of(topic)
    emptying.refuse_topic(topic, mode, directories.manager.topics.settings(topic))

    def work(progress: Progress) -> object:
        emptied = emptying.empty_topic(
            directories,
            actor,
            topic,
            mode,
            dry_run=dry_run,
            counter=served.counter,
            progress=_reporting(progress),
        )
        served.cataloguer.refresh_soon()
        return emptied.to_json()

    if dry_run:
        return served.jobs.submit("empty", topic, actor.user, work)
    return _submit(served, actor, "empty", topic, work)


def _open_directories(served: Served) -> OpenDirectories:
    return OpenDirectories(
        manager=served.opened(), cleaner=served.opened_cleaner(), changes=served.opened_changes()
    )


def _reporting(progress: Progress) -> WorkProgress:
    """A progress that ends the work if its job was cancelled."""

    def report(log: str, stage: str, done: int, total: int) -> None:
        progress.check()
        progress(log, stage, done, total)

    return report


def retry_cleaning(served: Served, actor: Actor, topic_partition: TopicPartition) -> bool:
    """Let the cleaner try an uncleanable partition again; False if it was cleanable. Raises
    UnknownTopicError, StorageError."""
    with _changing(served) as manager:
        manager.get(topic_partition)
        row = manager.uncleanable.get(topic_partition)
        if row is None:
            return False
        before = {"reason": row.reason, "since_ms": row.since_ms}
        with served.opened_changes().recorded(actor, "retry-cleaning", str(topic_partition), before=before):
            return manager.retry_cleaning(topic_partition)


def pause_cleaning(served: Served, actor: Actor, topic_partition: TopicPartition) -> None:
    """Keep the cleaner from cleaning a partition until it is resumed, or the process ends. Raises
    UnknownTopicError, StorageError."""
    served.opened().get(topic_partition)
    with served.opened_changes().recorded(actor, "pause-cleaning", str(topic_partition)):
        served.opened_cleaner().pause(topic_partition)


def resume_cleaning(served: Served, actor: Actor, topic_partition: TopicPartition) -> None:
    """End the pause of a partition. Raises UnknownTopicError, StorageError."""
    served.opened().get(topic_partition)
    with served.opened_changes().recorded(actor, "resume-cleaning", str(topic_partition)):
        served.opened_cleaner().resume(topic_partition)


def compact_side_by_side(served: Served, actor: Actor, topic: str) -> list[TopicPartition]:
    """Begin to compact a topic (its own name, or Pulsar's) beside its log. Raises CompactionInProgressError,
    UnknownTopicError, SiltstoneError, OSError."""
    manager, compactions = served.opened(), served.opened_compactions()
    find_partitions(topic, manager)
    with served.opened_changes().recorded(actor, "compact", topic):
        return compactions.trigger(topic)
