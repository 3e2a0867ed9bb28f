"""Fetches batches of partitions from running brokers, as they are in the log: ``siltstone dump`` and
``verify`` with ``--bootstrap-server``.

It uses Siltstone's own client (``plain_client``), since client libraries decode batches, and hide what is
wrong with them::

    the first of --bootstrap-server that answers ─ Metadata ─► topics, the leader of each partition
    the leader ─ ListOffsets ─► log start offset, high watermark
               ─ Fetch, read_uncommitted ─► bytes ─ scan ─► windows of whole batches

A response is not trusted: its size is bounded (``plain_client``), only batches with sound headers become a
window, and each response must reach the offset that was asked for. Positions are in bytes from the first
batch that was read: no response says at which position of a segment a batch is.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from siltstone.base.closing import Closing
from siltstone.base.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    SiltstoneError,
    UnknownTopicError,
)
from siltstone.base.records.scan import SCAN_REASON, ScanEnd, scan_batches
from siltstone.broker import plain_client
from siltstone.broker.errors import Code
from siltstone.broker.plain_client import Address, PlainClient, code_text, plain_addresses
from siltstone.broker.wire.apis import FETCH, LIST_OFFSETS, METADATA
from siltstone.broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from siltstone.broker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from siltstone.broker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from siltstone.commands.directories import LIST_TOPICS
from siltstone.log.dump import DumpOptions, RowsAndFindings, window_rows
from siltstone.log.fetch import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from siltstone.log.names import TopicPartition
from siltstone.log.segments import Window
from siltstone.verify.fetched import FetchedCheck, FetchedVerdict

FETCH_BYTES = 8 << 20
"""The most bytes of batches in one response, unless its first batch is larger."""
_WAIT_MS = 500
_AGAIN = "run the command again"


class LogBounds(NamedTuple):
    """``start``: the log start offset; ``end``: the high watermark, the offset after the last record."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPartition:
    """A partition of a running cluster. ``where``: its topic and number; ``topic_id``: 16 bytes, zeros if the
    broker has no topic ids; ``leader``: where its leader listens, None if it has none."""

    where: TopicPartition
    topic_id: bytes
    leader: Address | None


