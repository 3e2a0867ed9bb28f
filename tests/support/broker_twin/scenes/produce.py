"""Produce and InitProducerId: every code of a batch, acks, retries of idempotent producers."""

from __future__ import annotations

from typing import Any

from tests.support.broker_twin.batches import TIME_MS, batch, numbered
from tests.support.broker_twin.scenes.scene import NO_SUCH_ID, ZERO_ID
from tests.support.broker_twin.side import INIT_PRODUCER_ID, LIST_OFFSETS, PRODUCE, Side
from tests.support.broker_twin.wire import CLOSED, Connection
from tests.support.log.crafted import CONTROL, TRANSACTIONAL
from tests.support.records import twin

PRODUCER = 7_000_000
"""Ids of producers that no broker has given: both sides take them as new."""
OLD_MESSAGE = twin.message(0, b"k", b"v", magic=1, timestamp=TIME_MS)


def data_of(side: Side, version: int, topic: str, partitions: dict[int, bytes | None]) -> dict[str, Any]:
    """A topic of a Produce request, by id from 13 on."""
    parts = [{"index": number, "records": records} for number, records in partitions.items()]
    place = {"topic_id": side.topic_ids.get(topic, NO_SUCH_ID)} if version >= 13 else {"name": topic}
    return {**place, "partition_data": parts}


def produce(side: Side, versions: range) -> None:
    """One topic, a partition for each version; refused batches leave nothing behind."""
    side.create("produce", len(versions))
    side.create("produce-twice")
    side.create("produce-whole", 2)
    side.create("produce-compact", configs={"cleanup.policy": "compact"})
    side.create("produce-tiny", configs={"max.message.bytes": "30"})
    side.create("produce-small", configs={"max.message.bytes": "200"})
    side.create("produce-stamped", configs={"message.timestamp.type": "LogAppendTime"})
    side.create("produce-replicated", configs={"min.insync.replicas": "2"})
    side.create("produce-bounded", configs={"message.timestamp.before.max.ms": "3600000"})
    for version in versions:
        number = version - versions[0]
        _taken(side, version, number)
        _refused(side, version, number)
        _idempotent(side, version, number)
        _several(side, version, number)
        _whole_request(side, version)
        _without_answer(side, version, number)
    partitions = [{"partition_index": number, "timestamp": -1} for number in range(len(versions))]
    side.ask("ends", LIST_OFFSETS, 9, replica_id=-1, topics=[{"name": "produce", "partitions": partitions}])


def _ask(
    side: Side, what: str, version: int, topic: str, number: int, records: bytes | None, **fields: Any
) -> None:
    request = {"acks": -1, "timeout": 5000, **fields}
    data = data_of(side, version, topic, {number: records})
    side.ask(what, PRODUCE, version, topic_data=[data], **request)


def _taken(side: Side, version: int, number: int) -> None:
    _ask(side, "one record", version, "produce", number, batch())
    _ask(side, "several", version, "produce", number, batch(5))
    _ask(side, "acks 1", version, "produce", number, batch(), acks=1)
    for codec in range(1, 5):
        _ask(side, f"codec {codec}", version, "produce", number, batch(20, codec=codec))
    _ask(side, "other offsets", version, "produce", number, batch(2, base_offset=77))
    _ask(side, "stamped by the log", version, "produce-stamped", 0, batch(2))
    _ask(side, "more replicas wanted than there are", version, "produce-replicated", 0, batch())


