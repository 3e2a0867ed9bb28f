"""Empties a topic: by tombstones, which its readers see, or by moving the log starts to the ends, which they
do not.

::

    tombstones   a tombstone for each key that has a value ─► roll, clean: the values go now, the tombstones
                 after delete.retention.ms. Consumers that keep a table of the topic learn of each deletion.
    truncate     log start := end, segments removed. No consumer learns of it: one that is behind continues at
                 the end, and a table keeps what it has. Kafka refuses this for cleanup.policy=compact
                 (POLICY_VIOLATION), so that users do not do it by mistake; here it is a mode of its own.

``tombstones`` is for compacted topics. Either can be interrupted, and run again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from siltstone.base.config import Config
from siltstone.base.errors import UsageError
from siltstone.base.records.columns import RecordColumns
from siltstone.base.records.layout import Int64
from siltstone.commands.changes import Actor
from siltstone.commands.counting import SegmentCounter
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.explain_page import counted, size_text
from siltstone.commands.forced_cleaning import (
    RUN_AGAIN,
    NotRemoved,
    OpenDirectories,
    WorkProgress,
    no_progress,
    opened_for_cleaning,
    refuse_internal,
    refuse_policies,
)
from siltstone.commands.latest_keys import LatestKeys
from siltstone.commands.library import EngineName
from siltstone.log.fetch import READ_COMMITTED
from siltstone.log.ledger.store import LedgerStore
from siltstone.log.names import TopicPartition
from siltstone.log.partition import PartitionLog
from siltstone.log.read_only import ReadableLog, ReadOnlyLog
from siltstone.log.reading import LogReader
from siltstone.runtime.manager import LogManager
from siltstone.runtime.producing import tombstone_batches

EMPTY = "empty"
"""The action in the audit log."""
TOMBSTONES, TRUNCATE = "tombstones", "truncate"
MODES = (TOMBSTONES, TRUNCATE)
CheckpointOf = Callable[[ReadableLog], int]
"""Returns the cleaner checkpoint of a log, 0 without one."""
NO_READER_LEARNS = (
    "no reader learns of it: consumers that are behind continue at the end, and tables made of the topic "
    "keep their rows; with the mode tombstones they delete them"
)
REMOTE_SEGMENTS_STAY = (
    "remote.storage.enable=true: the segments in the remote storage keep their records until the broker runs "
    "and deletes those below the log start"
)
_STOP_WRITING = f"stop what writes, then {RUN_AGAIN}"
_ONLY_TRUNCATE = "pass the mode truncate, which moves the log starts to the ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptiedPartition:
    """The result for one partition. Before: ``records`` (None: a segment is damaged, or nothing was read of a
    running broker), ``keys`` with a value (None: not counted), ``bytes`` (None: a broker does not tell).
    After, None in a dry run: ``keys_after``, ``bytes_after``, and ``log_start_offset``, the new log start.
    ``not_removed``: why values are left, None if none is."""

    partition: int
    records: int | None
    keys: int | None
    bytes: int | None
    keys_after: int | None = None
    bytes_after: int | None = None
    log_start_offset: int | None = None
    not_removed: NotRemoved | None = None

    def to_json(self) -> dict[str, object]:
        """One object; ``held`` has the reason, ``advice`` and ``until_ms`` what to do about it."""
        names = ("partition", "records", "keys", "bytes", "keys_after", "bytes_after", "log_start_offset")
        not_removed = self.not_removed
        return {
            **{name: getattr(self, name) for name in names},
            "held": None if not_removed is None else not_removed.reason,
            "advice": None if not_removed is None else not_removed.advice,
            "until_ms": None if not_removed is None else not_removed.until_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptying:
    """The result of emptying a topic, or of a dry run."""

    topic: str
    mode: str
    dry_run: bool
    partitions: Sequence[EmptiedPartition]
    notes: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Are the values of all partitions removed?"""
        return not self.dry_run and all(partition.not_removed is None for partition in self.partitions)

    @property
    def sentence(self) -> str:
        """A sentence on the state of the topic."""
        records = [partition.records for partition in self.partitions if partition.records is not None]
        sizes = [partition.bytes for partition in self.partitions if partition.bytes is not None]
        verb = "would be emptied" if self.dry_run else "is empty" if self.is_empty else "is not empty yet"
        had = [counted(sum(records), "record")] if records or sizes else []
        had += [size_text(sum(sizes))] if sizes else []
        known = "; it had " + ", ".join(had) if had else ""
        text = f"topic {self.topic} {verb} ({self.mode}{known})"
        reasons = [
            partition.not_removed for partition in self.partitions if partition.not_removed is not None
        ]
        return f"{text}: {reasons[0].reason}; {reasons[0].advice}" if reasons else text

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {
            "sentence": self.sentence,
            "topic": self.topic,
            "mode": self.mode,
            "dry_run": self.dry_run,
            "partitions": [partition.to_json() for partition in self.partitions],
            "notes": list(self.notes),
        }


def check_mode(mode: str) -> str:
    """The mode. Raises UsageError for another word."""
    if mode not in MODES:
        raise UsageError(f"there is no mode {mode[:32]!r}", advice=f"it is one of {', '.join(MODES)}")
    return mode