class PartitionFetcher(Closing):
    """Connections to the leaders of partitions. ``config``: the client's properties, of which only
    ``security.protocol`` is read. Raises UsageError, BrokerUnreachableError."""

    def __init__(self, bootstrap_server: str, config: Mapping[str, str]) -> None:
        self._first = PlainClient.first_of(plain_addresses(bootstrap_server, config, "batches"))
        self._leaders: dict[Address, PlainClient] = {}

    def close(self) -> None:
        """Close all connections."""
        for broker in (self._first, *self._leaders.values()):
            broker.close()

    def partitions(
        self, topics: Collection[str] = (), numbers: Collection[int] = ()
    ) -> list[ClusterPartition]:
        """The partitions of topics, sorted. ``topics`` empty: all topics; ``numbers``: of each topic only the
        partitions with these numbers, empty: all. Raises UnknownTopicError, BrokerUnreachableError,
        BrokerRefusedError."""
        names = tuple(MetadataRequestTopic(name=name) for name in topics) if topics else None
        request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        response = self._first.ask(METADATA, request, min_version=4)
        addresses = {node.node_id: Address(node.host, node.port) for node in response.brokers}
        partitions = {}
        for topic in response.topics:
            _raise_for_code(topic.error_code, str(topic.name))
            for row in topic.partitions:
                where = TopicPartition(str(topic.name), row.partition_index)
                partitions[where] = ClusterPartition(
                    where=where, topic_id=topic.topic_id, leader=addresses.get(row.leader_id)
                )
        for name in topics:
            existing = {where.partition for where in partitions if where.topic == name}
            missing = sorted({0, *numbers} - existing)  # every topic has a partition 0
            if missing:
                raise UnknownTopicError(f"topic {name!r} has no partition {missing[0]}", advice=LIST_TOPICS)
        return [
            partitions[where] for where in sorted(partitions) if not numbers or where.partition in numbers
        ]

    def offsets(self, partition: ClusterPartition) -> LogBounds:
        """The log start offset and high watermark of a partition. Raises BrokerUnreachableError,
        BrokerRefusedError."""
        return LogBounds(*(self._offset(partition, at) for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)))

    def windows(self, partition: ClusterPartition, offset: int, end: int) -> Iterator[Window]:
        """The batches from the one that has ``offset``, or if none has it the next one, to the last one that
        begins below ``end``. Both offsets lie within the bounds that ``offsets`` returns.

        Raises CorruptRecordError at a batch without a sound header, once all before it were yielded;
        BrokerUnreachableError, BrokerRefusedError, OffsetOutOfRangeError.
        """
        origin, path = 0, str(partition.where)
        while offset < end:
            # A bytearray, since the kernels are compiled for writable arrays.
            data = np.frombuffer(bytearray(self._fetch_batches(partition, offset)), np.uint8)
            scan = scan_batches(data)
            below_end = scan.batches[scan.batches["base_offset"] < end]
            if len(below_end):
                yield Window(data=data, batches=below_end, origin=origin)
            # The last batch of a response may be cut at its limit, but the first one is whole (KIP-74).
            is_cut = scan.outcome == ScanEnd.TRUNCATED and len(scan.batches)
            if scan.outcome != ScanEnd.CLEAN and not is_cut:
                raise CorruptRecordError(path, origin + scan.end, SCAN_REASON[scan.outcome])
            reached = int(scan.batches["last_offset"][-1]) + 1
            if reached <= offset:
                reason = f"the broker sends batches up to offset {reached - 1} for offset {offset}"
                raise CorruptRecordError(path, origin, reason)
            origin, offset = origin + scan.end, reached

    def _leader(self, partition: ClusterPartition) -> PlainClient:
        """The connection to a partition's leader. Raises BrokerRefusedError, BrokerUnreachableError."""
        if partition.leader is None:
            raise BrokerRefusedError("the partition has no leader", path=str(partition.where), advice=_AGAIN)
        if partition.leader == self._first.address:
            return self._first
        if partition.leader not in self._leaders:
            self._leaders[partition.leader] = PlainClient(partition.leader)
        return self._leaders[partition.leader]

    def _offset(self, partition: ClusterPartition, timestamp: int) -> int:
        """The offset that ListOffsets returns for a timestamp, ``EARLIEST_TIMESTAMP`` or
        ``LATEST_TIMESTAMP``."""
        where = partition.where
        wanted = ListOffsetsPartition(partition_index=where.partition, timestamp=timestamp)
        request = ListOffsetsRequest(topics=(ListOffsetsTopic(name=where.topic, partitions=(wanted,)),))
        response = self._leader(partition).ask(LIST_OFFSETS, request)
        for topic in response.topics:
            for row in topic.partitions:
                if TopicPartition(topic.name, row.partition_index) == where:
                    _raise_for_code(row.error_code, str(where))
                    return int(row.offset)
        raise BrokerRefusedError("the broker does not answer for the partition", path=str(where))

    def _fetch_batches(self, partition: ClusterPartition, offset: int) -> bytes:
        """The bytes of the batches from ``offset`` on: asks again until a response has some, at most for
        ``plain_client.SECONDS``. Raises as ``windows``."""
        deadline = time.monotonic() + plain_client.SECONDS
        while True:
            row = self._fetch(partition, offset)
            if row.error_code == Code.OFFSET_OUT_OF_RANGE:
                reason = f"offset {offset} is outside {row.log_start_offset} to {row.high_watermark} now"
                raise OffsetOutOfRangeError(reason, path=str(partition.where), advice=_AGAIN)
            _raise_for_code(row.error_code, str(partition.where))
            if isinstance(row.records, bytes | bytearray | memoryview) and row.records:
                return bytes(row.records)
            if time.monotonic() > deadline:
                reason = f"the broker sends no batch for offset {offset}"
                raise BrokerUnreachableError(reason, path=str(partition.where))

    def _fetch(self, partition: ClusterPartition, offset: int) -> PartitionData:
        """What the response to one Fetch request has of the partition. Raises as ``windows``."""
        where = partition.where
        wanted = FetchPartition(
            partition=where.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        topic = FetchTopic(topic=where.topic, topic_id=partition.topic_id, partitions=(wanted,))
        request = FetchRequest(max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, topics=(topic,))
        response = self._leader(partition).ask(FETCH, request)
        _raise_for_code(response.error_code, str(where))
        for row in (row for topic_response in response.responses for row in topic_response.partitions):
            if row.partition_index == where.partition:
                assert isinstance(row, PartitionData)
                return row
        raise BrokerRefusedError("the broker does not answer for the partition", path=str(where))


def check_partition(broker: PartitionFetcher, partition: ClusterPartition) -> FetchedVerdict:
    """The verdict on the batches that a partition has now: those that are appended during the check are not
    checked. Raises BrokerUnreachableError."""
    topic, number = partition.where.topic, partition.where.partition
    try:
        start, end = broker.offsets(partition)
    except (BrokerRefusedError, UnknownTopicError) as error:
        return FetchedVerdict.refused(topic, number, error.reason)
    check = FetchedCheck(topic, number, start, end)
    while True:
        try:
            for window in broker.windows(partition, check.next_offset, end):
                check.check(window)
        except CorruptRecordError as error:
            reason = f"{error.reason}; what follows was not read"
            check.findings.add("unreadable", reason, offset=check.next_offset, position=error.position)
        except OffsetOutOfRangeError as error:
            start, _ = broker.offsets(partition)
            if start > check.next_offset:
                check.continue_at(start)  # retention or DeleteRecords has removed the records before
                continue
            check.findings.add("refused", error.reason, offset=check.next_offset)
        except (BrokerRefusedError, UnknownTopicError) as error:
            check.findings.add("refused", error.reason, offset=check.next_offset)
        return check.finish()


def dump_rows(
    broker: PartitionFetcher,
    partition: ClusterPartition,
    options: DumpOptions,
    *,
    offset: int | None = None,
    max_batches: int | None = None,
) -> RowsAndFindings:
    """The rows and findings of ``log.dump`` for a partition, from the batch that has ``offset`` on (None: the
    log start), up to the high watermark.

    ``max_batches``, and ``max_bytes`` of the options, limit the batches; None: no limit. Raises
    OffsetOutOfRangeError, BrokerUnreachableError, BrokerRefusedError.
    """
    start, end = broker.offsets(partition)
    path = str(partition.where)
    if offset is not None and not start <= offset <= end:
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside {start} to {end}", path=path, advice="pass --offset between them"
        )
    yield {"type": "file", "file": path, "kind": "log", "startOffset": start}
    try:
        windows = broker.windows(partition, start if offset is None else offset, end)
        yield from window_rows(path, _first_of(windows, max_batches, options.max_bytes), options)
    except CorruptRecordError as error:
        yield error


def _first_of(windows: Iterator[Window], max_batches: int | None, max_bytes: int | None) -> Iterator[Window]:
    """Windows with the first batches, as many as both bounds allow; None: no bound. ``max_bytes``: batches
    that end at or below this position."""
    left = max_batches
    for window in windows:
        batches = window.batches if left is None else window.batches[:left]
        if max_bytes is not None:
            batches = batches[window.origin + batches["position"] + batches["size"] <= max_bytes]
        yield replace(window, batches=batches)
        left = None if left is None else left - len(batches)
        if left == 0 or len(batches) < len(window.batches):
            return


def _raise_for_code(code: int, path: str) -> None:
    """Raises the error that an error code of a response stands for; 0 is none."""
    if code == Code.NONE:
        return
    error: SiltstoneError
    if code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID):
        error = UnknownTopicError("there is no such topic or partition", path=path, advice=LIST_TOPICS)
    else:
        error = BrokerRefusedError(code_text(code), path=path)
    raise error