def _refused(side: Side, version: int, number: int) -> None:
    good = batch()
    cases: dict[str, bytes | None] = {
        "no batch": b"",
        "two batches": good + good,
        "two batches, the first with a wrong checksum": batch(checksum=1) + good,
        "two batches, the second with a wrong checksum": good + batch(checksum=1),
        "two batches, the first of magic 1": OLD_MESSAGE + good,
        "two batches, the second of magic 1": good + OLD_MESSAGE,
        "two batches, the first of magic 3": batch(magic=3) + good,
        "two batches, the second of magic 3": good + batch(magic=3),
        "two batches, the first with zstd": batch(codec=4) + good,
        "two batches, the second with zstd": good + batch(codec=4),
        "two batches, the second cut": good + good[:-5],
        "two batches, the second's header cut": good + good[:20],
        "zstd and a wrong checksum": batch(attributes=4, checksum=1),
        "magic 3 and a wrong checksum": batch(magic=3, checksum=1),
        "control batch with a wrong checksum": batch(attributes=CONTROL, checksum=1),
        "half a batch": good[:-5],
        "a header's half": good[:20],
        "wrong checksum": batch(checksum=1),
        "magic 1": OLD_MESSAGE,
        "magic 3": batch(magic=3),
        "unknown codec": batch(attributes=5),
        "count too large": batch(last_delta=3),
        "no records": batch(0),
        "control batch": batch(attributes=CONTROL),
        "garbage behind": good + b"\0" * 7,
        "rubbish compressed": batch(attributes=4),
        "deltas out of order": batch(2, last_delta=0),
    }
    for what, records in cases.items():
        _ask(side, what, version, "produce", number, records)
    for acks in (2, -2):
        _ask(side, f"acks {acks}", version, "produce", number, good, acks=acks)
    _ask(side, "unknown topic", version, "produce-none", 0, good)
    _ask(side, "unknown partition", version, "produce", 99, good)
    _ask(side, "negative partition", version, "produce", -1, good)
    if version >= 13:
        zero = {"topic_id": ZERO_ID, "partition_data": [{"index": 0, "records": good}]}
        side.ask("zero id", PRODUCE, version, acks=-1, timeout=5000, topic_data=[zero])
    _ask(side, "no key, compacted", version, "produce-compact", 0, batch(3, key=None))
    _ask(side, "too large", version, "produce-small", 0, batch(20))
    _ask(side, "too large, wrong checksum", version, "produce-small", 0, batch(20, checksum=1))
    for what, header in (("plain", {}), ("other offset", {"base_offset": 3}), ("checksum", {"checksum": 1})):
        _ask(side, f"too large, no records, {what}", version, "produce-tiny", 0, batch(0, **header))
    _ask(side, "too large, wrong acks", version, "produce-small", 0, batch(20), acks=3)
    _ask(side, "no key and a wrong checksum", version, "produce-compact", 0, batch(2, key=None, checksum=1))
    _ask(side, "too old, wrong checksum", version, "produce-bounded", 0, batch(2, checksum=1))
    _ask(side, "wrong acks, wrong checksum", version, "produce", number, batch(checksum=1), acks=3)
    _ask(side, "wrong acks, unknown partition", version, "produce", 99, good, acks=3)
    _ask(side, "wrong acks, no batch", version, "produce", number, b"", acks=3)
    _ask(side, "too old", version, "produce-bounded", 0, batch(2))
    _ask(side, "transactional", version, "produce", number, _transactional(version))
    _ask(
        side,
        "unknown transaction",
        version,
        "produce",
        number,
        _transactional(version),
        transactional_id="nobody",
    )


def _transactional(version: int) -> bytes:
    return numbered(0, producer_id=PRODUCER + 90 + version, attributes=TRANSACTIONAL)


def _idempotent(side: Side, version: int, number: int) -> None:
    who = PRODUCER + version
    batches = {
        "first sequence": numbered(0, 2, producer_id=who),
        "next sequence": numbered(2, 3, producer_id=who),
        "first again": numbered(0, 2, producer_id=who),
        "next again": numbered(2, 3, producer_id=who),
        "gap": numbered(9, producer_id=who),
        "overlap": numbered(4, 3, producer_id=who),
        "older epoch": numbered(5, producer_id=who, epoch=-1),
        "new epoch, not at 0": numbered(5, producer_id=who, epoch=1),
        "new epoch": numbered(0, producer_id=who, epoch=1),
        "old epoch": numbered(1, producer_id=who, epoch=0),
        "starts anywhere": numbered(55, producer_id=who + 1000),
        "no sequence": numbered(-1, producer_id=who + 2000),
        "no epoch": numbered(0, producer_id=who + 3000, epoch=-1),
    }
    for what, records in batches.items():
        _ask(side, what, version, "produce", number, records)


def _several(side: Side, version: int, number: int) -> None:
    """Many partitions in one request: each has its own answer."""
    parts: dict[int, bytes | None] = {number: batch(2), 50: batch(), (number + 1) % 3: batch(checksum=2)}
    topics = [data_of(side, version, "produce", parts), data_of(side, version, "produce-none", {0: batch()})]
    side.ask("several partitions", PRODUCE, version, acks=-1, timeout=5000, topic_data=topics)
    side.ask("no topics", PRODUCE, version, acks=-1, timeout=5000, topic_data=[])
    twice = data_of(side, version, "produce-twice", {})
    part = {"index": 0, "records": batch()}
    twice["partition_data"] = [part, part]
    side.ask("partition twice", PRODUCE, version, acks=-1, timeout=5000, topic_data=[twice])