def last_values(log: ReadableLog, checkpoint: int) -> Iterator[tuple[RecordColumns, Int64]]:
    """The last committed record of each key, if it has a value: yields columns of records, and the rows
    of those records. ``checkpoint``: the log's cleaner checkpoint, 0 without one. Raises TooManyKeysError,
    CorruptRecordError, OSError."""
    keys = LatestKeys(log, checkpoint, READ_COMMITTED)
    keys.advance()
    reader = LogReader(log, log.log_start_offset, isolation=READ_COMMITTED, end=keys.end, reset="earliest")
    for polled in reader:
        rows = keys.latest_rows(polled.columns)
        rows = rows[polled.columns.value_size[rows] >= 0]
        if len(rows):
            yield polled.columns, rows


def preview_emptying(
    topic: str,
    mode: str,
    logs: Sequence[ReadableLog],
    checkpoint_of: CheckpointOf,
    config: Config,
    *,
    counter: SegmentCounter | None = None,
    counts_keys: bool = True,
) -> Emptying:
    """A dry run: the records, keys and bytes that would be removed; ``config``: the topic's settings.
    ``counter``: keeps the counts of closed segments from call to call. ``counts_keys``: False saves a read of
    all records, and leaves ``keys`` None. Raises TooManyKeysError, CorruptRecordError, OSError."""
    counter = counter or SegmentCounter()
    partitions = []
    for log in logs:
        keys = None
        if counts_keys:
            keys = sum(len(rows) for _, rows in last_values(log, checkpoint_of(log)))
        partitions.append(
            EmptiedPartition(
                partition=log.topic_partition.partition,
                records=counter.records_of(log),
                keys=keys,
                bytes=_size(log),
            )
        )
    notes = _notes(mode, logs, config)
    return Emptying(topic=topic, mode=mode, dry_run=True, partitions=partitions, notes=notes)


def _size(log: ReadableLog) -> int:
    return sum(log.view.size_of(number) for number in range(len(log.view.segments)))


def _notes(mode: str, logs: Sequence[ReadableLog], config: Config) -> list[str]:
    """What else keeps records, or does not learn of their removal."""
    notes = []
    if mode == TRUNCATE:
        notes.append(NO_READER_LEARNS)
    if config.flag("remote.storage.enable"):
        notes.append(REMOTE_SEGMENTS_STAY)
    with_ledger = [
        str(log.topic_partition) for log in logs if LedgerStore(log.directory).cursor() is not None
    ]
    if with_ledger:
        again = "siltstone compact-topic" + (" --reset" if mode == TRUNCATE else "")
        notes.append(f"the compacted ledgers of {', '.join(with_ledger[:4])} keep the records until {again}")
    return notes


def written_again(keys: int) -> NotRemoved:
    """Why a topic is not empty although each key got a tombstone."""
    reason = f"{counted(keys, 'key was', 'keys were')} written again"
    return NotRemoved(reason=reason, advice=_STOP_WRITING)


def mode_for(policies: Collection[str]) -> str:
    """The mode that fits a topic with these policies: tombstones remove nothing of one that is not
    compacted."""
    return TOMBSTONES if "compact" in policies else TRUNCATE


def refuse_topic(topic: str, mode: str, config: Config) -> None:
    """Raises PolicyViolationError for a topic that cannot be emptied in this mode, UsageError for another
    mode."""
    check_mode(mode)
    refuse_internal(topic, "emptying it")
    if mode == TOMBSTONES:
        is_tiered = config.flag("remote.storage.enable")
        refuse_topic_policies(topic, config.policies, is_tiered=is_tiered)


def refuse_topic_policies(topic: str, policies: Collection[str], *, is_tiered: bool) -> None:
    """Raises PolicyViolationError for a topic that tombstones do not empty."""
    refuse_policies(topic, policies, is_tiered=is_tiered, advice=_ONLY_TRUNCATE)


def opened_logs(manager: LogManager, topic: str) -> list[PartitionLog]:
    """The logs of a topic of open directories. Raises UnknownTopicError, StorageError for a partition that is
    not served."""
    return [manager.get(TopicPartition(topic, number)) for number in manager.partitions_of(topic)]


def opened_checkpoints(manager: LogManager) -> CheckpointOf:
    """A function that reads the cleaner checkpoint of an open log."""

    def checkpoint_of(log: ReadableLog) -> int:
        served = manager.directory_of(log.topic_partition)
        return served.cleaner_checkpoint().get(log.topic_partition, 0)

    return checkpoint_of


def empty_in(
    directories: BrokerDirectories,
    actor: Actor,
    topic: str,
    mode: str,
    *,
    dry_run: bool = False,
    engine: EngineName = "auto",
    progress: WorkProgress = no_progress,
) -> Emptying:
    """Empty a topic of directories that no process has open; a dry run takes no lock. ``engine``: the
    cleaner's. Raises as ``empty_topic``, and DirectoryLockedError."""
    if not dry_run:
        with opened_for_cleaning(directories, topic, engine) as opened:
            return empty_topic(opened, actor, topic, mode, progress=progress)
    snapshot = directories.snapshot()
    description = snapshot.topic(topic)
    config = snapshot.config_of(description)
    refuse_topic(topic, mode, config)
    logs = [snapshot.log(TopicPartition(topic, number)) for number in description.partitions]
    return preview_emptying(topic, mode, logs, snapshot_checkpoint, config)


