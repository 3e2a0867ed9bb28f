"""Parses the records of ``__remote_log_metadata``, which say what became of each remote segment
(``RemoteLogMetadataSerde``, ``TopicBasedRemoteLogMetadataManager``).

A record's value, with the fields of Kafka's message definitions::

    frame version varint (1) | api key varint | version varint | fields … | tagged fields
    0 RemoteLogSegmentMetadataRecord         segment | start, end offset int64 | broker int32 |
                                             largest timestamp, time of the event int64 | epochs |
                                             size int32 | custom | state int8
    1 RemoteLogSegmentMetadataUpdateRecord   segment | broker int32 | time of the event int64 | custom |
                                             state int8
    2 RemotePartitionDeleteMetadataRecord    topic string | id 16 | partition int32 | broker int32 |
                                             time of the event int64 | state int8
    segment  topic string | topic id 16 | partition int32 | tagged fields | segment id 16 | tagged fields
    epochs   count + 1 varint, then for each: epoch int32 | offset int64 | tagged fields
    custom   size + 1 varint (0: null), bytes

States of a segment: 0 COPY_SEGMENT_STARTED, 1 COPY_SEGMENT_FINISHED, 2 DELETE_SEGMENT_STARTED,
3 DELETE_SEGMENT_FINISHED (``RemoteLogSegmentState``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from siltstone.base.records.metadata import FRAME_VERSION, MessageReader, UndecodableMessageError
from siltstone.log.names import TopicPartition

REMOTE_LOG_METADATA = "__remote_log_metadata"
COPY_FINISHED = 1
SEGMENT_STATES = (
    "COPY_SEGMENT_STARTED COPY_SEGMENT_FINISHED DELETE_SEGMENT_STARTED DELETE_SEGMENT_FINISHED".split()
)
_SEGMENT, _UPDATE, _PARTITION_DELETE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteState:
    """What the topic's records say of a segment. ``end_offset``: the last offset, included. ``epochs``:
    (leader epoch, its first offset), ascending. ``event_ms``: the time of the newest record; ``state``: the
    state in that record, an index in ``SEGMENT_STATES``."""

    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    event_ms: int
    state: int


RemoteStates = dict[tuple[TopicPartition, str], dict[str, RemoteState]]
"""(partition, topic id) → segment id → state."""


def apply_remote_record(states: RemoteStates, value: bytes) -> None:
    """Apply a record's value to ``states``; call this for the records in the order of their offsets. A record
    of an unknown type changes nothing. Raises UndecodableMessageError."""
    reader = MessageReader(value)
    frame_version = reader.varint()
    if frame_version != FRAME_VERSION:
        reason = f"frame version {frame_version}; only {FRAME_VERSION} is known"
        raise UndecodableMessageError(0, reason)
    api_key = reader.varint()
    reader.varint()  # the version: later ones only add tagged fields
    if api_key == _PARTITION_DELETE:
        partition_key = _partition_and_topic_id(reader)
        states[partition_key] = {}
        return
    if api_key not in (_SEGMENT, _UPDATE):
        return
    partition_key = _partition_and_topic_id(reader)
    reader.tagged_fields()
    segment_id = reader.uuid()
    reader.tagged_fields()
    segments = states.setdefault(partition_key, {})
    if api_key == _SEGMENT:
        segments[segment_id] = _segment(reader)
        return
    _broker, event_ms = reader.int32(), reader.int64()
    _skip_bytes(reader)
    state = _state(reader)
    if segment_id in segments:  # otherwise the topic's retention has deleted the record that began its copy
        segments[segment_id] = replace(segments[segment_id], state=state, event_ms=event_ms)


def _partition_and_topic_id(reader: MessageReader) -> tuple[TopicPartition, str]:
    topic, topic_id = reader.string(), reader.uuid()
    return TopicPartition(topic, reader.int32()), topic_id


def _segment(reader: MessageReader) -> RemoteState:
    start_offset, end_offset = reader.int64(), reader.int64()
    _broker, _largest_timestamp, event_ms = reader.int32(), reader.int64(), reader.int64()
    epochs = []
    for _ in range(reader.varint() - 1):
        epochs.append((reader.int32(), reader.int64()))
        reader.tagged_fields()
    _size = reader.int32()
    _skip_bytes(reader)
    return RemoteState(
        start_offset=start_offset,
        end_offset=end_offset,
        epochs=tuple(epochs),
        event_ms=event_ms,
        state=_state(reader),
    )


def _skip_bytes(reader: MessageReader) -> None:
    size = reader.varint()  # the size + 1, 0 for null
    if size:
        reader.take(size - 1, "custom metadata")


def _state(reader: MessageReader) -> int:
    position, state = reader.position, reader.int8()
    if not 0 <= state < len(SEGMENT_STATES):
        raise UndecodableMessageError(position, f"a remote segment has the unknown state {state}")
    return state
