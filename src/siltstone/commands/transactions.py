"""Finds open transactions, and how much of each log they keep from being cleaned and hide from readers.

::

    records │ first offset of the earliest open transaction ───────────── log end │
            └ nothing from here on is cleaned, or read with read_committed ───────┘
              ``held_bytes``

A log has its producers' states: an open one in memory, one that is only read from its newest snapshot and the
batches after it. Reading all of them takes time, so it is done in the background (``scans``). The
transactional id of a producer is in ``__transaction_state`` alone. What Kafka's ``kafka-transactions.sh
find-hanging`` finds is here a transaction whose ``began_ms`` is long ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from siltstone.base.errors import SiltstoneError, UnknownTopicError
from siltstone.commands.browsing import Budget
from siltstone.commands.cleaning_conditions import open_transactions as first_offsets
from siltstone.commands.cluster import all_partitions
from siltstone.commands.explain_page import counted
from siltstone.commands.scans import LastScan, Report, no_report
from siltstone.commands.served import Served
from siltstone.compaction.latest import latest_records
from siltstone.log import fetch
from siltstone.log.coordinator_records import decode_record
from siltstone.log.directory import partition_files
from siltstone.log.fetch import LogView
from siltstone.log.lookup import batch_headers
from siltstone.log.names import CLEANED, SWAP
from siltstone.log.producers import load_producers
from siltstone.log.read_only import ReadableLog
from siltstone.log.reading import LogReader, records_of
from siltstone.log.segments import segments_of_listing

TRANSACTION_STATE = "__transaction_state"
NOTES_MAX = 20
"""How many of the logs that could not be read the notes name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A producer's transaction that has not ended in a partition.

    ``began_ms``, ``producer_epoch``: of its first batch; None if ``delete-records`` has removed it, or if it
    has no timestamp. ``held_bytes``: of the log from its first batch on. ``blocks_cleaning``: is the topic
    compacted? ``transactional_id``: None if ``__transaction_state`` is not here, or does not name the
    producer.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int | None
    first_offset: int
    began_ms: int | None
    held_bytes: int
    blocks_cleaning: bool
    transactional_id: str | None = None

    def to_json(self) -> dict[str, object]:
        """One object; an unknown time is null."""
        return {name: getattr(self, name) for name in OpenTransaction.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransactions:
    """The open transactions of all logs, by topic, partition and first offset. ``notes``: on what could not
    be read."""

    transactions: Sequence[OpenTransaction] = ()
    notes: Sequence[str] = ()


def last_scan(served: Served) -> LastScan[OpenTransactions]:
    """The open transactions as the last scan has found them; see ``scans``."""
    return served.scans.of("transactions", lambda report: open_transactions(served, report))


def open_transactions(served: Served, report: Report = no_report) -> OpenTransactions:
    """The open transactions of all logs.

    A log that cannot be read is a note, and so hides no other one. Raises SiltstoneError, OSError if the
    directories cannot be listed.
    """
    # In look mode logs are not taken from ``served``, which keeps open those that pages show.
    logs = served.snapshot_now() if served.manager is None else None
    listed = sorted(served.opened() if logs is None else logs.partitions)
    transactions, unreadable = list[OpenTransaction](), list[str]()
    for number, topic_partition in enumerate(listed):
        report(number, len(listed))
        try:
            if logs is not None and not _may_be_open(logs.partitions[topic_partition]):
                continue
            log = served.opened().get(topic_partition) if logs is None else logs.log(topic_partition)
            transactions += _transactions_of(served, log)
        except (UnknownTopicError, FileNotFoundError):
            continue  # deleted meanwhile
        except (SiltstoneError, OSError) as error:
            unreadable.append(f"{topic_partition}: {error}")
    left = len(unreadable) - NOTES_MAX
    notes = [*unreadable[:NOTES_MAX], *([f"{counted(left, 'more log')} cannot be read"] if left > 0 else [])]
    ids, more = transactional_ids(served) if transactions else ({}, [])
    named = [
        replace(transaction, transactional_id=ids.get(transaction.producer_id))
        for transaction in transactions
    ]
    return OpenTransactions(transactions=named, notes=[*notes, *more])


def transactional_ids(served: Served, budget: Budget | None = None) -> tuple[dict[int, str], list[str]]:
    """The transactional id of each producer id that ``__transaction_state`` has, as far as ``budget`` goes,
    and a note on what was not read. Raises SiltstoneError, OSError if the directories cannot be listed."""
    budget, ids, notes = budget or Budget(), dict[int, str](), list[str]()
    topics = all_partitions(served)
    for number in topics.get(TRANSACTION_STATE, ()):
        try:
            log = served.log(TRANSACTION_STATE, number)
            budget.spent += sum(map(log.view.size_of, range(len(log.view.segments))))
            if budget.is_over:
                return ids, [*notes, f"{TRANSACTION_STATE} is too long to find all transactional ids in it"]
            for polled in latest_records(LogReader(log), LogReader(log), keep_tombstones=False):
                for record in records_of(polled):
                    row = decode_record("transactions", record.key, record.value)
                    if "decodedKey" in row and "decodedValue" in row:
                        producer_id = row["decodedValue"]["data"]["producerId"]
                        ids[producer_id] = row["decodedKey"]["data"]["transactionalId"]
        except (SiltstoneError, OSError) as error:
            notes.append(f"{TRANSACTION_STATE}-{number}: {error}")
    return ids, notes


def _may_be_open(path: Path) -> bool:
    """May a log that is not open have an open transaction? To open it for reading takes several times as
    long as to read its producers' states; True also where these cannot be read, since opening it says why."""
    try:
        listed = partition_files(path)
        if any(name.endswith((CLEANED, SWAP)) for name in listed):
            return True  # a swap has not ended
        segments = segments_of_listing(path, listed)
        return load_producers(path, segments, listed=listed).first_open_transaction() is not None
    except (SiltstoneError, OSError):
        return True


def _transactions_of(served: Served, log: ReadableLog) -> Iterator[OpenTransaction]:
    topic_partition, view = log.topic_partition, log.view
    # Without an open transaction the last stable offset is the high watermark, which may be the end.
    if view.last_stable_offset == view.log_end_offset:
        return
    blocks_cleaning = "compact" in served.settings_of(topic_partition.topic).policies
    for offset, producer in sorted((offset, producer) for producer, offset in first_offsets(log).items()):
        first = _first_batch(view, offset)
        yield OpenTransaction(
            topic=topic_partition.topic,
            partition=topic_partition.partition,
            producer_id=producer,
            producer_epoch=first.producer_epoch,
            first_offset=offset,
            began_ms=first.began_ms,
            held_bytes=first.held_bytes,
            blocks_cleaning=blocks_cleaning,
        )


class _FirstBatch(NamedTuple):
    """A transaction's first batch, as far as it is known."""

    began_ms: int | None
    producer_epoch: int | None
    held_bytes: int


def _first_batch(view: LogView, offset: int) -> _FirstBatch:
    """The batch at the first offset of a transaction; ``delete-records`` may have removed it. Raises
    CorruptRecordError, OSError."""
    # A transaction may begin above the high watermark, at which ``fetch.read`` would end.
    whole = view._replace(high_watermark=view.log_end_offset)
    fetched = fetch.read(whole, max(offset, view.log_start_offset), 1)
    if fetched.slice is None or fetched.segment is None:
        return _FirstBatch(None, None, 0)
    position, number = fetched.slice.position, view.segments.index(fetched.segment)
    held = view.size_of(number) - position
    held += sum(map(view.size_of, range(number + 1, len(view.segments))))
    end = position + fetched.first_batch_size
    headers = next(batch_headers(fetched.segment.reader, start=position, end=end))
    if headers["base_offset"][0] != offset:
        return _FirstBatch(None, None, held)
    began_ms = int(headers["base_timestamp"][0])
    return _FirstBatch(None if began_ms < 0 else began_ms, int(headers["producer_epoch"][0]), held)