def _whole_request(side: Side, version: int) -> None:
    """One bad batch beside a good one: the head of a batch refuses all of the request, its content does not.

    In versions below 7 an unknown codec refuses all, too, unless its partition does not exist.
    """
    good, marked = batch(), _transactional(version)
    small = good[:8] + b"\0\0\0\3" + good[12:]
    cases: dict[str, tuple[bytes, bytes]] = {
        "good, magic 3": (good, batch(magic=3)),
        "magic 3, good": (batch(magic=3), good),
        "good, small size": (good, small),
        "good, negative size": (good, b"\xff" * 12),
        "good, 13 bytes": (good, good[:13]),
        "good, the head of magic 3": (good, batch(magic=3)[:17]),
        "good, wrong checksum": (good, batch(checksum=1)),
        "good, unknown codec": (good, batch(attributes=5)),
        "unknown codec, magic 3": (batch(attributes=5), batch(magic=3)),
        "transactional, magic 3": (marked, batch(magic=3)),
        "magic 3, transactional": (batch(magic=3), marked),
        "unknown codec, transactional": (batch(attributes=5), marked),
        "good, half of a transactional one": (good, marked[:-3]),
        "good, control batch": (good, batch(attributes=CONTROL)),
    }
    for what, (first, second) in cases.items():
        data = data_of(side, version, "produce-whole", {0: first, 1: second})
        side.ask(what, PRODUCE, version, acks=-1, timeout=5000, topic_data=[data])
    whole = data_of(side, version, "produce-whole", {0: good})
    for what, other in (("an unknown codec", batch(attributes=5)), ("magic 3", batch(magic=3))):
        nowhere = data_of(side, version, "produce-none", {0: other})
        topics = [whole, nowhere]
        side.ask(f"good, {what} elsewhere", PRODUCE, version, acks=-1, timeout=5000, topic_data=topics)
    again = data_of(side, version, "produce-whole", {1: good})
    nowhere = data_of(side, version, "produce-none", {1: good})
    topics = [whole, nowhere, again]
    side.ask("topic twice", PRODUCE, version, acks=-1, timeout=5000, topic_data=topics)
    partitions = [{"partition_index": number, "timestamp": -1} for number in range(2)]
    what = f"what was appended by version {version}"
    side.ask(
        what, LIST_OFFSETS, 9, replica_id=-1, topics=[{"name": "produce-whole", "partitions": partitions}]
    )


def _without_answer(side: Side, version: int, number: int) -> None:
    """acks 0: the next answer on the connection is the next request's; an error ends the connection."""
    for what, records in (
        ("acks 0", {number: batch()}),
        ("acks 0, refused", {number: batch(checksum=3)}),
        ("acks 0, good and refused", {number: batch(), (number + 1) % 3: batch(checksum=3)}),
        ("acks 0, good and magic 3", {number: batch(), (number + 1) % 3: batch(magic=3)}),
    ):
        with Connection(side.bootstrap) as connection:
            data = data_of(side, version, "produce", dict(records))
            connection.send(PRODUCE, version, {"acks": 0, "timeout": 5000, "topic_data": [data]})
            behind = connection.send(LIST_OFFSETS, 9, {"replica_id": -1, "topics": []})
            received = connection.receive()
            answer = CLOSED if received is None else {"next answer": received[0] - behind}
            side.keep(f"{what} v{version}", answer)


def init_producer_id(side: Side, versions: range) -> None:
    """Without a transactional id: always a new producer id."""
    # Kafka answers 14 while it waits for its first block of ids.
    side.until(lambda: new_id(side) >= 0, "producer ids")
    for version in versions:
        ids = [
            side.ask(what, INIT_PRODUCER_ID, version, transactional_id=None, **fields)["producer_id"]
            for what, fields in {
                "plain": {"transaction_timeout": 60_000},
                "endless": {"transaction_timeout": 2**31 - 1},
                "no timeout": {"transaction_timeout": 0},
                "of an old one": {"transaction_timeout": 1000, "producer_id": 4, "producer_epoch": 2},
                "epoch alone": {"transaction_timeout": 1000, "producer_epoch": 2},
                "id alone": {"transaction_timeout": 1000, "producer_id": 4},
            }.items()
        ]
        valid = [number for number in ids if number >= 0]
        side.keep(
            f"ids v{version}",
            {"all different": len(set(valid)) == len(valid), "rising": sorted(valid) == valid},
        )
        side.ask("empty id", INIT_PRODUCER_ID, version, transactional_id="", transaction_timeout=1000)


def new_id(side: Side) -> int:
    answer = side.quietly(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000)
    return int(answer["producer_id"])
