"""Empties a topic of a running broker by Kafka's protocol: ``siltstone empty --bootstrap-server``. The
results are those of ``emptying``.

::

    truncate     DeleteRecords up to the high watermark
    tombstones   read ─► keys whose last record has a value ─► a tombstone for each ─► read on

A broker has no request that makes it clean, nor one that shows its files. So after tombstones the values stay
until its cleaner has removed them, and the result says so (``NotRemoved``). Only committed records are read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from siltstone.base.errors import PolicyViolationError, SiltstoneError, TooManyKeysError
from siltstone.commands.emptying import (
    NO_READER_LEARNS,
    TOMBSTONES,
    TRUNCATE,
    EmptiedPartition,
    Emptying,
    check_mode,
    refuse_topic_policies,
    written_again,
)
from siltstone.commands.forced_cleaning import RUN_AGAIN, NotRemoved, refuse_internal
from siltstone.commands.records import ConsumeRange
from siltstone.commands.remote import RemoteBroker
from siltstone.commands.remote_records import RemoteConsumer, RemoteProducer
from siltstone.log.fetch import LATEST_TIMESTAMP
from siltstone.log.names import TopicPartition
from siltstone.runtime.producing import NewRecord

KEY_BYTES_MAX = 512 << 20
"""How much memory the keys of one partition may take."""
_BYTES_OF_A_KEY = 100
"""About how many bytes of memory a key takes in a dict besides its own."""
_TOMBSTONES_PER_APPEND = 10_000
_NOT_CLEANED_YET = NotRemoved(
    reason="the values are in the log until the broker's cleaner has removed them",
    advice=f"siltstone compact has a Kafka clean the topic now; then {RUN_AGAIN}",
)


@dataclass(slots=True, kw_only=True)
class _LiveKeys:
    """The keys of a partition's committed records, as read so far. ``keys``: those whose last record has a
    value; ``values``: how many records have one; ``end``: all records below this offset were read."""

    records: int = 0
    values: int = 0
    end: int = 0
    keys: dict[bytes, None] = field(default_factory=dict)
    key_bytes: int = 0

    def read(self, broker: RemoteBroker, topic_partition: TopicPartition, start: int | None = None) -> None:
        """Read from ``start`` (None: the log start) to the end. Raises TooManyKeysError,
        BrokerUnreachableError."""
        with RemoteConsumer(
            broker,
            topic_partition.topic,
            partitions=frozenset({topic_partition.partition}),
            offset_range=ConsumeRange(offset=start),
            with_headers=False,
        ) as consumer:
            for consumed in consumer.read_to_end():
                self.end = consumed.offset
                if consumed.fetched is not None:
                    self._take(
                        topic_partition, ((record.key, record.value) for record in consumed.fetched.records)
                    )

    def _take(
        self, topic_partition: TopicPartition, records: Iterable[tuple[bytes | None, bytes | None]]
    ) -> None:
        """Count records (key, value). Raises TooManyKeysError."""
        for key, value in records:
            self.records += 1
            self.values += value is not None
            if key is None:
                continue
            is_live = key in self.keys
            if value is not None and not is_live:
                self.keys[key] = None
                self.key_bytes += len(key) + _BYTES_OF_A_KEY
            elif value is None and is_live:
                del self.keys[key]
                self.key_bytes -= len(key) + _BYTES_OF_A_KEY
        if self.key_bytes > KEY_BYTES_MAX:
            reason = f"the partition has over {len(self.keys):,} keys with a value"
            advice = "run siltstone empty on the directories, once the broker has stopped"
            raise TooManyKeysError(reason, path=str(topic_partition), advice=advice)


def empty_at(broker: RemoteBroker, topic: str, mode: str, *, dry_run: bool = False) -> Emptying:
    """Empty a topic of a running broker, or show what would be removed. ``truncate`` reads records only in a
    dry run.

    Raises UnknownTopicError, PolicyViolationError, UsageError, TooManyKeysError, BrokerUnreachableError.
    """
    check_mode(mode)
    refuse_internal(topic, "emptying it")
    numbers = broker.topic(topic).partitions
    settings = {setting.name: setting.value for setting in broker.settings_of_topic(topic, everything=True)}
    _refuse_policies(topic, mode, settings)
    partitions = []
    for topic_partition in (TopicPartition(topic, number) for number in numbers):
        if mode == TRUNCATE and not dry_run:
            partitions.append(_truncated(broker, topic_partition))
            continue
        live = _LiveKeys()
        live.read(broker, topic_partition)
        before = EmptiedPartition(
            partition=topic_partition.partition, records=live.records, keys=len(live.keys), bytes=None
        )
        partitions.append(before if dry_run else _with_tombstones(broker, topic_partition, before, live))
    notes = [NO_READER_LEARNS] if mode == TRUNCATE else []
    return Emptying(topic=topic, mode=mode, dry_run=dry_run, partitions=partitions, notes=notes)


def _refuse_policies(topic: str, mode: str, settings: Mapping[str, str]) -> None:
    policies = [policy.strip() for policy in settings.get("cleanup.policy", "delete").split(",")]
    if mode == TOMBSTONES:
        is_tiered = settings.get("remote.storage.enable") == "true"
        refuse_topic_policies(topic, policies, is_tiered=is_tiered)
    elif policies == ["compact"]:
        raise PolicyViolationError(
            "cleanup.policy=compact: a running broker deletes no records of such a topic",
            path=topic,
            advice="pass the mode tombstones, or run siltstone empty on the directories of a stopped broker",
        )


def _truncated(broker: RemoteBroker, topic_partition: TopicPartition) -> EmptiedPartition:
    (deleted,) = broker.delete_records({topic_partition: -1})
    not_removed = None if deleted.failure is None else NotRemoved(reason=deleted.failure)
    return EmptiedPartition(
        partition=topic_partition.partition,
        records=None,
        keys=None,
        bytes=None,
        log_start_offset=deleted.offset,
        not_removed=not_removed,
    )


def _with_tombstones(
    broker: RemoteBroker, topic_partition: TopicPartition, before: EmptiedPartition, live: _LiveKeys
) -> EmptiedPartition:
    """Write a tombstone for each key, read the records from there on, and say which values are left."""
    try:
        _write_tombstones(broker, topic_partition, live.keys)
        live.read(broker, topic_partition, live.end)
        last_stable, high_watermark = (
            broker.known_offsets([topic_partition], LATEST_TIMESTAMP, committed=committed)[topic_partition]
            or 0
            for committed in (True, False)
        )
    except SiltstoneError as error:
        return replace(before, not_removed=NotRemoved(reason=str(error)))
    # If several hold, the last one below is shown: while it does, values stay whatever the cleaner does.
    not_removed = _NOT_CLEANED_YET if live.values else None
    if live.keys:
        not_removed = written_again(len(live.keys))
    if last_stable < high_watermark:
        reason = f"a transaction is open from offset {last_stable} on"
        not_removed = NotRemoved(reason=reason, advice=f"end it, or let it time out; then {RUN_AGAIN}")
    return replace(before, keys_after=len(live.keys), not_removed=not_removed)


def _write_tombstones(broker: RemoteBroker, topic_partition: TopicPartition, keys: Iterable[bytes]) -> None:
    with RemoteProducer(broker, topic_partition.topic, partition=topic_partition.partition) as producer:
        tombstones = (NewRecord(key=key) for key in keys)
        while chunk := list(itertools.islice(tombstones, _TOMBSTONES_PER_APPEND)):
            producer.append(chunk)
