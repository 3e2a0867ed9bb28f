"""What came of crafted batches: the answers and the stored bytes, of a broker and of us, in one form."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

import siltstone as st
from siltstone.base.errors import LogError, RecordRefusedError
from siltstone.base.records.layout import HEADER
from tests.support.kafka.broker import Broker
from tests.support.kafka.polling import poll_until
from tests.support.kafka.produce import TIMEOUT_S, Answer, ProduceConnection
from tests.support.log.crafted import TOPICS, Row
from tests.support.records import twin

NOT_LEADER_OR_FOLLOWER = 6
NOW = -2
"""Stands for the time of the append, which differs."""
_KINDS = {
    "message without key": "keyless",
    "has no key": "keyless",
    "is out of range": "time",
    "has a timestamp outside": "time",
    "Invalid timestamp type": "time type",
    "claims log-append time": "time type",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One answer: ``refused`` are the records that it names, each with the kind of its message."""

    code: int
    base_offset: int = -1
    log_append_ms: int = -1
    refused: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A batch in a segment: its header but for size and checksum, whether that holds, and its records.

    ``body`` are the stored bytes where nothing was recompressed, else the records' own.
    """

    base_offset: int
    leader_epoch: int
    attributes: int
    last_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    sound: bool
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one row came to. ``messages``: the answers' texts, for whoever reads a failure."""

    given: tuple[Given, ...]
    stored: tuple[Stored, ...]
    messages: tuple[str, ...] = ()


def topic_of(row: Row) -> str:
    """The topic's name on either side."""
    return f"appends-{row.topic}"


def by_topic(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """A row's place in its list is its partition."""
    by_name: dict[str, list[Row]] = {name: [] for name in TOPICS}
    for row in rows:
        by_name[row.topic].append(row)
    return by_name


def of_kafka(broker: Broker, rows: Sequence[Row], start_ms: int) -> dict[str, Outcome]:
    """Send every row to a running broker, and look at its files."""
    outcomes = {}
    for topic, some in by_topic(rows).items():
        broker.create_topic(f"appends-{topic}", len(some), TOPICS[topic])
        with ProduceConnection(broker.bootstrap) as connection:
            for number, row in enumerate(some):
                answers = [_answer(connection, row, number, data) for data in row.sent]
                stored = _stored(broker.log_dirs[0] / f"{topic_of(row)}-{number}", row, start_ms)
                messages = tuple(_text(answer) for answer in answers)
                given = tuple(_of_answer(answer, start_ms) for answer in answers)
                outcomes[row.name] = Outcome(given=given, stored=stored, messages=messages)
    return outcomes


def _answer(connection: ProduceConnection, row: Row, partition: int, data: bytes) -> Answer:
    """The broker's answer, once it leads the partition: of a new topic it says so before that holds."""

    def answer_of_leader() -> Answer | None:
        answer = connection.send(
            topic_of(row), partition, data, version=row.version, transactional_id=row.transactional_id
        )
        return None if answer.code == NOT_LEADER_OR_FOLLOWER else answer

    return poll_until(answer_of_leader, what=f"leader of {topic_of(row)}-{partition}", timeout_s=TIMEOUT_S)


def of_us(directory: Path, rows: Sequence[Row], start_ms: int) -> dict[str, Outcome]:
    """Append every row to a log of ours."""
    outcomes = {}
    with st.open(directory, "a") as logs:
        for topic, some in by_topic(rows).items():
            logs.topics.create(f"appends-{topic}", partitions=len(some), config=dict(TOPICS[topic]))
            for number, row in enumerate(some):
                log = logs[topic_of(row), number]
                given, messages = [], []
                for data in row.sent:
                    try:
                        appended = log.append(data)
                        time = NOW if appended.log_append_ms >= start_ms else appended.log_append_ms
                        given.append(Given(code=0, base_offset=appended.first_offset, log_append_ms=time))
                        messages.append("")
                    except LogError as error:
                        given.append(Given(code=error.error_code, refused=_named(error)))
                        messages.append(str(error))
                stored = _stored(log.directory, row, start_ms)
                outcomes[row.name] = Outcome(given=tuple(given), stored=stored, messages=tuple(messages))
    return outcomes


def _of_answer(answer: Answer, start_ms: int) -> Given:
    return Given(
        code=answer.code,
        base_offset=answer.base_offset,
        log_append_ms=NOW if answer.log_append_ms >= start_ms else answer.log_append_ms,
        refused=tuple(
            (record_error.index, _kind(record_error.message or "")) for record_error in answer.record_errors
        ),
    )


def _text(answer: Answer) -> str:
    return f"{answer.message or ''} {answer.record_errors[:2] or ''}".strip()


def _named(error: LogError) -> tuple[tuple[int, str], ...]:
    if not isinstance(error, RecordRefusedError):
        return ()
    return tuple((record_error.index, _kind(record_error.message)) for record_error in error.record_errors)


def _kind(message: str) -> str:
    return next((kind for words, kind in _KINDS.items() if words in message), message)


def _stored(partition: Path, row: Row, start_ms: int) -> tuple[Stored, ...]:
    data = b"".join(path.read_bytes() for path in sorted(partition.glob("*.log")))
    recompressed = "compression.type" in TOPICS[row.topic]
    batches, position = [], 0
    while position < len(data):
        length = struct.unpack_from(">i", data, position + 8)[0] + 12
        batch = data[position : position + length]
        batches.append(_of_batch(batch, recompressed, start_ms))
        position += length
    return tuple(batches)


def _of_batch(batch: bytes, recompressed: bool, start_ms: int) -> Stored:
    base, _, epoch, magic, checksum, *fields = HEADER.unpack_from(batch)
    attributes, delta, first_time, last_time, producer, producer_epoch, sequence, count = fields
    assert magic == 2
    body = batch[61:]
    if recompressed and attributes & 7:
        body = twin.decompress(attributes & 7, body)
    return Stored(
        base_offset=base,
        leader_epoch=epoch,
        attributes=attributes,
        last_delta=delta,
        base_timestamp=first_time,
        max_timestamp=NOW if attributes & 8 and last_time >= start_ms else last_time,
        producer_id=producer,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        count=count,
        sound=crc32c(batch[21:]) == checksum,
        body=body,
    )