def snapshot_checkpoint(log: ReadableLog) -> int:
    """The cleaner checkpoint with which the log was opened, if it is a read-only one; else 0."""
    return log.first_dirty_offset if isinstance(log, ReadOnlyLog) else 0


def empty_topic(
    opened: OpenDirectories,
    actor: Actor,
    topic: str,
    mode: str,
    *,
    dry_run: bool = False,
    counter: SegmentCounter | None = None,
    progress: WorkProgress = no_progress,
) -> Emptying:
    """Empty a topic.

    Raises UnknownTopicError, PolicyViolationError, UsageError, TooManyKeysError, StorageError (also if the
    audit log cannot be written: nothing was changed then), SiltstoneError, OSError.
    """
    logs, checkpoint_of = opened_logs(opened.manager, topic), opened_checkpoints(opened.manager)
    config = opened.manager.topics.settings(topic)
    refuse_topic(topic, mode, config)
    counts_keys = dry_run or mode == TOMBSTONES
    before = preview_emptying(
        topic, mode, logs, checkpoint_of, config, counter=counter, counts_keys=counts_keys
    )
    if dry_run:
        return before
    known = {
        "records": [partition.records for partition in before.partitions],
        "bytes": [partition.bytes for partition in before.partitions],
    }
    with opened.changes.recorded(actor, EMPTY, topic, before=known, after={"mode": mode}) as change:
        if mode == TRUNCATE:
            partitions = _truncate(opened, before.partitions, logs, progress)
        else:
            partitions = _delete_keys(opened, before.partitions, logs, checkpoint_of, progress)
        reasons = [partition.not_removed for partition in partitions if partition.not_removed is not None]
        if reasons:
            change.outcome = f"held: {reasons[0].reason}"
    return replace(before, dry_run=False, partitions=partitions)


def _truncate(
    opened: OpenDirectories,
    before: Sequence[EmptiedPartition],
    logs: Sequence[PartitionLog],
    progress: WorkProgress,
) -> list[EmptiedPartition]:
    """Move each log start to the high watermark, and remove the segments below it."""
    done = list[EmptiedPartition]()
    for partition, log in zip(before, logs, strict=True):
        progress(log.topic_partition.topic, "truncating", len(done), len(logs))
        start = opened.manager.delete_all_records(log.topic_partition)
        _remove_files(opened, log)
        not_removed = None
        if start < log.high_watermark:
            reason = f"records from offset {start} on were appended meanwhile"
            not_removed = NotRemoved(reason=reason, advice=_STOP_WRITING)
        elif start < log.log_end_offset:
            reason = f"records from offset {start}, the high watermark, on are not replicated"
            not_removed = NotRemoved(reason=reason)
        done.append(
            replace(partition, bytes_after=_size(log), log_start_offset=start, not_removed=not_removed)
        )
    return done


def _remove_files(opened: OpenDirectories, log: PartitionLog) -> None:
    """Remove replaced and deleted files now, so that the values are in no file."""
    with opened.manager.files_at_rest(log.topic_partition):
        opened.manager.remove_leftovers(log.topic_partition)


def _delete_keys(
    opened: OpenDirectories,
    before: Sequence[EmptiedPartition],
    logs: Sequence[PartitionLog],
    checkpoint_of: CheckpointOf,
    progress: WorkProgress,
) -> list[EmptiedPartition]:
    """Write a tombstone for each key that has a value, clean the logs, and count the keys that still have
    one: then either the cleaner was held back, or they were written again."""
    topic = logs[0].topic_partition.topic if logs else ""
    # ``ends``: the log ends after the tombstones. ``read``: bytes, for the progress.
    total, read, ends = sum(_size(log) for log in logs), 0, list[int]()
    for log in logs:
        now_ms = opened.manager.clock.now_ms()
        for columns, rows in last_values(log, checkpoint_of(log)):
            progress(topic, "writing tombstones", read, total)
            for batch in tombstone_batches(log.config, columns, rows, now_ms):
                log.append(batch)
        log.flush()
        ends.append(log.log_end_offset)
        read += _size(log)
    progress(topic, "cleaning", total, total)
    results = opened.clean_fully([log.topic_partition for log in logs])
    done = list[EmptiedPartition]()
    for partition, log, end in zip(before, logs, ends, strict=True):
        _remove_files(opened, log)
        not_removed = opened.why_not_removed(log.topic_partition, end - 1, results.get(log.topic_partition))
        keys_after = sum(len(rows) for _, rows in last_values(log, checkpoint_of(log)))
        if not_removed is None and keys_after:
            not_removed = written_again(keys_after)
        done.append(
            replace(
                partition,
                keys_after=keys_after,
                bytes_after=_size(log),
                log_start_offset=log.log_start_offset,
                not_removed=not_removed,
            )
        )
    return done
