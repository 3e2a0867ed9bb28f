"""Appends records for the REST API and the console: each is appended, or refused with a reason. (Kafka's
clients do not come here: the broker appends their batches.)

The audit log has who sent how many records to which topic, never the records.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass

from siltstone.base.errors import SiltstoneError, UsageError
from siltstone.commands.changes import Actor
from siltstone.commands.cluster import partition_named, partitions_of
from siltstone.commands.served import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """A record to append (Kafka's ``ProducerRecord``). ``partition``: None for the one that the partitioner
    chooses; ``timestamp_ms``: None for the time of the append."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedRecord:
    """Where a record was appended, and its timestamp as it is stored."""

    partition: int
    offset: int
    timestamp_ms: int


TEXT_FORMATS = ("utf8", "json", "base64")
"""How a key or a value is written as text."""


def bytes_of_text(text: str, text_format: str, what: str) -> bytes:
    """The bytes that a text stands for; JSON is checked and sent as it is written. Raises UsageError that
    names ``what``."""
    if text_format == "base64":
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(f"{what} is not base64", advice="choose utf8, or correct it") from None
    if text_format == "json":
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{what} is not JSON: {error}", advice="choose utf8, or correct it") from None
    elif text_format != "utf8":
        raise UsageError(f"{text_format[:20]!r} is no format", advice=f"pass {', '.join(TEXT_FORMATS)}")
    # The text, from JSON, may contain lone surrogates: each becomes three bytes, and the record is sent.
    return text.encode("utf-8", "surrogatepass")


def send_records(
    served: Served, actor: Actor, topic: str, records: Sequence[ProducerRecord]
) -> list[AppendedRecord | SiltstoneError]:
    """Append records in their order, each as a batch of its own: a refused one refuses no other.

    Raises UnknownTopicError, NotAllowedError, and StorageError if the audit log cannot be written; nothing is
    appended then.
    """
    # In look mode the first raises, for an unknown topic the second: before the audit log gets a line.
    served.opened()
    partitions_of(served, topic)
    changes = served.opened_changes()
    with changes.recorded(actor, "produce", topic, after={"records": len(records)}) as change:
        outcomes = [_append(served, topic, record) for record in records]
        refused = [outcome for outcome in outcomes if isinstance(outcome, SiltstoneError)]
        if refused:
            change.fail(f"{len(refused)} of {len(records)} records refused: {refused[0]}")
    return outcomes


def _append(served: Served, topic: str, record: ProducerRecord) -> AppendedRecord | SiltstoneError:
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
    return AppendedRecord(
        partition=stored.topic_partition.partition, offset=stored.offset, timestamp_ms=stored.timestamp
    )
