"""Records that a client sends through a server: each is appended, or refused with its reason.

The audit log has who sent how many records to which topic, never the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from siltstone.base.errors import SiltstoneError
from siltstone.commands.changes import Actor
from siltstone.commands.cluster import partition_named, partitions_of
from siltstone.commands.served import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRecord:
    """A record to send. ``partition``: None for the one of the key; ``timestamp_ms``: None for now."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where a record is; the time as it is stored."""

    partition: int
    offset: int
    timestamp_ms: int


def send_records(
    served: Served, actor: Actor, topic: str, records: Sequence[SentRecord]
) -> list[Receipt | SiltstoneError]:
    """Append records in their order, each as a batch; a refused one does not hold up the others.

    Raises UnknownTopicError, NotAllowedError, and StorageError if the audit log cannot be written; nothing is
    appended then.
    """
    served.opened()
    partitions_of(served, topic)
    changes = served.opened_changes()
    with changes.recorded(actor, "produce", topic, after={"records": len(records)}):
        return [_sent(served, topic, record) for record in records]


def _sent(served: Served, topic: str, record: SentRecord) -> Receipt | SiltstoneError:
    try:
        if record.partition is not None:
            partition_named(served, topic, record.partition)
        stored = served.opened().send(
            topic,
            record.value,
            key=record.key,
            partition=record.partition,
            headers=record.headers,
            timestamp=record.timestamp_ms,
        )
    except SiltstoneError as error:
        return error
    return Receipt(
        partition=stored.topic_partition.partition, offset=stored.offset, timestamp_ms=stored.timestamp
    )
